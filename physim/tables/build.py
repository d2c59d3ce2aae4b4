"""Tables of a step model, with as few knots as a tolerance allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from physim.errors import InputError
from physim.service.server import Server
from physim.step.batch import Batch
from physim.step.lowering import PART_NAMES
from physim.step.many_batches import part_seconds, total_seconds
from physim.step.model import StepModel
from physim.tables.table import AXES, COSTS, FIRST_CACHED, Table, prefill_context

Where = Float[np.ndarray, "rows 4"]
# Of some steps: how many, and the median, 99th percentile and largest of their errors, percent.
Error = dict[str, int | float]

LEAST_TOLERANCE, MOST_TOLERANCE = 1e-3, 0.5

# The numbers below trade the size of tables for the time it takes to make them:
# benchmarks/bench_tables.py measures both.
# Batches that knots are chosen on, and others that a table's error is measured on.
_CHOSEN_ON, _MEASURED_ON = 3000, 10_000
# Knots that are added at a time, and times.
_ADDED, _TIMES = 3, 80
# The error that knots are chosen for, as a share of the tolerance: other batches fare worse.
_AIM = 0.88
# Cells from which on no knots are added.
_MOST_CELLS = 150_000
# Least share of the tolerance at which a batch has a say in where a knot goes.
_SAY = 0.5
# Prompts in a step, tokens of each, and two numbers of tokens in the cache before, of which it is
# learned what several prompts add.
_PROMPTS = (8.0, 16.0, (FIRST_CACHED, 8192.0))
# Most prompts of the steps on which the error of that is measured.
_MOST_PROMPTS = 64
# The knot below zero of the prefill context, tokens, where several prompts stand for one: far
# enough for the slope to survive rounding, near enough for times to stay above zero.
_BELOW = -64.0
# Equal prompts from which that slope is taken, and tokens of all below which there is none: pairs
# of so few tokens take no time.
_SEVERAL, _FEW = 4.0, 16.0
# Components that fall below this share of the step along an axis do not depend on it.
_CONSTANT = 1e-7


@dataclass(frozen=True)
class Reach:
    """What an engine's steps can be.

    Attributes:
        decode_requests: Most requests that decode.
        context: Longest context, tokens.
        prefill_tokens: Most tokens of a step.
        kv_tokens: Tokens that the KV cache holds.
    """

    decode_requests: int
    context: int
    prefill_tokens: int
    kv_tokens: int

    @classmethod
    def from_server(cls, server: Server) -> Reach:
        """The reach of a rank of a server."""
        sizes, kv_tokens = server.sizes, server.kv.tokens
        return cls(
            min(sizes.max_num_seqs, sizes.max_num_batched_tokens),
            min(sizes.max_model_len, kv_tokens),
            sizes.max_num_batched_tokens,
            kv_tokens,
        )

    def draw(self, count: int, seed: int) -> Where:
        """Steps within reach, each of the four numbers spread evenly in logarithm.

        Four in ten have no prefill, one in ten nothing that decodes.

        Args:
            count: How many.
            seed: Seed of the draws.
        """
        rng = np.random.default_rng(seed)
        kept: list[Where] = []
        found = 0
        while found < count:
            evenly = np.exp(
                rng.uniform(0, np.log([self.decode_requests + 1, self.context] * 2), (count, 4))
            )
            evenly[:, 2] = np.exp(rng.uniform(0, np.log(self.prefill_tokens + 1), count))
            decode = np.floor(evenly[:, 0]) * (rng.random(count) > 0.1)
            prefill = np.floor(evenly[:, 2]) * (rng.random(count) > 0.4)
            context = np.where(decode > 0, evenly[:, 1], 1.0)
            before = np.where(prefill > 0, evenly[:, 3] - 1.0, 0.0)
            possible = (
                (decode + prefill > 0)
                & (decode + prefill <= self.prefill_tokens)
                & (decode * context + prefill + before <= self.kv_tokens)
                & (prefill + before <= self.context)
            )
            kept.append(np.stack([decode, context, prefill, before], axis=1)[possible])
            found += len(kept[-1])
        return np.concatenate(kept)[:count]


def check_tolerance(tolerance: float) -> None:
    """Refuses what `tabulate` cannot keep.

    Args:
        tolerance: Error of 99% of batches, as a share of their time.

    Raises:
        InputError: It is below `LEAST_TOLERANCE` or above `MOST_TOLERANCE`.
    """
    if not LEAST_TOLERANCE <= tolerance <= MOST_TOLERANCE:
        raise InputError(
            "tolerance",
            f"{tolerance:g} is out of reach",
            f"use {LEAST_TOLERANCE:g} to {MOST_TOLERANCE:g}",
        )


def tabulate(
    model: StepModel, reach: Reach, tolerance: float, about: dict[str, Any] | None = None
) -> Table:
    """A table of a step model.

    Knots are added, a few at a time, where batches of a random sample are worst off, until 99% of
    them are within the tolerance; the error in the metadata is that of other batches.

    Args:
        model: The step model.
        reach: What steps can be.
        tolerance: Error of 99% of batches, as a share of their time; from `LEAST_TOLERANCE` to
            `MOST_TOLERANCE`.
        about: More for the metadata.
    """
    axes = _knots(model, reach, tolerance)
    parts = np.concatenate([_below(model, axes), _at_knots(model, axes)], axis=-1)
    axes[3] = np.append(_BELOW, axes[3])
    seconds = np.sum(parts, axis=0)
    reduced = {
        name: _reduced(values, seconds) for name, values in zip(PART_NAMES, parts, strict=True)
    }
    table = Table(axes, seconds, reduced, {})
    where = reach.draw(_MEASURED_ON, seed=1)
    table.metadata = {
        **(about or {}),
        "axes": {name: f"{meaning}; tokens" for name, meaning in AXES.items()}
        | {"decode_requests": AXES["decode_requests"]},
        **_more_prompts_us(model),
        "knots": {name: len(knots) for name, knots in zip(AXES, axes, strict=True)},
        "reach": vars(reach).copy(),
        "interpolation": "linear in each axis",
        "tolerance_pct": 100 * tolerance,
        "interpolation_error_pct": _error_pct(table.many(where), _total(model, where)),
    }
    several = _several_error_pct(table, model, reach)
    if several is not None:
        table.metadata["several_prompts_error_pct"] = several
    return table


def _error_pct(found: Float[np.ndarray, " rows"], meant: Float[np.ndarray, " rows"]) -> Error:
    """Errors of the times of steps."""
    error = 100 * np.abs(found / meant - 1)
    return {
        "batches": len(error),
        "median": round(float(np.median(error)), 3),
        "p99": round(float(np.quantile(error, 0.99)), 3),
        "max": round(float(np.max(error)), 3),
    }


def _several_error_pct(table: Table, model: StepModel, reach: Reach) -> Error | None:
    """Errors of steps with several prompts, all of one length; None if none is within reach."""
    decode, context, prefill, cached = reach.draw(_MEASURED_ON, seed=2).T
    rng = np.random.default_rng(3)
    prompts = np.floor(np.exp(rng.uniform(np.log(2), np.log(_MOST_PROMPTS + 1), len(prefill))))
    possible = (prompts <= prefill) & (
        decode * context + prefill + prompts * cached <= reach.kv_tokens
    )
    if not possible.any():
        return None
    decode, context, prefill, cached, prompts = (
        values[possible] for values in (decode, context, prefill, cached, prompts)
    )
    chunk = prefill / prompts
    batches = model.batch(
        decode_requests=decode,
        context=context,
        prefill_requests=prompts,
        chunk=chunk,
        cached=cached,
    )
    of_all = zip(prefill, prefill * chunk, prefill * cached, strict=True)
    before = [prefill_context(*own) for own in of_all]
    more = [table.more_prompts_s(*own) for own in zip(prompts, prompts * cached, strict=True)]
    found = table.many(np.stack([decode, context, prefill, before], axis=1)) + np.array(more)
    return _error_pct(found, total_seconds(model, batches))


def _more_prompts_us(model: StepModel) -> dict[str, float]:
    """What further prompts of a step add to one chunk of as many tokens and pairs of tokens.

    A token more is sampled for each, and the cache before each is read on its own.
    """
    count, chunk, cached = _PROMPTS
    tokens = count * chunk
    before = [prefill_context(tokens, tokens * chunk, tokens * own) for own in cached]
    several, one = (
        part_seconds(
            model,
            model.batch(prefill_requests=np.full(2, n), chunk=size, cached=np.array(tokens_before)),
        )
        for n, size, tokens_before in ((count, chunk, cached), (1.0, tokens, before))
    )
    more = dict(zip(PART_NAMES, (several - one).T * 1e6 / (count - 1), strict=True))
    few, many = np.maximum(more["prefill_attention"], 0.0)
    costs = more["lm_head"][0], few / cached[0], max(many - few, 0.0) / (cached[1] - cached[0])
    return {name: round(float(cost), 6) for name, cost in zip(COSTS, costs, strict=True)}


def _total(model: StepModel, where: Where) -> Float[np.ndarray, " rows"]:
    return total_seconds(model, one_chunk(model, where))


def one_chunk(model: StepModel, where: Where) -> Batch:
    """Steps of one prefill chunk at most, as a table's axes tell them.

    Args:
        model: The step model.
        where: Of each step the requests that decode, the mean tokens that they attend to, the
            chunk's tokens, and those in the cache before it.
    """
    decode, context, prefill, before = where.T
    return model.batch(
        decode_requests=decode,
        context=context,
        prefill_requests=np.minimum(prefill, 1.0),
        chunk=prefill,
        cached=before,
    )


def _at_knots(model: StepModel, axes: list[np.ndarray]) -> Float[np.ndarray, "parts a b c d"]:
    """Each part at all combinations of knots."""
    where = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    parts = part_seconds(model, one_chunk(model, where.reshape(-1, 4)))
    return np.moveaxis(parts.reshape(*where.shape[:4], -1), -1, 0)


def _below(model: StepModel, axes: list[np.ndarray]) -> Float[np.ndarray, "parts a b c 1"]:
    """Each part at the knot below zero of the prefill context, by the line through two steps.

    One has a single prompt with nothing cached, the other several that make as many tokens. What a
    prompt more costs by itself is not in it (`_more_prompts_us`).
    """
    none = np.stack(np.meshgrid(*axes[:3], [0.0], indexing="ij"), axis=-1)
    decode, context, prefill, _ = none.reshape(-1, 4).T
    count = np.where(prefill < _FEW, 1.0, _SEVERAL)
    prompts = model.batch(
        decode_requests=decode,
        context=context,
        prefill_requests=np.minimum(prefill, count),
        chunk=prefill / count,
    )
    single = part_seconds(model, one_chunk(model, none.reshape(-1, 4)))
    several = part_seconds(model, prompts)
    logits = PART_NAMES.index("lm_head")
    several[:, logits] = single[:, logits]
    before = (prefill / count - prefill) / 2
    share = np.where(before < 0, _BELOW / np.minimum(before, -1.0), 0.0)
    found = single + share[:, None] * (several - single)
    return np.moveaxis(found.reshape(*none.shape[:4], -1), -1, 0)


def _reduced(
    values: Float[np.ndarray, "a b c d"], seconds: Float[np.ndarray, "a b c d"]
) -> Float[np.ndarray, "_ _ _ _"]:
    """A component without the axes on which it does not depend."""
    for axis in range(values.ndim):
        first = np.take(values, [0], axis=axis)
        if np.all(np.abs(values - first) <= _CONSTANT * seconds):
            values = first
    return values


def _knots(model: StepModel, reach: Reach, tolerance: float) -> list[np.ndarray]:
    """Knots of the four axes."""
    ends = (reach.decode_requests, reach.context, reach.prefill_tokens, reach.context)
    axes = [
        # One request and one token are apart from none: what they wake is not proportional.
        np.unique(np.array([start, second, end], float))
        for start, second, end in zip((0.0, 1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0), ends, strict=True)
    ]
    axes = [knots if len(knots) > 1 else np.append(knots, knots + 1) for knots in axes]
    # Beyond the largest CUDA graph a step is longer at once.
    host = model.ops.host
    for axis, largest in ((0, host.captured), (2, host.captured_prompts)):
        edge = [float(largest), float(largest) + 1]
        if axes[axis][0] < edge[0] and edge[1] < axes[axis][-1]:
            axes[axis] = np.union1d(axes[axis], edge)
    where = reach.draw(_CHOSEN_ON, seed=0)
    exact = _total(model, where)
    for _ in range(_TIMES):
        table = Table(axes, np.sum(_at_knots(model, axes), axis=0), {}, {})
        error = np.abs(table.many(where) / exact - 1)
        if np.quantile(error, 0.99) <= _AIM * tolerance or table.seconds.size > _MOST_CELLS:
            break
        worst = np.argsort(-error)[: len(where) // 10]
        worst = worst[error[worst] > _SAY * tolerance]
        wanted = _wanted(model, axes, where[worst], exact[worst])
        if not wanted:
            break
        for axis, knot in wanted[:_ADDED]:
            axes[axis] = np.unique(np.append(axes[axis], knot))
    return axes


def _wanted(
    model: StepModel, axes: list[np.ndarray], where: Where, exact: Float[np.ndarray, " rows"]
) -> list[tuple[int, float]]:
    """Knots that would help some batches most, each with its axis, the most helpful first.

    What an axis adds to a batch's error is that of a straight line along it between two knots, the
    other three numbers as they are. A knot multiplies the table by the other axes, so that it is
    worth more on a longer one.
    """
    scores: dict[tuple[int, float], float] = {}
    for axis, knots in enumerate(axes):
        x = where[:, axis]
        cell = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        low, high = where.copy(), where.copy()
        low[:, axis], high[:, axis] = knots[cell], knots[cell + 1]
        share = (x - knots[cell]) / (knots[cell + 1] - knots[cell])
        ends = _total(model, np.concatenate([low, high])).reshape(2, -1)
        off = np.abs(((1 - share) * ends[0] + share * ends[1]) / exact - 1)
        for one in np.unique(cell).tolist():
            here = cell == one
            if not np.any(off[here] > 0):
                continue
            start, end = knots[one], knots[one + 1]
            # Where batches are off, in logarithm if the cell is long.
            weights = off[here] / np.sum(off[here])
            wide = end > 3 * max(start, 1.0)
            middle = np.exp(weights @ np.log(np.maximum(x[here], 0.5))) if wide else 0.0
            knot = float(np.rint(middle if wide else weights @ x[here]))
            if not start < knot < end:
                knot = float(np.rint((start + end) / 2))
            if start < knot < end:
                scores[axis, knot] = float(np.sum(off[here] ** 2)) * len(knots)
    return sorted(scores, key=lambda key: -scores[key])
