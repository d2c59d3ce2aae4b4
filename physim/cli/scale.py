"""``physim scale``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from physim import data
from physim.cli.bundles import Given, with_bundles
from physim.cli.comma_lists import ends_in, numbers_in
from physim.cli.console import milliseconds, print_line, stdout, table_of
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.fleet_options import FLEET
from physim.cli.load_options import LOAD
from physim.cli.objective_options import Goodput, Slo
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.cli.prices import Price, prices_in
from physim.cli.subject_options import FitName, Gpu, Model, Tp
from physim.errors import InputError
from physim.service.scaling import HOLD_S, LOOK_S, TOLERANCE

if TYPE_CHECKING:
    from physim.questions.scaled_day import ScaledDay
    from physim.questions.thresholds import Threshold

_PANEL = "Scaling"
_ARRIVALS = {name: LOAD[name] for name in ("arrival", "burstiness")}
_ROUTER = {name: FLEET[name] for name in ("router", "router_age_s")}


@with_bundles(arrivals=_ARRIVALS, fleet=_ROUTER, engine={**LAYOUT, **ENGINE})
def scale(
    model: Model,
    gpu: Gpu,
    slo: Slo,
    policy: Annotated[
        str,
        typer.Option(
            help="A metric and its target on each server, such as running=32, waiting=2, "
            "requests=40, kv=0.8 or ttft=500ms; requests=auto (running, kv) for the highest "
            "target that meets the objectives; or schedule=60s, for each window's servers so "
            "much earlier.",
            rich_help_panel=_PANEL,
        ),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Trace of a day to replay, as for `physim predict`.",
            rich_help_panel="Load",
        ),
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A day from which to draw requests, as for `physim recommend`.",
            rich_help_panel="Load",
        ),
    ] = None,
    goodput: Goodput = 0.9,
    least: Annotated[int, typer.Option(help="Minimum servers.", rich_help_panel=_PANEL)] = 1,
    most: Annotated[int, typer.Option(help="Maximum servers.", rich_help_panel=_PANEL)] = 8,
    start_up: Annotated[
        str,
        typer.Option(
            help="Seconds until a server serves, comma-separated; each is replayed.",
            rich_help_panel=_PANEL,
        ),
    ] = "0,60,120,300",
    look: Annotated[
        float, typer.Option(help="Seconds between looks at the metric.", rich_help_panel=_PANEL)
    ] = LOOK_S,
    tolerance: Annotated[
        float,
        typer.Option(help="Share by which the metric may miss its target.", rich_help_panel=_PANEL),
    ] = TOLERANCE,
    hold: Annotated[
        float | None,
        typer.Option(
            help="Seconds that fewer servers must suffice before one is turned off "
            f"(default: {HOLD_S:g}, or derived with an auto target).",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    window: Annotated[
        float, typer.Option(help="Length of a window of the day, seconds.", rich_help_panel="Load")
    ] = 600.0,
    hours: Annotated[
        str | None,
        typer.Option(help="Hours of the day to replay, such as 8:10.", rich_help_panel="Load"),
    ] = None,
    price: Price = None,
    tp: Tp = 1,
    seed: Annotated[int, typer.Option(help="Seed of replayed requests.")] = 0,
    fit: FitName = "default",
    as_json: AsJson = False,
    plot: Plot = None,
    hpa: Annotated[
        Path | None,
        typer.Option(
            help="Write the policy as a HorizontalPodAutoscaler (YAML).", callback=writable
        ),
    ] = None,
    keda: Annotated[
        Path | None,
        typer.Option(help="Write the policy as a KEDA ScaledObject (YAML).", callback=writable),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option(
            help="Write servers and GPUs over time, at the longest start-up, CSV.",
            callback=writable,
        ),
    ] = None,
    *,
    arrivals: Given,
    fleet: Given,
    engine: Given,
) -> None:
    """Replay a day with an autoscaler: goodput and GPU-hours, by start-up time of servers.

    It compares the autoscaler with a schedule that knows each window's need, and with a fixed
    number of servers. For example:

    physim scale Qwen3-8B --gpu h100 --trace day.csv --policy running=32 --slo ttft=1s
    """
    import physim
    from physim.cli.progress import running
    from physim.service.scaling import Timetable, read_policy

    span = None if hours is None else ends_in("--hours", hours, "8:10")
    starts = numbers_in("--start-up", start_up)
    asks = read_policy(policy, [(0.0, 1)], look, tolerance, hold)
    scheduled = isinstance(asks, Timetable)
    if scheduled and (hpa or keda):
        raise InputError("--hpa and --keda", "are about a target", "use --policy requests=auto")
    day = physim.read_profile(*profile, window_s=window) if profile else None
    with running("replaying"):
        found = physim.scale(
            model,
            day,
            trace=trace,
            window_s=window,
            slo=slo,
            policy=policy if scheduled else asks,
            goodput=goodput,
            least=least,
            most=most,
            start_ups_s=starts,
            hours=span,
            prices=prices_in(price),
            seed=seed,
            fit=fit,
            gpu=gpu,
            tp=tp,
            **arrivals,
            **fleet,
            **engine,
        )
    for line in found.notes:
        print_line(f"note: {line}", err=True)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_day(found)
    _write_files(found, hpa, keda, servers)
    if plot is not None:
        from physim.plot import draw_scaling

        write(lambda: draw_scaling(found), plot)


def _write_files(
    found: ScaledDay, hpa: Path | None, keda: Path | None, servers: Path | None
) -> None:
    from physim.exports.autoscalers import hpa_yaml, keda_yaml

    for path, text_of in ((hpa, hpa_yaml), (keda, keda_yaml)):
        if path is not None:
            text = text_of(found)
            with data.replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
    if servers is not None:
        with data.replacing(servers) as temporary:
            found.runs[-1].to_frame().to_csv(temporary, index=False)


def _print_day(found: ScaledDay) -> None:
    console = stdout()
    columns = ["servers", "start-up s", "goodput", "GPU-hours", "most", "TTFT p50 ms", "p99 ms"]
    columns.append("queue")
    costs = found.fixed.price is not None
    rows = []
    for run in (found.fixed, found.schedule, *found.runs):
        own = run.to_dict()
        cells = [
            run.name,
            "-" if run.start_up_s is None else f"{run.start_up_s:g}",
            f"{run.goodput:.2%}",
            f"{run.gpu_hours:.4g}",
            str(own["most_replicas"]),
            milliseconds(own["ttft_p50_s"]),
            milliseconds(own["ttft_p99_s"]),
            str(run.peak_waiting),
        ]
        rows.append(cells + ([f"{run.cost:.2f}"] if run.cost is not None else []))
    console.print(table_of([*columns, *(["cost"] if costs else [])], rows))
    server = found.case.service.where
    requests = len(found.fixed.kept)
    console.print(
        f"{requests:,} requests in {found.profile.hours:.3g} hours, servers of {server}; goodput: "
        "share of requests that meet every bound; most: servers asked for at "
        "once; queue: most requests that waited at once",
        style="dim",
    )
    if found.threshold is not None:
        console.print(_threshold(found.threshold))
    late = found.runs[-1]
    if late.missed is not None:
        console.print(
            f"With a start-up of {late.start_up_s:g} s the day misses {late.missed}.",
            style="yellow",
        )
    lost = found.lost_per_minute
    if lost is not None:
        between = " to ".join(f"{run.start_up_s:g}" for run in found.runs[:2])
        points = f"{100 * lost:.3g} points of goodput (from {between} s)"
        console.print(f"A minute of start-up costs {points}.")


def _threshold(own: Threshold) -> str:
    """A derived target, and what it rests on."""
    policy = own.policy
    return (
        f"{policy.name}, fewer after {policy.hold_s:g} s: a server then has {own.share:.0%} of the "
        f"{own.rate_rps:.3g} req/s that it can take ({own.limited_by}), the most with which the "
        f"day keeps to the objectives at a start-up of {own.start_up_s:g} s"
    )
