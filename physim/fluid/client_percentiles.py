"""Latencies of clients that begin at once, request by request.

While they are in step, all that differs between them is their place in line. Who is early waits for
few of the others' prompts and meets the rest while it decodes, so that all end after about the same
time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from physim.batching.guards import TINY
from physim.pytree import Pytree
from physim.types import AnyArray, Scalar


class Clients(Pytree):
    """Requests of clients that begin at once. Times in seconds.

    Attributes:
        closed: Whether there are clients; else nothing else counts.
        begun: Share of the requests that are the first of their clients, and of those that are the
            last.
        first: Times to first token of the first, in order.
        round: Shares of the other requests, from early to late.
        later: Times to first token of these, means,
        decode: and how long they decode, over the mean of all.
        last_decode: How long the last decode, over the mean of all.
        chance: How far requests vary as if clients were anywhere in theirs.
        until_s: How much longer than the mean prompts are computed until each one's own is, in
            order, where clients are in step,
        after_s: and after it.
        prompts_apart: Whether all prompts are computed before any request decodes, 0 or 1.
        least_s: Least and
        most_s: greatest mean step of a request that decodes.
        line: What clients without a slot wait for one, mean.
        line_cv: Coefficient of variation of that wait.
    """

    closed: Bool[AnyArray, ""]
    begun: Scalar
    first: Float[AnyArray, " prompts"]
    round: Float[AnyArray, " nodes"]
    later: Float[AnyArray, " nodes"]
    decode: Float[AnyArray, " nodes"]
    last_decode: Scalar
    chance: Float[AnyArray, " nodes"]
    until_s: Float[AnyArray, " prompts"]
    after_s: Float[AnyArray, " prompts"]
    prompts_apart: Scalar
    least_s: Scalar
    most_s: Scalar
    line: Scalar
    line_cv: Scalar


class ClientRequests(NamedTuple):
    """Requests of clients that begin at once, one by one.

    Attributes:
        ttft: Times to first token, seconds.
        decode: How long each decodes, over the mean of all, but for its place in line.
        met_s: How much more than the mean of its round it meets of others' prompts while it
            decodes, for its place, seconds.
    """

    ttft: Float[AnyArray, " points"]
    decode: Float[AnyArray, " points"]
    met_s: Float[AnyArray, " points"]

    def pace_s(
        self,
        clients: Clients,
        steps: Float[AnyArray, " points"],
        each_s: Float[AnyArray, " points"],
    ) -> Float[AnyArray, " points"]:
        """Mean time of the steps in which each request decodes, seconds.

        Args:
            clients: The clients.
            steps: In how many steps it decodes.
            each_s: The same, for a request like all.
        """
        mean = each_s * self.decode
        found = mean + self.met_s / jnp.maximum(steps, 1.0)
        low, high = jnp.minimum(mean, clients.least_s), jnp.maximum(mean, clients.most_s)
        return jnp.where(clients.closed, jnp.clip(found, low, high), each_s)


def requests_of(
    clients: Clients,
    anywhere: Float[AnyArray, " points"],
    turn: Float[AnyArray, " points"],
    place: Float[AnyArray, " points"],
    waits: Float[AnyArray, " points"],
) -> ClientRequests:
    """Requests one by one, from those of clients who are anywhere in their requests.

    What is computed before a request's own prompt it does not meet after it. But the first requests
    to begin meet the first prompts, and the last of the first the next ones of those before them.

    Args:
        clients: The clients.
        anywhere: Times to first token of requests of clients who are anywhere, seconds.
        turn: Which of the requests of its client each is, from the first at 0 to the last at 1.
        place: Its place in line, from 0 to 1.
        waits: How much longer than the mean it waits for a slot, in standard deviations.
    """
    line = clients.line * jnp.maximum(1 + clients.line_cv * waits, 0.0)
    prompts = jnp.linspace(0.0, 1.0, clients.first.shape[0])
    begins, ends = turn < clients.begun, turn >= 1 - clients.begun
    place = jnp.where(begins, turn / jnp.maximum(clients.begun, TINY), place)
    rest = (turn - clients.begun) / jnp.maximum(1 - clients.begun, TINY)
    later, decode, chance = (
        jnp.interp(rest, clients.round, values)
        for values in (clients.later, clients.decode, clients.chance)
    )
    first, until_s, after_s = (
        jnp.interp(place, prompts, values)
        for values in (clients.first, clients.until_s, clients.after_s)
    )
    in_step = 1 - chance
    ttft = later * (1 + chance * (anywhere / jnp.mean(anywhere) - 1)) + in_step * until_s + line
    met_s = jnp.where(begins, clients.prompts_apart * after_s, -until_s)
    return ClientRequests(
        jnp.where(clients.closed, jnp.where(begins, first, ttft), anywhere),
        jnp.where(ends, clients.last_decode, decode),
        in_step * jnp.where(ends, after_s, met_s),
    )
