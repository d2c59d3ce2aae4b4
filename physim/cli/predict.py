"""``physim predict``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from physim.cli.bundles import Given, with_bundles
from physim.cli.check_tables import print_check
from physim.cli.console import print_line, stdout, styled, table_of
from physim.cli.engine_options import ENGINE, LAYOUT
from physim.cli.fleet_options import FLEET
from physim.cli.load_options import (
    CLIENTS,
    LOAD,
    RATE,
    STAGES,
    WORKLOAD,
    check_seed,
    load_bundle,
    load_options,
    says_a_load,
)
from physim.cli.output_options import AsJson, Plot, print_json, writable, write
from physim.cli.subject_options import FitName, Gpu, Model, Tp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from physim.inputs.case import Case
    from physim.prediction.checked import Check
    from physim.prediction.requests import LengthGroup
    from physim.prediction.results import PoolPrediction, Prediction, StageLatencies

# Times from which on TTFT and ITL are shown in seconds.
_IN_SECONDS_S = 10.0


@with_bundles(
    load=load_bundle(RATE, CLIENTS, STAGES, WORKLOAD), engine={**LAYOUT, **ENGINE, **FLEET}
)
def predict(
    model: Model,
    gpu: Gpu,
    tp: Tp = 1,
    requests: Annotated[int | None, LOAD["requests"].told] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Requests to replay: a CSV (arrival_s, input_tokens, output_tokens, "
            "prefix_group), or a trace of Azure or Mooncake.",
            rich_help_panel="Load",
        ),
    ] = None,
    timeout: Annotated[float | None, LOAD["timeout_s"].told] = None,
    warm_up: Annotated[float, LOAD["warm_up_s"].told] = 0.0,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOUND",
            help="A bound on each request, such as ttft=500ms or tpot=30ms, to see how many "
            "meet them all. May be repeated.",
        ),
    ] = None,
    by_length: Annotated[
        bool,
        typer.Option(
            "--by-length",
            help="Also print TTFT and E2E by prompt length; --plot then draws TTFT over it.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also replay the load, and print both side by side."),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="fluid, or replay (request by request); the default for a trace is replay."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of replayed requests; 0 by default.")
    ] = None,
    fit: FitName = "default",
    mixed: Annotated[
        str,
        typer.Option(
            help="Steps with prefill and decode: additive, weighted-average or smooth-weighted."
        ),
    ] = "additive",
    serve_command: Annotated[
        bool,
        typer.Option("--serve-command", help="Also print the commands of server and load."),
    ] = False,
    llm_d_report: Annotated[
        Path | None,
        typer.Option(
            help="Write the prediction here as llm-d's Benchmark Report, JSON.", callback=writable
        ),
    ] = None,
    as_json: AsJson = False,
    plot: Plot = None,
    *,
    load: Given,
    engine: Given,
) -> None:
    """Predict TTFT, ITL, E2E and throughput of a model on a GPU under a load.

    Engine options default to the engine's own for the GPU. The load is a --rate, clients
    (--concurrency), one --stage after another, or a --trace, which is replayed. Requests may be
    turns of conversations (--turns, --think).

    For example:

    physim predict Qwen3-8B --gpu h100 --rate 6 --input 786 --output 251
    """
    engine = {"tp": tp, **engine}
    import physim
    from physim.cli.progress import running
    from physim.errors import InputError
    from physim.inputs.case import Case

    _check_alone(check, trace, method)
    method = method or ("fluid" if trace is None else "replay")
    check_seed(seed, trace is None and (check or method == "replay"), "--method replay or --check")
    checked: Check | None = None
    objectives = _of_each_request(slo or [])
    if trace is not None:
        talks = str(load["turns"]) not in ("1", "1.0") or load["think_s"]
        if requests is not None or says_a_load(load) or talks or warm_up:
            raise InputError("trace", "cannot be combined with a load", "give one of the two")
        case = Case.from_options(model, gpu=gpu, mixed=mixed, **engine)
        commands = _commands(case) if serve_command else {}
        with running("replaying" if method == "replay" else "predicting"):
            prediction = physim.predict_trace(
                case, trace, timeout_s=timeout, fit=fit, method=method
            )
    else:
        beside = {"requests": requests, "timeout_s": timeout, "warm_up_s": warm_up}
        load = load_options({**load, **beside})
        case = Case.from_options(
            model,
            gpu=gpu,
            **load,
            mixed=mixed,
            **engine,
        )
        # What cannot be asked for is refused before the prediction, not after.
        commands = _commands(case) if serve_command else {}
        with running("predicting and replaying" if check else "predicting"):
            checked = physim.check(case, seed=seed or 0, fit=fit) if check else None
            prediction = (
                checked.prediction
                if checked is not None
                else physim.predict(case, method=method, seed=seed or 0, fit=fit)
            )
    if llm_d_report is not None:
        from physim.measured.llm_d_report import write_report

        write_report(prediction, llm_d_report)
    goodput = prediction.goodput(**objectives) if objectives else None
    groups = prediction.by_length() if by_length else []
    if as_json:
        more: dict[str, Any] = {} if goodput is None else {"goodput": goodput}
        more |= {"by_length": [group.to_dict() for group in groups]} if by_length else {}
        more |= {} if checked is None else {"check": checked.to_dict()}
        print_json(prediction.to_dict() | more | commands)
    else:
        _print_prediction(prediction)
        if by_length:
            stdout().print()
            stdout().print("By tokens of the prompt, quarters and then the longest tenth:")
            stdout().print(_of_lengths(groups))
        if checked is not None:
            print_check(checked)
        if goodput is not None:
            stdout().print(f"{goodput:.1%} of the requests meet {', '.join(slo or [])}.")
        for line in commands.values():
            # To be pasted, so in one piece.
            print_line(line)
        if serve_command:
            _print_missing(case)
    if plot is not None:
        from physim.plot import (
            draw_by_length,
            draw_deployment,
            draw_pools,
            draw_timeline,
            draw_way,
        )

        if by_length:
            write(lambda: draw_by_length(prediction), plot)
        elif prediction.timeline is not None and prediction.timeline.pools:
            write(lambda: draw_pools(prediction), plot)
        elif prediction.timeline is not None:
            write(lambda: draw_timeline(prediction), plot)
        elif len(prediction.pools) > 1:
            write(lambda: draw_way(prediction), plot)
        else:
            # Of replicas one under its share of the load.
            server = case.of_pool(case.service.pools[0])
            write(lambda: draw_deployment(server, fit=fit), plot)


def _check_alone(check: bool, trace: Path | None, method: str | None) -> None:
    """Refuses to hold a replay against a replay."""
    from physim.errors import InputError

    for name, given in (("--trace", trace is not None), ("--method replay", method == "replay")):
        if check and given:
            raise InputError(
                "--check", f"replays the load, as {name} does", "leave one of the two out"
            )


def _commands(case: Case) -> dict[str, str]:
    """The commands that start servers and, if there is a load, put them under that."""
    from physim.prediction.commands import bench_command, serve_commands

    commands = serve_commands(case)
    return commands | ({"bench_command": bench_command(case)} if case.load else {})


def _print_missing(case: Case) -> None:
    """Prints what the command that starts a server lacks."""
    from physim.prediction.commands import missing_for

    missing = missing_for(case)
    if missing:
        print_line(f"physim: note: {missing}", err=True)


def _of_each_request(slo: list[str]) -> dict[str, float]:
    """What each request is held to: seconds, by metric."""
    if not slo:
        return {}
    from physim.errors import InputError
    from physim.prediction.requests import OF_A_REQUEST
    from physim.questions.objectives import EACH, objectives_of

    objectives = objectives_of(slo)
    for one in objectives:
        if one.statistic != EACH:
            metric = one.metric if one.metric in OF_A_REQUEST else "tpot"
            raise InputError(
                f"slo {one.name}",
                "is a statistic of all requests",
                f"give a bound on each request, such as {metric}={one.seconds * 1e3:g}ms, or ask "
                "`physim capacity`",
            )
    return {one.metric: one.seconds for one in objectives}


def _print_prediction(prediction: Prediction) -> None:
    from rich.table import Table

    console = stdout()
    how = "" if prediction.method == "fluid" else ", replayed"
    about = prediction.describe().removeprefix(prediction.model)
    console.print(styled((prediction.model, "bold"), f"{about}; fit: {prediction.fit}{how}"))
    for pool in prediction.pools:
        if len(prediction.pools) > 1:
            console.print(f"{pool.pool.where}: {' and '.join(pool.phases)}", style="dim")
        console.print(pool.describe_engine(), style="dim")
        console.print(pool.describe_memory(), style="dim")
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column(justify="left")
    numbers.add_column(justify="right", style="bold")
    numbers.add_column(style="dim")
    for row in _numbers(prediction):
        numbers.add_row(*row)
    bars = [_bars(pool) for pool in prediction.pools]
    for part in (numbers, _first_token(prediction), _latencies(prediction), *bars):
        if part is not None:
            console.print()
            console.print(part)
    load = prediction.load
    if load is not None and load.concurrency is not None and load.requests is not None:
        console.print(
            f"All clients start at once, and means are over all {load.requests} requests."
        )
    if prediction.saturated and prediction.ttft_s is None:
        console.print(
            f"The load is above capacity ({prediction.saturation_rps:.3g} req/s): the queue "
            "grows without end, so TTFT and E2E have no steady value.",
            style="yellow",
        )
    if prediction.scenario:
        console.print(f"Assumed, as not given: {', '.join(prediction.scenario)}.", style="dim")
    for line in prediction.assumptions:
        console.print(f"Note: {line}.", style="yellow")
    for line in prediction.extrapolations:
        console.print(f"Beyond what was measured: {line}.", style="yellow")


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.1f} ms" if value < _IN_SECONDS_S else f"{value:.1f} s"


def _numbers(prediction: Prediction) -> list[tuple[str, str, RenderableType]]:
    e2e = "-" if prediction.e2e_s is None else f"{prediction.e2e_s:.3f} s"
    capacity, whole = prediction.saturation_rps, prediction.whole
    use = prediction.requests_per_s / capacity
    served = f"{prediction.requests_per_s:.3g} of at most {capacity:.3g} req/s ({use:.0%})"
    if use > 1.0:
        above = f"above the saturation throughput of {capacity:.3g} req/s"
        served = f"{prediction.requests_per_s:.3g} req/s, {above}"
    if prediction.timeline is not None:
        served = f"{prediction.requests_per_s:.3g} req/s, from the first to the last"
    rows: list[tuple[str, str, RenderableType]] = [
        (
            "TTFT",
            _milliseconds(prediction.ttft_s),
            f"time to first token, mean{_between(prediction, 'ttft_s')}",
        ),
        (
            "ITL",
            _milliseconds(prediction.itl_s),
            f"time between tokens, mean{_between(prediction, 'itl_s')}",
        ),
        ("E2E", e2e, f"time of a request, mean{_between(prediction, 'e2e_s')}"),
        (
            "throughput",
            f"{prediction.output_tokens_per_s:.0f} tok/s",
            served,
        ),
    ]
    if whole.arrived is not None and whole.completed is not None:
        lost = whole.arrived - whole.completed
        if round(lost) > 0:
            rows.append(("given up", f"{lost:.0f}", f"of {whole.arrived:.0f} requests"))
    if prediction.timeline is not None:
        # The engine's state below is no mean of a load that changes.
        stage = "the busiest stage" if prediction.stages else "such a load"
        rows.append(("", "", styled((f"{stage}, if it stayed:", "not dim"))))
        rows.append(("saturation", f"{capacity:.3g} req/s", "served at most"))
    for pool in prediction.pools:
        rows += _of_pool(pool, prediction)
    if prediction.link_rps is not None:
        most = f"{prediction.link_rps:.3g} req/s"
        rows.append(("link", most, "sent from pool to pool at most"))
    return rows


def _of_pool(pool: PoolPrediction, prediction: Prediction) -> list[tuple[str, str, RenderableType]]:
    """What a server of a pool does; of pools apart, also what the pool saturates at."""
    from physim.service.phases import PREFILL

    several = len(prediction.pools) > 1
    each = " at a server" if pool.replicas > 1 else ""
    rows: list[tuple[str, str, RenderableType]] = []
    if several:
        saturation = f"{pool.saturation_rps:.3g} req/s"
        rows.append((" and ".join(pool.phases), saturation, "served at most"))
    if PREFILL not in pool.phases or not several:
        rows.append(
            (
                "batch",
                f"{pool.batch:.1f}",
                f"requests decode in a step{each}, {pool.running:.1f} run",
            )
        )
    rows.append(("KV use", f"{pool.kv_use:.1%}", f"of {pool.kv_blocks:,} blocks{each}"))
    asked = prediction.load is not None and prediction.load.cached_tokens
    if PREFILL in pool.phases and (pool.hit_rate or asked):
        rows.append(("hit rate", f"{pool.hit_rate:.1%}", "of prompt tokens, in the prefix cache"))
    if pool.server.kv.host is not None:
        what = "of prompt tokens, come up from host memory"
        rows.append(("from host", f"{pool.host_hit_rate:.1%}", what))
    if pool.server.kv.disk is not None:
        what = "of prompt tokens, come up from disk, through host memory"
        rows.append(("from disk", f"{pool.disk_hit_rate:.1%}", what))
    return rows


def _first_token(prediction: Prediction) -> RenderableType | None:
    """What the time to first token of requests that pass several pools is spent on."""
    from physim.prediction.results import FIRST_TOKEN_PARTS, WAY_PARTS

    if len(prediction.pools) == 1 or not prediction.ttft_parts_s:
        return None
    told = FIRST_TOKEN_PARTS | WAY_PARTS
    rows = [
        [told[name], _milliseconds(seconds)]
        for name, seconds in prediction.ttft_parts_s.items()
        if seconds >= 5e-5
    ]
    return table_of(["time to first token", ""], rows)


def _between(prediction: Prediction, name: str) -> str:
    """Where nine of ten measurements lie, if the fit knows, in the unit of the mean."""
    found, mean_s = prediction.intervals.get(name), getattr(prediction, name)
    if found is None:
        return ""
    scale, unit = (1.0, "s") if name == "e2e_s" or (mean_s or 0.0) >= _IN_SECONDS_S else (1e3, "ms")
    low, high = (_figures(scale * value) for value in found)
    if not math.isfinite(found[1]):
        return f"; 90%: {low} {unit} or more"
    return f"; 90%: {low} to {high} {unit}"


def _figures(value: float) -> str:
    """Three figures, written out."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _latencies(prediction: Prediction) -> RenderableType:
    """Means and percentiles of the whole load and of its stages."""
    from physim.metrics import METRICS, STATISTICS

    columns = ["", "", *STATISTICS]
    rows = []
    for number, part in enumerate((prediction.whole, *prediction.stages)):
        name = "" if not prediction.stages else "all" if number == 0 else _stage(part)
        for metric in METRICS:
            values = part.latencies.get(metric, {})
            cells = (_milliseconds(values[c]) if c in values else "-" for c in columns[2:])
            rows.append([name, METRICS[metric].label, *cells])
            name = ""
    return table_of(columns, rows)


