"""Steady state of a vLLM engine as a mean-field balance of arrivals, batch and step time.

A request that arrives is prefilled in one or more steps and then decodes one token a step, so the
running batch follows from the arrival rate and the step time by Little's law, and the step time
from the batch. The one unknown is the mean step time; a root-finder closes the loop and gives
gradients by the implicit function theorem. Load above capacity is limited by slots, KV cache or
token budget, and then what is served is the capacity.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from physim.batching.batch_statistics import arrival_evenness, busy_when_even
from physim.batching.demand import Demand
from physim.batching.guards import FULLEST, HARDLY, LITTLE, ROOT
from physim.batching.kv_capacity import kv_slots, kv_use, prefix_hits
from physim.batching.limits import Limits
from physim.batching.occupancy import Occupancy, room_beside
from physim.batching.preemption import recomputed_tokens, varied_by_blocks
from physim.batching.prefix_cache import PASSES
from physim.batching.prefix_loads import Loads, found_down_to, loads_of
from physim.batching.prompt_chunks import Chunks
from physim.batching.queueing import wait_for_a_slot
from physim.batching.root_finding import root_of_cases
from physim.batching.step_mix import Steps, steps_at
from physim.fluid.benchmark import benchmark
from physim.fluid.client_percentiles import Clients
from physim.fluid.ending import of_requests, of_turns
from physim.fluid.first_token import FirstToken, front_end_s, local
from physim.fluid.percentiles import Chances, chances
from physim.fluid.rounds import engine_of
from physim.pytree import Pytree
from physim.step.front_end import handover_steps, warm_up_s
from physim.step.model import StepModel, StepTime
from physim.types import AnyArray, Scalar

# Bounds of a step's time, seconds, beyond any engine's: a bracket for the root-finder, which starts
# halfway in logarithm, at a usual one.
_SHORTEST_STEP_S, _LONGEST_STEP_S = 1e-7, 1e3
# Share of the slots between which and all the slope of a step's time is taken, and how many times
# the share that is not served counts as waiting for others: chosen on
# benchmarks/fluid_against_replay.py.
_PART_FULL, _SOON = 0.7, 10.0
_TAKEN = (1.0, _PART_FULL)


class SteadyState(Pytree):
    """The steady state of a server. Times in seconds, rates in 1/s.

    Attributes:
        ttft: Mean time to first token; infinite where the load is above capacity.
        first_token: What the time to first token is spent on.
        itl: Mean time from one token to the next.
        e2e: Mean time of a request; infinite where the load is above capacity.
        throughput: Requests completed per second: the rate, or the capacity if that is less.
        saturated: Whether the load is above capacity, so that a queue grows without end.
        in_step: How far clients are in step, from 0 to 1, so that the prompts of all come together.
        batch: Requests that decode, mean over time.
        running: Requests that are prefilled or decode, mean over time.
        kv_use: Share of the KV blocks that running requests hold.
        hit_rate: Share of prompt tokens that are found in the prefix cache, wherever it has them.
        host_hit_rate: Share of them that come up from the host's memory; None where nothing is kept
            there.
        disk_hit_rate: Share of these that had come there from the disk; None where there is none.
        fetching_s: Time that a request waits for the disk, mean, seconds; None likewise.
        mixed_share: Share of steps that carry a prefill chunk.
        step: Time of a mean step and its parts.
        chances: What latencies are made of, for percentiles.
    """

    ttft: Scalar
    first_token: FirstToken
    itl: Scalar
    e2e: Scalar
    throughput: Scalar
    saturated: Bool[AnyArray, ""]
    in_step: Scalar
    batch: Scalar
    running: Scalar
    kv_use: Scalar
    hit_rate: Scalar
    mixed_share: Scalar
    step: StepTime
    chances: Chances
    host_hit_rate: Scalar | None = None
    disk_hit_rate: Scalar | None = None
    fetching_s: Scalar | None = None


class _Balance(Pytree):
    """The loop at a given mean step time.

    Attributes:
        throughput: Requests per second.
        occupancy: Who is in a step.
        slots: Requests that may run.
        steps: Steps at that occupancy.
        found: Share of the requests that find their prefix in the cache.
        loads: Prefixes that come up from the host's memory; None where nothing is kept there.
    """

    throughput: Scalar
    occupancy: Occupancy
    slots: Scalar
    steps: Steps
    found: Scalar
    loads: Loads | None


def steady_state(model: StepModel, demand: Demand, limits: Limits) -> SteadyState:
    """The steady state of an engine under a load: differentiable, and made to be vmapped.

    Of clients, latencies and throughput are those of all their requests, from the first on.

    Args:
        model: Step times.
        demand: The load.
        limits: The engine's limits.
    """
    # Zero, with an axis of its own where the load has one: else JAX batches the loop twice.
    nothing = 0.0 * limits.max_num_seqs
    low, high = (jnp.log(s) + nothing for s in (_SHORTEST_STEP_S, _LONGEST_STEP_S))
    log_step, balance, crowded = root_of_cases(
        _residual, len(_TAKEN) + 1, (model, demand, limits), low, high, (low + high) / 2
    )
    demand = demand.where_found(balance.found).thinking(balance.throughput)
    demand = demand.levelled_out(balance.occupancy.prompts)
    if balance.loads is not None:
        running = balance.occupancy.batch + balance.occupancy.prefilling
        circumstances = balance.throughput, jnp.exp(log_step), _busy(running), demand, limits
        demand = _with_loads(demand, balance.loads, circumstances)
        model = balance.loads.with_steps(model)
    state = _observed(jnp.exp(log_step), balance, crowded, model, demand, limits)
    if demand.concurrency is None:
        return _by_token(_counted(state, balance, demand, limits), demand)
    engine = engine_of(model, demand, limits, jnp.minimum(demand.clients, balance.slots))
    waited = warm_up_s(model.corrections, demand.warm_up)
    whole = benchmark(engine, engine.running / state.throughput, demand, waited)
    if demand.contexts is not None:
        state = _from_first_to_last(state, whole.clients, demand)
        whole = whole._replace(clients=replace(whole.clients, closed=demand.in_rounds))

    def seen(of_clients: Scalar, otherwise: Scalar) -> Scalar:
        return jnp.where(demand.in_rounds, of_clients, otherwise)

    in_step = FirstToken.of_clients(whole.ttft, state.first_token, whole.clients.begun * waited)
    spread = seen(1 - whole.in_step**2, jnp.ones(()))
    # Of clients in step, a request meets others' prompts at its start alone: half of the steps that
    # the prompts of all take.
    prompts_met = (1 + demand.clients * demand.new_tokens / limits.max_num_batched_tokens) / 2
    closed = replace(
        state,
        ttft=seen(whole.ttft, state.ttft),
        first_token=jax.tree.map(seen, in_step, state.first_token),
        itl=seen(whole.itl, state.itl),
        e2e=seen(whole.e2e, state.e2e),
        throughput=seen(whole.throughput, state.throughput),
        in_step=seen(whole.in_step, state.in_step),
        chances=replace(
            state.chances,
            wait=seen(jnp.zeros(()), state.chances.wait),
            others=spread * state.chances.others,
            local=state.chances.local._replace(
                prefill_share=spread * state.chances.local.prefill_share
                + (1 - spread) * prompts_met / (demand.decode_steps + 1.0)
            ),
            clients=whole.clients,
        ),
    )
    return _by_token(_counted(closed, balance, demand, limits), demand)


def _with_loads(
    demand: Demand, loads: Loads, circumstances: tuple[Scalar, Scalar, Scalar, Demand, Limits]
) -> Demand:
    """The load with the times that its requests wait for prefixes to come up."""
    loading = loads.loading_s(*circumstances)
    if len(loads.shares) == 1:
        return replace(demand, loading_s=loading, loaded=loads.shares[0])
    fetching = loads.fetching_s(*circumstances)
    return replace(
        demand,
        loading_s=loading + fetching,
        loaded=loads.shares[0],
        fetching_s=fetching,
        fetched=loads.shares[1],
    )


def _from_first_to_last(state: SteadyState, clients: Clients, demand: Demand) -> SteadyState:
    """All requests of clients who think: their first at once, the rest by chance, to the last.

    See `physim.fluid.ending`.

    Args:
        state: The steady state.
        clients: What clients see who begin at once.
        demand: The load.
    """
    thinks = demand.closed & ~demand.in_rounds
    more = clients.begun * (jnp.mean(clients.first) - state.ttft)
    ttft, e2e = (value + jnp.where(thinks, more, 0.0) for value in (state.ttft, state.e2e))
    think, cycle = demand.think_s, e2e + demand.think_s
    share = think / cycle
    longer = of_requests(demand.clients, clients.begun, share)
    if demand.contexts is not None and demand.requests is not None:
        followed = demand.contexts.followed
        in_turns = of_turns(demand.clients, demand.requests, share, 1.0 / (1.0 - followed))
        longer = jnp.where(followed > 0, in_turns, longer)
    throughput = state.throughput / jnp.where(thinks, longer, 1.0)
    return replace(state, ttft=ttft, e2e=e2e, throughput=throughput)


# Traced once, for its shapes and for the loop.
@jax.jit
def _residual(
    log_step: Scalar, system: tuple[StepModel, Demand, Limits], crowd: Int[AnyArray, ""]
) -> tuple[Scalar, _Balance, Scalar]:
    """Logarithm of the mean step over the one that follows from it; the balance; the latter."""
    balance = _balance(jnp.exp(log_step), *system, crowd)
    mean = balance.steps.mean.interval
    return log_step - jnp.log(mean), balance, mean


def _balance(
    step: Scalar, model: StepModel, demand: Demand, limits: Limits, crowd: Int[AnyArray, ""]
) -> _Balance:
    """What runs if the mean step takes ``step`` seconds, and how long such steps take.

    Args:
        step: The mean step, seconds.
        model: Step times.
        demand: The load.
        limits: The engine's limits.
        crowd: Who is in the steps: 0 for those that run, else a share of the slots in `_TAKEN`.
    """
    decode_steps, tokens = demand.decode_steps, limits.max_num_batched_tokens
    by_kv = kv_slots(limits, demand)
    slots = jnp.minimum(limits.max_num_seqs, by_kv)
    # What is done again where requests wait for KV blocks rather than for slots.
    again = recomputed_tokens(limits, demand, by_kv)
    outside = front_end_s(model.corrections, demand, limits)
    ahead = handover_steps(model.corrections, limits.async_scheduling)
    closed, clients = demand.closed, demand.clients
    outside += jnp.clip(clients - 1.0, 0.0, 1.0) * ahead * step
    # By Little's law: clients have a request that is under way, or think of the next.
    between = outside if demand.contexts is None else outside + demand.think_s

    # Steps that a request's prefix takes to come up, seconds that it takes from the disk before
    # there is a slot, and requests for which it can.
    loading: Scalar = 0.0
    fetching: Scalar = 0.0
    by_link: Scalar = jnp.inf
    loads, loaded = None, model

    def returning(chunks: Scalar) -> Scalar:
        """Requests per second of clients none of whom waits for a slot."""
        steps = chunks + decode_steps + loading
        return jnp.where(closed, clients / (between + fetching + steps * step), jnp.inf)

    def served(chunks: Scalar, new_tokens: Scalar) -> Scalar:
        """Requests per second with so many prefill steps each: offered, or what a limit allows."""
        steps = chunks + decode_steps + loading
        by_slots, by_tokens = (
            slots / (steps + limits.async_scheduling),
            tokens / (limits.query_tokens * decode_steps + new_tokens),
        )
        # Where prompts have steps of their own there are as many of them as the prompts fill.
        by_tokens = jnp.where(limits.prompts_apart, jnp.inf, by_tokens)
        limit = jnp.minimum(jnp.minimum(by_slots, by_tokens) / step, by_link)
        return jnp.minimum(jnp.minimum(demand.rate, returning(chunks)), limit)

    found = jnp.ones(())
    if demand.found_or_not is not None:
        new_tokens = demand.new_tokens
        for _ in range(PASSES):
            # Prompts whose prefix was evicted are computed whole, so that fewer may run at once.
            rate = served(jnp.ones(()), new_tokens)
            runs = rate * step * (1.0 + decode_steps)
            # Of clients, those that neither run nor think wait for a slot.
            waits = jnp.where(
                closed, jnp.maximum((clients - runs) / rate - between - fetching, 0.0), 0.0
            )
            found = prefix_hits(limits, demand, runs, rate, waits)
            if limits.lower is not None:
                on_gpu = found
                every = found_down_to(limits, limits.lower, demand, runs, on_gpu, rate, waits)
                loads, found = loads_of(limits.lower, demand, on_gpu, every), every[-1]
                by_link, loaded = loads.most(limits.ranks), loads.with_steps(model)
                loading = loads.loading_s(rate, step, _busy(runs), demand, limits) / step
                fetching = loads.fetching_s(rate, step, _busy(runs), demand, limits)
            new_tokens = demand.new_tokens + (1.0 - found) * demand.evictable_tokens
        demand = demand.where_found(found)
    # Prefill takes what decode leaves of a step's tokens, in one step if it can.
    fresh = demand.new_tokens
    decoding = served(jnp.ones(()), fresh) * step * decode_steps
    room = room_beside(limits, decoding) / (limits.ranks * limits.stages)
    chunks = Chunks.in_room(demand.parts, room, limits.stages).number
    wanted = jnp.where(closed, returning(chunks), demand.rate)
    waiting = 1.0 - _kept(served(chunks, fresh) / wanted)
    kept = jnp.where(closed, 1.0, 1.0 - waiting)
    new_tokens = fresh + waiting * again
    throughput = served(chunks, new_tokens)
    arrivals = throughput * step
    demand = demand.thinking(throughput).levelled_out(arrivals)
    occupancy = Occupancy(
        batch=arrivals * decode_steps,
        prompts=arrivals,
        room=room,
        scale=new_tokens / fresh,
        chunks=chunks,
        age=demand.age,
        replacing=1 - kept,
        others=jnp.where(closed, 1 - 1 / clients, 1.0),
        crowd=jnp.where(closed, jnp.minimum(clients, slots), 0.0),
        stirred=1.0 * (closed & (clients <= slots)),
    )
    # With all slots taken each request holds one until the step after its last is formed.
    turns = slots / (chunks + decode_steps + loading + limits.async_scheduling)

    taken = jnp.asarray(_TAKEN)[jnp.maximum(crowd - 1, 0)] * turns
    loaded = _in_graphs(loaded, limits, occupancy.batch, crowd)
    occupancy = replace(
        occupancy,
        batch=jnp.where(crowd > 0, taken * decode_steps, occupancy.batch),
        prompts=jnp.where(crowd > 0, taken, occupancy.prompts),
        replacing=jnp.where(crowd > 0, 0.0, occupancy.replacing),
    )
    steps = steps_at(loaded, demand, limits, occupancy, slots)
    return _Balance(throughput, occupancy, slots, steps, found, loads)


def _in_graphs(
    model: StepModel, limits: Limits, batch: Scalar, crowd: Int[AnyArray, ""]
) -> StepModel:
    """Step times whose steps in a crowd are all CUDA graphs, or none is, as with the mean batch.

    A step beyond the largest graph may take several times as long, so that a server may keep up
    with one load in two ways, with few requests or with many. From an idle engine it gets to the
    few, and there the number that runs varies as though graphs had no end.

    Args:
        model: Step times.
        limits: The engine's limits.
        batch: Requests that decode, mean.
        crowd: Who is in the steps, as `_balance` has it.
    """
    host = model.ops.host
    fits = batch * limits.query_tokens <= host.captured * limits.ranks * limits.stages
    captured = jnp.where(fits, limits.max_num_batched_tokens, 0.0)
    captured = jnp.where(crowd > 0, captured, host.captured)
    return replace(model, ops=replace(model.ops, host=replace(host, captured=captured)))


def _busy(running: Scalar) -> Scalar:
    """Chance that steps are under way, where so many run that come by chance."""
    return -jnp.expm1(-running)


def _coming_up(share: Scalar | None, loads: Loads | None, demand: Demand) -> Scalar | None:
    """Share of the prompt tokens that come up, for such a share of the requests."""
    if share is None or loads is None:
        return None
    return share * loads.tokens / demand.input_tokens


def _counted(state: SteadyState, balance: _Balance, demand: Demand, limits: Limits) -> SteadyState:
    """With the requests in the engine, from how many come and how long they stay (Little's law).

    In a step that is formed there may be more of them, or fewer: steps differ in length.
    """
    batch = state.throughput * demand.decode_steps * state.itl
    prefilled = balance.steps.chunks * balance.steps.own_s
    running = jnp.minimum(batch + state.throughput * prefilled, balance.slots)
    batch = jnp.minimum(batch, running)
    use = kv_use(limits, demand, running, demand.age)
    return replace(state, batch=batch, running=running, kv_use=use)


def _by_token(state: SteadyState, demand: Demand) -> SteadyState:
    """With the mean time from token to token in the place of the time from step to step."""
    return replace(state, itl=state.itl / demand.tokens_each)


def _busy_others(demand: Demand, running: Scalar) -> Scalar:
    """Chance that one of the other clients has a request that runs, if each does by chance."""
    each = jnp.minimum(running / demand.clients, FULLEST)
    return -jnp.expm1((demand.clients - 1.0) * jnp.log1p(-each))


def _kept(share: Scalar) -> Scalar:
    """How far requests start as they arrive, if ``share`` of those offered are served."""
    return jnp.clip(1 - _SOON * (1 - share), 0.0, 1.0)


def _observed(
    step: Scalar,
    balance: _Balance,
    crowded: Float[AnyArray, " crowds"],
    model: StepModel,
    demand: Demand,
    limits: Limits,
) -> SteadyState:
    occupancy, steps = balance.occupancy, balance.steps
    running = occupancy.batch + occupancy.prefilling
    closed, level = demand.closed, arrival_evenness(demand.burst_cv2)
    # Whether a step is under way when a request arrives: by chance, or one of the others'.
    lives = (occupancy.chunks - 1.0 + demand.output_steps) * step
    apart = jnp.where(closed, 1.0, 1 / balance.throughput)
    evenly = jnp.where(
        closed, jnp.clip(demand.clients - 1.0, 0.0, 1.0), busy_when_even(apart, lives)
    )
    # A prompt alone takes longer than the mean of steps with prompts and without.
    computing = jnp.maximum(balance.throughput * steps.prompt_s, occupancy.prefilling)
    under_way = occupancy.batch + computing
    busy = level * evenly + (1 - level) * _busy(under_way)
    if demand.contexts is not None:
        busy = jnp.where(demand.closed & ~demand.in_rounds, _busy_others(demand, running), busy)
    met = local(steps, occupancy, model.corrections, demand, limits)
    itl = met.as_seen + met.behind_each_s(demand)
    loading = jnp.zeros_like(step) if demand.loading_s is None else demand.loading_s
    with_slot = loading if demand.fetching_s is None else loading - demand.fetching_s
    # Mean steps of those that run, with all slots taken and with a part of them.
    _, full, part = crowded
    held = occupancy.chunks + demand.decode_steps + limits.async_scheduling + with_slot / step
    waiting, chance = wait_for_a_slot(
        balance.throughput * held,
        balance.slots,
        full,
        (full - part) / ((1 - _PART_FULL) * balance.slots),
        met.varied_requests(demand, varied_by_blocks(limits, demand)),
        steps.added / (balance.throughput * held),
    )
    wait = jnp.where(closed, 0.0, waiting / balance.throughput)
    # Clients who think come by chance, as requests of an open loop do.
    in_rounds = demand.in_rounds
    budget = jnp.where(in_rounds, 0.0, met.queue + met.later)
    met = met._replace(queue=jnp.where(in_rounds, 0.0, met.queue))
    ttft = met.first + busy * met.under_way + budget + wait
    # Clients that find no slot wait for one: by Little's law, what is left of their round trip.
    decode = demand.decode_steps * itl
    clients = jnp.where(closed, demand.clients, 0.0)
    think = 0.0 if demand.contexts is None else demand.think_s
    in_line = jnp.maximum(clients / balance.throughput - ttft - decode - think, 0.0)
    ttft += in_line
    # The balance took a mean step for each of a client's own prefill steps, which are longer: of
    # the two, the round trip as it is observed says how often a client returns.
    throughput = jnp.where(clients > 0, clients / (ttft + decode + think), balance.throughput)
    wait_cv = jnp.sqrt((2 - chance) / jnp.maximum(chance, HARDLY))
    if demand.contexts is not None:
        # Of so many in line, and of those who think, the number goes by chance.
        line = in_line * balance.throughput
        cv = jnp.sqrt(line + think * balance.throughput + ROOT) / jnp.maximum(line, LITTLE)
        wait_cv = jnp.where(closed, jnp.minimum(wait_cv, cv), wait_cv)
    saturated = jnp.isfinite(demand.rate) & (balance.throughput < FULLEST * demand.rate)
    ttft = jnp.where(saturated, jnp.inf, ttft)
    front_end = front_end_s(model.corrections, demand, limits)
    launches = jnp.minimum(steps.launches_s, met.first - met.outside)
    return SteadyState(
        ttft=ttft,
        first_token=FirstToken(
            front_end=front_end,
            warm_up=jnp.zeros_like(ttft),
            scheduling=busy * met.under_way,
            queue=jnp.where(saturated, jnp.inf, budget + wait + in_line),
            loading=loading,
            launches=launches,
            prefill=met.first - met.outside - launches,
            output=met.outside - front_end - loading,
        ),
        itl=itl,
        e2e=ttft + decode,
        throughput=throughput,
        saturated=saturated,
        in_step=jnp.zeros_like(itl),
        batch=occupancy.batch,
        running=running,
        kv_use=kv_use(limits, demand, running, demand.age),
        hit_rate=demand.cached_tokens / demand.input_tokens,
        host_hit_rate=_coming_up(demand.loaded, balance.loads, demand),
        disk_hit_rate=_coming_up(demand.fetched, balance.loads, demand),
        fetching_s=demand.fetching_s,
        mixed_share=steps.mixed_share,
        step=steps.mean,
        chances=chances(
            met,
            busy,
            wait + in_line,
            wait_cv,
            occupancy.batch,
            steps.elastic,
            demand,
        ),
    )
