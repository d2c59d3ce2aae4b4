"""``physim explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from physim.cli.bundles import Given, with_bundles
from physim.cli.console import stdout, table_of
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.load_options import CLIENTS, RATE, load_bundle, load_options
from physim.cli.output_options import AsJson, Plot, print_json, write
from physim.cli.subject_options import FitName, Gpu, Model, Tp

if TYPE_CHECKING:
    from physim.questions.elasticities import Elasticities


@with_bundles(load=load_bundle(RATE, CLIENTS), engine={**LAYOUT, **ENGINE})
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
    """Say what the time to first token is spent on, and what latencies and capacity depend on.

    The latter in percent for one percent of each part.

    For example:

    physim explain Qwen3-8B --gpu h100 --rate 20 --input 786 --output 251
    """
    load = load_options(load)
    import physim
    from physim.cli.progress import running

    with running("differentiating"):
        found = physim.explain(model, fit=fit, gpu=gpu, tp=tp, **load, **engine)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_elasticities(found)
    if plot is not None:
        from physim.plot import draw_explanation

        write(lambda: draw_explanation(found), plot)


def _print_elasticities(found: Elasticities) -> None:
    from physim.prediction.evictions import evictions
    from physim.prediction.results import FIRST_TOKEN_PARTS
    from physim.questions.elasticities import METRICS

    console = stdout()
    metrics: Mapping[str, float] = found.metrics
    console.print(
        f"{found.case.what}: TTFT "
        f"{metrics['ttft'] * 1e3:.1f} ms, ITL {metrics['itl'] * 1e3:.1f} ms, E2E "
        f"{metrics['e2e']:.3f} s, saturation {metrics['saturation']:.3g} requests/s"
    )
    console.print("time to first token, ms")
    console.print(
        table_of(
            ("", "TTFT"),
            [
                [FIRST_TOKEN_PARTS[part], f"{seconds * 1e3:.1f}"]
                for part, seconds in found.ttft_parts_s.items()
                if seconds
            ],
        )
    )
    if found.speculation is not None:
        console.print(found.speculation.describe())
    for line in evictions(found.case, found.hit_rate, found.host_hit_rate):
        console.print(f"Note: {line}.", style="yellow")
    console.print("percent that each follows one percent more of")
    rows = [
        # Adding zero takes the sign from one that is rounded away.
        [part, *(f"{round(row[metric], 2) + 0.0:+.2f}" for metric in METRICS)]
        for part, row in found.notable().items()
    ]
    console.print(table_of(("", *(metric.upper() for metric in METRICS[:3]), "saturation"), rows))
