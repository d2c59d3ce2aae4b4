"""How much longer than at their steady rate clients take who think and send a number of requests.

All send their first at once. In the end no request is left but those that clients have or think of,
so that fewer and fewer of them have something to do until the last is answered.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from physim.batching.guards import SMALL, TINY
from physim.types import Scalar


def ends_later(clients: Scalar, begun: Scalar, share: Scalar, turns: Scalar) -> Scalar:
    """What `of_requests` says, or `of_turns` where these are of conversations.

    Args:
        clients: Clients.
        begun: Share of the requests that are somebody's first; none without end.
        share: Share of a cycle that clients think.
        turns: Turns of a conversation, mean; 1 where requests have nothing to do with each other.
    """
    some = jnp.maximum(begun, TINY)
    longer = jnp.where(
        jnp.asarray(turns) > 1.0,
        of_turns(clients, clients / some, share, turns),
        of_requests(clients, some, share),
    )
    return jnp.where(jnp.asarray(begun) > 0, longer, 1.0)


def of_requests(clients: Scalar, begun: Scalar, share: Scalar) -> Scalar:
    """Time that requests take, over that in which as many are answered at the steady rate.

    From an answer to the next a client takes a cycle, of the mean ``t`` with the squared
    coefficient of variation ``c``. After the first answers ``k`` more of each client take
    ``k t + (1 - c) t / 2`` (a renewal process; Cox, Renewal Theory, 1962). Then no request is left
    but those that clients have or think of: the last of ``m`` exponential times ``z`` ends after
    ``z (ln m + 0.577)``.

    Args:
        clients: Clients.
        begun: Share of the requests that are somebody's first.
        share: Share of a cycle that clients think.
    """
    last = jnp.log(jnp.maximum(clients * share, 1.0)) + np.euler_gamma
    # In cycles, over as many as there are rounds: one round takes no time to think.
    several = jnp.clip(1.0 / begun - 1.0, 0.0, 1.0)
    ending = 2.0 * (1.0 - share) - 2.0 + (1.0 - share**2) / 2.0 + share * last
    longer = several * ending - (1.0 - several) * share
    return 1.0 + begun * longer


def of_turns(clients: Scalar, requests: Scalar, share: Scalar, turns: Scalar) -> Scalar:
    """The same of clients who each have one conversation after another.

    Conversations are what clients take in turn: of ``n`` turns, each with its time to think, they
    last ``n t`` in the mean, with the squared coefficient of variation ``share^2 / n``. The last
    one is taken as in `of_requests`; then all end theirs, of which as many as are at their first
    turn have ``n`` answers and times to think before them. The longest of these times is a quantile
    of a gamma distribution, by the cube root of Wilson and Hilferty (PNAS 17, 1931).

    Args:
        clients: Clients.
        requests: Requests that they send in all.
        share: Share of a cycle that clients think.
        turns: Turns of a conversation, mean.
    """
    several = jnp.maximum(jnp.minimum(requests, 1.0 / TINY) / turns, 1.0)
    # Of fewer conversations than clients, each has a client to itself, and others have none.
    having = jnp.minimum(clients, several)
    rounds = several / having
    thought = share / turns
    # All times are in conversations.
    last = 1.0 - share + thought * _longest(having * thought, turns)
    later = (1.0 - share**2 / turns) / 2.0 - 1.0 - thought + last
    only = 1.0 - share + thought * _longest(having, jnp.maximum(turns - 1.0, SMALL)) - rounds
    again = jnp.clip(2.0 * (rounds - 1.0), 0.0, 1.0)
    return (1.0 + (again * later + (1.0 - again) * only) / rounds) * clients / having


def _longest(count: Scalar, times: Scalar) -> Scalar:
    """The longest of some sums of exponential times with the mean one, each of so many."""
    beyond = np.exp(-np.euler_gamma) / jnp.maximum(count, 1.0)
    root = 1.0 - 1.0 / (9.0 * times) + ndtri(1.0 - beyond) / (3.0 * jnp.sqrt(times))
    return times * jnp.maximum(root, 0.0) ** 3
