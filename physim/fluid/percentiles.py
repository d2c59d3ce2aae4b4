"""Percentiles of latencies from what the fluid knows of chance.

A request's latency is a sum of few parts with a chance of their own: when in a step it arrives, how
many prompts came with it, whether it finds a slot, how long its output is, how many others run.
They are drawn together at the points of a lattice, always the same, so percentiles are smooth
functions of what they depend on.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from physim.fluid.demand import Demand
from physim.fluid.first_token import Local
from physim.fluid.queueing import peakedness
from physim.metrics import PERCENTILES
from physim.types import AnyArray, Scalar

_PARTS = 5
_STEADY_POINTS = 512  # points where nothing changes over time
# Of the time over which the number of running requests drifts, the part that a request's own life
# averages out: chosen on benchmarks/fluid_against_replay.py.
_LASTING = 0.8


class Clients(eqx.Module):
    """Requests of clients that begin at once. Times in seconds.

    Attributes:
        closed: Whether there are clients; else nothing else counts.
        begun: Share of the requests that are the first.
        first: Their times to first token, in order.
        round: Shares of the other requests, from early to late,
        later: with their times to first token,
        chance: and how far these vary as if clients were anywhere in their requests.
        line: What clients without a slot wait for one, mean,
        line_cv: and its coefficient of variation.
    """

    closed: Bool[AnyArray, ""]
    begun: Scalar
    first: Float[AnyArray, " prompts"]
    round: Float[AnyArray, " nodes"]
    later: Float[AnyArray, " nodes"]
    chance: Float[AnyArray, " nodes"]
    line: Scalar
    line_cv: Scalar


class Chances(eqx.Module):
    """A request's latency in parts, and the spread of each. Times in seconds.

    Attributes:
        fixed: TTFT without the parts below.
        under_way: Wait for the steps under way; the half step in it is uniform.
        half: That half step.
        busy: Chance that a step is under way.
        together: Other prompts in the step of its own.
        longer: What each of them adds.
        prompt_cv: Coefficient of variation of its own prompt's tokens, which add ``longer``.
        wait: Wait for a slot or in a queue, mean,
        wait_cv: and coefficient of variation.
        others: Relative standard deviation of the mean step while it decodes,
        now: and of any one that only decodes.
        alone: Such a step.
        met: Share of a request's gaps between tokens in which others are prefilled.
        crowd: Prefill chunks in them, mean,
        most: and at most, as far as the mean of what they add goes.
        clients: Of requests of clients; None where no load is of clients.
    """

    fixed: Scalar
    under_way: Scalar
    half: Scalar
    busy: Scalar
    together: Scalar
    longer: Scalar
    prompt_cv: Scalar
    wait: Scalar
    wait_cv: Scalar
    others: Scalar
    now: Scalar
    alone: Scalar
    met: Scalar
    crowd: Scalar
    most: Scalar
    clients: Clients | None = None


def chances(
    local: Local,
    busy: Scalar,
    wait: Scalar,
    wait_cv: Scalar,
    batch: Scalar,
    elastic: Scalar,
    demand: Demand,
    async_scheduling: Scalar,
) -> Chances:
    """The parts of a request's latency and their spreads.

    Args:
        local: What the request meets.
        busy: Chance that a step is under way when it arrives.
        wait: Mean wait for a slot or in a queue, seconds.
        wait_cv: Its coefficient of variation.
        batch: Requests that decode.
        elastic: Relative change of a step's time for a relative change of those requests.
        demand: The load.
        async_scheduling: Steps that are scheduled while another runs.
    """
    half = local.under_way - async_scheduling * local.mean
    peaked = peakedness(demand.arrival_cv2, demand.evenness)
    steps = jnp.maximum(demand.decode_steps, 1e-3)
    # Those that run come and go, and the prompts that a request meets while it decodes.
    now = elastic**2 * peaked / jnp.maximum(batch, 1.0)
    crowd = now / jnp.maximum(1 - elastic, 0.1)
    prompts = demand.arrival_cv2 * batch * (local.longer / (steps * local.beside)) ** 2
    return Chances(
        fixed=local.first,
        under_way=local.under_way,
        half=jnp.maximum(half, 0.0),
        busy=busy,
        together=local.together,
        longer=local.longer,
        prompt_cv=jnp.sqrt(demand.prompt_cv2),
        wait=wait + local.budget,
        wait_cv=wait_cv,
        others=jnp.sqrt(crowd + prompts + 1e-12),
        now=jnp.sqrt(now + 1e-12),
        alone=local.alone,
        met=jnp.clip(local.met, 1e-6, 1.0),
        crowd=local.crowd,
        most=jnp.where(demand.closed, jnp.maximum(demand.clients - 1.0, 1.0), 2 * local.crowd),
    )


def lattice(count: int) -> Float[np.ndarray, "count parts"]:
    """Points spread evenly over the unit cube: Roberts' sequence of the plastic numbers."""
    root = 1.5
    for _ in range(40):
        root = (1 + root) ** (1 / (_PARTS + 1))
    steps = root ** -np.arange(1.0, _PARTS + 1)
    return (0.5 + np.arange(1.0, count + 1)[:, None] * steps) % 1.0


