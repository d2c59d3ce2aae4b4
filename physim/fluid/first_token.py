"""Time to first token, put together from its causes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.batching.batch_statistics import exponential_up_to
from physim.batching.demand import Demand
from physim.batching.guards import LITTLE, TINY
from physim.batching.limits import Limits
from physim.batching.looks import looks_at
from physim.batching.occupancy import Occupancy
from physim.batching.prompt_chunks import GROUPS
from physim.batching.queueing import (
    Varied,
    coming_together,
    lasting,
    peakedness,
    wait_for_tokens,
)
from physim.batching.step_kinds import FULL, KINDS
from physim.batching.step_mix import Steps
from physim.batching.strata import PARTS
from physim.corrections.fields import Corrections
from physim.fluid.found_steps import found_steps
from physim.pytree import Pytree
from physim.service.phases import decode_steps
from physim.step.front_end import handover_steps, output_s, outside_s, tokens_outside_s
from physim.types import AnyArray, Scalar


class FirstToken(Pytree):
    """What a mean time to first token is spent on, seconds; the parts sum to it.

    Attributes:
        front_end: On the way to the engine and from it, in the API server.
        warm_up: Waiting for an engine that warms up.
        scheduling: The steps under way as a request arrives, of which it is no part.
        queue: Waiting for room in the budget of a step, for a slot, for KV blocks or, of clients in
            step, for the prompts of others.
        loading: Waiting for its prefix to come up from tiers below; where it comes up with
            its own prefill steps it is a part of these.
        launches: What its own prefill steps take because their kernels are launched one by one,
            beyond the GPU's time.
        prefill: Its own prefill steps but for that.
        output: Its first token's turn among those that leave the API server.
    """

    front_end: Scalar
    warm_up: Scalar
    scheduling: Scalar
    queue: Scalar
    loading: Scalar
    launches: Scalar
    prefill: Scalar
    output: Scalar

    @classmethod
    def of_clients(cls, ttft: Scalar, otherwise: FirstToken, warm_up: Scalar) -> FirstToken:
        """Those of clients that begin at once, from those of clients anywhere in their requests.

        Who prefills in step with others finds no steps under way that it is no part of, and what is
        neither its own steps nor outside of the engine it waits for.

        Args:
            ttft: Mean time to first token of all their requests.
            otherwise: The parts of a request among clients that are anywhere.
            warm_up: What requests wait for the engine to warm up, mean.
        """
        inside = ttft - otherwise.front_end - otherwise.output - warm_up - otherwise.loading
        launches = jnp.minimum(otherwise.launches, inside)
        prefill = jnp.minimum(otherwise.prefill, inside - launches)
        scheduling = jnp.minimum(otherwise.scheduling, inside - launches - prefill)
        return replace(
            otherwise,
            warm_up=warm_up,
            scheduling=scheduling,
            queue=inside - launches - prefill - scheduling,
            launches=launches,
            prefill=prefill,
        )


class Local(NamedTuple):
    """What a request meets that starts at some time. Times in seconds.

    Attributes:
        as_seen: A step as a decoding request meets it.
        mean: A mean step.
        outside: Time outside of steps: of the engine, with the handling of its first token, and
            until its prefix has come up from the host's memory.
        token: What each token of a prompt takes of it.
        under_way: Wait for the steps under way, if there are any.
        rest: What of that is for the rest of the one that runs.
        finds: How often a request finds prompts in that one, over how often they are,
        finds_next: and in the next, over the share of steps that has them.
        left: What is then left of the one that runs, over half of it.
        queue: Wait for tokens of prompts that came in earlier steps.
        queued: Chance that there are any.
        queue_cv: Coefficient of variation of the wait where there are.
        behind: Wait for prompts behind its own before it decodes, where prompts go first.
        later: How much later it ends for those that came in the same step and are before it.
        is_later: Chance that it does.
        own_prefill: A prefill step of its own, mean.
        same_step: Other prompts in that step, a number.
        adding: What each of them adds to it.
        decode_only: A step that only decodes,
        full: and one whose budget prompts take.
        prefill_share: Share of a decoding request's steps with prefill.
        own_rank: Share of these in which its own rank waits for prompts,
        waiting: steps for which it does then, mean,
        second: and the chance that it is more than one.
        crowd: Prefill chunks of such a step, mean.
        longer: How much longer a step is for each of them.
        prompt_cv2: Squared coefficient of variation of the time that a prompt takes.
        bunched: Variance of the number of requests that decode, over its mean, were steps alike,
        varied: and as they are.
        prefill: Steps that compute a prompt, by its group.
        hidden: How much longer these are because another rank fills one of them, mean.
        follows: Chance that the step after one that a long prompt fills is filled too.
        held: How many times as long as such a step a gap is in which long prompts fill batches of a
            pipeline one after the other.
        kind: Steps with prompts, by their kind.
        kind_more: How much longer each kind makes a gap between tokens.
        kind_tokens: Tokens of prompts of each kind, on the rank that has most,
        kind_tokens_cv2: and their squared coefficient of variation.
        kind_share: Share of steps that are of each kind.
    """

    as_seen: Scalar
    mean: Scalar
    outside: Scalar
    token: Scalar
    under_way: Scalar
    rest: Scalar
    finds: Scalar
    finds_next: Scalar
    left: Scalar
    queue: Scalar
    queued: Scalar
    queue_cv: Scalar
    behind: Scalar
    later: Scalar
    is_later: Scalar
    own_prefill: Scalar
    same_step: Scalar
    adding: Scalar
    decode_only: Scalar
    full: Scalar
    prefill_share: Scalar
    own_rank: Scalar
    waiting: Scalar
    second: Scalar
    crowd: Scalar
    longer: Scalar
    prompt_cv2: Scalar
    bunched: Scalar
    varied: Scalar
    hidden: Scalar
    follows: Scalar
    held: Scalar
    prefill: Float[AnyArray, " groups"]
    kind: Float[AnyArray, " kinds"]
    kind_more: Float[AnyArray, " kinds"]
    kind_tokens: Float[AnyArray, " kinds"]
    kind_tokens_cv2: Float[AnyArray, " kinds"]
    kind_share: Float[AnyArray, " kinds"]

    def behind_each_s(self, demand: Demand) -> Scalar:
        """Wait for prompts behind its own over the gaps of a request, mean, seconds.

        Args:
            demand: The load.
        """
        decodes = jnp.mean(jnp.clip(decode_steps(demand.output_steps), 0.0, 1.0))
        return self.behind * decodes / jnp.maximum(demand.decode_steps, LITTLE)

    def varied_requests(self, demand: Demand, by_blocks: Scalar) -> Varied:
        """How far requests come and stay by chance.

        Args:
            demand: The load.
            by_blocks: What their KV blocks add to the peakedness of the number that run.
        """
        by_arrivals = peakedness(demand.arrival_cv2, demand.evenness)
        return Varied(
            self.bunched + by_blocks,
            lasting(by_arrivals, self.bunched, demand.evenness) + by_blocks,
            demand.arrival_cv2,
            # Who has many blocks has them as long: of both, as though they had nothing to do with
            # each other.
            (1.0 + demand.output_cv2) * (1.0 + by_blocks) - 1.0,
            self.prompt_cv2,
        )

    def seen_s(self, replacing: Scalar) -> Scalar:
        """A step as a decoding request meets it where so many start because others finish, seconds.

        Then all steps are met alike, and none is longer than a full one.

        Args:
            replacing: The share of requests that do.
        """
        slowest = jnp.minimum(self.as_seen, jnp.maximum(self.kind[FULL], self.mean))
        return replacing * self.mean + (1.0 - replacing) * slowest

    @property
    def first(self) -> Scalar:
        """TTFT of a request that meets an idle engine."""
        prefill = jnp.sum(GROUPS * self.prefill) + self.hidden
        return self.outside + prefill + self.same_step * self.adding


def front_end_s(corrections: Corrections, demand: Demand, limits: Limits) -> Scalar:
    """Time of a request outside the engine, mean, seconds."""
    return outside_s(corrections, limits.prompt_token_s * demand.input_tokens)


def local(
    steps: Steps, occupancy: Occupancy, corrections: Corrections, demand: Demand, limits: Limits
) -> Local:
    """What a request meets at an occupancy.

    TTFT is the time in the front end, the steps under way when it arrives (`found_steps`), a wait
    for the token budget and for a slot, its own prefill steps, and the handling of their output.

    Args:
        steps: The engine's steps.
        occupancy: Who is in them.
        corrections: Corrections of the constants.
        demand: The load.
        limits: The engine's limits.
    """
    found = found_steps(steps, occupancy, demand, limits)
    ahead = handover_steps(corrections, limits.async_scheduling)
    rest = ahead * 0.5 / (0.5 + limits.async_scheduling) + found.spread / 2
    waited = ahead + found.spread / 2 + looks_at(occupancy.prompts, limits).waited
    ranks = limits.ranks * limits.stages
    coming = occupancy.prompts / steps.mean.interval
    # Prompts that came at the very same time wait for each other in another place.
    stamped = demand.stamped(demand.burst_cv2)
    apart = 1.0 - stamped / jnp.maximum(demand.burst_cv2 - 1.0, LITTLE)
    prompts, joined = demand.parts * occupancy.scale, apart * (1.0 - steps.lone)
    joined = jnp.where(ranks > 1, 0.0, joined)
    tokens = wait_for_tokens(
        prompts,
        occupancy.room,
        steps.full_s / limits.stages,
        coming / limits.ranks,
        1.0 - joined,
        steps.arriving,
        demand.arrival_cv2,
        demand.burst_cv2 - stamped,
        found.until_end,
    )
    others = jnp.maximum(steps.same_step / jnp.maximum(1.0 - steps.lone, TINY), 1.0)
    shared = coming_together(prompts, occupancy.room, others)
    # A step takes what one without prompts does, and more by its tokens.
    more_s = steps.full_s - steps.alone_s
    later_s = joined * (shared.later * steps.alone_s + shared.tokens_before * more_s)
    same_step = jnp.where(
        (ranks > 1) | demand.in_rounds,
        steps.beside_at_most,
        steps.same_step * shared.in_last_step,
    )
    # Its first token comes with those of the step: where prompts are apart, of no request's decode.
    beside = jnp.where(limits.prompts_apart, same_step, occupancy.batch)
    outside = front_end_s(corrections, demand, limits) + output_s(corrections, beside + 1.0)
    if demand.loading_s is not None:
        outside += demand.loading_s
    # Where prompts go first, a request decodes once those behind it are computed: no more of them
    # than there are slots.
    each_s = steps.full_s * jnp.sum(PARTS * prompts) / occupancy.room
    behind_s = exponential_up_to(tokens.behind_s, steps.free * each_s)
    return Local(
        as_seen=steps.as_seen.interval,
        mean=steps.mean.interval,
        outside=outside,
        token=tokens_outside_s(corrections, limits.prompt_token_s),
        under_way=waited * found.next_s,
        rest=rest * found.next_s,
        finds=found.prompts,
        finds_next=found.prompts_next,
        left=found.left,
        queue=tokens.wait_s,
        queued=tokens.chance,
        queue_cv=tokens.cv,
        behind=jnp.where(demand.in_rounds, 0.0, limits.prompts_apart * behind_s),
        later=later_s,
        is_later=joined * shared.is_later,
        own_prefill=steps.own_s_beside(same_step),
        same_step=same_step,
        adding=steps.adding_s,
        decode_only=steps.alone_s,
        full=steps.full_s,
        prefill_share=steps.prefill_share,
        own_rank=steps.own_rank,
        waiting=steps.waiting,
        second=steps.second,
        crowd=steps.crowd,
        longer=steps.longer_s,
        prompt_cv2=steps.prompt_cv2,
        bunched=steps.bunched,
        varied=steps.varied,
        hidden=steps.hidden_s,
        follows=steps.follows,
        held=steps.held,
        prefill=steps.prefill_s,
        kind=steps.kind_s,
        kind_more=steps.kind_more_s,
        kind_tokens=steps.kind_tokens,
        kind_tokens_cv2=steps.kind_tokens_cv2,
        kind_share=steps.kind_share,
    )


# The shapes of a record.
_SHAPES = {
    "prefill": FULL,
    "kind": KINDS,
    "kind_more": KINDS,
    "kind_tokens": KINDS,
    "kind_tokens_cv2": KINDS,
    "kind_share": KINDS,
}
EMPTY = Local(**{name: np.zeros(_SHAPES.get(name, ()), np.float32) for name in Local._fields})
