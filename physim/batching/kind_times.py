"""Times of the kinds of steps at an occupancy: what is in each of them, and how long it takes.

A batch is a sum over its requests, so a step's time is taken at what is in it: the last chunk of
one prompt, short or long; a chunk that fills the step; several prompts together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.batch_statistics import MOST_ELASTIC, Nodes, decoding
from physim.batching.demand import Demand
from physim.batching.guards import FULLEST, NEARLY, ROOT, SMALL, TINY
from physim.batching.limits import Limits
from physim.batching.occupancy import Occupancy, batches_under_way
from physim.batching.preemption import in_waves
from physim.batching.prompt_chunks import GROUPS, MEANS, Chunks, PromptsOfStep, prompts_of_step
from physim.batching.queueing import peakedness
from physim.batching.step_kinds import FEW, FULL, KINDS, StepKinds, added_s
from physim.step.batch import Batch, fullest
from physim.step.host import Host
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Number, Scalar

# Steps that only decode, with few requests, with many and with a mean number.
_DECODING = len(("few", "many", "mean"))
# A group whose prompt stands for all where they differ little in what is asked.
_TYPICAL = len(GROUPS) // 2


class _Coming(NamedTuple):
    """Prompts that come to the steps of an engine, and steps that long ones fill.

    Attributes:
        chunks: The chunks that they are computed in.
        come: Last chunks of a step, in those that a rank has room for.
        filled: Share of the steps that a chunk of a long prompt fills on any rank,
        by_rank: and on one of them.
        follows: Chance that the step after such a one is filled too.
        ranks: Data-parallel ranks.
    """

    chunks: Chunks
    come: PromptsOfStep
    filled: Scalar
    by_rank: Scalar
    follows: Scalar
    ranks: Number

    @property
    def free(self) -> Scalar:
        """Chance that a rank has room for other prompts in a step that another fills."""
        return jnp.maximum(1.0 - self.by_rank / jnp.maximum(self.filled, TINY), 0.0)

    @property
    def several(self) -> Float[AnyArray, " several"]:
        """Prompts of steps with few and with many of them."""
        return jnp.stack([self.come.several.low, self.come.several.high])

    @property
    def sharing(self) -> Float[AnyArray, " several"]:
        """Ranks that have one of these, each its own."""
        return jnp.minimum(self.several, self.ranks)


class _OfKinds(NamedTuple):
    """Prompts of each kind of steps, those that only decode among them, as one of them is.

    Attributes:
        numbers: How many there are.
        tokens: Tokens of its chunk.
        squares: Their squares.
        before: Tokens before it, those that were cached left out.
        products: Products of its tokens with these.
    """

    numbers: Float[AnyArray, " steps"]
    tokens: Float[AnyArray, " steps"]
    squares: Float[AnyArray, " steps"]
    before: Float[AnyArray, " steps"]
    products: Float[AnyArray, " steps"]


def kinds_at(
    model: StepModel,
    demand: Demand,
    limits: Limits,
    occupancy: Occupancy,
    slots: Scalar,
    separate: bool,
) -> StepKinds:
    """Times of the kinds of steps at an occupancy.

    Args:
        model: Step times; of a step with both, those of both together.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        slots: Requests that may run.
        separate: Whether prompts have steps of their own.
    """
    peaked = peakedness(demand.arrival_cv2, demand.evenness)
    beside = decoding(occupancy.batch, peaked, demand.most_running(slots))
    # Decoding requests meet steps by how many decode in them; of all steps, that many do.
    mean = 1.0 / beside.mean(1.0 / beside.low, 1.0 / beside.high)
    mean = jnp.where(demand.decode_steps > 0, mean, 0.0)
    lanes = batches_under_way(demand, limits, occupancy)
    # Prompts that have steps of their own are dealt out to all batches; else each takes in its step
    # what has come since the one before it.
    shared = lanes if separate else jnp.ones(())
    coming = _coming(demand, limits, occupancy, lanes, separate)
    chunks = coming.chunks
    prompts = _of_kinds(coming, demand, limits, occupancy, shared)
    with_prompts = jnp.zeros(()) if separate else mean
    decodes = jnp.concatenate(
        [jnp.stack([beside.low, beside.high, mean]), jnp.full(KINDS, 1.0) * with_prompts]
    )
    plain = model.batch(
        decode_requests=decodes,
        query_tokens=jnp.ones_like(decodes) * limits.query_tokens,
        context=jnp.full_like(decodes, demand.met_tokens + occupancy.age),
        prefill_requests=prompts.numbers,
        ranks=limits.ranks,
        stages=lanes,
        most=limits.most_on_rank(demand.most_running(slots)),
    )
    batch = _with_prompts(plain, prompts, coming, demand, limits, occupancy, shared)
    host = model.ops.host
    # How many decode varies too.
    varying = jnp.where(with_prompts > 0, beside.square_of_range, 0.0) * limits.query_tokens**2
    batch = replace(
        batch, without_graph=_without_graph(host, batch, chunks, beside.weight_of_steps, varying)
    )
    # One more step: the same as a typical one, with those that an arriving request meets in it.
    typical: Batch = jax.tree.map(lambda x: x[_DECODING + _TYPICAL][None], batch)
    typical = _with_decoding(typical, occupancy.batch / jnp.maximum(with_prompts, SMALL))
    # How long several prompts take bends with how many tokens they have together.
    several: Batch = jax.tree.map(lambda x: x[_DECODING + FEW :], batch)
    room = occupancy.room / several.prefill_tokens
    sums = chunks.sums(several.prefill_requests, coming.sharing, room)
    singles: Batch = jax.tree.map(lambda x: x[: _DECODING + FEW], batch)
    shorter, longer = (
        _so_long(several, sums, value, jnp.min(chunks.sizes), host)
        for value in (sums.low, sums.high)
    )
    looked_at = [singles, shorter, longer, typical]
    only: Batch = jax.tree.map(lambda x: x[_DECODING - 1][None], batch)
    if separate:
        looked_at += _beside_ranks(typical, only)
    # How many decode varies further where a step's time grows with them.
    far = decoding(occupancy.batch, peaked / (1.0 - MOST_ELASTIC), demand.most_running(slots))
    looked_at += [_of_other_requests(only, number, host) for number in (far.low, far.high)]
    every: Batch = jax.tree.map(lambda *x: jnp.concatenate(x), *looked_at)
    times = jax.vmap(model)(_with_last_tokens(every, model))
    at_far, times = times.interval[-2:], jax.tree.map(lambda x: x[:-2], times)
    others = slower = jax.tree.map(lambda x: 0.0 * x[0], times)
    if separate:
        others, slower = _longer_beside_ranks(jax.tree.map(lambda x: x[-3:], times))
        times = jax.tree.map(lambda x: x[:-2], times)
    few, many, decode_only = (jax.tree.map(lambda x, i=i: x[i], times) for i in range(_DECODING))
    more_s = times.interval - (0.0 if separate else decode_only.interval)
    tokens = batch.prefill_tokens[_DECODING:]
    return StepKinds(
        as_seen=beside,
        few=few,
        many=many,
        far_slope_s=far.slope(*at_far),
        decode_only=decode_only,
        prompts=jax.tree.map(lambda x: _times_of_kinds(x, sums), times),
        others=others,
        slower=slower,
        numbers=prompts.numbers[_DECODING:],
        tokens=tokens,
        tokens_cv2=_varied_tokens(chunks, sums),
        cv2=_varied_s(more_s[_DECODING:-1], tokens, chunks, sums),
        chunks=chunks,
        filled=coming.filled,
        follows=coming.follows,
        free=coming.free,
        come=coming.come,
        lanes=lanes,
        alone_s=times.latency[_DECODING + _TYPICAL] - times.latency[-1],
    )


def _with_decoding(step: Batch, times: Float[AnyArray, "*steps"]) -> Batch:
    """A step in which so many times as many requests decode, with contexts as long."""
    return replace(
        step, decode_requests=step.decode_requests * times, attended=step.attended * times
    )


def _of_other_requests(only: Batch, number: Scalar, host: Host) -> Batch:
    """A step that only decodes, with another number of requests.

    Args:
        only: The step, alone on its axis.
        number: How many requests decode in it.
        host: Tells which steps are too large for a CUDA graph.
    """
    other = _with_decoding(only, number / jnp.maximum(only.decode_requests, SMALL))
    return replace(other, without_graph=host.without_graph(other.tokens, other.prefill_requests))


def _coming(
    demand: Demand, limits: Limits, occupancy: Occupancy, lanes: Scalar, separate: bool
) -> _Coming:
    """Prompts that come to steps, and the steps that long ones fill.

    Args:
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        lanes: Batches that share out a pipeline's requests.
        separate: Whether prompts have steps of their own.
    """
    parts = demand.parts * occupancy.scale
    chunks = Chunks.in_room(parts, occupancy.room, limits.stages, in_runs=separate)
    ranks, arrivals, ahead = limits.ranks, occupancy.prompts, chunks.number - 1.0
    room = occupancy.room * limits.stages
    if not separate:
        arrivals, ahead, room = arrivals / lanes, ahead * limits.stages, occupancy.room
    by_rank = jnp.minimum(arrivals * ahead / ranks, NEARLY)
    most = room * ranks / chunks.mean_last
    coming, looks = arrivals / (1.0 - by_rank), limits.receive_every
    # Where prompts have steps of their own, these have what came between two looks.
    seen, apart_by = (looks * coming, 1.0) if separate else (coming, looks)
    come = prompts_of_step(seen, apart_by, occupancy.start_cv2(demand), most)
    others = occupancy.prompts + jnp.maximum(come.burst - 1.0, demand.at_once)
    apart = _ranks_apart(ranks, chunks.long * (1.0 + others))
    # However small it keeps its digits, and something is left, by which others are divided.
    filled = jnp.minimum(-jnp.expm1(apart * jnp.log1p(-by_rank)), FULLEST)
    again = chunks.long / jnp.maximum(ahead, chunks.long + TINY)
    follows = 1.0 - (1.0 - filled) * again
    return _Coming(chunks, come, filled, by_rank, follows, ranks)


def _of_kinds(
    coming: _Coming, demand: Demand, limits: Limits, occupancy: Occupancy, shared: Scalar
) -> _OfKinds:
    """Prompts of each kind of steps.

    Args:
        coming: Prompts that come.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        shared: Batches of a pipeline that they are dealt out to.
    """
    chunks, some, ranks, room = coming.chunks, coming.several, limits.ranks, occupancy.room
    last, longest = chunks.mean_last, chunks.longest_of(coming.sharing)
    anywhere = occupancy.replacing * (1.0 - in_waves(demand))
    longest = _of_fullest(some, ranks, last, longest, anywhere) / _in_turn(some, ranks)
    # Of a pipeline's prompts that are computed together, a batch has as many tokens as it has room.
    packed = jnp.minimum(longest, room / fullest(some, shared))
    longest = jnp.where(shared > 1.0, packed, longest)
    size = longest / last
    none, one = jnp.zeros(_DECODING), jnp.ones(FULL + 1)
    full, before_full = room[None], chunks.before_full[None]
    squares, before, products = map(chunks.mean, (chunks.squares, chunks.before, chunks.products))
    return _OfKinds(
        numbers=jnp.concatenate([none, one, some]),
        tokens=jnp.concatenate([none, chunks.last, full, longest]),
        squares=jnp.concatenate([none, chunks.squares, full**2, squares * size**2]),
        before=jnp.concatenate([none, chunks.before, before_full, before * size]),
        products=jnp.concatenate([none, chunks.products, full * before_full, products * size**2]),
    )


def _with_prompts(
    decodes: Batch,
    prompts: _OfKinds,
    coming: _Coming,
    demand: Demand,
    limits: Limits,
    occupancy: Occupancy,
    shared: Scalar,
) -> Batch:
    """Batches of steps with their prompts: those of the rank with most, for which others wait.

    Args:
        decodes: Who decodes in each kind of steps.
        prompts: Prompts of each.
        coming: Prompts that come.
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
        shared: Batches of a pipeline that these are dealt out to.
    """
    chunks, ranks, room = coming.chunks, limits.ranks, occupancy.room
    numbers, tokens, squares, before, products = prompts
    last = chunks.mean_last
    on_one = jnp.where(
        (numbers > 1.0) & (shared <= 1.0), _in_turn(numbers, ranks), decodes.prefill_requests
    )
    total = fullest(numbers, shared) * jnp.minimum(tokens, jnp.where(numbers > 1.0, last, jnp.inf))
    # Beside a rank that a long prompt fills, others are full too, or have room for other prompts.
    beside_full = jnp.maximum(coming.by_rank * ranks / jnp.maximum(coming.filled, TINY), 1.0) - 1.0
    others = beside_full * room + coming.free * occupancy.prompts * last
    total = total.at[_DECODING + FULL].add(others)
    return replace(
        decodes,
        prefill_requests=on_one,
        prefill_tokens=on_one * tokens,
        prefill_squares=on_one * squares,
        cached_tokens=on_one * (demand.cached_tokens + before),
        cached_products=on_one * (tokens * demand.cached_before + products),
        prompts_elsewhere=jnp.maximum(total - on_one * tokens, 0.0),
    )


def _without_graph(
    host: Host, batch: Batch, chunks: Chunks, share: Scalar, varying: Scalar
) -> Float[AnyArray, " steps"]:
    """Share of the steps of each kind that are too large for a CUDA graph.

    Args:
        host: Tells which steps are too large.
        batch: What steps have in the mean.
        chunks: Chunks of prompts.
        share: Share of the steps that only decode in which many do.
        varying: Square of the width of the range of tokens that decode beside prompts.
    """
    decoding_tokens = batch.decode_requests * batch.query_tokens
    found = host.without_graph(batch.tokens, batch.prefill_requests)
    alone = _decoding_without_graph(host, decoding_tokens[:_DECODING], share)
    spread = jnp.sqrt(chunks.spread**2 + varying)
    by_part = host.without_graph(chunks.sizes + decoding_tokens[-1], 1.0, spread)
    found = found.at[:_DECODING].set(alone)
    return found.at[_DECODING : _DECODING + FULL].set(MEANS @ by_part)


def _decoding_without_graph(
    host: Host, tokens: Float[AnyArray, " decoding"], share: Scalar
) -> Float[AnyArray, " decoding"]:
    """Share of the steps with few, many and a mean number that are too large for a CUDA graph.

    Few and many stand for all numbers of a range, evenly filled, that has their variance: of the
    many as many are too large as can be, and of the few the rest, so that they have what the mean
    number has.

    Args:
        host: Tells which steps are too large.
        tokens: Tokens of steps with few, many and a mean number of requests.
        share: Share of the steps that have many.
    """
    few, many, mean = tokens
    wide = Nodes(few, many, share).square_of_range
    every = host.without_graph(mean, 0.0, jnp.sqrt(jnp.maximum(wide, 1.0)))
    of_many = jnp.minimum(every / jnp.maximum(share, SMALL), 1.0)
    of_few = (every - share * of_many) / (1.0 - share)
    return jnp.stack([of_few, of_many, every])


def _with_last_tokens(batch: Batch, model: StepModel) -> Batch:
    """Batches in which prompts with one token left decode: they are one query over their context.

    So a server gets requests whose prompts were computed elsewhere, and runs a CUDA graph.

    Args:
        batch: Batches.
        model: The steps.
    """
    requests = jnp.maximum(batch.prefill_requests, TINY)
    # Means hold the few tokens of prompts that are computed again.
    single = (batch.prefill_requests > 0) & (jnp.round(batch.prefill_tokens / requests) < 2.0)
    moved = jnp.where(single, batch.prefill_requests, 0.0)
    kept = jnp.where(single, 0.0, 1.0)
    seen = jnp.minimum((1.0 + batch.cached_tokens / requests)[..., None], model.ops.windows)
    decodes = replace(
        batch,
        decode_requests=batch.decode_requests + moved,
        attended=batch.attended + moved[..., None] * seen,
        prefill_requests=batch.prefill_requests * kept,
        prefill_tokens=batch.prefill_tokens * kept,
        prefill_squares=batch.prefill_squares * kept,
        cached_tokens=batch.cached_tokens * kept,
        cached_products=batch.cached_products * kept,
        elsewhere=batch.elsewhere + (1.0 - kept) * batch.prompts_elsewhere,
        prompts_elsewhere=batch.prompts_elsewhere * kept,
    )
    in_graph = model.ops.host.without_graph(decodes.tokens, 0.0)
    return replace(decodes, without_graph=jnp.where(single, in_graph, batch.without_graph))


def _beside_ranks(prompt: Batch, decodes: Batch) -> list[Batch]:
    """A step in which one rank has a prompt and all others decode, as it and as they have it.

    Args:
        prompt: A step with a prompt and nobody who decodes.
        decodes: A step in which all ranks decode, as one of them has it.
    """
    tokens = prompt.prefill_tokens + prompt.prompts_elsewhere
    alongside = prompt.prompts_elsewhere + decodes.elsewhere
    others = jnp.maximum(decodes.elsewhere - decodes.tokens, 0.0)
    return [
        replace(prompt, prompts_elsewhere=alongside),
        replace(decodes, elsewhere=others + tokens),
    ]


def _longer_beside_ranks(times: StepTime) -> tuple[StepTime, StepTime]:
    """How much longer a prompt's step is by the tokens of other ranks, and by waiting for them.

    Args:
        times: Times of a step with a prompt and nobody who decodes, and of `_beside_ranks`.
    """
    alone, prompt, decodes = (jax.tree.map(lambda x, i=i: x[i], times) for i in (0, 1, 2))
    # A step ends with the slowest rank.
    waits = decodes.latency > prompt.latency
    others: StepTime = jax.tree.map(jnp.subtract, prompt, alone)
    slower: StepTime = jax.tree.map(lambda d, p: jnp.where(waits, d - p, 0.0), decodes, prompt)
    return others, slower


def _so_long(
    batch: Batch, sums: Nodes, longer: Float[AnyArray, " steps"], least: Scalar, host: Host
) -> Batch:
    """Steps with as many prompts, whose tokens are so many times the mean of such steps.

    Args:
        batch: Steps with several prompts.
        sums: Tokens of the prompts together, over their mean.
        longer: One of its values.
        least: Tokens of the shortest prompt.
        host: Tells which steps are too large for a CUDA graph.
    """
    tokens = batch.prefill_tokens * longer
    # Each value stands for a range about it, in which nothing is less than the shortest prompts.
    wide = batch.prefill_tokens * (sums.high - sums.low)
    above_least = jnp.maximum(tokens - batch.prefill_requests * least, 0.0)
    spread = jnp.maximum(jnp.minimum(wide, 2 * above_least), 1.0)
    own = replace(batch, prefill_tokens=tokens)
    return replace(
        own,
        prefill_squares=batch.prefill_squares * longer**2 / sums.mean(sums.low**2, sums.high**2),
        cached_products=batch.cached_products * longer,
        without_graph=host.without_graph(own.tokens, 1.0, spread),
    )


def _times_of_kinds(
    of_steps: Float[AnyArray, " steps *parts"], sums: Nodes
) -> Float[AnyArray, " kinds *parts"]:
    """What kinds of steps with prompts take, of all that are looked at."""
    singles, several = jnp.split(of_steps[_DECODING:-1], [FEW])
    shorter, longer = jnp.split(several, 2)
    weight = sums.weight.reshape(-1, *(1,) * (of_steps.ndim - 1))
    return jnp.concatenate([singles, (1 - weight) * shorter + weight * longer])


def _varied_s(
    more_s: Float[AnyArray, " steps"],
    tokens: Float[AnyArray, " kinds"],
    chunks: Chunks,
    sums: Nodes,
) -> Float[AnyArray, " kinds"]:
    """Squared coefficient of variation of what prompts add to steps, by kind.

    Args:
        more_s: What they add, seconds: singles, then shorter and longer sums of several.
        tokens: Tokens of the rank with most, by kind.
        chunks: Chunks of prompts.
        sums: Tokens of several prompts together, over their mean.
    """
    singles_s, several_s = jnp.split(more_s, [FEW])
    of_part = added_s(tokens, singles_s, chunks.sizes)
    mean_s, squares = (
        jnp.matmul(MEANS, x, precision=jax.lax.Precision.HIGHEST) for x in (of_part, of_part**2)
    )
    of_singles = jnp.maximum(squares / jnp.maximum(mean_s, TINY) ** 2 - 1.0, 0.0)
    shorter_s, longer_s = jnp.split(several_s, 2)
    mean_s = jnp.maximum(sums.mean(shorter_s, longer_s), TINY)
    of_several = sums.variance(shorter_s, longer_s) / mean_s**2
    return jnp.concatenate([of_singles, jnp.zeros(1), of_several])


def _varied_tokens(chunks: Chunks, sums: Nodes) -> Float[AnyArray, " kinds"]:
    """Squared coefficient of variation of the tokens of prompts, by the kind of step.

    Args:
        chunks: Chunks of prompts.
        sums: Tokens of several prompts together, over their mean.
    """
    of_singles = jnp.maximum(chunks.squares / chunks.last**2 - 1.0, 0.0)
    return jnp.concatenate([of_singles, jnp.zeros(1), sums.variance(sums.low, sums.high)])


def _in_turn(prompts: Float[AnyArray, " n"], ranks: Number) -> Float[AnyArray, " n"]:
    """Prompts of the fullest of some ranks that take them in turn, of one at least."""
    rest = (1 - 1 / ranks) / 2 * jnp.maximum(1 - ranks / jnp.maximum(prompts, 1.0), 0.0)
    return jnp.maximum(prompts / ranks + rest, 1.0)


def _of_fullest(
    prompts: Float[AnyArray, " n"],
    ranks: Number,
    mean: Scalar,
    longest: Float[AnyArray, " n"],
    anywhere: Scalar,
) -> Float[AnyArray, " n"]:
    """Tokens of the rank that has most to compute.

    Ranks take prompts that arrive in turn, so that their lengths alone make one fuller than others;
    the largest of some sums of several is nearer to their mean than that of as many alone. Prompts
    that take the places of requests that end come to any rank: of ``r`` Poisson's numbers the
    largest exceeds the mean as that of ``r`` normal ones of the same variance does, whose quantile
    is Blom's (Statistical Estimates and Transformed Beta-Variables, 1958).

    Args:
        prompts: Prompts of all ranks.
        ranks: How many ranks there are.
        mean: Tokens of a prompt, mean,
        longest: and of the longest of one for each rank.
        anywhere: Share of the prompts that come to any rank.
    """
    each = prompts / ranks
    whole = jnp.maximum(each, 1.0)
    longer, more = longest - mean, (_in_turn(prompts, ranks) - whole) * mean
    in_turn = whole * mean + jnp.sqrt(whole * longer**2 + more**2 + ROOT)
    largest = np.sqrt(2.0) * jax.scipy.special.erfinv(2 * (ranks - 3 / 8) / (ranks + 1 / 4) - 1)
    wide = jnp.sqrt(longer**2 + (largest * mean) ** 2 + ROOT)
    by_chance = jnp.maximum(each * mean + jnp.sqrt(each) * wide, in_turn)
    return in_turn + anywhere * (by_chance - in_turn)


def _ranks_apart(ranks: Number, together: Scalar) -> Scalar:
    """Ranks that would fill as many steps if long prompts came to each on their own.

    Of so many long prompts that come together, ranks get one after the other: the steps that they
    fill end with the rank that has most of their chunks, whose number is taken for exponential. Of
    ``m`` such ranks it has ``1 + 1/2 + ... + 1/m`` times the mean, and the less the more it adds
    up from.

    Args:
        ranks: Ranks.
        together: Long prompts that come together, as one of them sees it.
    """
    hit = jnp.clip(together, 1.0, ranks)
    most = jax.scipy.special.digamma(hit + 1.0) + np.euler_gamma
    return ranks / hit * (1.0 + (most - 1.0) / jnp.sqrt(jnp.maximum(together / ranks, 1.0)))
