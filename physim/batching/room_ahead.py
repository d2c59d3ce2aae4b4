"""Room that servers that decode make before prompts are computed elsewhere, as SGLang's do.

A request has a place and its prompt's KV blocks from when it comes, those of its answer as that
comes, and tokens that are kept free (`physim.replay.room` has the same for each request).
"""

from __future__ import annotations

import jax.numpy as jnp

from physim.batching.queueing import Varied, wait_for_a_slot
from physim.inputs.load import Load
from physim.pytree import Pytree
from physim.service.policy import places_of
from physim.service.service import Pool
from physim.types import Scalar


class RoomAhead(Pytree):
    """What there is of room, and what requests take of it.

    Attributes:
        places: Requests that have room or run at most, on all servers.
        tokens: Tokens that the KV caches of all servers hold.
        before_tokens: Of these, a request takes so many while its prompt is computed and sent,
        answer_tokens: and so many while it is answered, mean.
    """

    places: Scalar
    tokens: Scalar
    before_tokens: Scalar
    answer_tokens: Scalar

    @classmethod
    def of_pool(cls, pool: Pool, load: Load) -> RoomAhead | None:
        """The room of servers that decode; None where it is made once prompts are computed.

        Args:
            pool: The servers.
            load: The load of the service.
        """
        server, reserved = pool.server, pool.server.policy.reserved_tokens
        if reserved is None:
            return None
        ranks = pool.replicas * server.parallelism.dp
        before = load.mean_input + reserved
        return cls(
            places=float(ranks * places_of(server.sizes.max_num_seqs)),
            tokens=float(ranks * server.kv.tokens),
            before_tokens=before,
            answer_tokens=before + load.mean_output / 2.0,
        )

    def rps(self, before_s: Scalar, answer_s: Scalar) -> Scalar:
        """Requests per second that have room, at most: Little's law.

        Args:
            before_s: How long a prompt waits for others, is computed and sent, mean, seconds.
            answer_s: From the first token to the last, mean, seconds.
        """
        tokens = before_s * self.before_tokens + answer_s * self.answer_tokens
        return jnp.minimum(self.places / (before_s + answer_s), self.tokens / tokens)

    def wait(self, rate: Scalar, before_s: Scalar, answer_s: Scalar) -> tuple[Scalar, Scalar]:
        """How long requests that come by chance wait for room, mean, seconds; and which share do.

        Erlang's queue (The Post Office Electrical Engineers' Journal 10, 1917), of as many servers
        as there is room for requests, for stays that are all about as long (Allen and Cunneen).

        Args:
            rate: Requests per second.
            before_s: As `rps` takes it,
            answer_s: likewise.
        """
        stay_s = before_s + answer_s
        places = stay_s * self.rps(before_s, answer_s)
        alike = Varied(steps_cv2=0.0)
        waiting, chance = wait_for_a_slot(rate * stay_s, places, 1.0, 0.0, alike)
        return waiting / rate, chance
