"""``physim data``: measured runs into the common form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import print_line
from physim.cli.engine_options import RECORDED
from physim.cli.output_options import writable
from physim.cli.subject_options import Gpu
from physim.measured.formats import FORMATS

app = typer.Typer(no_args_is_help=True, help="Turn reports and public data into measured runs.")


@app.command()
@with_bundles(server=RECORDED)
def read(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(FORMATS)}.")],
    path: Annotated[Path, typer.Argument(help="The report's file, or inference-perf's folder.")],
    model: Annotated[str, typer.Option(help="Name or hub id of the model.")],
    gpu: Gpu,
    out: Annotated[Path, typer.Option(help="CSV to write, or to append to.", callback=writable)],
    server_log: Annotated[
        Path | None,
        typer.Option(help="The server's log, for its engine's version, limits and KV blocks."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Name of the run; the report's if not given.")
    ] = None,
    output: Annotated[
        float | None, typer.Option(help="Tokens generated, if all requests had as many.")
    ] = None,
    prefix_caching: Annotated[
        bool | None, typer.Option(help="Whether prefixes were cached; yes if not given.")
    ] = None,
    prompt_groups: Annotated[
        int, typer.Option(help="Groups of prompts sent again and again; 0 if all differed.")
    ] = 0,
    prompts_per_group: Annotated[int, typer.Option(help="Different prompts of a group.")] = 1,
    lengths: Annotated[
        str | None,
        typer.Option(help="Preset or file of the requests that were sent, as `physim predict`."),
    ] = None,
    append: Annotated[bool, typer.Option(help="Keep what the CSV holds already.")] = False,
    *,
    server: Given,
) -> None:
    """Read a report and write its stages as rows for `physim fit` and `physim evaluate`.

    A report does not say how the server was started: pass its log, or its options.

    For example:

    physim data read vllm-bench r.json --model Qwen3-8B --gpu h100 --out runs.csv
    """
    from physim.measured.reports import read_report
    from physim.measured.stage_report import write_rows

    found = read_report(
        kind,
        path,
        model=model,
        gpu=gpu,
        output_tokens=output,
        experiment=experiment,
        server_log=server_log,
        prefix_caching=prefix_caching,
        prompt_groups=prompt_groups,
        prompts_per_group=prompts_per_group,
        lengths=lengths,
        **server,
    )
    write_rows(out, found, append)
    for row in found.to_dict("records"):
        print_line(
            f"stage {row['stage']}: {row['rate_rps']:g}/s, TTFT {row['ttft_mean'] * 1e3:.1f} ms, "
            f"E2E {row['e2e_mean']:.3f} s, {row['n_failed']} of "
            f"{row['n_success'] + row['n_failed']} failed"
        )
    for note in dict.fromkeys(filter(None, found["note"])):
        print_line(f"note: {note}")
    print_line(f"written to {out}")


@app.command()
def convert(
    kind: Annotated[
        str,
        typer.Argument(
            help="silicon or silicon-disagg (in aiconfigurator-core), or ml-energy with its file."
        ),
    ],
    path: Annotated[Path | None, typer.Argument(help="The file, of ml-energy.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write.", callback=writable)] = None,
) -> None:
    """Write public measurements as rows for `physim evaluate` and `physim fit`.

    silicon-disagg has the rows of NVIDIA's table whose prompts are computed on other GPUs than
    their answers; silicon has all others.

    For example:

    physim data convert silicon --out silicon.csv
    """
    from physim.errors import InputError
    from physim.measured import ml_energy, silicon, silicon_pools
    from physim.measured.stage_report import write_rows

    kinds = ("silicon", "silicon-disagg", "ml-energy")
    if kind not in kinds:
        raise InputError("kind", f"{kind!r} is unknown", f"use one of {', '.join(kinds)}")
    if out is None:
        raise InputError("--out", "is missing", "name the CSV to write")
    passed_over: Mapping[str, int] = {}
    if kind == "silicon":
        found = silicon.read()
    elif kind == "silicon-disagg":
        pools = silicon_pools.read()
        found, passed_over = pools.frame, pools.passed_over
    elif path is None:
        raise InputError("path", "is missing", "pass the file of ML.ENERGY runs")
    else:
        found = ml_energy.read(path)
    write_rows(out, found)
    print_line(f"{len(found)} rows written to {out}")
    reasons = Counter(reason for reason in found.get("left_out", ()) if reason)
    for reason, count in reasons.items():
        print_line(f"{count} of them count for no fit and no error: {reason}")
    for reason, count in passed_over.items():
        print_line(f"{count} more are not read: each {reason}")
