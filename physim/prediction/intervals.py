"""How far to trust a prediction: intervals from a fit, and where it extrapolates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from physim.corrections.calibration import TWO_SIDED_90, Calibration
from physim.corrections.fields import Corrections
from physim.errors import UnsolvedError
from physim.grids.store import gpu_or_stand_in
from physim.inputs.case import Case
from physim.prediction.approximation import errors_of
from physim.prediction.many import check_method, predict_cases
from physim.prediction.peer_access import without_peer_access
from physim.prediction.results import Prediction
from physim.roofline import causal_pairs
from physim.service.phases import DECODE, PREFILL, decode_steps
from physim.step.attention import peak_flops as attention_peak
from physim.step.component import Placement

# Pairs of draws from the fit's distribution: with the fit itself 31, which a power of two holds.
_PAIRS = 15
# Seed of the draws of the steps' time, which those of the corrections are independent of.
_SEED = 1
# Share of the draws that is beyond an interval on either side.
_TAIL = 0.05
# Cases that are predicted at once, and whose draws are.
_CASES, _DRAWN = 1024, 64
# A quantity is beyond what was measured by this share before it is said.
BEYOND = 1.05
# A GPU without measured kernels is as far from the runs as what is so many e-folds beyond them.
_UNMEASURED = 3.0
# Runs of engines that are older than any profile (vLLM before 0.11, of campaigns that no fit knows)
# took 12 to 25% longer than predicted: a standard deviation beside the others.
_OLDER = 0.2
_SCATTER_OF = {"ttft_s": "ttft", "itl_s": "itl", "e2e_s": "e2e", "saturation_rps": "itl"}
# What extrapolation is said of, in words, and the units that these are in.
WORDS = {
    "weight_bytes": "weights of {:.3g} GB on each GPU",
    "tp": "tp {:g}",
    "batch": "a batch of {:.3g}",
    "context": "contexts of {:.0f} tokens",
    "new_tokens": "prompts of {:.0f} tokens to compute",
    "step_s": "steps of {:.3g} ms",
}
SCALES = {"weight_bytes": 1e-9, "step_s": 1e3}


def predict_with_interval(
    case: Case, fit: Calibration, method: str = "fluid", seed: int = 0
) -> Prediction:
    """A prediction with what the fit knows of its uncertainty.

    The fit's distribution says how uncertain the corrections are, its scatter what models that it
    has not seen err beyond that, and the fluid is itself an approximation
    (`physim.prediction.approximation`). What both make of a queue, the fluid says. The further a
    case is outside the range of the measured runs, the more are the corrections as uncertain as
    before any fit (`Calibration.beyond`).

    Args:
        case: What to predict.
        fit: What a fit says of it.
        method: ``fluid`` or ``replay``; the interval's width is the fluid's for both.
        seed: Seed of the replay's requests.

    Raises:
        InputError: The method is unknown, or cannot predict the case.
    """
    check_method(method, seed)
    # Of pools apart the fluid knows no load that ends or changes.
    stays = case
    if method != "fluid" and len(case.service.pools) > 1:
        stays = replace(case, load=case.demanded.staying())
    try:
        fluid, *others = _members(stays, fit)
    except UnsolvedError:
        if method == "fluid":
            raise
        # What the fluid cannot follow is a load that ends.
        stays = replace(case, load=case.demanded.staying())
        fluid, *others = _members(stays, fit)
    prediction = fluid
    if method != "fluid":
        prediction = predict_cases([case], fit.corrections, fit.name, method, seed)[0]
    beyond = _outside(case, prediction, fit)
    if fit.scatter and beyond:
        fluid, *others = _members(stays, _known(fit, beyond))
    (hosted,) = _hosted([stays], [fluid], [fit])
    return _bounded(case, prediction, fit, beyond, fluid, hosted, others)


def predict_with_intervals(cases: Sequence[Case], fits: Sequence[Calibration]) -> list[Prediction]:
    """Predictions of many cases, each with what its fit knows of its uncertainty.

    Args:
        cases: What to predict.
        fits: What a fit says of each.

    Raises:
        InputError: A case cannot be predicted.
    """
    found: list[Prediction] = []
    for start in range(0, len(cases), _CASES):
        some, own = cases[start : start + _CASES], fits[start : start + _CASES]
        found += predict_cases(some, [fit.corrections for fit in own])
    bounded: list[Prediction] = []
    for start in range(0, len(cases), _DRAWN):
        rows = slice(start, start + _DRAWN)
        chunk = list(zip(cases[rows], found[rows], fits[rows], strict=True))
        outside = [_outside(case, prediction, fit) for case, prediction, fit in chunk]
        draws = [
            _draws(case, _known(fit, beyond))
            for (case, _, fit), beyond in zip(chunk, outside, strict=True)
        ]
        hosted = _hosted(cases[rows], found[rows], fits[rows])
        every = [draw for own in draws for draw in own]
        others = iter(predict_cases([case for case, _ in every], [own for _, own in every]))
        columns = zip(chunk, outside, hosted, draws, strict=True)
        for (case, prediction, fit), beyond, slower, drawn in columns:
            members = [next(others) for _ in drawn]
            named = replace(prediction, fit=fit.name)
            bounded.append(_bounded(case, named, fit, beyond, prediction, slower, members))
    return bounded


def _hosted(
    cases: Sequence[Case], found: Sequence[Prediction], fits: Sequence[Calibration]
) -> list[Prediction]:
    """Predictions where all exchanges go through the host's memory, if that may be so.

    Args:
        cases: The cases.
        found: Their predictions, which stand where it may not.
        fits: What a fit says of each.
    """
    hosted = {
        row: other
        for row, (case, fit) in enumerate(zip(cases, fits, strict=True))
        if fit.scatter and (other := without_peer_access(case))
    }
    slower = list(found)
    if hosted:
        corrections = [fits[row].corrections for row in hosted]
        for row, one in zip(hosted, predict_cases(list(hosted.values()), corrections), strict=True):
            slower[row] = one
    return slower


def _outside(case: Case, prediction: Prediction, fit: Calibration) -> list[tuple[float, str]]:
    """In what a prediction is beyond the runs that a fit knows: how far, and a line for each."""
    # Levels of corrections know how uncertain those of another server are.
    news = [(0.0, line) for line in fit.elsewhere]
    return news + _unmeasured(case) + _beyond(quantities(case, prediction), fit.ranges)


def _known(fit: Calibration, beyond: Sequence[tuple[float, str]]) -> Calibration:
    """What of a fit is known so far outside of its runs."""
    return fit.beyond(sum(abs(log) for log, _ in beyond)) if beyond else fit


def _bounded(
    case: Case,
    prediction: Prediction,
    fit: Calibration,
    beyond: Sequence[tuple[float, str]],
    fluid: Prediction,
    hosted: Prediction,
    others: Sequence[Prediction],
) -> Prediction:
    """A prediction with its intervals.

    Args:
        case: The case.
        prediction: Its prediction.
        fit: What a fit says of it.
        beyond: In what the case is outside of the fit's runs.
        fluid: The fluid's prediction,
        hosted: that of `_hosted`,
        others: and those of draws.
    """
    prediction = replace(prediction, extrapolations=tuple(line for _, line in beyond))
    intervals, least, approximate = {}, least_s(case), errors_of(case, prediction)
    is_older = any(pool.server.profile.is_older for pool in case.service.pools)
    older = _OLDER if is_older else 0.0
    for name, metric in _SCATTER_OF.items():
        value = getattr(prediction, name)
        if value is None or metric not in fit.scatter:
            continue
        ratios = [_ratio(getattr(other, name), getattr(fluid, name)) for other in others]
        scatter = math.hypot(fit.scatter[metric], approximate[metric], older)
        low, high = _width(ratios, scatter)
        ratio = _ratio(getattr(hosted, name), getattr(fluid, name))
        low, high = low * min(ratio, 1.0), high * max(ratio, 1.0)
        intervals[name] = (max(value * low, least.get(name, 0.0)), value * high)
    return replace(prediction, intervals=intervals)


def _members(case: Case, fit: Calibration) -> list[Prediction]:
    """The fluid's prediction with a fit, and those of draws."""
    members = [(case, fit.corrections), *_draws(case, fit)]
    return predict_cases([one for one, _ in members], [own for _, own in members], fit.name)


