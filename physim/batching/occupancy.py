"""Who is in the steps of an engine."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.batching.guards import HARDLY, ROOT, TINY
from physim.batching.limits import Limits
from physim.batching.strata import PARTS
from physim.pytree import Pytree
from physim.types import AnyArray, Scalar

# How many lives of its requests, in logarithm, a batch of a pipeline lasts at most: a run is not
# longer.
_LONGEST_LIFE = 3.0


class Occupancy(Pytree):
    """Who is in a step.

    Attributes:
        batch: Requests that decode, mean.
        prompts: Prompts that begin to be computed, mean.
        room: Prompt tokens that a rank's step has room for.
        scale: Tokens that are computed for each of a prompt's: more than one where requests lose
            their place in a full KV cache.
        chunks: Prefill steps of a prompt, mean.
        age: Tokens that a decoding request has generated, mean.
        replacing: Share of the requests that start because another finishes, not as they arrive.
        others: Of the prefill chunks, the share that a decoding request may meet: in a closed loop
            a client that decodes has no prompt under way.
        crowd: Requests that started at once, most of them: the clients of a closed loop that have
            a slot, at its start; where more arrive than leave, as many as run.
        stirred: Whether those that end leave no place for one that waits, so that the next ones
            of their clients go to whichever batch of a pipeline forms next.
    """

    batch: Scalar
    prompts: Scalar
    room: Scalar
    scale: Scalar
    chunks: Scalar
    age: Scalar
    replacing: Scalar
    others: Scalar
    crowd: Scalar
    stirred: Scalar

    @property
    def prefilling(self) -> Scalar:
        """Prefill chunks of a step, mean."""
        return self.prompts * self.chunks

    def start_cv2(self, demand: Demand) -> Scalar:
        """Squared coefficient of variation of the times between requests that start.

        Those that wait for others to finish start as those do: by chance. So does the next request
        of a client.
        """
        replacing = jnp.where(demand.closed, 1.0, self.replacing)
        return (1.0 - replacing) * demand.burst_cv2 + replacing


def room_beside(limits: Limits, decoding: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
    """Prompt tokens that a step has room for beside so many requests that decode, of all ranks.

    Decode has precedence. Each rank of each stage has room for a token at least.

    Args:
        limits: The engine's limits.
        decoding: Requests that decode.
    """
    taken = jnp.where(limits.prompts_apart, 0.0, limits.query_tokens * decoding)
    return jnp.maximum(limits.max_num_batched_tokens - taken, limits.ranks * limits.stages)


def batches_under_way(demand: Demand, limits: Limits, occupancy: Occupancy) -> Scalar:
    """Batches that share out a pipeline's requests: one at least, and no more than it has stages.

    Requests that wait join the batch that comes out of the pipeline next, so another begins only
    where the token budget has no room for all of them; it ends when it has lost all its requests
    and none has joined. Of many that start at once, each batch takes as many as the budget has room
    for until none is left. Where others wait for their places, they are replaced in their own
    batch, and the pipeline is as slow as its fullest one for ever; else batches come to be alike.

    Args:
        demand: The load.
        limits: The engine's limits.
        occupancy: Who is in a step.
    """
    arrivals = occupancy.prompts
    budget = limits.max_num_batched_tokens / limits.stages
    room = jnp.maximum(budget - occupancy.batch, 1.0) / (demand.new_tokens * occupancy.scale)
    # Of few arrivals more come than a normal number has it: the root of the deviance is normal.
    most, mean = room + 0.5, jnp.maximum(arrivals, TINY)
    deviance = 2 * (most * jnp.log(most / mean) - (most - mean))
    deviance /= demand.arrival_cv2 + demand.prompt_cv2 + HARDLY
    log_many = jax.scipy.stats.norm.logsf(jnp.sign(most - mean) * jnp.sqrt(deviance + ROOT))
    # Or one is too long by itself, of which a sum's normal distribution knows nothing.
    beyond = jnp.sum(PARTS * (demand.parts > room * demand.new_tokens))
    log_begins = jnp.logaddexp(log_many, jnp.log(jnp.minimum(arrivals * beyond, 1.0) + TINY))
    lasts = jnp.minimum(occupancy.batch / limits.stages, _LONGEST_LIFE)
    log_ends = -lasts - jnp.log(jnp.maximum(demand.decode_steps, 1.0))
    # With slots taken all batches are under way, and those that come while the longest is join it.
    joins = jnp.minimum(jnp.exp(log_begins) / jnp.minimum(arrivals, 1.0), 1.0)
    shared = 1.0 - occupancy.replacing * (1.0 - joins)
    by_chance = 1.0 + (limits.stages - 1) * shared * jax.nn.sigmoid(log_begins - log_ends)
    # Batches that are full at once, and one more as soon as a whole request is left.
    each = budget / (demand.new_tokens * occupancy.scale)
    full = occupancy.crowd / each
    begun = jnp.floor(full) + jnp.minimum((full - jnp.floor(full)) * each, 1.0)
    at_once = jnp.where(occupancy.stirred > 0, begun, full)
    return jnp.minimum(jnp.maximum(by_chance, at_once), limits.stages)
