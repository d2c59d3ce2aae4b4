"""``physim explain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import stdout, table_of
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.fleet_options import FLEET
from physim.cli.load_options import CLIENTS, RATE, load_bundle, load_options
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.subject_options import FitName, Gpu, Model, Tp

if TYPE_CHECKING:
    from rich.console import RenderableType

    from physim.questions.elasticities import Elasticities
    from physim.questions.service_explanation import ServiceExplanation

# Components of a step that are printed, and the least share of its time that is.
_COMPONENTS, _LEAST = 6, 0.01


@with_bundles(load=load_bundle(RATE, CLIENTS), engine={**LAYOUT, **ENGINE, **FLEET})
def explain(
    model: Model,
    gpu: Gpu,
    tp: Tp = 1,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Show the parts of TTFT, and what limits latencies and saturation throughput.

    An elasticity is the percent change for one percent more of an input. With several servers the
    command says which pool saturates first, and explains one server of each.

    For example:

    physim explain Qwen3-8B --gpu h100 --rate 20 --input 786 --output 251
    """
    load = load_options(load)
    import physim
    from physim.cli.progress import running
    from physim.inputs.case import Case

    case = Case.from_options(model, gpu=gpu, tp=tp, **load, **engine)
    if not case.service.is_single:
        with running("differentiating"):
            service = physim.explain_service(case, fit=fit)
        if as_json:
            print_json(service.to_dict())
        else:
            _print_service(service)
        found = service.limiting.server
    else:
        with running("differentiating"):
            found = physim.explain(case, fit=fit)
        if as_json:
            print_json(found.to_dict())
        else:
            _print_elasticities(found)
    if plot is not None:
        from physim.plot import draw_explanation

        write(lambda: draw_explanation(found), plot)


def _print_service(found: ServiceExplanation) -> None:
    from physim.prediction.evictions import evictions

    console, one = stdout(), found.prediction
    itl = "-" if one.itl_s is None else f"{one.itl_s * 1e3:.1f} ms"
    console.print(
        f"{one.model} on {one.gpus}: TTFT {(one.ttft_s or 0.0) * 1e3:.1f} ms, ITL {itl}, E2E "
        f"{one.e2e_s or 0.0:.3f} s, saturation {one.saturation_rps:.3g} requests/s"
    )
    if len(one.pools) > 1:
        console.print(one.describe_pools())
    console.print("time to first token, ms")
    console.print(_first_token(one.ttft_parts_s))
    for own in found.pools:
        console.print()
        if len(one.pools) > 1:
            console.print(f"{' and '.join(own.pool.phases)} on {own.pool.pool.where}", style="bold")
        shares = [(name, share) for name, share in own.step_shares.items() if share >= _LEAST]
        parted = ", ".join(
            f"{name.replace('_', ' ')} {share:.0%}" for name, share in shares[:_COMPONENTS]
        )
        what = "a mean step" if "decode" in own.pool.phases else "a step of a mean prompt"
        console.print(f"{what} of {own.step_s * 1e3:.2f} ms: {parted}")
        if own.server.speculation is not None:
            console.print(own.server.speculation.describe())
        for line in evictions(own.server.case, own.server.hit_rate, own.server.host_hit_rate):
            console.print(f"Note: {line}.", style="yellow")
        console.print("change on one server, percent, for one percent more of")
        console.print(_slopes(own.server, own.metrics))


def _first_token(parts_s: Mapping[str, float]) -> RenderableType:
    """What the time to first token is spent on."""
    from physim.prediction.results import FIRST_TOKEN_PARTS, WAY_PARTS

    words = FIRST_TOKEN_PARTS | WAY_PARTS
    rows = [[words[part], f"{seconds * 1e3:.1f}"] for part, seconds in parts_s.items() if seconds]
    return table_of(("", "TTFT"), rows)


def _slopes(found: Elasticities, metrics: Sequence[str]) -> RenderableType:
    """What some metrics depend on."""
    rows = [
        # Adding zero takes the sign from one that is rounded away.
        [part, *(f"{round(row[metric], 2) + 0.0:+.2f}" for metric in metrics)]
        for part, row in found.notable(metrics).items()
    ]
    names = (one if one == "saturation" else one.upper() for one in metrics)
    return table_of(("", *names), rows)


def _print_elasticities(found: Elasticities) -> None:
    from physim.prediction.evictions import evictions
    from physim.questions.elasticities import METRICS

    console = stdout()
    metrics: Mapping[str, float] = found.metrics
    console.print(
        f"{found.case.what}: TTFT "
        f"{metrics['ttft'] * 1e3:.1f} ms, ITL {metrics['itl'] * 1e3:.1f} ms, E2E "
        f"{metrics['e2e']:.3f} s, saturation {metrics['saturation']:.3g} requests/s"
    )
    console.print("time to first token, ms")
    console.print(_first_token(found.ttft_parts_s))
    if found.speculation is not None:
        console.print(found.speculation.describe())
    for line in evictions(found.case, found.hit_rate, found.host_hit_rate):
        console.print(f"Note: {line}.", style="yellow")
    console.print("change in percent, for one percent more of")
    console.print(_slopes(found, METRICS))