def _draws(case: Case, fit: Calibration) -> list[tuple[Case, Corrections]]:
    """The case as it may be: draws of the corrections, each with one of the time of all steps.

    What a step takes beyond what the corrections know, the scatter of ITL, makes the queue longer
    as requests would that come faster by as much. That each latency takes longer by the factor
    itself is in its own scatter.
    """
    normal = np.random.default_rng(_SEED).normal(size=_PAIRS)
    slower = np.exp(fit.scatter.get("itl", 0.0) * np.stack([normal, -normal], axis=1)).ravel()
    return [
        (replace(case, load=case.demanded.faster(times)), corrections)
        for times, corrections in zip(slower.tolist(), fit.draws(_PAIRS), strict=False)
    ]


def least_s(case: Case) -> dict[str, float]:
    """What no measurement goes below, by the GPU's datasheet alone, seconds.

    A prompt's multiplications run at peak FLOP/s at most, those of attention among its own tokens
    too, and a step, of one token or as many as a draft has accepted, reads the weights that one
    token visits at the memory's bandwidth at most; all else comes on top.
    """
    model, load = case.model, case.demanded
    prefill, decode = case.server_of(PREFILL), case.server_of(DECODE)
    # Chunks of a prompt pass the stages of a pipeline one behind the other, tokens one by one.
    gpus, stage = prefill.parallelism.gpus, decode.parallelism.stage_gpus
    placement, visited = Placement(prefill), model.visited_weights.items()
    new_tokens = max(load.mean_input - load.cached_tokens, 1.0)
    if load.conversing:
        # All that was said before may be found.
        turns = load.turn_sample
        found = turns.found_tokens(prefill.kv.block_size)
        new_tokens = max(float(np.mean(turns.input_tokens - found)), 1.0)
    prompt = sum(2 * new_tokens * weights / placement.peak_flops(form) for form, weights in visited)
    # Pairs of tokens are convex in the length, so that mean prompts have fewest.
    pairs = sum(
        group.layers * term.pair_flops * causal_pairs(new_tokens, min(new_tokens, seen))
        for group in model.groups
        if group.attention is not None
        for term in group.attention.prefill_terms(1.0, prefill.kv_cache_bytes)
        for seen in [term.window or math.inf]
    )
    prompt += pairs / attention_peak(placement)
    read = sum(form.bytes_per_weight * weights for form, weights in visited)
    step = (read + 2.0 * model.vocab_size * model.hidden_size) / decode.gpu.memory_bandwidth
    each = decode.draft.accepted_length if decode.draft else 1.0
    least = {"ttft_s": prompt / gpus, "itl_s": step / stage / each}
    # Distributions of lengths have short ones, but means of means are linear.
    return least | {"e2e_s": least["ttft_s"] + decode_steps(load.mean_output) * least["itl_s"]}


