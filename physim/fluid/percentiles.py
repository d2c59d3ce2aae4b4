"""Percentiles of latencies from what the fluid knows of chance.

A request's latency is a sum of few parts with a chance of their own: when in a step it arrives, how
many prompts came with it, whether it finds a slot, how long its output is, how many others run.
They are drawn together at the points of a lattice, always the same, so percentiles are smooth
functions of what they depend on.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from physim.batching.batch_statistics import MOST_ELASTIC
from physim.batching.demand import Demand
from physim.batching.guards import EDGE, LITTLE, ROOT, SMALL, TINY
from physim.batching.prompt_chunks import GROUPS, MEANS
from physim.batching.step_kinds import FEW, FULL, MANY, added_s
from physim.fluid.client_percentiles import ClientRequests, Clients, requests_of
from physim.fluid.distributions import (
    clumped,
    drawn,
    drawn_at_times,
    log_deviation,
    lognormal,
    of_kinds_at,
    standard_normal,
    whole,
)
from physim.fluid.first_token import Local
from physim.inputs.lengths import STRATA
from physim.inputs.request_points import LONGEST
from physim.metrics import PERCENTILES
from physim.pytree import Pytree
from physim.service.phases import decode_steps
from physim.types import AnyArray, Number, Scalar

# Parts of chance, of which each has a coordinate of the lattice: the kind of the step under way,
# where in it a request comes, the step after it, which request it is, prompts beside its own, those
# before it that came with it, the queue for a slot, and how fast others let it decode.
_FOUND, _PHASE, _NEXT, _REQUEST, _BESIDE, _BEFORE, _SLOT, _PACE = range(8)
_PARTS = _PACE + 1
_STEADY_POINTS = 1024  # points where nothing changes over time
# Of the time over which the number of running requests drifts, the part that a request's own life
# averages out: chosen on benchmarks/fluid_against_replay.py.
_LASTING = 0.8
# Share of its mean that a time is at least which is drawn from a normal distribution or a straight
# line.
_LEAST_OF_MEAN = 0.3
# Kinds of steps with prompts, of which those last that leave tokens for later ones: who finds such
# a step under way finds a queue for tokens.
_ORDER = np.array([*range(FULL), FEW, MANY, FULL])
# Where means over a distribution are taken.
_EVENLY = (np.arange(16, dtype=np.float32) + 0.5) / 16


class Chances(Pytree):
    """A request's latency in parts, and the spread of each. Times in seconds.

    Attributes:
        local: What the request meets.
        busy: Chance that a step is under way.
        wait: Wait for a slot or in a queue, mean.
        wait_cv: Coefficient of variation of that wait.
        others: Relative standard deviation of the mean step while it decodes, by how many run.
        met_prompts: Others' prompts that are computed in a step, mean.
        met_cv2: Squared coefficient of variation of the tokens of each, and of how many come.
        follow: Whether more come in the time that these take.
        now: Relative standard deviation of any step that only decodes.
        most: Prompts in a gap between tokens at most, as far as the mean of what they add goes.
        clients: Of requests of clients; None where no load is of clients.
    """

    local: Local
    busy: Scalar
    wait: Scalar
    wait_cv: Scalar
    others: Scalar
    met_prompts: Scalar
    met_cv2: Scalar
    follow: Bool[AnyArray, ""]
    now: Scalar
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
    """
    steps = jnp.maximum(demand.decode_steps, LITTLE)
    # Those that run come and go.
    now = elastic**2 * local.varied / jnp.maximum(batch, 1.0)
    crowd = now / jnp.maximum(1 - elastic, 1 - MOST_ELASTIC)
    return Chances(
        local=local,
        busy=busy,
        wait=wait,
        wait_cv=wait_cv,
        others=jnp.sqrt(crowd + ROOT),
        # As many come while a request decodes as run.
        met_prompts=batch / steps,
        met_cv2=demand.arrival_cv2 + demand.prompt_cv2,
        follow=~demand.closed,
        now=jnp.sqrt(now + ROOT),
        most=jnp.where(demand.closed, jnp.maximum(demand.clients - 1.0, 1.0), 2 * local.crowd),
    )


