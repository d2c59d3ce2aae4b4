"""What is asked, as Python's functions answer it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from physim import api
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.grids.store import measured_gpus
from physim.http.bodies import CasesBody, PredictBody, RecommendBody, StepBody, checked
from physim.http.bounds import Bounds, check_most
from physim.http.case_options import check_gpu, options_in
from physim.inputs.attempts import layout_axes
from physim.inputs.case import Case
from physim.prediction.intervals import predict_with_intervals
from physim.questions.candidates import wanted
from physim.questions.recommendation import recommend
from physim.step.lowering import PART_NAMES
from physim.step.many_batches import step_times
from physim.step.model import StepModel

# Step models that are kept.
_MODELS = 32
_Content = dict[str, Any]

# Whose tokens some columns of a step's batches count.
_REQUESTS_OF = {
    "context": "decode_requests",
    "query_tokens": "decode_requests",
    "chunk": "prefill_requests",
    "cached": "prefill_requests",
}


def predicted(content: Mapping[str, Any], bounds: Bounds) -> _Content:
    """The prediction of a case, or of each of several.

    Args:
        content: The body: a case, or several under ``cases``.
        bounds: How much may be asked for.

    Raises:
        InputError: It cannot be used.
    """
    if "cases" not in content:
        return _prediction(checked(PredictBody, content), bounds)
    bodies = content["cases"]
    if isinstance(bodies, list):
        check_most("cases", len(bodies), bounds.cases)
    bodies = checked(CasesBody, content)["cases"]
    cases, fits, places = [], [], []
    found: dict[int, _Content] = {}
    for place, body in enumerate(bodies):
        with _within(f"cases[{place}]"):
            if body.get("method", "fluid") != "fluid":
                found[place] = _prediction(body, bounds)
                continue
            case, beside = _case_of(body, bounds)
            cases.append(case.under(case.demanded))
            fits.append(load_fit(beside.get("fit", DEFAULT_FIT)).on(case))
            places.append(place)
    together = predict_with_intervals(cases, fits)
    found |= {place: one.to_dict() for place, one in zip(places, together, strict=True)}
    return {"predictions": [found[place] for place in range(len(bodies))]}


def _prediction(body: Mapping[str, Any], bounds: Bounds) -> _Content:
    case, beside = _case_of(body, bounds)
    return api.predict(case, **beside).to_dict()


def _case_of(body: Mapping[str, Any], bounds: Bounds) -> tuple[Case, _Content]:
    """A case, and what is said beside it: fit, method and seed."""
    options = options_in(body)
    beside: _Content = {
        name: options.pop(name) for name in ("fit", "method", "seed") if name in options
    }
    bounds.check_load(options, beside.get("method") == "replay")
    return Case.from_options(**options), beside


def recommended(content: Mapping[str, Any], bounds: Bounds) -> _Content:
    """The cheapest deployments that keep to objectives.

    Args:
        content: The body.
        bounds: How much may be asked for.

    Raises:
        InputError: It cannot be used, or no deployment keeps to the objectives.
    """
    options = options_in(checked(RecommendBody, content))
    for gpu in options.get("gpus", ()):
        check_gpu("gpus", gpu)
    for gpu in options.get("prices", ()):
        check_gpu("prices", gpu)
    check_most("max_gpus", options.get("max_gpus", 8), bounds.gpus)
    lists = {name: options.get(name, ()) for name in ("tps", "pps", "dps", "eps")}
    tried = layout_axes(**lists)
    gpus = options.get("gpus") or options.get("prices") or measured_gpus()
    every = wanted(options["model"], [*gpus], options.get("max_gpus", 8), tried, options)
    most = bounds.candidates
    check_most("candidates", sum(1 for _ in itertools.islice(every, most + 1)), most)
    bounds.check_load(options, replays=True)
    return recommend(**options).to_dict()


def timed(content: Mapping[str, Any], bounds: Bounds) -> _Content:
    """The time of many steps of a server.

    Args:
        content: The body.
        bounds: How much may be asked for.

    Raises:
        InputError: It cannot be used.
    """
    body = checked(StepBody, content)
    means, parts = body.pop("batches"), body.pop("parts", False)
    counts = {len(one) for one in means.values() if isinstance(one, list)}
    if len(counts) > 1 or 0 in counts:
        lengths = ", ".join(map(str, sorted(counts)))
        raise InputError("batches", f"has columns of {lengths} steps", "make them equal, not empty")
    check_most("steps", max(counts, default=1), bounds.steps)
    if not means.keys() & {*_REQUESTS_OF.values()}:
        raise InputError("batches", "has no requests", "give decode_requests or prefill_requests")
    for name, requests in _REQUESTS_OF.items():
        if name in means and requests not in means:
            raise InputError(f"batches.{name}", f"is given without {requests}", f"give {requests}")
    for name in ("ranks", "stages"):
        if np.min(means.get(name, 1)) < 1:
            raise InputError(f"batches.{name}", "is below 1", "correct it")
    model = _step_model(json.dumps(body, sort_keys=True))
    batches = model.batch(**{name: np.asarray(own, float) for name, own in means.items()})
    time = step_times(model, batches)
    found = {"latency": time.latency.tolist(), "interval": time.interval.tolist()}
    if not parts:
        return found
    seconds = dict(zip(PART_NAMES, time.seconds.T.tolist(), strict=True))
    return {**found, "parts": seconds}


@functools.lru_cache(maxsize=_MODELS)
def _step_model(body: str) -> StepModel:
    """The step model of a server; ``body`` is what says it, as JSON, so that it is found again."""
    options = options_in(json.loads(body))
    beside = {"fit": options.pop("fit")} if "fit" in options else {}
    return api.step_model(Case.from_options(**options), **beside)


@contextlib.contextmanager
def _within(place: str) -> Iterator[None]:
    """Says of what is wrong in which of several cases it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error.where}", error.what, error.remedy) from error
