"""What sessions show of public records: a line or a small table, and a table of rows as a frame."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

import physim
from physim.fitting.drift import Shift
from physim.fitting.fit import Estimate
from physim.fitting.identified import Confusion, Known
from physim.fitting.next_runs import Measurement
from physim.inputs.case import CaseOptions, LoadAndEngineOptions, ServerOptions, SharedOptions
from physim.inputs.load_request import LoadOptions
from physim.inputs.profile import Window
from physim.measured.histogram import Histogram
from physim.measured.reports import _OPTIONS, DEGREES, ReportedServer
from physim.plot import steps as steps_pictures
from physim.plot.figures import readable_seconds
from physim.prediction.checked import Compared
from physim.printable import aligned, shown
from physim.questions.objectives import Requirements
from physim.questions.pareto import Tradeoff
from physim.questions.scaled_day import ScalingRun
from physim.questions.scaling import ScaledOptions
from physim.questions.schedule import ReplicaSchedule
from physim.questions.servers import Servers
from physim.questions.service_explanation import ExplainedPool
from physim.replay.scaling import Replica
from physim.service.scaling import Autoscaling, TargetTracking
from physim.step.lowering import PART_NAMES
from physim.validation.step_errors import StepComparison, StepErrors

REPORTS = Path(__file__).parent / "reports"
OPTIONS = {"gpu": "h100_sxm", "rate": 6.0, "input_tokens": 786, "output_tokens": 251}
MANY = tuple(map(float, range(1, 5001)))
RECORDS = {}


def record(make):
    RECORDS[make.__name__] = make
    return make


@pytest.fixture(scope="module")
def case():
    return physim.Case.from_options("Qwen/Qwen3-8B", **OPTIONS)


@pytest.fixture(scope="module")
def prediction(case):
    return physim.predict(case, fit="none")


@record
def cases(case, _):
    fleet = physim.Case.from_options("Qwen/Qwen3-8B", **OPTIONS, prefill={}, decode={"tp": 2})
    return [case, fleet, case.server, fleet.service, fleet.service.pools[0]]


@record
def loads(case, _):
    lengths = physim.RequestLengths.from_columns(MANY, MANY)
    stages = tuple(physim.Stage(1.0 + place, 60.0) for place in range(40))
    return [
        case.load,
        physim.Load(lengths=lengths, rate=2.0),
        physim.Load(physim.Lengths.empirical(MANY), 100, stages=stages),
        lengths,
        physim.Lengths.empirical(MANY),
        physim.Lengths.normal(300, 20),
        physim.Stage(2.0, 60.0),
        physim.ArrivalDispersion.from_arrivals(np.cumsum(np.tile([0.1, 0.4], 3000))),
        physim.Conversations(3, 4, 500, physim.Lengths.empirical(MANY), 200, 2.0, 50, 32768),
        physim.LoadProfile(tuple(Window(600.0 * k, 600.0, 1.0 + k, 300, 90) for k in range(144))),
        Window(0.0, 60.0, 2.0, lengths=lengths),
    ]


@record
def engines(*_):
    return [physim.Deployment(physim.Parallelism(tp=2), max_num_seqs=64), physim.Parallelism(tp=4)]


@record
def steps(*_):
    batch = physim.Batch.exact(np.array([1, 1, 500]), np.array([90, 800, 0]))
    time = physim.StepTime(0.01, 0.01, np.arange(len(PART_NAMES)) / 1e3)
    measured = physim.read_step_files([REPORTS / "step_table.csv"])
    errors = [StepErrors(kind, 10, 0.1, 0.11, 5.0, 4.0, 10.0, 90.0) for kind in ("decode", "all")]
    compared = StepComparison(measured, np.ones(len(measured)), "default", tuple(errors), ())
    return [batch, time, measured, compared]


@record
def predictions(_, prediction):
    figures = [
        Compared("all", metric, statistic, 0.1, 0.11)
        for metric in ("ttft", "itl", "tpot", "e2e")
        for statistic in ("mean", "p50", "p99")
    ]
    return [
        physim.Check(prediction, 5000, 3500, tuple(figures)),
        figures[0],
        prediction,
        prediction.pool,
        prediction.whole,
        prediction.whole.requests,
        *prediction.by_length(),
    ]


@record
def questions(case, prediction):
    objective = physim.Objective("ttft", "p99", 0.5)
    servers = Servers.__new__(Servers)
    servers.cases = (case,) * 500
    choice = physim.Choice(case, 2, prediction, prediction, {}, 0.1, "memory", 1.5, 8.0)
    row = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "layout": "tp 1", **_latencies(prediction)}
    values = {f"part_{place}": dict.fromkeys(_METRICS, 0.1) for place in range(30)}
    slopes = physim.Elasticities(values, values["part_0"], {}, 0.0, case, "default")
    pool = ExplainedPool(prediction.pool, 0.4, slopes, prediction.pool.step_parts_s)
    compared = physim.Comparison([row] * 50, [])
    return [
        objective,
        physim.Capacity(9.0, "ttft_p99", (objective,), None, (8.0, 10.0), prediction),
        choice,
        physim.Recommendation([choice] * 40, Requirements((objective,), 0.9), servers, {}),
        physim.Recommendation([], Requirements((objective,), 0.9), servers, {}),
        compared,
        slopes,
        pool,
        physim.ServiceExplanation(prediction, (pool,)),
        physim.CaseGrid({"model": ["Qwen/Qwen3-8B"], "rate": [1.0, 2.0], "tp": [1, 2, 4]}),
        Tradeoff(np.arange(900), np.ones(900), np.ones(900)),
    ]


_METRICS = ("ttft", "itl", "e2e", "saturation")


def _latencies(prediction):
    names = ("ttft_s", "itl_s", "e2e_s", "saturation_rps")
    return {name: getattr(prediction, name) for name in names}


@record
def days(case, _):
    windows = tuple(Window(600.0 * place, 600.0, 2.0, 300, 90) for place in range(12))
    replicas = [Replica(0.0, 0.0, 7200.0, 7200.0)]
    times = np.linspace(0.0, 7000.0, 3000)
    run = ScalingRun("running=32", 60.0, replicas, 1, 7200.0, times, times, times < 6000, 30)
    asked = Requirements((physim.Objective("ttft", "each", 0.5),), 0.9)
    schedule = ReplicaSchedule([case] * 12, windows, np.full(12, 2), np.full(12, 0.5))
    scaling = Autoscaling(TargetTracking("running", 32.0), 1, 6, 60.0)
    day = physim.ScaledDay(
        case, physim.LoadProfile(windows), asked, run, run, [run] * 4, scaling, "default"
    )
    return [run, day, schedule, TargetTracking("running", 32.0)]


@record
def fits(case, _):
    known = physim.load_fit("default")
    corrections = physim.Corrections(lm_head=0.1, host_step=-0.2)
    estimate = Estimate("lm_head", 0.2, 0.1, 0.0, 0.2, {})
    rows = [{"experiment": "a", "stage": place, "model": "m"} for place in range(90)]
    told = (Known("lm_head", 1.1, 1.2, 0.8), Known("sampling", 1.0, 2.0, 0.0))
    pairs = (Confusion(("lm_head", "sampling"), 0.9),) * 30
    left = {"ttft": 0.1, "itl": 0.1, "e2e": 0.1}
    run = Measurement("a step with 32 requests", "d32", "vllm bench " * 40, left)
    return [
        known,
        known.on(case),
        corrections,
        physim.Outcome(known, [estimate] * 24, rows, [], [], [1.0] * 50, case, ["dense"]),
        estimate,
        physim.Identified(told, pairs),
        physim.Drift("h100", 40, 0.001, 0.01, {"ttft": 4.0}, (Shift("lm_head", 1.1, 0.8),) * 20),
        run,
        physim.NextRuns(case, left, (run,) * 5, ("vllm bench",)),
    ]


@record
def measurements(case, _):
    summary = dict.fromkeys(("ttft_mean", "itl_mean", "e2e_mean"), _SUMMARY)
    row = {"experiment": "a", "metrics": {"ttft_mean": {"observed": 1.0, "predicted": 2.0}}}
    folds = [{"method": "physim", "metric": "ttft", **_SUMMARY}] * 9
    scrapes = [REPORTS / "metrics_before.txt", REPORTS / "metrics_after.txt"]
    bins = Histogram(np.append(np.arange(1.0, 200.0), math.inf), np.ones(200), 1e5)
    return [
        physim.Evaluation([row] * 90, summary, [row] * 9, [case] * 90),
        physim.Crossval("model", [row] * 90, folds),
        physim.read_metrics(scrapes, interval_s=60.0),
        bins,
    ]


_SUMMARY = {
    **dict.fromkeys(("mape", "median_ape", "bias_pct", "mean_of_folds", "coverage"), 12.3),
    **dict.fromkeys(("n", "refused"), 4),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_shown_in_a_few_lines(kind, case, prediction):
    for one in RECORDS[kind](case, prediction):
        text = repr(one)
        lines = text.splitlines()
        assert len(lines) <= 12, text
        assert max(map(len, lines)) <= 100, text
        assert "array(" not in text.lower(), text
        assert text.lstrip("<").startswith(type(one).__name__), text
        assert text.endswith((">", ")")), text


# Public classes that are no records of results: named options, errors, and what another test has.
OTHERS = {"CaseOptions", "InputError", "StepModel"}


def test_every_public_class_is_among_the_records(case, prediction):
    shown_here = {type(one).__name__ for make in RECORDS.values() for one in make(case, prediction)}
    public = {name for name in physim.__all__ if inspect.isclass(getattr(physim, name))}
    assert public - shown_here == OTHERS


# Classes whose instances hold rows.
WITH_ROWS = {
    *(
        "ArrivalDispersion",
        "CaseGrid",
        "Capacity",
        "Check",
        "Comparison",
        "Crossval",
        "Drift",
        "Histogram",
    ),
    *("Elasticities", "Evaluation", "Fit", "Identified", "LoadProfile", "MeasuredSteps"),
    *("NextRuns", "Outcome", "Prediction", "Recommendation", "ReplicaSchedule", "Requests"),
    *("RequestLengths", "ScaledDay", "ServiceExplanation", "StepComparison", "Tradeoff"),
}


def test_what_has_rows_is_a_frame(case, prediction):
    seen = {}
    for make in RECORDS.values():
        for one in make(case, prediction):
            if type(one).__name__ in WITH_ROWS and not _is_empty(one):
                seen[type(one).__name__] = one.to_frame()
    assert set(seen) == WITH_ROWS
    for name, frame in seen.items():
        assert len(frame) > 0, name
        assert all(isinstance(column, str) for column in frame.columns), name


def _is_empty(one):
    return isinstance(one, physim.Recommendation) and not one.choices


def test_long_lines_are_folded_and_long_tables_cut():
    text = shown(object(), "a " * 200, *["b"] * 30)
    assert len(text.splitlines()) == 12
    assert text.endswith("  ...>")
    rows = [("name", "n"), *((f"row {place}" * 20, str(place)) for place in range(30))]
    lines = aligned(rows)
    assert len(lines) == 10
    assert lines[-1] == "and 22 more"


def test_fields_are_shown_where_they_are_not_as_by_default():
    assert repr(physim.Parallelism(tp=2)) == "Parallelism(tp=2)"
    assert repr(physim.Load(100, 20, rate=2.0)) == (
        "Load(input_tokens=100, output_tokens=20, rate=2.0)"
    )


def test_text_that_acts_is_shown_as_text():
    assert "\x1b" not in shown(object(), "a\x1b[31m")


FUNCTIONS = [name for name in physim.__all__ if inspect.isfunction(getattr(physim, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_names_all_arguments(name):
    kinds = {one.kind for one in inspect.signature(getattr(physim, name)).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL} or (
        name == "read_profile"
    )


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (physim.predict, CaseOptions),
        (physim.capacity, CaseOptions),
        (physim.predict_trace, ServerOptions),
        (physim.recommend, LoadAndEngineOptions),
        (physim.compare, SharedOptions),
        (physim.scale, ScaledOptions),
        (physim.Case.from_options, CaseOptions),
        (physim.Load.of_requests, LoadOptions),
        (physim.read_report, ReportedServer),
    ],
)
def test_options_are_in_the_signature(function, options):
    assert set(options.__annotations__) <= set(inspect.signature(function).parameters)


def test_a_default_in_a_signature_is_as_if_left_out():
    for name in FUNCTIONS:
        own = inspect.signature(getattr(physim, name)).parameters.values()
        assert not any(one.default is ... for one in own), name
    # Whatever has a default may be given it.
    load = {"rate": 1.0, "input_tokens": 786, "output_tokens": 251}
    known = inspect.signature(physim.Case.from_options).parameters
    defaults = {one.name: one.default for one in known.values() if one.name not in ("cls", "model")}
    asked = {"gpu": "h100_sxm", **load}
    case = physim.Case.from_options("Qwen/Qwen3-8B", **{**defaults, **asked})
    assert case == physim.Case.from_options("Qwen/Qwen3-8B", **asked)
    assert physim.Case.from_options(case, **defaults) == case
    requests = physim.RequestLengths.from_columns([786], [251])
    assert physim.Load.of_requests(
        requests, rate=1.0, cached_tokens=None
    ) == physim.Load.of_requests(requests, rate=1.0)


def test_options_of_a_report_are_those_that_are_read():
    own = {*DEGREES, "prefix_caching", *_OPTIONS}
    assert set(ReportedServer.__annotations__) == own


def test_no_two_parts_of_a_step_share_a_color():
    colors = [steps_pictures._color(part) for part in range(len(PART_NAMES))]
    assert len(set(colors)) == len(colors)


@pytest.mark.parametrize(
    ("times", "unit"),
    [([0.02, 0.9], "ms"), ([0.02, 1.5], "s"), ([math.inf, 0.1], "ms"), ([], "ms")],
)
def test_short_times_are_drawn_in_milliseconds(times, unit):
    assert readable_seconds(times) == ({"ms": 1e3, "s": 1.0}[unit], unit)
