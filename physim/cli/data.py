"""``physim data``: measured runs into the common form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import print_line, stdout, table_of
from physim.cli.engine_options import RECORDED
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.cli.subject_options import FitName, OptionalGpu
from physim.measured.formats import AUTO, FORMATS

if TYPE_CHECKING:
    from physim.measured.steps import MeasuredSteps
    from physim.validation.step_errors import StepErrors

# Of those that tables of times show.
_PERCENTS = (50, 90, 99)

app = typer.Typer(no_args_is_help=True, help="Turn reports and public data into measured runs.")


@app.command()
@with_bundles(server=RECORDED)
def read(
    kind: Annotated[
        str,
        typer.Argument(help=f"{AUTO} (recognises it), {', '.join(FORMATS)}."),
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="The report, or inference-perf's folder; for metrics two scrapes.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV to write, or to append to.", callback=writable)],
    model: Annotated[
        str | None,
        typer.Option(help="Name or hub id of the model; an llm-d report may name it."),
    ] = None,
    gpu: OptionalGpu = None,
    server_log: Annotated[
        Path | None,
        typer.Option(help="The server's log, for its engine's version, limits and KV blocks."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Name of the run; the report's if not given.")
    ] = None,
    output: Annotated[
        float | None, typer.Option(help="Tokens of each answer, if all had the same.")
    ] = None,
    input_tokens: Annotated[
        float | None, typer.Option("--input", help="Mean prompt tokens (mlperf).")
    ] = None,
    prefix_caching: Annotated[
        bool | None, typer.Option(help="Whether prefixes were cached; yes if not given.")
    ] = None,
    prompt_groups: Annotated[
        int, typer.Option(help="Groups of prompts that were repeated; 0 if all prompts differed.")
    ] = 0,
    prompts_per_group: Annotated[int, typer.Option(help="Different prompts in a group.")] = 1,
    lengths: Annotated[
        str | None,
        typer.Option(help="Preset or file of the sent requests, as for `physim predict`."),
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between two scrapes of metrics.")
    ] = None,
    counted: Annotated[
        Path | None,
        typer.Option(
            help="Write all counts of metrics as JSON, with the bins of histograms.",
            callback=writable,
        ),
    ] = None,
    append: Annotated[bool, typer.Option(help="Append to the CSV.")] = False,
    *,
    server: Given,
) -> None:
    """Read a report and write its stages as rows for `physim fit` and `physim evaluate`.

    Only llm-d's report says how the server was started. For others pass its log, or its options.

    For example:

    physim data read vllm-bench r.json --model Qwen3-8B --gpu h100 --out runs.csv
    """
    from physim.errors import InputError
    from physim.measured.recognised import format_of
    from physim.measured.reports import read_report
    from physim.measured.stage_report import write_rows

    if kind == AUTO:
        kind = format_of(paths)
        print_line(f"read as {kind}")
    if counted is not None and kind != "metrics":
        raise InputError("--counted", f"has no meaning for {kind}", "leave it out")
    found = read_report(
        kind,
        paths,
        model=model,
        gpu=gpu,
        output_tokens=output,
        input_tokens=input_tokens,
        experiment=experiment,
        server_log=server_log,
        prefix_caching=prefix_caching,
        prompt_groups=prompt_groups,
        prompts_per_group=prompts_per_group,
        lengths=lengths,
        interval_s=interval,
        **server,
    )
    write_rows(out, found, append)
    if kind == "metrics":
        _print_counted(paths, interval, counted)
    for row in found.to_dict("records"):
        print_line(
            f"stage {row['stage']}: {row['rate_rps']:g}/s, TTFT {row['ttft_mean'] * 1e3:.1f} ms, "
            f"E2E {row['e2e_mean']:.3f} s, {row['n_failed']} of "
            f"{row['n_success'] + row['n_failed']} failed"
        )
    for note in dict.fromkeys(filter(None, found["note"])):
        print_line(f"note: {note}")
    print_line(f"written to {out}")


def _print_counted(paths: Sequence[Path], interval: float | None, out: Path | None) -> None:
    """Prints what metrics counted beside a row's means, and writes all of it if asked to."""
    from physim import data
    from physim.measured.metrics import read_metrics

    counted = read_metrics(paths, interval)
    if out is not None:
        data.write_json(out, counted.to_dict())
    rows = [
        [
            what,
            f"{times.count:.0f}",
            *(f"{value * 1e3:.1f}" for value in (times.mean, *map(times.percentile, _PERCENTS))),
        ]
        for what, times in counted.times.items()
        if times.count
    ]
    print_line(f"{counted.engine}, {counted.requests:.0f} requests in {counted.duration_s:.1f} s")
    columns = ("times, ms", "", "mean", *(f"p{percent}" for percent in _PERCENTS))
    stdout().print(table_of(columns, rows))
    print_line(
        f"prompts of {counted.mean_prompt:.0f} tokens, {100 * counted.hit_rate:.0f}% of them found "
        f"in the prefix cache; outputs of {counted.mean_output:.0f}; {counted.preemptions:.0f} "
        "preemptions"
    )
    if counted.kv_usage == counted.kv_usage:
        print_line(f"KV cache in use: {100 * counted.kv_usage:.0f}%")
    if counted.accepted_length == counted.accepted_length:
        print_line(f"tokens of a step that verifies drafts: {counted.accepted_length:.2f}")