def quantities(case: Case, prediction: Prediction) -> dict[str, float]:
    """What says how near a case is to those that a fit knows."""
    load = case.demanded
    cached = load.cached_tokens
    # Where prompts are computed apart, of the servers that generate.
    server, pool = case.server_of(DECODE), prediction.pools[-1]
    return {
        "weight_bytes": server.memory.weights,
        "tp": float(server.parallelism.tp),
        "batch": max(pool.batch, 1.0),
        "context": load.mean_input + load.mean_output / 2,
        "new_tokens": max(load.mean_input - cached, 1.0),
        "step_s": pool.step_s,
    }


def extrapolations(case: Case, prediction: Prediction, fit: Calibration) -> tuple[str, ...]:
    """In what a prediction is beyond the runs that a fit knows, one line each."""
    return tuple(line for _, line in _outside(case, prediction, fit))


def _unmeasured(case: Case) -> list[tuple[float, str]]:
    """A line where no kernel of the GPU was measured: corrections are then nearly unknown."""
    gpus = dict.fromkeys(pool.server.gpu.key for pool in case.service.pools)
    return [
        (_UNMEASURED, f"a {gpu}, of which no kernel was measured")
        for gpu in gpus
        if gpu_or_stand_in(gpu) != gpu
    ]


def _beyond(
    found: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]
) -> list[tuple[float, str]]:
    """Logarithm of how far each quantity is outside its range, and a line that says so."""
    lines = []
    for name, (least, largest) in ranges.items():
        value, words, scale = found[name], WORDS[name], SCALES.get(name, 1.0)
        if value > largest * BEYOND:
            edge, side = largest, "more than"
        elif value < least / BEYOND:
            edge, side = least, "less than"
        else:
            continue
        line = f"{words.format(value * scale)}, {side} the fitted runs' {edge * scale:.4g}"
        lines.append((math.log(value / edge), line))
    return lines


def _ratio(value: float | None, centre: float | None) -> float:
    """How many times the centre a draw is; infinite where the draw is above capacity."""
    return math.inf if value is None or centre is None else value / centre


def _width(ratios: Sequence[float], scatter: float) -> tuple[float, float]:
    """Least and largest ratio to the prediction in nine of ten cases.

    Near the capacity draws are much further off above than below, so each side has its own.
    """
    logs = sorted(math.log(ratio) for ratio in ratios)
    # Of thirty draws the second from either end: infinite where more than one in twenty is.
    beyond = int(_TAIL * len(logs))
    below, above = (logs[beyond], logs[-1 - beyond]) if logs else (0.0, 0.0)
    half = TWO_SIDED_90 * scatter
    return math.exp(-math.hypot(half, min(below, 0.0))), math.exp(math.hypot(half, max(above, 0.0)))