def first_tokens(
    chances: Chances, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """TTFT at the points of a lattice, seconds."""
    phase = points[:, 0] / jnp.maximum(chances.busy, 1e-3)
    met = jax.nn.sigmoid((1 - phase) / 0.01)
    under_way = met * (chances.under_way + (2 * jnp.minimum(phase, 1.0) - 1) * chances.half)
    together = chances.together * drawn(points[:, 1], 1 / jnp.sqrt(chances.together + 1e-6))
    own = chances.prompt_cv * jax.scipy.special.ndtri(points[:, 2])
    prompts = chances.longer * (together - chances.together + own)
    waiting = chances.wait * drawn(points[:, 3], chances.wait_cv)
    return jnp.maximum(chances.fixed + under_way + prompts, 0.2 * chances.fixed) + waiting


def _of_clients(
    clients: Clients, ttft: Float[AnyArray, " points"], points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """TTFT of clients that begin at once, from that of clients who are anywhere, seconds."""
    place = (points[:, 1] + points[:, 3]) % 1.0
    # Many requests end before a client's turn comes, so that their times add up to a normal one.
    turns = jax.scipy.special.ndtri((points[:, 0] + points[:, 3]) % 1.0 * 0.998 + 0.001)
    line = clients.line * jnp.maximum(1 + clients.line_cv * turns, 0.0)
    prompts = jnp.linspace(0.0, 1.0, clients.first.shape[0])
    first = jnp.interp(place / jnp.maximum(clients.begun, 1e-9), prompts, clients.first)
    rest = (place - clients.begun) / jnp.maximum(1 - clients.begun, 1e-9)
    later, chance = (
        jnp.interp(rest, clients.round, values) for values in (clients.later, clients.chance)
    )
    later = later * (1 + chance * (ttft / jnp.mean(ttft) - 1)) + line
    return jnp.where(clients.closed, jnp.where(place < clients.begun, first, later), ttft)


def decode_factors(
    chances: Chances, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Time of decoding at the points of a lattice, over its mean."""
    # The normal quantile of a point that the prompt's length does not use at the same place.
    normal = jax.scipy.special.ndtri((points[:, 2] + points[:, 0]) % 1.0 * 0.998 + 0.001)
    return jnp.maximum(1 + _LASTING * chances.others * normal, 0.3)


def gaps(
    chances: Chances, mean: Scalar, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Times from a token to the next at the points of a lattice, seconds.

    Most gaps are a step that only decodes, and some a step in which others' prompts are computed,
    one or several.

    Args:
        chances: What latencies are made of.
        mean: Their mean, seconds.
        points: The points.
    """
    normal = jax.scipy.special.ndtri((points[:, 2] + points[:, 0]) % 1.0 * 0.998 + 0.001)
    alone = chances.alone * jnp.maximum(1 + chances.now * normal, 0.3)
    others = jnp.maximum(chances.crowd - 1.0, 0.0)
    prompts = 1 + others * drawn(points[:, 3], 1 / jnp.sqrt(others + 1e-6))
    of_them = 1 + chances.prompt_cv / jnp.sqrt(prompts) * jax.scipy.special.ndtri(points[:, 2])
    more = jnp.maximum(mean - chances.alone, 0.0)
    met = jnp.clip(more / jnp.maximum(chances.most * chances.longer, 1e-9), chances.met, 1.0)
    longer = more / met * prompts / (1 + others) * jnp.maximum(of_them, 0.0)
    return alone + jnp.where(points[:, 1] < met, longer, 0.0)


def drawn(points: Float[AnyArray, " points"], cv: Scalar) -> Float[AnyArray, " points"]:
    """Quantiles of a positive part of mean one and a coefficient of variation.

    An exponential with a chance of nothing where the coefficient exceeds one; else a Weibull
    distribution of that coefficient, nearly (shape ``cv^-1.086``).
    """
    rest = jnp.maximum(1 - points, 1e-6)
    chance = jnp.minimum(2 / (1 + jnp.maximum(cv, 1.0) ** 2), 1.0)
    some = jnp.maximum(jnp.log(chance / rest), 0.0) / chance
    shape = jnp.clip(cv, 1e-3, 1.0) ** -1.086
    scale = jnp.exp(-jax.scipy.special.gammaln(1 + 1 / shape))
    always = scale * (-jnp.log(rest)) ** (1 / shape)
    return jnp.where(cv > 1.0, some, always)


def quantiles(
    values: Float[AnyArray, " n"], weights: Float[AnyArray, " n"]
) -> Float[AnyArray, " percentiles"]:
    """Percentiles `PERCENTILES` of weighted values."""
    order = jnp.argsort(values)
    share = jnp.cumsum(weights[order])
    share = (share - weights[order] / 2) / jnp.maximum(share[-1], 1e-9)
    return jnp.interp(jnp.array(PERCENTILES) / 100.0, share, values[order])


def output_lengths(
    demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Output lengths at the points of a lattice, tokens."""
    strata = jnp.asarray(demand.outputs)
    return strata[(points[:, 4] * strata.shape[0]).astype(int)]


class Drawn(eqx.Module):
    """Latencies at the points of a lattice, seconds; any of them as likely as another.

    Attributes:
        ttft: Time to first token.
        tpot: Mean time from a token to the next, of the same requests.
        e2e: Time of the same requests.
        itl: Time from any token to the next.
    """

    ttft: Float[AnyArray, "*n"]
    tpot: Float[AnyArray, "*n"]
    e2e: Float[AnyArray, "*n"]
    itl: Float[AnyArray, "*n"]

    def percentiles(self) -> dict[str, Float[np.ndarray, "... percentiles"]]:
        """Percentiles `PERCENTILES` of each latency, in NumPy, which sorts faster than XLA."""
        return {
            name: _of_alike(np.asarray(getattr(self, name)))
            for name in ("ttft", "itl", "tpot", "e2e")
        }


def _of_alike(values: Float[np.ndarray, "*n points"]) -> Float[np.ndarray, "*n percentiles"]:
    """Percentiles of values that are all as likely, along the last axis; see `quantiles`."""
    last = values.shape[-1] - 1
    places = np.clip(np.array(PERCENTILES) / 100 * (last + 1) - 0.5, 0, last)
    below = np.floor(places).astype(int)
    ordered = np.sort(values, axis=-1)
    low, high = ordered[..., below], ordered[..., np.minimum(below + 1, last)]
    share = (places - below).astype(values.dtype)
    found: Float[np.ndarray, "*n percentiles"] = np.where(
        low == high, low, low + share * (high - low)
    )
    return found


def steady_latencies(chances: Chances, itl: Scalar, demand: Demand) -> Drawn:
    """Latencies of the requests of a load that stays.

    Args:
        chances: What latencies are made of.
        itl: Mean time from one token to the next, seconds.
        demand: The load.
    """
    points = jnp.asarray(lattice(_STEADY_POINTS))
    ttft = first_tokens(chances, points)
    if chances.clients is not None:
        ttft = _of_clients(chances.clients, ttft, points)
    tpot = itl * decode_factors(chances, points)
    e2e = ttft + (output_lengths(demand, points) - 1.0) * tpot
    return Drawn(ttft, tpot, e2e, gaps(chances, itl, points))
