"""Times of the kinds of steps that an engine runs: steps that only decode, and steps with prompts.

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

from physim.batching.batch_statistics import Nodes, decoding
from physim.batching.demand import Demand
from physim.batching.guards import FULLEST, HARDLY, LITTLE, NEARLY, ROOT, SMALL, TINY
from physim.batching.limits import Limits
from physim.batching.occupancy import Occupancy, batches_under_way
from physim.batching.preemption import in_waves
from physim.batching.prompt_chunks import GROUPS, MEANS, Chunks, PromptsOfStep, prompts_of_step
from physim.batching.queueing import peakedness
from physim.step.batch import Batch, fullest
from physim.step.host import Host
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Number, Scalar

# Steps that only decode, with few requests, with many and with a mean number; and kinds of steps
# with prompts: the last chunk of one prompt of each group, a full chunk, few and many prompts.
_DECODING = len(("few", "many", "mean"))
FULL, FEW, MANY = (len(GROUPS) + place for place in range(3))
KINDS = MANY + 1
# A group whose prompt stands for all where they differ little in what is asked.
_TYPICAL = len(GROUPS) // 2
# Rounds in which the kinds of steps, and what comes in each of them, are found from one another.
_ROUNDS = 2


class StepKinds(NamedTuple):
    """Times of the kinds of steps at an occupancy.

    Attributes:
        as_seen: Requests that decode, as one of them meets it.
        few: A step that only decodes, with the fewer of them.
        many: A step that only decodes, with the more of them.
        decode_only: A step that only decodes, with as many of them as steps have on average.
        prompts: Steps with prompts, by kind.
        others: How much longer the tokens of other data-parallel ranks make these where all of them
            decode meanwhile; zero where requests decode beside prompts.
        slower: How much longer a rank that decodes meanwhile takes.
        numbers: Prompts of each of them.
        cv2: Squared coefficient of variation of their prompts' tokens.
        chunks: The chunks of prompts.
        filled: Share of the steps that a chunk of a long prompt fills on any rank.
        follows: Chance that the step after such a one is filled too.
        free: Chance that a rank has room for other prompts in it.
        come: Last chunks of a step, in those that a rank has room for.
        lanes: Batches that share out a pipeline's requests.
        alone_s: Time by which the step that an arriving request is prefilled in is shorter than
            such steps on average, seconds: some arrive at an idle engine.
    """

    as_seen: Nodes
    few: StepTime
    many: StepTime
    decode_only: StepTime
    prompts: StepTime
    others: StepTime
    slower: StepTime
    numbers: Float[AnyArray, " kinds"]
    cv2: Float[AnyArray, " kinds"]
    chunks: Chunks
    filled: Scalar
    follows: Scalar
    free: Scalar
    come: PromptsOfStep
    lanes: Scalar
    alone_s: Scalar

    @property
    def decode(self) -> StepTime:
        """A step that only decodes, mean of all such steps."""
        weight = self.as_seen.weight_of_steps
        time: StepTime = jax.tree.map(
            lambda few, many: (1 - weight) * few + weight * many, self.few, self.many
        )
        return time

    @property
    def slope_s(self) -> Scalar:
        """How much longer a step that only decodes is for each request in it, seconds."""
        apart = jnp.maximum(self.as_seen.high - self.as_seen.low, LITTLE)
        return (self.many.interval - self.few.interval) / apart

    @property
    def one_s(self) -> Scalar:
        """Time of a step with the last chunk of one prompt, mean, seconds."""
        return self.chunks.mean(self.prompts.latency[:FULL])

    @property
    def adding_s(self) -> Scalar:
        """What another prompt adds to such a step, seconds."""
        more = self.prompts.latency[FEW] - self.one_s
        return jnp.maximum(more / jnp.maximum(self.numbers[FEW] - 1.0, HARDLY), 0.0)

    @property
    def prefill_s(self) -> Float[AnyArray, " groups"]:
        """Time of all steps that compute a prompt alone, by its group, seconds."""
        following_s = self.chunks.behind * self.prompts.latency[FULL]
        return self.of_whole_prompts(self.prompts.latency - self.alone_s) + following_s

    @property
    def launches_s(self) -> Scalar:
        """What of that is because kernels are launched one by one, mean, seconds."""
        return self.chunks.mean(self.of_whole_prompts(self.prompts.launches))

    def beside_ranks(self, decode: Scalar, any_decodes: Scalar) -> StepTime:
        """How much longer a step with prompts is for other ranks, which decode meanwhile.

        Args:
            decode: Share of them that do, mean.
            any_decodes: Chance that one does.
        """
        longer: StepTime = jax.tree.map(
            lambda others, slower: decode * others + any_decodes * slower, self.others, self.slower
        )
        return longer

    def hidden_s(self, share: Float[AnyArray, " kinds"]) -> Scalar:
        """Time by which the last step of a prompt is longer for a long one on another rank, mean.

        It fills that step, or its last chunk is in it.

        Args:
            share: Share of the steps that are of each kind.
        """
        times = jnp.append(self.prompts.latency, self.decode_only.latency)
        every = jnp.append(share, 1.0 - jnp.sum(share))
        during = times[FULL] / jnp.sum(every * times)
        longer = jnp.maximum(times[FULL - 1 : FULL + 1, None] - times[:FULL], 0.0)
        ends = self.filled * during * self.free * (1.0 - self.follows)
        chance = jnp.stack([ends, self._hidden(during)])
        return jnp.sum(chance * jnp.sum(GROUPS * longer, axis=1))

    def of_whole_prompts(self, of_kind: Float[AnyArray, " kinds"]) -> Float[AnyArray, " groups"]:
        """What all steps that compute a prompt alone add up to, by its group.

        Args:
            of_kind: What a step of each kind takes.
        """
        return of_kind[:FULL] + self.chunks.full * of_kind[FULL]

    def several(self, share: Float[AnyArray, " kinds"]) -> Scalar:
        """Prompts of steps with more than one, mean.

        Args:
            share: Share of the steps that are of each kind.
        """
        weight = jnp.sum(share[FEW:])
        return jnp.sum(share[FEW:] * self.numbers[FEW:]) / jnp.maximum(weight, TINY)

    def lone(self, share: Float[AnyArray, " kinds"]) -> Scalar:
        """Share of the prompts that come alone in their step.

        Args:
            share: Share of the steps that are of each kind.
        """
        lone, joined = jnp.sum(share[:FULL]), jnp.sum(share[FEW:] * self.numbers[FEW:])
        return lone / jnp.maximum(lone + joined, TINY)

    def shares(
        self, seconds: Float[AnyArray, " kinds"], alone_s: Scalar
    ) -> Float[AnyArray, " kinds"]:
        """Share of the steps that are of each kind with prompts.

        More prompts come in long steps than in short ones, so the shares follow from themselves.

        Args:
            seconds: Time of a step of each kind.
            alone_s: Time of a step without prompts.
        """
        times = jnp.append(seconds, alone_s)
        even = jnp.ones(KINDS + 1)
        share = self._shares(self.come.mean, even, even.at[FULL].set(0.0))
        for _ in range(_ROUNDS):
            every = jnp.append(share, 1.0 - jnp.sum(share))
            share = self._shares(*self._after(times / jnp.sum(every * times), every))
        return share

    def varied(self, seconds: Float[AnyArray, " kinds"], alone_s: Scalar) -> Scalar:
        """Squared coefficient of variation of the times of steps with prompts.

        Args:
            seconds: Time of a step of each kind.
            alone_s: Time of a step without prompts.
        """
        share = self.shares(seconds, alone_s)
        mean = jnp.sum(share * seconds)
        squares = jnp.sum(share * seconds**2 * (1.0 + self.cv2))
        return jnp.maximum(squares * jnp.sum(share) / mean**2 - 1.0, 0.0)

    def _after(
        self, longer: Float[AnyArray, " all"], share: Float[AnyArray, " all"]
    ) -> tuple[Scalar, Float[AnyArray, " all"], Float[AnyArray, " all"]]:
        """What comes in steps that no long prompt fills, by the kind of the step before.

        Filled steps follow one another. What comes meanwhile is computed in them by ranks that have
        room, and waits for the end of the long prompt at the rank that computes it.

        Args:
            longer: Times of kinds of steps, over the mean step's.
            share: Shares of the steps that are of each kind.

        Returns:
            Last chunks in a step that is not filled, mean; what comes in steps of each kind until
            the next such step, over the mean; and the shares of them that are before such a step.
        """
        rest, run = 1.0 - self.filled, jnp.maximum(1.0 - self.follows, SMALL)
        begins = self.filled * (1.0 - self.follows) / rest
        during = longer[FULL]
        waits = during * (self.free + (1.0 - self.free) / run)
        before = ((1.0 - begins) / rest * share).at[FULL].set(begins)
        longer = longer.at[FULL].set(waits)
        of_one = self.filled * (1.0 - self.free)
        mean = self.come.mean * (1.0 - of_one) * (1.0 - self._hidden(during)) / rest
        return mean, longer / jnp.sum(before * longer), before

    def _hidden(self, during: Scalar) -> Scalar:
        """Share of the last chunks that are computed in steps that another rank fills.

        Args:
            during: Time of such a step, over the mean step's.
        """
        rest = 1.0 - self.filled
        others = (1.0 - self.filled * during) / rest
        coming = during * self.follows + others * (1.0 - self.follows)
        return jnp.minimum(self.filled * self.free * coming, 1.0)

    def _shares(
        self, mean: Scalar, longer: Float[AnyArray, " all"], share: Float[AnyArray, " all"]
    ) -> Float[AnyArray, " kinds"]:
        come, rest = self.come._replace(mean=mean), 1.0 - self.filled
        few, many = come.several.low, come.several.high
        none, one = come.none_and_one(
            jnp.delete(longer, FULL), jnp.delete(share, FULL), share[FULL], longer[FULL]
        )
        others = jnp.maximum(1.0 - none - one, SMALL)
        # Steps with many of them have what is left of the prompts.
        apart = jnp.maximum(many - few, HARDLY)
        weight = jnp.clip(((come.mean - one) / others - few) / apart, 0.0, 1.0)
        several = jnp.maximum(come.mean - one, 0.0) / ((1.0 - weight) * few + weight * many)
        several = jnp.minimum(several, jnp.maximum(1.0 - one, 0.0))
        of_several = several * jnp.stack([1.0 - weight, weight])
        return jnp.concatenate([rest * one * GROUPS, self.filled[None], rest * of_several])


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
    chunks = Chunks.in_room(demand.parts * occupancy.scale, occupancy.room, limits.stages)
    ranks, last = limits.ranks, chunks.mean(chunks.last)
    by_rank = jnp.minimum(occupancy.prompts * (chunks.number - 1.0) / ranks, NEARLY)
    most = occupancy.room * ranks * limits.stages / chunks.rest
    coming, looks = occupancy.prompts / (1.0 - by_rank), limits.receive_every
    # Where prompts have steps of their own, these have what came between two looks.
    seen, apart_by = (looks * coming, 1.0) if separate else (coming, looks)
    come = prompts_of_step(seen, apart_by, occupancy.start_cv2(demand), most)
    others = occupancy.prompts + jnp.maximum(come.burst - 1.0, demand.at_once)
    apart = _ranks_apart(ranks, chunks.long * (1.0 + others))
    # However small it keeps its digits, and something is left, by which others are divided.
    filled = jnp.minimum(-jnp.expm1(apart * jnp.log1p(-by_rank)), FULLEST)
    again = chunks.long / jnp.maximum(chunks.number - 1.0, chunks.long + TINY)
    some = jnp.stack([come.several.low, come.several.high])
    # Ranks that have a prompt, each one of its own.
    sharing = jnp.minimum(some, ranks)
    longest = chunks.longest_of(sharing)
    anywhere = occupancy.replacing * (1.0 - in_waves(demand))
    longest = _of_fullest(some, ranks, last, longest, anywhere) / _in_turn(some, ranks)
    # Of a pipeline's prompts that are computed together, a batch has as many tokens as it has room.
    lanes = batches_under_way(demand, limits, occupancy)
    packed = jnp.minimum(longest, occupancy.room / fullest(some, lanes))
    longest = jnp.where(limits.stages > 1, packed, longest)
    size = longest / last
    none, one, room = jnp.zeros(_DECODING), jnp.ones(FULL + 1), occupancy.room
    numbers = jnp.concatenate([none, one, some])
    tokens = jnp.concatenate([none, chunks.last, room[None], longest])
    squares = jnp.concatenate(
        [none, chunks.squares, room[None] ** 2, chunks.mean(chunks.squares) * size**2]
    )
    before = jnp.concatenate(
        [none, chunks.before, chunks.before_full[None], chunks.mean(chunks.before) * size]
    )
    products = jnp.concatenate(
        [
            none,
            chunks.products,
            (room * chunks.before_full)[None],
            chunks.mean(chunks.products) * size**2,
        ]
    )
    with_prompts = jnp.zeros(()) if separate else mean
    decodes = jnp.concatenate(
        [jnp.stack([beside.low, beside.high, mean]), jnp.full(KINDS, 1.0) * with_prompts]
    )
    plain = model.batch(
        decode_requests=decodes,
        query_tokens=jnp.ones_like(decodes) * limits.query_tokens,
        context=jnp.full_like(decodes, demand.met_tokens + occupancy.age),
        prefill_requests=numbers,
        ranks=ranks,
        stages=lanes,
        most=limits.most_on_rank(demand.most_running(slots)),
    )
    # Ranks wait for the one with most prompts.
    on_one = jnp.where(
        (numbers > 1.0) & (lanes <= 1.0), _in_turn(numbers, ranks), plain.prefill_requests
    )
    total = fullest(numbers, lanes) * jnp.minimum(tokens, jnp.where(numbers > 1.0, last, jnp.inf))
    # Beside a rank that a long prompt fills, others are full too, or have room for other prompts.
    free = jnp.maximum(1.0 - by_rank / jnp.maximum(filled, TINY), 0.0)
    beside_full = jnp.maximum(by_rank * ranks / jnp.maximum(filled, TINY), 1.0) - 1.0
    total = total.at[_DECODING + FULL].add(beside_full * room + free * occupancy.prompts * last)
    decoding_tokens = plain.decode_requests * limits.query_tokens
    host = model.ops.host
    without_graph = host.without_graph(decoding_tokens + on_one * tokens, numbers)
    alone = _decoding_without_graph(host, decoding_tokens[:_DECODING], beside.weight_of_steps)
    without_graph = without_graph.at[:_DECODING].set(alone)
    # How many decode varies too.
    varying = jnp.where(with_prompts > 0, beside.square_of_range, 0.0) * limits.query_tokens**2
    spread = jnp.sqrt(chunks.spread**2 + varying)
    by_part = host.without_graph(chunks.sizes + decoding_tokens[-1], 1.0, spread)
    without_graph = without_graph.at[_DECODING : _DECODING + FULL].set(MEANS @ by_part)
    batch = replace(
        plain,
        prefill_requests=on_one,
        prefill_tokens=on_one * tokens,
        prefill_squares=on_one * squares,
        cached_tokens=on_one * (demand.cached_tokens + before),
        cached_products=on_one * (tokens * demand.cached_before + products),
        prompts_elsewhere=jnp.maximum(total - on_one * tokens, 0.0),
        without_graph=without_graph,
    )
    # One more step: the same as a typical one, with those that an arriving request meets in it.
    typical: Batch = jax.tree.map(lambda x: x[_DECODING + _TYPICAL][None], batch)
    fewer = occupancy.batch / jnp.maximum(with_prompts, SMALL)
    typical = replace(
        typical,
        decode_requests=typical.decode_requests * fewer,
        attended=typical.attended * fewer,
    )
    # How long several prompts take bends with how many tokens they have together.
    several: Batch = jax.tree.map(lambda x: x[_DECODING + FEW :], batch)
    sums = chunks.sums(several.prefill_requests, sharing, room / several.prefill_tokens)
    singles: Batch = jax.tree.map(lambda x: x[: _DECODING + FEW], batch)
    shorter, longer = (
        _so_long(several, sums, value, jnp.min(chunks.sizes), host)
        for value in (sums.low, sums.high)
    )
    looked_at = [singles, shorter, longer, typical]
    if separate:
        looked_at += _beside_ranks(typical, jax.tree.map(lambda x: x[_DECODING - 1][None], batch))
    every: Batch = jax.tree.map(lambda *x: jnp.concatenate(x), *looked_at)
    times = jax.vmap(model)(_with_last_tokens(every, model))
    others = slower = jax.tree.map(lambda x: 0.0 * x[0], times)
    if separate:
        others, slower = _longer_beside_ranks(jax.tree.map(lambda x: x[-3:], times))
        times = jax.tree.map(lambda x: x[:-2], times)
    few, many, decode_only = (jax.tree.map(lambda x, i=i: x[i], times) for i in range(_DECODING))
    cv2 = jnp.maximum(chunks.squares / chunks.last**2 - 1.0, 0.0)
    of_several = jnp.maximum(chunks.mean(chunks.squares) / last**2 - 1.0, 0.0) / some
    return StepKinds(
        as_seen=beside,
        few=few,
        many=many,
        decode_only=decode_only,
        prompts=jax.tree.map(lambda x: _of_kinds(x, sums), times),
        others=others,
        slower=slower,
        numbers=numbers[_DECODING:],
        cv2=jnp.concatenate([cv2, jnp.zeros(1), of_several]),
        chunks=chunks,
        filled=filled,
        follows=1.0 - (1.0 - filled) * again,
        free=free,
        come=come,
        lanes=lanes,
        alone_s=times.latency[_DECODING + _TYPICAL] - times.latency[-1],
    )


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


def _of_kinds(
    of_steps: Float[AnyArray, " steps *parts"], sums: Nodes
) -> Float[AnyArray, " kinds *parts"]:
    """What kinds of steps with prompts take, of all that are looked at."""
    singles, several = jnp.split(of_steps[_DECODING:-1], [FEW])
    shorter, longer = jnp.split(several, 2)
    weight = sums.weight.reshape(-1, *(1,) * (of_steps.ndim - 1))
    return jnp.concatenate([singles, (1 - weight) * shorter + weight * longer])


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