@app.command()
def template(
    out: Annotated[Path, typer.Option(help="CSV to write.", callback=writable)],
) -> None:
    """Write a table of measured runs to fill in, with the columns that it needs and no others.

    For example:

    physim data template --out runs.csv
    """
    from physim.data import replacing
    from physim.errors import InputError
    from physim.measured import template as runs

    if out.exists():
        raise InputError(str(out), "is there already", "name another file; rows may be in it")
    with replacing(out) as temporary:
        temporary.write_text(runs.template())
    print_line(f"written to {out}: seconds, tokens, and requests per second")
    print_line(f"columns that may be added: {', '.join(runs.OPTIONAL)}")


@app.command()
def convert(
    kind: Annotated[
        str,
        typer.Argument(
            help="silicon or silicon-disagg (in aiconfigurator-core), or ml-energy with its file."
        ),
    ],
    path: Annotated[Path | None, typer.Argument(help="The file (ml-energy).")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV to write.", callback=writable)] = None,
) -> None:
    """Write public measurements as rows for `physim evaluate` and `physim fit`.

    silicon-disagg has the rows of NVIDIA's table with separate prefill and decode; silicon has
    all others.

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
        print_line(f"{count} of them are left out of fits and errors: {reason}")
    for reason, count in passed_over.items():
        print_line(f"{count} more are not read: each {reason}")


@app.command()
@with_bundles(server=RECORDED)
def steps(
    paths: Annotated[list[Path], typer.Argument(help="Files of one format.")],
    model: Annotated[
        str | None, typer.Option(help="Predict the steps of this model: a name or hub id.")
    ] = None,
    gpu: OptionalGpu = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the steps here, as CSV or Parquet.", callback=writable),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="iteration-log, forward-pass-metrics, vllm-bench-forward, forward-table, "
            "step-trace or table; detected if not given.",
        ),
    ] = None,
    where: Annotated[
        str, typer.Option(help='Only rows of a table for which this holds, such as "tp == 2".')
    ] = "",
    clock: Annotated[
        str | None,
        typer.Option(help="What forward-pass metrics time: gpu, worker or scheduler."),
    ] = None,
    server_log: Annotated[
        Path | None,
        typer.Option(help="The server's log, for its engine's version, limits and KV blocks."),
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(help="Mean context in tokens, if the file has none."),
    ] = None,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    server: Given,
) -> None:
    """Read measured steps, summarise them, and compare predictions with them.

    For example:

    physim data steps server.log --server-log server.log --model Qwen3-8B --gpu h100
    """
    from physim.errors import InputError
    from physim.measured import step_table
    from physim.measured.step_files import read_step_files

    if (model is None) != (gpu is None):
        missing = "--model" if model is None else "--gpu"
        raise InputError(missing, "is missing", "give --model and --gpu, or neither")
    if out is not None:
        step_table.check_name(out)
    found = read_step_files(paths, kind=kind, where=where, clock=clock)
    if out is not None:
        step_table.write(out, found)
    if model is None:
        _print_steps(found, (), (), as_json)
    else:
        from physim.validation.step_errors import compare_steps

        options, logged = _server_options(found, server_log, server)
        compared = compare_steps(found, model, fit=fit, context=context, gpu=str(gpu), **options)
        _print_steps(compared.steps, compared.errors, [*logged, *compared.notes], as_json)
        if plot is not None:
            from physim.plot import draw_measured_steps

            write(lambda: draw_measured_steps(compared), plot)
    if out is not None and not as_json:
        print_line(f"written to {out}")


def _server_options(
    steps: MeasuredSteps, server_log: Path | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]]:
    """How the server was started, by what is given, its log and the steps' file, with notes."""
    from physim.measured import server_log as server_logs

    known = {"engine": steps.engine, "engine_version": steps.engine_version}
    logged = {} if server_log is None else dict(server_logs.read(server_log))
    notes = logged.pop("notes", [])
    for name in ("quantization", "prefix_caching"):
        logged.pop(name, None)
    found = {**known, **logged, **{k: v for k, v in given.items() if v is not None}}
    return {name: value for name, value in found.items() if value is not None}, notes


def _print_steps(
    steps: MeasuredSteps, errors: Sequence[StepErrors], notes: Sequence[str], as_json: bool
) -> None:
    from dataclasses import asdict

    from physim.measured.step_summary import summary_of
    from physim.measured.steps import CLOCKS

    kinds = summary_of(steps)
    notes = [*steps.notes, *notes]
    if as_json:
        print_json(
            {
                "source": steps.source,
                "clock": steps.clock,
                "kinds": [asdict(one) for one in kinds],
                "errors": [asdict(one) for one in errors],
                "notes": notes,
            }
        )
        return
    count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    print_line(f"{count}; the clock covers {CLOCKS[steps.clock]}")
    rows = [
        [
            one.kind,
            f"{one.steps}",
            f"{100 * one.time_share:.0f}%",
            f"{one.decode_requests:.1f}",
            "-" if one.context_tokens != one.context_tokens else f"{one.context_tokens:.0f}",
            f"{one.prefill_tokens:.0f}",
            f"{one.median_s * 1e3:.2f}",
            f"{one.p90_s * 1e3:.2f}",
        ]
        for one in kinds
    ]
    columns = ("steps", "", "of time", "decoding", "context", "prompt tokens", "median ms", "p90")
    stdout().print(table_of(columns, rows))
    if errors:
        print_line("errors of predictions, percent")
        rows = [
            [
                one.kind,
                f"{one.steps}",
                f"{one.mean_pct:.1f}",
                f"{one.median_pct:.1f}",
                f"{one.bias_pct:+.1f}",
                f"{one.within_10pct:.0f}%",
            ]
            for one in errors
        ]
        stdout().print(
            table_of(("steps", "", "mean", "median", "bias of time", "within 10%"), rows)
        )
    for note in notes:
        print_line(f"note: {note}")
