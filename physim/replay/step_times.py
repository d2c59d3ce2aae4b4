"""Step times as the replay asks for them: one step with prefill, or a run of decode-only steps.

While a batch only decodes, each step adds a token to every request and nothing else changes. A run
of such steps is a sum that can be had at once, so the replay jumps over it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.kept import kept
from physim.step.host import Host, beside_host, host_sharpness
from physim.step.many_batches import family_seconds
from physim.step.mixed_steps import Additive, Apart
from physim.step.model import StepModel
from physim.types import AnyArray, Number, Scalar

# Seconds of a step, by the names of the sums that `StepTimes.step` takes.
StepTimeOf = Callable[..., float]


@runtime_checkable
class StepTimes(Protocol):
    """Step times for a replay."""

    def step(
        self,
        *,
        decode_requests: int,
        decode_context: int,
        prefill_requests: int,
        prefill_tokens: int,
        prefill_squares: int,
        cached_tokens: int,
        cached_products: int,
        elsewhere: int = 0,
    ) -> float:
        """Seconds of a step.

        Args:
            decode_requests: Requests that decode.
            decode_context: Tokens that they attend to, those of this step among them, summed.
            prefill_requests: Requests with a prefill chunk.
            prefill_tokens: Tokens of the chunks, summed.
            prefill_squares: Their squares, summed.
            cached_tokens: Tokens in the cache before the chunks, summed.
            cached_products: Products of each chunk's tokens with those before it, summed.
            elsewhere: Tokens of other data-parallel ranks in the same step, if there are any.
        """

    def decode(
        self, requests: int, context: int, steps: int, until_s: float, elsewhere: int = 0
    ) -> tuple[int, float, float]:
        """A run of decode-only steps.

        It ends after ``steps`` steps, or with the first that ends at ``until_s`` or later.

        Args:
            requests: Requests that decode.
            context: Tokens that they attend to in the first step, summed.
            steps: Most steps, at least one.
            until_s: Seconds from the run's start.
            elsewhere: Tokens of other data-parallel ranks in each step, if there are any.

        Returns:
            The steps that ran, their time together, and the time of the last, seconds.
        """


@dataclass(frozen=True)
class WalkedStepTimes:
    """Any step time, asked for at every step: slow, but nothing is taken for granted.

    Attributes:
        seconds: Seconds of a step; takes what `StepTimes.step` takes.
    """

    seconds: StepTimeOf

    def step(self, **sums: float) -> float:
        """Seconds of a step."""
        return self.seconds(**sums)

    def decode(
        self, requests: int, context: int, *_: float, **others: int
    ) -> tuple[int, float, float]:
        """One decode-only step."""
        one = self.seconds(
            decode_requests=requests,
            decode_context=context,
            prefill_requests=0,
            prefill_tokens=0,
            prefill_squares=0,
            cached_tokens=0,
            cached_products=0,
            **others,
        )
        return 1, one, one


@dataclass(frozen=True)
class LinearStepTimes:
    """``beta0 + beta1 x prefill tokens + beta2 x decode tokens``, seconds.

    The step time of the studies that physim grew from (BLIS's blackbox backend).
    """

    beta0_s: float
    beta1_s: float
    beta2_s: float

    def step(self, *, decode_requests: int, prefill_tokens: int, **_: int) -> float:
        """Seconds of a step."""
        return self.beta0_s + self.beta1_s * prefill_tokens + self.beta2_s * decode_requests

    def decode(
        self,
        requests: int,
        _: int,
        steps: int,
        until_s: float,
        elsewhere: int = 0,  # noqa: ARG002
    ) -> tuple[int, float, float]:
        """A run of decode-only steps."""
        one = self.beta0_s + self.beta2_s * requests
        if steps * one >= until_s:
            steps = min(max(math.ceil(until_s / one), 1), steps)
        return steps, steps * one, one


# Knots of tables (tests/test_replay.py holds what is between them against the model).
_CONTEXT_KNOTS, _CHUNK_KNOTS, _TOKEN_KNOTS = 128, 64, 512


class ModelStepTimes:
    """A `StepModel` tabulated for a replay.

    A model's families of operations (`physim.step.model.Families`) depend on few numbers each:
    attention on its own requests and their contexts, everything else on the step's tokens and
    requests. So tables of two and three dimensions say all of it; between knots of context and
    chunk length the logarithm of attention's time is interpolated.

    Args:
        model: The step model, its mixed steps composed additively.
        max_requests: Most requests of a step.
        max_tokens: Most tokens of a step.
        max_context: Longest context, tokens.
        ranks: Data-parallel ranks whose tokens the experts work on.
        query_tokens: Tokens of each decoding request that a step computes.

    Raises:
        InputError: Mixed steps are composed otherwise.
    """

    def __init__(
        self,
        model: StepModel,
        max_requests: int,
        max_tokens: int,
        max_context: int,
        ranks: int = 1,
        query_tokens: int = 1,
    ) -> None:
        if not isinstance(model.mixing, Additive | Apart):
            name = type(model.mixing).__name__
            raise InputError("mixed", f"{name} cannot be replayed", "use additive")
        # Tokens of other ranks are told with each step, those that pad their batches among them.
        self._model = model.of_alike_ranks(1)
        self._query_tokens = query_tokens
        # Where prompts have steps of their own, those that only decode may have more tokens.
        apart = isinstance(model.mixing, Apart)
        self._requests = max_requests if apart else min(max_requests, max_tokens)
        most_tokens = max(max_tokens, self._requests * query_tokens)
        self._contexts = _knots(max_context + query_tokens + 1, _CONTEXT_KNOTS)
        self._whole_contexts = np.arange(int(self._contexts[-1]) + 1)
        self._tabulate_linear(most_tokens)
        self._tabulate_decoding()
        if ranks > 1:
            self._tabulate_routed(ranks * most_tokens)
        self._tabulate_prefill(max_tokens)
        count = self._requests + 1
        self._decode_attention: list[list[float] | None] = [None] * count
        self._sums: list[list[float] | None] = [None] * count
        host = _host_times(
            model.ops.host, model.corrections, _covering(count), _covering(most_tokens + 1)
        )
        self._hidden, self._exposed, self._handed_out, *self._launching = (
            np.asarray(seconds).tolist() for seconds in host[:-1]
        )
        self._sharpness = float(host.sharpness)

    def _tabulate_linear(self, max_tokens: int) -> None:
        """Everything but attention, by the step's tokens, and what more sampled ones add.

        Of steps with prefill alone; `_tabulate_decoding` has what is different in others.
        """

        def seconds(tokens: AnyArray, sampled: AnyArray) -> Float[np.ndarray, " rows"]:
            # Chunks of part of a token each tell tokens and sampled ones apart.
            chunk = tokens / np.maximum(sampled, 1)
            prefills = self._model.batch(prefill_requests=sampled, chunk=chunk)
            return np.asarray(family_seconds(self._model, prefills).over_sizes)

        # A prompt beside all that decode, which `_tabulate_decoding` asks for, is one more.
        tokens = np.arange(max_tokens + 2)
        sampled = np.arange(self._requests * self._query_tokens + 2)
        ones = np.ones_like(sampled)
        self._by_tokens = seconds(tokens, np.ones_like(tokens)).tolist()
        self._by_sampled = (seconds(ones, sampled) - seconds(ones, ones)).tolist()

    def _tabulate_decoding(self) -> None:
        """What steps in which requests decode have beyond their tokens and sampled ones.

        By their number, without prefill and beside it. Where a step computes a token of each, it is
        one number: what steps without prefill have less of. With drafts it is what proposes them.
        """
        each, count = self._query_tokens, self._requests
        decodes = np.arange(1, count + 1) if each > 1 else np.ones(1, np.int64)

        def beyond(prefills: int) -> list[float]:
            batches = self._model.batch(
                decode_requests=decodes.astype(float),
                context=float(each),
                prefill_requests=float(prefills),
                chunk=1.0,
                query_tokens=float(each),
            )
            sampled = each * decodes + prefills
            known = np.take(self._by_tokens, sampled) + np.take(self._by_sampled, sampled)
            seconds = np.asarray(family_seconds(self._model, batches).over_sizes)
            return [0.0, *np.broadcast_to(seconds - known, count).tolist()]

        self._of_decoding = beyond(0), beyond(1) if each > 1 else [0.0] * (count + 1)

    def _tabulate_routed(self, max_tokens: int) -> None:
        """What more tokens of other ranks add, by the tokens of all."""
        # Few enough for straight lines between them to keep to the model's own knots.
        self._all_tokens = np.unique(np.rint(_knots(max_tokens, _TOKEN_KNOTS)))
        alone = self._model.batch(decode_requests=1.0, context=1.0)
        batches = replace(alone, elsewhere=self._all_tokens - 1)
        seconds = np.asarray(family_seconds(self._model, batches).over_sizes)
        self._by_all_tokens = seconds - seconds[0]

    def _tabulate_prefill(self, max_tokens: int) -> None:
        """Attention of chunks, by their number, root mean square length and cached tokens."""
        self._chunks = _knots(max_tokens, _CHUNK_KNOTS)
        self._cached = np.append(0.0, _knots(self._contexts[-1], _CHUNK_KNOTS))
        self._prefills = np.unique(np.rint(_knots(self._requests, 12)))
        count, chunk, cached = np.meshgrid(
            self._prefills, self._chunks, self._cached, indexing="ij"
        )
        # Alone, and beside requests that decode.
        tables = []
        for decodes in (0.0, 1.0):
            chunks = self._model.batch(
                decode_requests=decodes,
                context=1.0,
                prefill_requests=count.ravel(),
                chunk=chunk.ravel(),
                cached=cached.ravel(),
            )
            seconds = family_seconds(self._model, chunks).prefill
            tables.append(np.reshape(seconds, count.shape).tolist())
        self._prefill_attention = tuple(tables)
        self._knots_of_prefill = (
            np.log(self._prefills).tolist(),
            np.log(self._chunks).tolist(),
            self._cached.tolist(),
        )

    def _decode_row(self, requests: int) -> list[float]:
        """Attention of so many decoding requests at every whole mean context, seconds."""
        first = requests - requests % 16
        counts = np.arange(max(first, 1), min(first + 16, self._requests + 1))
        count, context = np.meshgrid(counts, self._contexts, indexing="ij")
        decodes = self._model.batch(
            decode_requests=count.ravel().astype(float),
            context=context.ravel(),
            query_tokens=float(self._query_tokens),
        )
        seconds = np.reshape(family_seconds(self._model, decodes).decode, count.shape)
        whole = np.log(np.maximum(self._whole_contexts, 1))
        for row, values in zip(counts, seconds, strict=True):
            logs = np.interp(whole, np.log(self._contexts), np.log(values))
            self._decode_attention[row] = np.exp(logs).tolist()
        return self._decode_attention[requests]  # type: ignore[return-value]

    def _run_row(self, requests: int) -> list[float]:
        """Time of decode-only steps at all whole mean contexts below one, summed."""
        attention = self._decode_attention[requests] or self._decode_row(requests)
        tokens = requests * self._query_tokens
        apart = self._by_tokens[tokens] + self._by_sampled[tokens] + self._of_decoding[0][requests]
        total = self._with_host(apart + np.array(attention), requests, tokens, 0)
        row: list[float] = np.append(0.0, np.cumsum(total)).tolist()
        self._sums[requests] = row
        return row

    def step(
        self,
        *,
        decode_requests: int,
        decode_context: int,
        prefill_requests: int,
        prefill_tokens: int,
        prefill_squares: int,
        cached_tokens: int,  # noqa: ARG002
        cached_products: int,
        elsewhere: int = 0,
    ) -> float:
        """Seconds of a step."""
        requests = decode_requests + prefill_requests
        verified = decode_requests * self._query_tokens
        tokens = verified + prefill_tokens
        gpu = self._by_tokens[tokens] + self._by_sampled[verified + prefill_requests]
        gpu += self._of_decoding[min(prefill_requests, 1)][decode_requests]
        if decode_requests:
            row = self._decode_attention[decode_requests] or self._decode_row(decode_requests)
            mean = decode_context / decode_requests
            low = int(mean)
            gpu += row[low] + (mean - low) * (row[low + 1] - row[low])
        if elsewhere:
            own, of_all = np.interp(
                (tokens, tokens + elsewhere), self._all_tokens, self._by_all_tokens
            )
            gpu += float(of_all - own)
        decoding = min(decode_requests, 1)
        gpu += self._prefill_seconds(decoding, prefill_requests, prefill_squares, cached_products)
        return float(self._with_host(gpu, requests, tokens, min(prefill_requests, 1)))

    def _with_host(self, gpu: Number, requests: int, tokens: int, has_prompt: int) -> Number:
        """Seconds of steps with what the CPU does for them."""
        hidden = self._hidden[requests] + self._launching[has_prompt][tokens]
        hidden = max(hidden, self._handed_out[requests])
        return beside_host(gpu, hidden, self._sharpness) + self._exposed[requests]

    def _prefill_seconds(self, decoding: int, count: int, squares: int, products: int) -> float:
        """Attention of chunks: power laws in their number and length, straight in what is cached.

        Chunks of several lengths are taken for as many of their root mean square length, with as
        many pairs of new and cached tokens.
        """
        if not count:
            return 0.0
        chunk = math.sqrt(squares / count)
        i, u = _place(self._knots_of_prefill[0], math.log(count))
        j, v = _place(self._knots_of_prefill[1], math.log(chunk))
        k, w = _place(self._knots_of_prefill[2], products / (count * chunk))
        logs = [
            math.log((1 - w) * row[k] + w * row[k + 1])
            for table in self._prefill_attention[decoding][i : i + 2]
            for row in table[j : j + 2]
        ]
        low = (1 - v) * logs[0] + v * logs[1]
        return math.exp(low + u * ((1 - v) * logs[2] + v * logs[3] - low) if u else low)

    def decode(
        self, requests: int, context: int, steps: int, until_s: float, elsewhere: int = 0
    ) -> tuple[int, float, float]:
        """A run of decode-only steps."""
        if elsewhere:
            return self._decode_beside(requests, context, steps, until_s, elsewhere)
        row = self._sums[requests] or self._run_row(requests)
        return run_of_decodes(row, context / requests, steps, until_s)

    def _decode_beside(
        self, requests: int, context: int, steps: int, until_s: float, elsewhere: int
    ) -> tuple[int, float, float]:
        """A run of decode-only steps beside other ranks: straight from its first to its last."""

        def one(number: int) -> float:
            return self.step(
                decode_requests=requests,
                decode_context=context + number * requests,
                prefill_requests=0,
                prefill_tokens=0,
                prefill_squares=0,
                cached_tokens=0,
                cached_products=0,
                elsewhere=elsewhere,
            )

        first = one(0)
        slope = (one(steps - 1) - first) / max(steps - 1, 1)
        return _run(lambda count: count * (first + slope * (count - 1) / 2), steps, until_s)


class _HostTimes(NamedTuple):
    """What the CPU does for steps of so many requests and tokens.

    Attributes:
        hidden: CPU time that the GPU's may hide, by requests, seconds.
        exposed: The rest, for which the GPU waits.
        handed_out: CPU time in which their tokens go to clients, by requests, seconds.
        launching: CPU time to launch the kernels of steps that only decode, by tokens, seconds,
        launching_prompts: and of steps with prompts.
        sharpness: Sharpness of the smooth maximum of GPU and CPU time.
    """

    hidden: Float[Array, " requests"]
    exposed: Float[Array, " requests"]
    handed_out: Float[Array, " requests"]
    launching: Float[Array, " tokens"]
    launching_prompts: Float[Array, " tokens"]
    sharpness: Scalar


@kept
def _host_times(
    host: Host,
    corrections: Corrections,
    requests: Float[AnyArray, " requests"],
    tokens: Float[AnyArray, " tokens"],
) -> _HostTimes:
    """What the CPU does for steps of each number of requests, and of each number of tokens."""
    return _HostTimes(
        *host.seconds(corrections, requests),
        host.handing_out(corrections, requests),
        host.launching(corrections, tokens, 0.0),
        host.launching(corrections, tokens, 1.0),
        host_sharpness(corrections),
    )


def _covering(count: int) -> Float[np.ndarray, " numbers"]:
    """Whole numbers from zero, at least so many, to a power of two: each length is compiled."""
    return np.arange(2.0 ** math.ceil(math.log2(count)))


def run_of_decodes(
    sums: Sequence[float], mean: float, steps: int, until_s: float
) -> tuple[int, float, float]:
    """A run of decode-only steps of a batch, as `StepTimes.decode` has it.

    Args:
        sums: Time of all such steps at whole mean contexts below each, summed, seconds.
        mean: Mean context in the first step.
        steps: Most steps, at least one.
        until_s: Seconds from the run's start.
    """
    first = int(mean)
    part = mean - first
    rest = 1 - part
    start = rest * sums[first] + part * sums[first + 1]

    def ended(count: int) -> float:
        last = first + count
        return rest * sums[last] + part * sums[last + 1] - start

    return _run(ended, steps, until_s)


class DecodeRuns:
    """Runs of decode-only steps, for whose batches the time at every context is asked for once.

    Args:
        seconds: Time of steps of so many requests at each of some mean contexts, seconds.
        max_context: Longest context, tokens.
    """

    def __init__(
        self,
        seconds: Callable[[int, Float[np.ndarray, " n"]], Float[np.ndarray, " n"]],
        max_context: int,
    ) -> None:
        self._seconds = seconds
        self._contexts = np.arange(max_context + 3, dtype=float)
        self._sums: dict[int, list[float]] = {}

    def run(
        self, requests: int, context: int, steps: int, until_s: float
    ) -> tuple[int, float, float]:
        """A run of steps, as `StepTimes.decode` has it."""
        sums = self._sums.get(requests)
        if sums is None:
            sums = np.append(0.0, np.cumsum(self._seconds(requests, self._contexts))).tolist()
            self._sums[requests] = sums
        return run_of_decodes(sums, context / requests, steps, until_s)


def _run(ended: Callable[[int], float], steps: int, until_s: float) -> tuple[int, float, float]:
    """A run of steps, by when each of them ends, until a time."""
    seconds = ended(steps)
    if seconds >= until_s and steps > 1:
        # Steps grow slowly, so the first one's time says nearly how many there are.
        steps = min(max(int(until_s / ended(1)), 1), steps)
        while steps > 1 and ended(steps - 1) >= until_s:
            steps -= 1
        while ended(steps) < until_s:
            steps += 1
        seconds = ended(steps)
    return steps, seconds, seconds - ended(steps - 1)


def _knots(largest: float, count: int) -> Float[np.ndarray, " knots"]:
    """Sizes from one to the largest, equally spaced in logarithm."""
    return np.geomspace(1.0, max(largest, 2.0), count)


def _place(knots: list[float], x: float) -> tuple[int, float]:
    """The knot below and the share of the way to the next."""
    low = min(max(bisect_right(knots, x) - 1, 0), len(knots) - 2)
    return low, (x - knots[low]) / (knots[low + 1] - knots[low])
