"""``physim capacity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import stdout, styled, table_of
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.fleet_options import FLEET
from physim.cli.load_options import load_bundle, load_options
from physim.cli.objective_options import Goodput, Slo
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.subject_options import FitName, Gpu, Model, Tp

if TYPE_CHECKING:
    from physim.questions.capacity import Capacity


@with_bundles(load=load_bundle(), engine={**LAYOUT, **ENGINE, **FLEET})
def capacity(
    model: Model,
    gpu: Gpu,
    slo: Slo,
    goodput: Goodput = 0.9,
    tp: Tp = 1,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Find the highest rate of requests that meets latency objectives.

    With several servers (--replicas, --prefill and --decode) it is the rate of all of them.

    For example:

    physim capacity Qwen3-8B --gpu h100 --input 786 --output 251 --slo e2e_p99=5s
    """
    load = load_options(load)
    import physim
    from physim.cli.progress import running
    from physim.inputs.case import Case

    with running("searching"):
        found = physim.capacity(
            model, slo=slo, goodput=goodput, fit=fit, gpu=gpu, tp=tp, **load, **engine
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print_capacity(found)
    if plot is not None:
        from physim.plot import draw_load

        case = Case.from_options(
            model, gpu=gpu, tp=tp, **{**load, "rate": found.rate_rps}, **engine
        )
        write(
            lambda: draw_load(
                case,
                metrics=list(dict.fromkeys(one.metric for one in found.objectives)),
                objectives=found.objectives,
                mark=found.rate_rps,
                fit=fit,
            ),
            plot,
        )


def _print_capacity(found: Capacity) -> None:
    from physim.inputs.load import ARRIVALS
    from physim.questions.objectives import EACH

    console = stdout()
    prediction = found.prediction
    between = ""
    if found.interval_rps is not None:
        between = f" (90%: {found.interval_rps[0]:.3g} to {found.interval_rps[1]:.3g})"
    console.print(
        styled(
            f"{prediction.model} on {prediction.gpus}: up to ",
            (f"{found.rate_rps:.4g} requests/s", "bold"),
            f"{between}, limited by {found.limited_by}",
        )
    )
    rows = [
        [one.name, f"{one.seconds * 1e3:g} ms", f"{one.latency_s(prediction) * 1e3:.1f} ms"]
        for one in found.objectives
        if one.statistic != EACH
    ]
    if rows:
        console.print(table_of(("objective", "at most", "at that rate"), rows))
    if found.goodput is not None:
        each = ", ".join(
            f"{one.name} {one.seconds * 1e3:g} ms"
            for one in found.objectives
            if one.statistic == EACH
        )
        console.print(f"{found.goodput:.1%} of the requests meet {each}")
    assert prediction.load is not None
    servers = sum(pool.replicas for pool in prediction.pools)
    console.print(
        f"{prediction.output_tokens_per_s:.0f} tokens/s; saturation throughput of the "
        f"server{'s' * (servers > 1)} {prediction.saturation_rps:.4g} requests/s "
        f"({ARRIVALS[prediction.load.arrival]})"
    )
    if len(prediction.pools) > 1:
        console.print(prediction.describe_pools())
    for line in prediction.extrapolations:
        console.print(f"Beyond what was measured: {line}.", style="yellow")
