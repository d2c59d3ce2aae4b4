"""``physim export``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import stdout
from physim.cli.engine_options import ENGINE
from physim.cli.load_options import load_bundle, load_options
from physim.cli.output_options import AsJson, print_json
from physim.cli.subject_options import FitName, Gpu, Model, Tp

# Replays that are further off are coloured, percent.
_FAR_PCT = 10.0

app = typer.Typer(
    no_args_is_help=True,
    help="Write files for planners, autoscalers and routers, with their error.",
)
Folder = Annotated[Path, typer.Option(help="The folder to make.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a folder that is there.")]


@app.command()
@with_bundles(load=load_bundle(arrival="poisson"), engine=ENGINE)
def dynamo(
    model: Model,
    gpu: Gpu,
    out: Folder,
    tp: Tp = 1,
    apart: Annotated[
        bool, typer.Option("--apart", help="Prefill and decode run on servers of their own.")
    ] = False,
    fit: FitName = "default",
    force: Force = False,
    as_json: AsJson = False,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Write the profile of Dynamo's mocker, and the folders of its planner.

    The rates at which its error is stated are 20, 60 and 90% of what the server can do.

    For example:

    physim export dynamo Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out dynamo/qwen
    """
    load = load_options(load)
    from physim.cli.progress import running
    from physim.exports.writer import export_dynamo

    with running("exporting"):
        about = export_dynamo(
            model, out, apart=apart, fit=fit, force=force, gpu=gpu, tp=tp, **load, **engine
        )
    if as_json:
        print_json(about)
        return
    _print_error("profile", about["error"])
    if apart:
        stdout().print("Note: replays are of a server that does both, which it is not meant for.")
    stdout().print(f"written to {out}")


@app.command("llm-d")
@with_bundles(load=load_bundle(arrival="poisson"), engine=ENGINE)
def llm_d(
    model: Model,
    gpu: Gpu,
    out: Folder,
    tp: Tp = 1,
    namespace: Annotated[str, typer.Option(help="Namespace of the model's servers.")] = "default",
    link: Annotated[
        float | None, typer.Option(help="GB/s that carry KV from each GPU to another server.")
    ] = None,
    fit: FitName = "default",
    force: Force = False,
    as_json: AsJson = False,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Write what llm-d's autoscaler, router and fake vLLM take.

    The rates at which its error is stated are 20, 60 and 90% of what the server can do.

    For example:

    physim export llm-d Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out llm-d/qwen
    """
    load = load_options(load)
    from physim.cli.progress import running
    from physim.exports.writer import export_llm_d

    with running("exporting"):
        about = export_llm_d(
            model,
            out,
            namespace=namespace,
            link_bytes_per_s=None if link is None else link * 1e9,
            fit=fit,
            force=force,
            gpu=gpu,
            tp=tp,
            **load,
            **engine,
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
    console.print(f"written to {out}")


@app.command()
@with_bundles(load=load_bundle(arrival="poisson"), engine=ENGINE)
def blis(
    model: Model,
    gpu: Gpu,
    out: Folder,
    tp: Tp = 1,
    tolerance: Annotated[
        float, typer.Option(help="Interpolation error of 99% of steps, as a share of their time.")
    ] = 0.01,
    fit: FitName = "default",
    force: Force = False,
    as_json: AsJson = False,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Write the files of BLIS, of August and of today, beside a table of step times.

    The rates at which errors are stated are 20, 60 and 90% of what the server can do.

    For example:

    physim export blis Qwen3-14B --gpu h100 --tp 2 --input 575 --output 248 --out blis/qwen
    """
    load = load_options(load)
    from physim.cli.progress import running
    from physim.exports.writer import export_blis

    with running("exporting"):
        about = export_blis(
            model,
            out,
            tolerance=tolerance,
            fit=fit,
            force=force,
            gpu=gpu,
            tp=tp,
            **load,
            **engine,
        )
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
    console.print(f"written to {out}")


def _print_error(name: str, error: Mapping[str, Any]) -> None:
    """Says how far a form is off."""
    console = stdout()
    console.print(
        f"{name}: {error['median_pct']}% median error of a step, {error['worst_pct']}% at most"
    )
    for one in error["loads"]:
        far = max(abs(one["itl_pct"]), abs(one["ttft_pct"])) > _FAR_PCT
        console.print(
            f"  replayed at {one['share']:.0%} of saturation ({one['rate_rps']:.3g} req/s): "
            f"ITL {one['itl_pct']:+}%, TTFT {one['ttft_pct']:+}%",
            style="yellow" if far else None,
        )
