"""``physim recommend``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim import data
from physim.cli.bundles import Given, with_bundles
from physim.cli.comma_lists import degrees_in, names_in
from physim.cli.console import milliseconds, print_line, stdout, table_of
from physim.cli.engine_options import ENGINE, layout_lists
from physim.cli.load_options import (
    CLIENTS,
    RATE,
    WORKLOAD,
    load_bundle,
    load_options,
)
from physim.cli.objective_options import Goodput, Slo
from physim.cli.output_options import AsJson, drawable, print_json, writable, write
from physim.cli.prices import Price, prices_in
from physim.cli.subject_options import FitName, Model
from physim.errors import InputError
from physim.inputs.load_request import LoadRequest
from physim.options import options_of

if TYPE_CHECKING:
    from physim.questions.choices import Choice, Recommendation
    from physim.questions.objectives import Objective

# What is said of a load beside its profile.
_OF_A_DAY = ("arrival", "burstiness")


@with_bundles(
    load=load_bundle(RATE, CLIENTS, WORKLOAD),
    layouts=layout_lists(default=None),
    engine=ENGINE,
)
def recommend(
    model: Model,
    slo: Slo,
    goodput: Goodput = 0.9,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="GPUs, comma-separated; by default those with a price, or all measured ones."
        ),
    ] = None,
    price: Price = None,
    max_gpus: Annotated[int, typer.Option(help="Maximum GPUs in total.")] = 8,
    count: Annotated[int, typer.Option(help="Deployments to show.")] = 5,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A day to plan for: a trace (CSV), or Prometheus's counters (JSON; repeat it).",
            rich_help_panel="Load",
        ),
    ] = None,
    window: Annotated[
        float, typer.Option(help="Length of a window of the day, seconds.", rich_help_panel="Load")
    ] = 600.0,
    apart: Annotated[
        bool, typer.Option("--apart", help="Also search separate prefill and decode pools.")
    ] = False,
    fit: FitName = "default",
    as_json: AsJson = False,
    pareto: Annotated[
        Path | None,
        typer.Option(
            help="Draw tokens/s per GPU against tokens/s per user: a PNG or SVG (extra `plot`).",
            callback=drawable,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the GPUs that each window of the day needs.", callback=drawable),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(help="Write the servers of each window for the best, CSV.", callback=writable),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(help="Write a Kubernetes manifest of the best, YAML.", callback=writable),
    ] = None,
    *,
    load: Given,
    layouts: Given,
    engine: Given,
) -> None:
    """Find the cheapest deployments that meet latency objectives.

    It searches GPUs, layouts, limits, formats and numbers of servers. --tps, --pps, --dps and --eps
    restrict the layouts to these degrees. For example:

    physim recommend Qwen3-32B --rate 20 --input 2000 --output 300 --slo ttft_p99=2s

    physim recommend Qwen3-32B --profile day.csv --slo ttft_p99=2s --slo itl_mean=30ms
    """
    if not profile and (plot or schedule):
        raise InputError("--plot and --schedule", "are about a day", "give it with --profile")
    import physim
    from physim.cli.progress import running

    day = None
    if profile:
        _check_no_load(load)
        load = {name: load[name] for name in _OF_A_DAY}
        day = physim.read_profile(*profile, window_s=window)
    else:
        if all(load[name] is None for name in ("rate", "concurrency", "workload")):
            problem = "is missing"
            remedy = "give --rate, --concurrency, --workload or --profile"
            raise InputError("load", problem, remedy)
        load = load_options(load)
    with running("searching"):
        found = physim.recommend(
            model,
            slo=slo,
            gpus=names_in(gpus) if gpus else (),
            **degrees_in(layouts),
            prices=prices_in(price),
            max_gpus=max_gpus,
            goodput=goodput,
            count=count,
            profile=day,
            apart=apart,
            fit=fit,
            **load,
            **engine,
        )
    for line in day.notes if day is not None else ():
        print_line(f"note: {line}", err=True)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_recommendation(found)
        if apart:
            print_line(_apart(found))
    best = found.choices[0]
    if schedule is not None and best.schedule is not None:
        with data.replacing(schedule) as temporary:
            best.schedule.to_frame().to_csv(temporary, index=False)
    if plot is not None:
        from physim.plot import draw_schedule

        write(lambda: draw_schedule(found), plot)
    if manifest is not None:
        from physim.prediction.commands import manifest_of

        with data.replacing(manifest) as temporary:
            temporary.write_text(manifest_of(best.case, best.replicas), encoding="utf-8")
    if pareto is not None:
        from physim.plot import draw_pareto

        write(lambda: draw_pareto(found), pareto)
    for path in (schedule, plot, manifest, pareto):
        if path is not None and not as_json:
            print_line(f"written to {path}")


def _check_no_load(given: Mapping[str, Any]) -> None:
    """Refuses a load beside a profile."""
    if given["workload"] is not None:
        raise InputError("--workload", "is given by --profile already", "leave it out")
    for name, option in options_of(LoadRequest).items():
        # Where commands take text, so is the default that they give.
        own = given.get(name, option.default)
        if name not in _OF_A_DAY and str(own) != str(option.default):
            raise InputError(option.flag, "is given by --profile already", "leave it out")


def _print_recommendation(found: Recommendation) -> None:
    from physim.prediction.commands import serve_command

    console = stdout()
    costs = any(one.cost is not None for one in found.choices)
    of_day = found.choices[0].schedule is not None
    columns = ["servers", "GPUs", *(["day"] if costs and of_day else [])]
    columns += ["per 1M"] if costs else []
    columns += ["TTFT ms", "ITL ms", "E2E s", "room", "chance"]
    rows = []
    for place, one in enumerate(found.choices, 1):
        cells = [
            f"{place}: {_server(one)}",
            str(one.gpus),
            *([] if one.scheduled_price is None else [f"{one.scheduled_price:.2f}"]),
            *(["-" if one.cost is None else f"{one.cost:.2f}"] if costs else []),
            milliseconds(one.prediction.ttft_s),
            milliseconds(one.prediction.itl_s),
            "-" if one.prediction.e2e_s is None else f"{one.prediction.e2e_s:.2f}",
            f"{one.headroom:.0%}",
            f"{min(one.chances.values()):.0%}" if one.chances else "-",
        ]
        if one.schedule is not None:
            hours = one.schedule.gpu_hours(one.replicas), one.schedule.gpu_hours()
            cells += [f"{own:.4g}" for own in hours]
        rows.append(cells)
    columns += ["GPU-hours", "scaled"] if of_day else []
    console.print(table_of(columns, rows))
    notes = [
        f"searched {len(found.servers.cases):,} servers, each with every number of replicas",
        "room: share that is left of the tightest bound, or of the saturation throughput",
        "chance: of meeting the objective most in doubt",
    ]
    if any(one.replicas > 1 for one in found.choices):
        notes.append("requests reach the servers of a choice at random")
    if of_day:
        notes.append(
            "latencies, room and chance: of the window that leaves least room; scaled: GPU-hours "
            "with as many servers as each window takes, by which the cheapest is first"
        )
    if costs:
        scaled = ", scaled" if of_day else ""
        notes += [f"day: price of all windows{scaled}"] if of_day else []
        notes.append(f"per 1M: price of a million generated tokens{scaled}")
    console.print("; ".join(notes), style="dim")
    if safest := _safest(found.choices):
        console.print(safest)
    for place, one in enumerate(found.choices, 1):
        console.print(f"{place}: {', '.join(_figures(found.asked.objectives, one))}")
    limits = (f"{place} {one.limited_by}" for place, one in enumerate(found.choices, 1))
    console.print(f"limited by: {', '.join(limits)}")
    for place, one in enumerate(found.choices, 1):
        console.print(f"{place}: {serve_command(one.case)}")
    for line in dict.fromkeys(x for one in found.choices for x in one.prediction.extrapolations):
        console.print(f"Beyond what was measured: {line}.", style="yellow")
    if found.refused:
        total = sum(found.refused.values())
        reason = next(iter(found.refused))
        console.print(f"{total:,} more cannot be, such as: {reason}", style="dim")


def _safest(choices: Sequence[Choice]) -> str | None:
    """Which choice is surest to meet the objectives, and what it takes beside the first."""
    chances = [min(one.chances.values(), default=0.0) for one in choices]
    place = max(range(len(choices)), key=chances.__getitem__)
    if place == 0:
        return None
    first, safest = choices[0], choices[place]
    more = f"{safest.gpus} GPUs for {first.gpus}"
    if first.cost is not None and safest.cost is not None:
        more = f"{safest.cost / first.cost - 1:+.0%} in price"
    return f"safest: {place + 1}, a chance of {chances[place]:.0%} for {chances[0]:.0%} ({more})"


def _figures(objectives: Sequence[Objective], one: Choice) -> Iterator[str]:
    """What a choice has of each objective, and its price."""
    from physim.questions.objectives import EACH

    for objective in objectives:
        if objective.statistic != EACH:
            value = one.prediction.whole.latencies[objective.metric][objective.statistic]
            yield f"{objective.name} {value:.3g} s of {objective.seconds:g}"
    if one.price is not None:
        yield f"{one.price:.2f} an hour"


def _apart(found: Recommendation) -> str:
    """Whether prefill and decode apart beat both together."""
    split, together = found.split, found.choices[0].gpus
    if split is None:
        return "Apart: no pools of prefill and decode keep to the objectives on as many GPUs."
    verdict = "fewer" if split.gpus < together else "more" if split.gpus > together else "as many"
    one = split.prediction
    ttft, itl = (f"{milliseconds(value)} ms" for value in (one.ttft_s, one.itl_s))
    return (
        f"Apart: {split.describe()} keep to them on {split.gpus} GPUs, {verdict} "
        f"{'as' if verdict == 'as many' else 'than'} together ({together}): TTFT {ttft}, ITL {itl}."
    )


def _server(one: Choice) -> str:
    """Such as ``2 x Qwen3-32B on 4 x h100_sxm (tp 4), 64 requests, 8192 tokens``."""
    case, sizes = one.case, one.case.server.sizes
    layout = case.server.parallelism
    name = case.model.name.split("/")[-1]
    drafts = case.server.draft_tokens
    return (
        f"{one.replicas} x {name} on {layout.gpus} x {case.server.gpu.key} ({layout}), "
        f"{sizes.max_num_seqs} requests, {sizes.max_num_batched_tokens} tokens a step"
        + (f", {drafts} draft tokens" if drafts else "")
    )