@functools.cache
def lattice(count: int) -> Float[np.ndarray, "count parts"]:
    """Points spread evenly over the unit cube: a lattice that is built one coordinate at a time.

    The points are ``i z / count`` less their whole parts, of numbers ``z`` without a factor in
    common with the count, so that every coordinate is evenly spaced. Each ``z`` is the one for
    which the mean over the points of ``prod(1 + w 2 pi^2 (x^2 - x + 1/6))`` is least, given those
    before it (Sloan and Reztsov, Mathematics of Computation 71, 2002); so small a weight ``w`` as
    one over the number of coordinates makes pairs of them count most.
    """
    places = np.arange(count)
    steps = places[np.gcd(places, count) == 1]
    shares = places[:, None] * steps % count / count
    factors = 1 + 2 * np.pi**2 / _PARTS * (shares**2 - shares + 1 / 6)
    columns, before = [], np.ones(count)
    for _ in range(_PARTS):
        best = int(np.argmin(before @ factors))
        before = before * factors[:, best]
        columns.append(shares[:, best] + 0.5 / count)
    return np.stack(columns, axis=1)


def first_tokens(
    chances: Chances,
    demand: Demand,
    points: Float[AnyArray, "points parts"],
    prompts: Number = 1.0,
) -> Float[AnyArray, " points"]:
    """TTFT at the points of a lattice, seconds.

    Args:
        chances: What latencies are made of.
        demand: The load.
        points: The points.
        prompts: Prompt tokens of the requests, over those of the load.
    """
    local, rest = chances.local, 1.0 - points[:, _PHASE]
    phase = points[:, _FOUND] / jnp.maximum(chances.busy, LITTLE)
    met = jax.nn.sigmoid((1 - phase) / EDGE)
    # Whoever finds the fullest steps finds the longest queues; who finds none has no queue.
    fullest = jnp.where(phase < 1.0, 1.0 - (chances.busy - points[:, _FOUND]), 0.0)
    alone = 1.0 - jnp.sum(local.kind_share)
    scale = jnp.sum(local.kind_share * local.kind) + alone * local.decode_only
    # A long step is found more often, and the one after it is any.
    added = _added_by_kind(local)
    with_prompts = local.finds * local.kind_share * local.kind
    without = jnp.maximum(scale - jnp.sum(with_prompts), 0.0)
    found = _of_kinds(
        local, added, with_prompts, without, jnp.minimum(phase, 1.0), points[:, _PACE]
    )
    # Steps that long prompts fill follow one another.
    following_share = local.finds_next * local.kind_share
    filled = following_share[FULL]
    within = with_prompts[FULL] / scale
    into = (phase - 1.0 + within) / jnp.maximum(jnp.minimum(within, EDGE), TINY)
    in_run = jnp.where(phase < 1.0, jnp.clip(into, 0.0, 1.0), 0.0)
    of_run = jnp.where(points[:, _NEXT] > 1.0 - local.follows, 1.0, 0.0)
    begins = filled * (1.0 - local.follows) / (1.0 - filled)
    following = _of_kinds(
        local,
        added,
        following_share.at[FULL].set(begins * (1.0 - filled)),
        jnp.maximum(1.0 - jnp.sum(following_share), 0.0),
        points[:, _NEXT],
        1.0 - points[:, _PACE],
    )
    next_s = of_run * local.kind[FULL] + (1.0 - of_run) * local.kind[FULL - 1]
    following += in_run * (next_s - following)
    hidden = local.hidden * in_run / jnp.maximum(chances.busy * within, LITTLE)
    found_s = (jnp.sum(with_prompts * local.kind) + without * local.decode_only) / scale
    left_s = found_s + (local.left - 1.0) * jnp.sum(with_prompts * local.kind) / scale
    is_long = jnp.clip((jnp.minimum(phase, 1.0) - without / scale) / EDGE + 0.5, 0.0, 1.0)
    left = found * (1.0 + is_long * (local.left - 1.0))
    following_s = local.decode_only + jnp.sum(following_share * (local.kind - local.decode_only))
    under_way = local.rest * rest * left / (left_s / 2)
    under_way += (local.under_way - local.rest) * following / following_s
    part = _part(points)
    own = of_lengths(local.prefill, demand, prompts)[part] + hidden
    # In a long step more come.
    count = local.same_step * found / found_s
    several = (
        local.adding
        * count
        * drawn(points[:, _BESIDE], jnp.sqrt((1 + demand.prompt_cv2) / (count + SMALL)))
    )
    queue = local.queue * drawn_at_times(fullest, local.queued, local.queue_cv)
    turn = (points[:, _BEFORE] + points[:, _BESIDE]) % 1.0
    later = local.later * drawn_at_times(turn, local.is_later, local.queue_cv)
    waiting = chances.wait * drawn(points[:, _SLOT], chances.wait_cv)
    tokens = demand.parts[part]
    outside = local.outside + local.token * (prompts * tokens - jnp.mean(tokens))
    outside += _beyond_mean_load(demand, points)
    return outside + met * (under_way + several) + own + queue + later + waiting


