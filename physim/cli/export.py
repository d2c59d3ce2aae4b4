"""``physim export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from physim.cli.bundles import CommandOption, Given, annotated, with_bundles
from physim.cli.console import stdout
from physim.cli.engine_options import ENGINE
from physim.cli.load_options import load_bundle, load_options
from physim.cli.output_options import AsJson, print_json
from physim.cli.subject_options import FitName, Gpu, Model, Tp

# Replays that are further off are coloured, percent.
_FAR_PCT = 10.0

app = typer.Typer(
    no_args_is_help=True,
    help="Write files for planners, autoscalers, routers and simulators, with their error.",
)
Folder = Annotated[Path, typer.Option("--out", help="The folder to make.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing folder.")]

# What every export takes.
SUBJECT: Mapping[str, CommandOption] = {
    "model": annotated(Model),
    "folder": annotated(Folder),
    "gpu": annotated(Gpu),
    "tp": annotated(Tp, 1),
    "fit": annotated(FitName, "default"),
    "force": annotated(Force, False),
}
LOAD = load_bundle()


@app.command()
@with_bundles(subject=SUBJECT, load=LOAD, engine=ENGINE)
def dynamo(
    apart: Annotated[
        bool, typer.Option("--apart", help="Prefill and decode run on separate servers.")
    ] = False,
    as_json: AsJson = False,
    *,
    subject: Given,
    load: Given,
    engine: Given,
) -> None:
    """Write profiles for Dynamo's mocker and planner.

    It states its error at 20, 60 and 90% of saturation throughput.

    For example:

    physim export dynamo Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out dynamo/qwen
    """
    from physim.exports.writer import export_dynamo

    about = _exported(export_dynamo, subject, load, engine, apart=apart)
    if as_json:
        print_json(about)
        return
    _print_error("profile", about["error"])
    note = (
        "the replays are of one server that does both; --apart is for servers of their own."
        if apart
        else f"{about['note']}."
    )
    stdout().print(f"Note: {note}")
    _print_folder(subject)


@app.command("llm-d")
@with_bundles(subject=SUBJECT, load=LOAD, engine=ENGINE)
def llm_d(
    namespace: Annotated[str, typer.Option(help="Namespace of the model's servers.")] = "default",
    link: Annotated[
        float | None, typer.Option(help="GB/s that carry KV from each GPU to another server.")
    ] = None,
    as_json: AsJson = False,
    *,
    subject: Given,
    load: Given,
    engine: Given,
) -> None:
    """Write files for llm-d's autoscaler, router and fake vLLM.

    It states its error at 20, 60 and 90% of saturation throughput.

    For example:

    physim export llm-d Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out llm-d/qwen
    """
    from physim.exports.writer import export_llm_d

    carried = None if link is None else link * 1e9
    about = _exported(
        export_llm_d, subject, load, engine, namespace=namespace, link_bytes_per_s=carried
    )
    if as_json:
        print_json(about)
        return
    console, three, fake = stdout(), about["iteration_ms"], about["fake_server"]
    console.print("alpha {alpha:g}, beta {beta:g}, gamma {gamma:g} ms".format(**three))
    _print_error("iterations", about["error"])
    console.print(f"peakPrefillThroughput: {about['peak_prefill_tokens_per_s']:.0f} tokens/s")
    console.print(
        f"llm-d-inference-sim: decode within {fake['decode_pct']}% of physim's steps, prompts "
        f"alone within {fake['prefill_pct']}%"
    )
    _print_folder(subject)


@app.command("sglang-simulator")
@with_bundles(subject=SUBJECT, load=LOAD, engine=ENGINE)
def sglang_simulator(
    as_json: AsJson = False,
    *,
    subject: Given,
    load: Given,
    engine: Given,
) -> None:
    """Write a replay table for SGLang's simulator, and a predictor that asks physim's own table.

    It states their errors at 20, 60 and 90% of saturation throughput.

    For example:

    physim export sglang-simulator Qwen3-14B --gpu h100 --engine sglang --input 575 --output 248
    --out sglang/qwen
    """
    from physim.exports.writer import export_sglang_simulator

    about = _exported(export_sglang_simulator, subject, load, engine)
    if as_json:
        print_json(about)
        return
    for name, error in about["errors"].items():
        _print_error(name.replace("_", " "), error)
    stdout().print(f"start the simulator with --max-total-tokens {about['max_total_tokens']}")
    _print_folder(subject)


@app.command("llmservingsim")
@with_bundles(subject=SUBJECT, load=LOAD, engine=ENGINE)
def llmservingsim(
    as_json: AsJson = False,
    *,
    subject: Given,
    load: Given,
    engine: Given,
) -> None:
    """Write layer profiles for LLMServingSim.

    It states its error at 20, 60 and 90% of saturation throughput.

    For example:

    physim export llmservingsim Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out sim/qwen
    """
    from physim.exports.writer import export_llmservingsim

    about = _exported(export_llmservingsim, subject, load, engine)
    if as_json:
        print_json(about)
        return
    _print_error("layers", about["error"])
    if about["gpus"] > 1:
        stdout().print(
            "Note: this error includes physim's all-reduces; the simulator computes its own."
        )
    _print_folder(subject)


@app.command()
@with_bundles(subject=SUBJECT, load=LOAD, engine=ENGINE)
def blis(
    tolerance: Annotated[
        float, typer.Option(help="Interpolation error of 99% of steps, as a share of their time.")
    ] = 0.01,
    as_json: AsJson = False,
    *,
    subject: Given,
    load: Given,
    engine: Given,
) -> None:
    """Write the files for BLIS of August 2026 and for current BLIS, with a table of steps.

    It states errors at 20, 60 and 90% of saturation throughput.

    For example:

    physim export blis Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out blis/qwen
    """
    from physim.exports.writer import export_blis

    about = _exported(export_blis, subject, load, engine, tolerance=tolerance)
    if as_json:
        print_json(about)
        return
    for name, error in about["errors"].items():
        _print_error(name, error)
    console, profile = stdout(), about["kernel_profile"]["error_pct"]
    console.print(
        f"kernel profile: {profile['decode_steps']}% mean error of steps that only decode, "
        f"{profile['mixed_steps']}% of others"
    )
    for name, reason in about["left_out"].items():
        console.print(f"left out {name}: {reason}", style="yellow")
    _print_folder(subject)


def _exported(
    export: Callable[..., dict[str, Any]], subject: Given, load: Given, engine: Given, **own: Any
) -> dict[str, Any]:
    """Exports, and says so on a terminal while it lasts."""
    from physim.cli.progress import running

    options = load_options(load)
    with running("exporting"):
        return export(**subject, **own, **options, **engine)


def _print_folder(subject: Given) -> None:
    stdout().print(f"written to {subject['folder']}")


def _print_error(name: str, error: Mapping[str, Any]) -> None:
    """Says how far a form is off."""
    console = stdout()
    console.print(
        f"{name}: {error['median_pct']}% median error of a step, {error['worst_pct']}% at most"
    )
    far = [max(abs(one["itl_pct"]), abs(one["ttft_pct"])) > _FAR_PCT for one in error["loads"]]
    for one, is_far in zip(error["loads"], far, strict=True):
        console.print(
            f"  replayed at {one['share']:.0%} of saturation ({one['rate_rps']:.3g} req/s): "
            f"ITL {one['itl_pct']:+}%, TTFT {one['ttft_pct']:+}%",
            style="yellow" if is_far else None,
        )
    if any(far):
        console.print(
            f"  more than {_FAR_PCT:g}% off: this form does not follow physim's steps there, but a "
            "table does (physim table)",
            style="yellow",
        )