def _of_lengths(groups: Sequence[LengthGroup]) -> RenderableType:
    """TTFT and E2E of groups of requests by prompt."""
    from physim.metrics import METRICS, STATISTICS

    columns = ["prompt", "share", "", *STATISTICS]
    rows = []
    for group in groups:
        ends = sorted({round(group.least_tokens), round(group.most_tokens)})
        names = ["-".join(map(str, ends)), f"{group.share:.0%}"]
        for metric in ("ttft", "e2e"):
            values = group.latencies.get(metric, {})
            cells = (_milliseconds(values.get(c)) for c in STATISTICS)
            rows.append([*names, METRICS[metric].label, *cells])
            names = ["", ""]
    return table_of(columns, rows)


def _stage(part: StageLatencies) -> str:
    return f"{part.rate:g}/s, {part.duration_s:g} s"


def _bars(pool: PoolPrediction, width: int = 30) -> RenderableType:
    from rich.table import Table

    from physim.service.phases import PHASES

    ranked = sorted(pool.step_parts_s.items(), key=lambda part: -part[1])
    longest = ranked[0][1]
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    name = "a step" if pool.phases == PHASES else f"a step, {pool.phases[0]}"
    table.add_row(name, f"{pool.step_s * 1e3:.2f} ms", "100%", "")
    for name, seconds in ranked:
        share = seconds / pool.step_s
        if share >= 0.0005:
            bar = "█" * max(round(width * seconds / longest), 1)
            table.add_row(
                f"  {name.replace('_', ' ')}", f"{seconds * 1e3:.2f}", f"{share:.1%}", bar
            )
    return table