def _beyond_mean_load(
    demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"] | float:
    """How much longer than the mean of all requests each waits for its prefix to come up, seconds.

    Those that load are some of those that find their prefix, whose prompts are the shortest.
    """
    if demand.loading_s is None or demand.loaded is None:
        return 0.0
    found = demand.cached_tokens / jnp.maximum(demand.prefixes.tokens, TINY)
    if demand.contexts is not None:
        # Turns of conversations find something, whatever their length.
        found = jnp.where(demand.contexts.followed > 0, 1.0, found)
    place, chance = points[:, _REQUEST], (points[:, _REQUEST] * STRATA) % 1.0
    of_found = jax.nn.sigmoid((found - place) / EDGE)

    def beyond(share: Scalar, mean_s: Scalar) -> Float[AnyArray, " points"]:
        """What requests wait of which such a share does."""
        loads = of_found * jax.nn.sigmoid((share / jnp.maximum(found, TINY) - chance) / EDGE)
        return mean_s * (loads / jnp.maximum(jnp.mean(loads), TINY) - 1.0)

    if demand.fetched is None or demand.fetching_s is None:
        return beyond(demand.loaded, demand.loading_s)
    # Who waits for the disk waits for the host's memory, too.
    with_slot = beyond(demand.loaded, demand.loading_s - demand.fetching_s)
    return with_slot + beyond(demand.fetched, demand.fetching_s)


def stratum(points: Float[AnyArray, "points parts"]) -> Int[AnyArray, " points"]:
    """The stratum of requests that a point is of."""
    return (points[:, _REQUEST] * STRATA).astype(int)


def _part(points: Float[AnyArray, "points parts"]) -> Int[AnyArray, " points"]:
    """The part of prompts that a point is of: of `physim.batching.strata.PARTS`."""
    place = points[:, _REQUEST] * STRATA
    return (place + jnp.maximum(place - (STRATA - 1), 0.0) * (LONGEST - 1)).astype(int)


def in_batch_before(
    demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Prompts of mean length that came at the very time of a request and are before it."""
    count = demand.at_once * ((points[:, _BEFORE] + points[:, _FOUND]) % 1.0)
    cv = jnp.sqrt((1 + demand.prompt_cv2) / (count + SMALL))
    return count * drawn((points[:, _SLOT] + points[:, _NEXT]) % 1.0, cv)


def _of_kinds(
    local: Local,
    added: Float[AnyArray, "of kinds"],
    weight: Float[AnyArray, " kinds"],
    decode_only: Scalar,
    points: Float[AnyArray, " points"],
    spread: Float[AnyArray, " points"],
) -> Float[AnyArray, " points"]:
    """Times of steps of all kinds, with some weight, from those without prompts to full ones."""
    ends = jnp.cumsum(jnp.append(decode_only, weight[_ORDER]))
    kind_s = jnp.append(local.decode_only, local.kind[_ORDER] - local.kind_more[_ORDER])
    least = jnp.array([0.0, 1.0, 0.0])[:, None]
    of_kind = jnp.concatenate([least, added[:, _ORDER]], axis=1)
    drawn_s = of_kinds_at(points, ends[:-1] / ends[-1], jnp.concatenate([kind_s[None], of_kind]))
    return drawn_s[0] + _added_s(local, drawn_s[1:], spread)


def _added_by_kind(local: Local) -> Float[AnyArray, "of kinds"]:
    """What to draw by what prompts add to steps: see `_added_s`.

    Returns:
        How much longer each kind is than one prompt of its tokens makes it, mean; its tokens, and
        the standard deviation of their logarithm.
    """
    deviation = log_deviation(local.kind_tokens_cv2)
    tokens = local.kind_tokens[:, None] * lognormal(deviation[:, None], _EVENLY)
    mean_s = jnp.mean(added_s(local.kind_tokens, local.kind_more, tokens), axis=1)
    scale = local.kind_more / jnp.maximum(mean_s, TINY)
    return jnp.stack([scale, local.kind_tokens, deviation])


def _added_s(
    local: Local, of_kind: Float[AnyArray, "of points"], spread: Float[AnyArray, " points"]
) -> Float[AnyArray, " points"]:
    """What prompts add to steps at points, seconds: that follows from their tokens.

    Args:
        local: What requests meet.
        of_kind: The rows of `_added_by_kind`, each at the points.
        spread: Where in the distribution of their tokens the points are.
    """
    scale, tokens, deviation = of_kind
    tokens = tokens * lognormal(deviation, spread)
    return scale * added_s(local.kind_tokens, local.kind_more, tokens)


def of_lengths(
    of_group: Float[AnyArray, " groups"], demand: Demand, longer: Number = 1.0
) -> Float[AnyArray, " parts"]:
    """What is known of groups of prompts, for each part: straight between the groups' means.

    Args:
        of_group: What is known.
        demand: The load.
        longer: Prompt tokens of the parts, over those of the load.
    """
    prompts = longer * demand.parts
    tokens = jnp.matmul(MEANS, demand.parts, precision=jax.lax.Precision.HIGHEST)
    place = jnp.clip(
        jnp.searchsorted(tokens, prompts, method="compare_all") - 1, 0, len(GROUPS) - 2
    )
    apart = tokens[place + 1] - tokens[place]
    share = jnp.where(
        apart > LITTLE * tokens[place], (prompts - tokens[place]) / jnp.maximum(apart, LITTLE), 0.0
    )
    value = of_group[place] + share * (of_group[place + 1] - of_group[place])
    return jnp.maximum(value, _LEAST_OF_MEAN * of_group[0])


def _requests_of(
    clients: Clients, ttft: Float[AnyArray, " points"], points: Float[AnyArray, "points parts"]
) -> ClientRequests:
    """Requests of clients that begin at once, from those of clients who are anywhere."""
    # Many requests end before a client's turn comes, so that their times add up to a normal one.
    waits = standard_normal((points[:, _FOUND] + points[:, _SLOT]) % 1.0)
    turn = (points[:, _PHASE] + points[:, _PACE]) % 1.0
    return requests_of(clients, ttft, turn, points[:, _PHASE], waits)


def decode_factors(
    chances: Chances,
    mean: Number,
    steps: Float[AnyArray, " points"],
    points: Float[AnyArray, "points parts"],
) -> Float[AnyArray, " points"]:
    """Time of decoding at the points of a lattice, over its mean.

    A request with few tokens to decode meets few prompts of others, so that what it loses to them
    is further from the mean: a compound Poisson sum, of a gamma-like distribution. In an open loop
    these bring others, as far as each further prompt makes a step longer: see `clumped`.

    Args:
        chances: What latencies are made of.
        mean: A mean step, seconds.
        steps: Steps in which the requests decode.
        points: The points.
    """
    local, normal = chances.local, standard_normal(points[:, _PACE])
    prompts = jnp.maximum(1 - local.decode_only / mean, 0.0)
    further = local.adding / jnp.maximum(local.own_prefill - local.decode_only, TINY)
    share = jnp.minimum(prompts * jnp.minimum(further, 1.0), MOST_ELASTIC)
    more = clumped(jnp.where(chances.follow, share, 0.0), steps)
    cv2 = more * chances.met_cv2 / jnp.maximum(chances.met_prompts * steps, LITTLE)
    cv = jnp.sqrt(cv2 + ROOT)
    met = drawn((points[:, _NEXT] + points[:, _BEFORE]) % 1.0, cv)
    factor = 1 + _LASTING * chances.others * normal + prompts * (met - 1)
    return jnp.maximum(factor, _LEAST_OF_MEAN)


def gaps(
    chances: Chances, mean: Scalar, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Times from a token to the next at the points of a lattice, seconds.

    Most gaps are a step that only decodes, and some a step in which others' prompts are computed,
    one or several. Where prompts have steps of their own, the request's rank may wait for a run of
    them, in each of which others come by the same chance.

    Args:
        chances: What latencies are made of.
        mean: Their mean, seconds.
        points: The points.
    """
    local = chances.local
    normal = standard_normal((points[:, _NEXT] + points[:, _FOUND]) % 1.0)
    alone = local.decode_only * jnp.maximum(1 + chances.now * normal, _LEAST_OF_MEAN)
    more = jnp.maximum(mean - local.decode_only, 0.0)
    # In a pipeline those longer ones are fewer that come after turns without prompts.
    first = 1.0 - jnp.sum(local.kind_share)
    fewer = first / local.held + 1.0 - first
    share = local.kind_share.at[FULL].multiply(fewer)
    least = local.prefill_share - (local.kind_share - share)[FULL]
    met = jnp.clip(more / jnp.maximum(chances.most * local.longer, TINY), least, 1.0)
    ends, held = jnp.cumsum(share), jnp.ones_like(share).at[FULL].set(local.held)
    rows = jnp.concatenate([_added_by_kind(local), held[None]])
    *of_kind, times = of_kinds_at(points[:, _PHASE] / met, ends[:-1] / ends[-1], rows)
    drawn_s = _added_s(local, jnp.stack(of_kind), points[:, _NEXT])
    is_first = (points[:, _BEFORE] + points[:, _PACE]) % 1.0 < first / local.held / fewer
    drawn_s *= jnp.where(is_first, times, 1.0)
    waits = points[:, _BESIDE] / jnp.maximum(local.own_rank, TINY)
    further_steps = jnp.where(waits < 1.0, _steps_beyond_first(local, waits), 0.0)
    mean_s = jnp.sum(local.kind_share * local.kind_more) / ends[-1]
    drawn_s += further_steps * mean_s
    longer = more / met * drawn_s / (mean_s * (1.0 + local.own_rank * (local.waiting - 1.0)))
    return alone + jnp.where(points[:, _PHASE] < met, longer, 0.0)


def _behind_s(local: Local, points: Float[AnyArray, "points parts"]) -> Float[AnyArray, " points"]:
    """How long requests wait for prompts behind theirs before they decode, seconds."""
    place = (points[:, _SLOT] + points[:, _BESIDE]) % 1.0
    return local.behind * drawn_at_times(place, local.queued, local.queue_cv)


def behind_by_step_s(
    local: Local, steps: Float[AnyArray, " points"], points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """How long requests wait for prompts behind theirs, over their steps, seconds.

    Args:
        local: What they meet.
        steps: Steps in which they decode; who has none does not wait.
        points: The points of a lattice.
    """
    waits = _behind_s(local, points) / jnp.maximum(steps, 1.0)
    return jnp.where(steps > 0, waits, 0.0)


def behind_in_gaps_s(
    local: Local, demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """The same wait in gaps between tokens, of which the first of each request has it, seconds.

    Args:
        local: What requests meet.
        demand: The load.
        points: The points.
    """
    is_first = (points[:, _FOUND] + points[:, _BEFORE]) % 1.0 * demand.decode_steps < 1.0
    return jnp.where(is_first, _behind_s(local, points), 0.0)


def _steps_beyond_first(
    local: Local, points: Float[AnyArray, " points"]
) -> Float[AnyArray, " points"]:
    """Steps that a rank waits for beyond the first: after a second, each brings another."""
    second = jnp.maximum(local.second, TINY)
    another = jnp.clip(1.0 - second / jnp.maximum(local.waiting - 1.0, TINY), TINY, 1.0 - SMALL)
    share = jnp.maximum(points, SMALL) / second
    return whole(jnp.maximum(1.0 + jnp.log(share) / jnp.log(another), 0.0))


def between_tokens(
    gap_s: Float[AnyArray, " points"], demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Times from token to token of steps so far apart: of a step's tokens all but one come at once.

    Args:
        gap_s: Times from step to step at the points of a lattice, seconds.
        demand: The load.
        points: The points.
    """
    first = (points[:, _SLOT] + points[:, _REQUEST]) % 1.0 * demand.tokens_each <= 1.0
    return jnp.where(first, gap_s, 0.0)


def steps_of_outputs(
    demand: Demand, points: Float[AnyArray, "points parts"]
) -> Float[AnyArray, " points"]:
    """Steps that give requests their tokens, at the points of a lattice.

    Of strata only means are known. Between the longest outputs and those next to them lie the upper
    percentiles, so that within each they run straight from edge to edge, and beyond the last edge
    they fall off exponentially.
    """
    means = jnp.sort(jnp.asarray(demand.output_steps))
    middle = (means[:-1] + means[1:]) / 2
    first = jnp.maximum(2 * means[0] - middle[0], jnp.minimum(means[0], 1.0))
    last = jnp.minimum(2 * means[-2] - middle[-2], means[-1])
    edges = jnp.concatenate([first[None], middle[:-1], last[None]])
    rank = jnp.argsort(jnp.argsort(jnp.asarray(demand.output_steps)))[stratum(points)]
    within = (points[:, _PACE] + points[:, _SLOT]) % 1.0
    widths = jnp.append(jnp.diff(edges), 0.0)
    straight = means + widths * (within[:, None] - 0.5)
    tail = last + (means[-1] - last) * -jnp.log(jnp.maximum(1 - within, SMALL))
    is_last = rank == len(means) - 1
    return jnp.where(is_last, tail, jnp.take_along_axis(straight, rank[:, None], 1)[:, 0])


class Drawn(Pytree):
    """Latencies at the points of a lattice, seconds; any of them as likely as another.

    Attributes:
        ttft: Time to first token.
        tpot: Mean time from a token to the next, of the same requests.
        e2e: Time of the same requests.
        itl: Time from any token to the next.
        stratum: Which of the load's strata, as `Demand` has them, the requests are of.
    """

    ttft: Float[AnyArray, "*n"]
    tpot: Float[AnyArray, "*n"]
    e2e: Float[AnyArray, "*n"]
    itl: Float[AnyArray, "*n"]
    stratum: Int[AnyArray, "*n"]

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
    step_s = itl * demand.tokens_each - chances.local.behind_each_s(demand)
    points = jnp.asarray(lattice(_STEADY_POINTS))
    ttft = first_tokens(chances, demand, points)
    steps = decode_steps(steps_of_outputs(demand, points))
    pace_s = step_s * decode_factors(chances, step_s, steps, points)
    if chances.clients is not None:
        requests = _requests_of(chances.clients, ttft, points)
        ttft, pace_s = requests.ttft, requests.pace_s(chances.clients, steps, pace_s)
    pace_s += behind_by_step_s(chances.local, steps, points)
    e2e = ttft + steps * pace_s
    gap_s = gaps(chances, step_s, points) + behind_in_gaps_s(chances.local, demand, points)
    gap_s = between_tokens(gap_s, demand, points)
    return Drawn(ttft, pace_s / demand.tokens_each, e2e, gap_s, stratum(points))
