"""An engine under a load that changes, as a fluid: ordinary differential equations.

The state is what waits, what decodes by age, and counts. In a step of time ``G`` so many of the
waiting requests start as slots, KV blocks and the token budget allow; a request that decodes grows
older by one token a step and leaves when its output ends. So a load above capacity grows a queue,
which later stages find, and a slot that is taken is free again only when its request has finished.

Ages are phases in a row, each left at a rate, some requests leaving the row at its end (the linear
chain trick); the phases' means are those of the lengths' distribution. Where slots are scarce by
chance, the number that waits follows the idle slots such that a load that stays makes the queue
that `physim.batching.queueing` says (a fluid approximation point by point, after Wang, Tipper and
Banerjee, IEEE INFOCOM 1996).
"""

from __future__ import annotations

from dataclasses import replace

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from physim.batching.demand import Demand
from physim.batching.guards import EDGE, FULLEST, HARDLY, LITTLE, NEARLY, SMALL, TINY
from physim.batching.kv_capacity import kv_slots, kv_use, prefix_blocks, private_blocks
from physim.batching.limits import Limits
from physim.batching.occupancy import Occupancy, room_beside
from physim.batching.preemption import recomputed_tokens, varied_by_blocks
from physim.batching.prompt_chunks import Chunks
from physim.batching.queueing import wait_for_a_slot
from physim.batching.step_mix import steps_at
from physim.fluid.age_phases import AgePhases
from physim.fluid.first_token import EMPTY, Local, local
from physim.fluid.rosenbrock import Rodas3
from physim.fluid.schedule import Schedule, StageLengths
from physim.fluid.table_look_up import cubic, straight
from physim.fluid.trajectory import Trajectory
from physim.pytree import Pytree
from physim.step.model import StepModel
from physim.types import AnyArray, Scalar

# The constants below were chosen on benchmarks/fluid_against_replay.py (loads above the capacity)
# and benchmarks/bench_serving.py: accuracy first, then time.

# Knots of the table of steps: decoding requests as a share of the slots, of which the first and the
# last only shape the curve's ends.
_SHARES = np.geomspace(2e-3, 1.0, 19)
_SHARES = np.append(_SHARES, _SHARES[-1] ** 2 / _SHARES[-2])
# And how many of prefill chunks there are, from some steps that have one to the token budget.
_CHUNKS = 12
# Steps of the solver in a stage: at least, at most, and at most where clients give up, which they
# do in waves.
_LEAST_STEPS, _STEPS, _WAVE_STEPS = 20, 160, 768
# Relative error of a step of the solver.
_TOLERANCE = 1e-3
# Share of the slots from which on requests start because others finish.
_FULL_SHARE = 0.96
# Of what is served now, the least that is with all slots taken, where chance decides.
_SERVED = 0.97
# Knots of the queue for the token budget, from hardly any of what a step has room for to all of it.
_KNOTS = 32
# Share of the slots that are taken at most where the number that waits follows those that are idle.
_MOST_TAKEN = 0.995
# Time to drain after the last stage, in lives of a long request.
_DRAIN = 3
# Most requests that the KV cache may hold, over those that it holds of a load that stays.
_YOUNG = 3.0


class _State(Pytree):
    """What the equations are about.

    Attributes:
        running: Requests that decode, by the phase of their age.
        waiting: Requests that wait.
        steps: Engine steps.
        time: Time, seconds: a part of the state, since the solver wants a system that does not
            depend on it.
    """

    running: Float[AnyArray, "*times phases"]
    waiting: Float[AnyArray, "*times"]
    steps: Float[AnyArray, "*times"]
    time: Float[AnyArray, "*times"]


class Fluid(Pytree):
    """An engine under a kind of load, ready to be run through a schedule.

    Attributes:
        demand: The load, whose rate is of no account.
        limits: The engine's limits.
        phases: Ages of decoding requests.
        slots: Requests that may run, were the load to stay.
        scale: Requests at the last of the table's shares.
        blocks: KV blocks for requests that run.
        prefix: Of them, those of the prefix of each request.
        room: Prompt tokens that a step has room for beside a mean batch, of all ranks.
        chunks: Prefill steps of a prompt.
        held: Steps that a request holds its slot beside those in which it decodes.
        chance: Product of what waits and what is idle at each of the table's shares.
        queued: Requests that wait for the token budget by chance, at each share and knot; none
            where it is all but taken.
        knots: Tokens of prompts that start in a step, over those that it has room for, finely.
        starts: The same at the table's knots.
        table: `Local` with slots idle and taken, at two ages, shares and starts.
    """

    demand: Demand
    limits: Limits
    phases: AgePhases
    slots: Scalar
    scale: Scalar
    blocks: Scalar
    prefix: Scalar
    room: Scalar
    chunks: Scalar
    held: Scalar
    chance: Float[AnyArray, " shares"]
    queued: Float[AnyArray, "shares knots"]
    knots: Float[AnyArray, " knots"]
    starts: Float[AnyArray, " starts"]
    table: Float[AnyArray, "values 2 2 shares starts"]

    @classmethod
    def tabulated(cls, model: StepModel, demand: Demand, limits: Limits) -> Fluid:
        """Tabulates an engine's steps."""
        by_kv = kv_slots(limits, demand)
        slots = jnp.minimum(limits.max_num_seqs, by_kv)
        # Chunks leave room for a mean batch of what the budget would let run.
        room = room_beside(
            limits,
            jnp.minimum(
                slots,
                limits.max_num_batched_tokens
                * demand.decode_steps
                / (limits.query_tokens * demand.decode_steps + demand.new_tokens),
            ),
        )

        def chunks_of(room: Scalar) -> Scalar:
            each = room / (limits.ranks * limits.stages)
            return Chunks.in_room(demand.parts, each, limits.stages).number

        chunks = chunks_of(room)
        again = recomputed_tokens(limits, demand, by_kv) / demand.new_tokens
        ages = jnp.array([0.0, 2.0]) * demand.age
        # Young requests hold less of the KV cache than those of a load that stays.
        scale = jnp.minimum(limits.max_num_seqs, _YOUNG * by_kv)
        prefix = prefix_blocks(limits, demand, by_kv)
        blocks = by_kv * (private_blocks(limits, demand, demand.age) + prefix)

        def local_at(full: Scalar, age: Scalar, share: Scalar, start: Scalar) -> Local:
            room = room_beside(limits, share * scale)
            occupancy = Occupancy(
                batch=share * scale,
                prompts=start * room / demand.new_tokens,
                room=room / (limits.ranks * limits.stages),
                scale=1.0 + full * again,
                chunks=chunks_of(room),
                age=age,
                replacing=full,
                others=jnp.asarray(1.0),
                crowd=full * scale,
                stirred=jnp.zeros(()),
            )
            steps = steps_at(model, demand, limits, occupancy, scale)
            return local(steps, occupancy, model.corrections, demand, limits)

        # From shares of a request to all that there is room for, where steps become as long as they
        # can be.
        one = jnp.minimum(demand.new_tokens / (chunks * limits.max_num_batched_tokens), 1.0)
        starts = jnp.geomspace(HARDLY * one, 1.0, _CHUNKS)
        starts = jnp.append(LITTLE * one, starts)
        axes = (jnp.array([0.0, 1.0]), ages, jnp.array(_SHARES), starts)
        grid = jnp.meshgrid(*axes, indexing="ij")
        values = jax.vmap(lambda *x: ravel_pytree(local_at(*x))[0])(
            *(axis.ravel() for axis in grid)
        )
        table = values.T.reshape(-1, *grid[0].shape)
        held = chunks + limits.async_scheduling
        unfinished = cls(
            demand,
            limits,
            AgePhases.from_demand(demand),
            slots,
            scale,
            blocks,
            prefix,
            room,
            chunks,
            held,
            jnp.zeros(len(_SHARES)),
            jnp.zeros((len(_SHARES), _KNOTS)),
            jnp.geomspace(starts[0], 1.0, _KNOTS),
            starts,
            table,
        )
        return replace(unfinished, chance=unfinished._chance(), queued=unfinished._queued())

    def _queued(self) -> Float[AnyArray, "shares knots"]:
        """Requests that wait for the token budget by chance, where it is not all but taken."""
        # Of requests of mean age, none of which starts because another finishes.
        values = jnp.mean(self.table[np.array([_MEAN, _QUEUE, _FULL]), 0], axis=1)
        step, queue, full_s = values
        share = jnp.minimum(self.starts / step * full_s, FULLEST)
        # The queue has a pole where the budget is taken; what is left beside it is straight.
        rows = jnp.stack([step, share, queue * (1.0 - share)])
        between = jax.vmap(jax.vmap(lambda row: jnp.interp(self.knots, self.starts, row)))
        step, share, rest = between(rows)
        most = self._most(jnp.array(_SHARES) * self.scale)[:, None]
        waiting = most * self.knots / step * rest / (1.0 - share)
        return jnp.where(share < NEARLY, waiting, 0.0)

    def _most(self, batch: Float[AnyArray, "*n"]) -> Float[AnyArray, "*n"]:
        """Requests that may start in a step beside so many that decode."""
        return room_beside(self.limits, batch) / self.demand.new_tokens

    def _chance(self) -> Float[AnyArray, " shares"]:
        """Product of what waits by chance and what is idle, at each share of slots taken."""
        demand = self.demand
        whole = demand.decode_steps + self.held
        idle = jnp.zeros(())

        def met_with(share: Scalar) -> Local:
            batch = share * self.slots
            return self.local(batch / self.scale, batch / whole, demand.age, idle)

        met = jax.vmap(met_with)(jnp.array(_SHARES))
        step = met.mean
        slowest, slower = step[-2], (step[-2] - step[-3]) / ((1 - _SHARES[-3]) * self.slots)
        by_blocks = varied_by_blocks(self.limits, demand)

        def waiting_at(share: Scalar, met: Local) -> Scalar:
            step = met.mean
            offered = share * self.slots / step
            # Where steps with all slots taken are so long that fewer requests are served than now,
            # chance alone does not lead there.
            longest = jnp.minimum(slowest, step / jnp.minimum(share, 1.0) * _SERVED)
            prompts = (1.0 - met.decode_only / step) / offered
            varied = met.varied_requests(demand, by_blocks)
            waiting, _ = wait_for_a_slot(offered, self.slots, longest, slower, varied, prompts)
            return waiting * (1.0 - jnp.minimum(share, _MOST_TAKEN)) * self.slots

        return jax.vmap(waiting_at)(jnp.array(_SHARES), met)

    def local(self, share: Scalar, start: Scalar, age: Scalar, full: Scalar) -> Local:
        """What a request meets, between the knots of the table.

        Args:
            share: Decoding requests over the table's scale.
            start: Requests that start in a step.
            age: Tokens that a decoding request has generated, mean.
            full: Whether requests start because others finish.
        """
        values = jnp.maximum(self._looked_up(self.table, share, start, age, full), TINY)
        found: Local = _unravelled(values)
        return found

    def _looked_up(
        self,
        table: Float[AnyArray, "*v 2 2 shares starts"],
        share: Scalar,
        start: Scalar,
        age: Scalar,
        full: Scalar,
    ) -> Float[AnyArray, "*v"]:
        i, by_share = cubic(_SHARES, share)
        j, by_start = straight(self.starts, start / self._most(share * self.scale))
        older = jnp.clip(age / (2 * jnp.maximum(self.demand.age, LITTLE)), 0.0, 1.0)
        near = jax.lax.dynamic_slice_in_dim(table, i, len(by_share), -2)
        near = jax.lax.dynamic_slice_in_dim(near, j, 2, -1)
        value = jnp.sum(near * by_share[:, None] * by_start, axis=(-1, -2))
        value = (1 - older) * value[..., 0] + older * value[..., 1]
        return (1 - full) * value[..., 0] + full * value[..., 1]

    def run(self, schedule: Schedule) -> Trajectory:
        """Runs the engine through a schedule, from idle until all is done."""
        begins = jnp.append(0.0, schedule.ends)
        life, drain = self._last_s(schedule)
        parts = 1
        if schedule.lengths is not None:
            # Requests of all stages may start now, and each change of their lengths takes steps.
            parts += len(schedule.rates) // 2
        lengths = jnp.append(jnp.diff(begins), jnp.full(parts, drain / parts))
        begins = jnp.append(begins, begins[-1] + drain * jnp.arange(1, parts) / parts)
        rates = jnp.append(schedule.rates, jnp.zeros(parts))
        zero = jnp.zeros((), begins.dtype)
        empty = _State(jnp.zeros_like(self.phases.stay, begins.dtype), zero, zero, zero)
        most = _STEPS if schedule.timeout is None else _WAVE_STEPS

        def stage(
            state: _State, part: tuple[Scalar, Scalar, Scalar]
        ) -> tuple[_State, tuple[AnyArray, _State, AnyArray]]:
            begin, length, rate = part

            def change(_: Scalar, y: _State, __: None) -> _State:
                moved: _State = jax.tree.map(lambda x: length * x, self._change(y, rate, schedule))
                return moved

            # In units of the stage, whose bounds are plain numbers then, which need no check while
            # it runs: a function that can raise errors cannot be kept.
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(change),
                Rodas3(),
                0.0,
                1.0,
                SMALL,
                state,
                # What happens between the steps is read off straight lines.
                stepsize_controller=diffrax.PIDController(
                    _TOLERANCE, LITTLE, dtmax=jnp.maximum(life / length, 1 / _LEAST_STEPS)
                ),
                saveat=diffrax.SaveAt(t0=True, steps=True),
                max_steps=most,
                # Its steps are few enough to keep them all for the gradient.
                adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=most),
                throw=False,
            )
            done = jnp.isfinite(solution.ts)
            last = jnp.sum(done) - 1
            times = begin + length * jnp.where(done, solution.ts, solution.ts[last])
            states: _State = jax.tree.map(
                lambda x: jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), x, x[last]), solution.ys
            )
            solved = solution.ts[last] >= FULLEST
            return jax.tree.map(lambda x: x[-1], states), (times, states, solved)

        _, (times, states, solved) = jax.lax.scan(stage, empty, (begins, lengths, rates))
        states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
        return self._trajectory(times.ravel(), states, jnp.all(solved), schedule)

    def _last_s(self, schedule: Schedule) -> tuple[Scalar, Scalar]:
        """Life of a long request, and time in which all are done after the last stage, seconds."""
        full = jnp.ones(())
        turn = self.slots / (self.demand.decode_steps + self.held)
        step = self.local(self.slots / self.scale, turn, self.demand.age, full).mean
        _, counts = schedule.corners()
        life = (jnp.max(self.demand.output_steps) + self.held) * step
        queue = counts[-1] / turn * step
        if schedule.timeout is not None:
            queue = jnp.minimum(queue, schedule.timeout)
        return life, queue + _DRAIN * life

    def _starting(
        self, waiting: Scalar, running: Float[AnyArray, " phases"], lengths: StageLengths | None
    ) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
        """Who starts, and beside whom.

        Args:
            waiting: Requests that wait.
            running: Requests that decode, by phase.
            lengths: Lengths of those that start, as of those that run; None for those of all.

        Returns:
            Requests that start in a step, as they are counted, and in units of a mean prompt; share
            of the scale that decodes; age that a mean prompt would have with as many tokens as
            those that decode; and whether slots are taken.
        """
        phases = self.phases
        batch = jnp.sum(running)
        age = jnp.sum(running * phases.age) / jnp.maximum(batch, SMALL)
        demand = self.demand
        prompts = 1.0 if lengths is None else lengths.counted
        if lengths is not None:
            age = lengths.outputs * age + (lengths.prompts - 1.0) * demand.new_tokens
        private = private_blocks(self.limits, demand, jnp.maximum(age, 0.0))
        room = self.blocks / (private + self.prefix)
        slots = jnp.minimum(self.limits.max_num_seqs, room)
        slots = jnp.minimum(slots, self.scale)
        leaving = jnp.sum((1 - phases.onward) * running / phases.stay)
        # The slots that are free for the next step, less what those that start now hold later.
        free = jnp.maximum(slots - batch + leaving, 0.0) / (1 + self.held)
        i, by_share = cubic(_SHARES, batch / slots)
        chance = jnp.sum(jax.lax.dynamic_slice_in_dim(self.chance, i, len(by_share)) * by_share)
        # At least so much rounds the corner where the queue begins.
        chance = jnp.maximum(chance, HARDLY) / (1 + self.held)
        waiting = jnp.maximum(waiting, 0.0)
        start = _lesser(waiting, free, chance * waiting / (waiting + HARDLY))
        tokens = self._by_tokens(prompts * waiting, batch) / prompts
        # Rounded where both slots and tokens make requests wait.
        by_both = jnp.minimum(waiting - start, start) * jnp.minimum(waiting - tokens, tokens)
        start = _lesser(start, tokens, LITTLE * jnp.maximum(by_both, 0.0) + TINY**2)
        start = jnp.maximum(start, 0.0)
        taken = (batch + start * self.held) / slots
        full = jax.nn.sigmoid((taken - _FULL_SHARE) / EDGE)
        return start, prompts * start, batch / self.scale, age, full

    def _by_tokens(self, waiting: Scalar, batch: Scalar) -> Scalar:
        """Requests that the token budget lets start in a step, if so many wait.

        With a budget ``b`` for a load that stays, ``x`` start where ``x + L(x)`` wait, ``L`` by
        chance; ``L (b - x)`` changes little, and is a straight line between the table's knots.
        """
        budget = self._most(batch)
        i, by_share = cubic(_SHARES, batch / self.scale)
        near = jax.lax.dynamic_slice_in_dim(self.queued, i, len(by_share))
        queued = jnp.maximum(jnp.sum(near * by_share[:, None], axis=0), 0.0)
        knots = budget * self.knots
        left = budget - knots
        product = jax.lax.cummax(queued * left)
        below = knots + product / jnp.maximum(left, TINY)
        j = jnp.clip(jnp.searchsorted(below, waiting, method="compare_all") - 1, 0, _KNOTS - 2)
        slope = (product[j + 1] - product[j]) / (knots[j + 1] - knots[j])
        at_none = product[j] - slope * knots[j]
        both = waiting + budget
        rounded = 4 * (at_none + LITTLE * waiting * budget)
        root = (waiting - budget) ** 2 + slope * (2 * both + slope) + rounded
        return jnp.maximum((both + slope - jnp.sqrt(jnp.maximum(root, SMALL))) / 2, 0.0)

    def _change(self, state: _State, rate: Scalar, schedule: Schedule) -> _State:
        running, waiting = state.running, state.waiting
        lengths = self._lengths(state, schedule)
        start, prompts, share, age, full = self._starting(waiting, running, lengths)
        step = self._looked_up(self.table[_MEAN], share, prompts, age, full)
        leave = running / self.phases.stay
        entering = jnp.append(start, (self.phases.onward * leave)[:-1])
        queue = rate - start / step
        if schedule.timeout is not None:
            given_up, stopped = self._given_up(state.time, waiting, step, schedule)
            queue -= given_up
            leave += stopped * running
        return _State((entering - leave) / step, queue, 1 / step, jnp.ones_like(step))

    def _lengths(self, state: _State, schedule: Schedule) -> StageLengths | None:
        """Lengths of the requests that start; None where all are alike."""
        if schedule.lengths is None:
            return None
        taken = schedule.arrived(state.time) - jnp.maximum(state.waiting, 0.0)
        # A jump between two steps would take the solver many.
        arrived = schedule.arrival(jnp.maximum(taken, 0.0))
        return schedule.lengths_at(arrived, 1 / _LEAST_STEPS)

    def _given_up(
        self, time: Scalar, waiting: Scalar, step: Scalar, schedule: Schedule
    ) -> tuple[Scalar, Float[AnyArray, " phases"]]:
        """Clients a second that leave the queue, and the share of each phase that do in a step."""
        taken = schedule.arrived(time) - waiting
        late = schedule.arrived(time - schedule.timeout) - taken
        aged = 1.0 + (self.phases.age - 1.0) / self.demand.tokens_each
        left = (schedule.timeout - (time - schedule.arrival(taken))) / step - aged
        stay = self.phases.stay
        return jax.nn.softplus(2 * late) / 2 / step, jax.nn.sigmoid(-4 * left / stay[0]) / stay

    def _trajectory(
        self,
        time: Float[AnyArray, " times"],
        states: _State,
        solved: Bool[AnyArray, ""],
        schedule: Schedule,
    ) -> Trajectory:
        running, waiting = states.running, jnp.maximum(states.waiting, 0.0)
        lengths = self._lengths(replace(states, time=time), schedule)
        starting, start, share, age, full = jax.vmap(self._starting)(waiting, running, lengths)
        batch = jnp.sum(running, axis=1)
        arrived = schedule.arrived(time)
        met = jax.vmap(self.local)(share, start, age, full)
        # Where as many leave as start there are more over time than in the mean of steps: where
        # more run, steps last.
        leaving = jnp.sum((1.0 - self.phases.onward) * running / self.phases.stay, axis=1)
        fewer, more = jnp.minimum(leaving, starting), jnp.maximum(leaving, starting)
        settled = fewer / jnp.maximum(more, TINY)

        def over_time(count: AnyArray, step_s: AnyArray) -> AnyArray:
            return count * (1.0 + settled * (step_s / met.mean - 1.0))

        whole = over_time(batch, jax.vmap(Local.seen_s)(met, full))
        whole += over_time(start * self.chunks, met.own_prefill)
        age = jnp.maximum(age, 0.0)
        return Trajectory(
            time=time,
            waiting=waiting,
            batch=batch,
            running=whole,
            arrived=arrived,
            taken=jax.lax.cummax(arrived - waiting),
            steps=states.steps,
            start=start,
            age=age,
            full=full,
            kv_use=jax.vmap(lambda *now: kv_use(self.limits, self.demand, *now))(whole, age),
            solved=solved,
        )


# A record of what a request meets, from its numbers in a row.
_unravelled = ravel_pytree(EMPTY)[1]
# Where in such a row the mean step is, with which all that runs grows older; the queue for tokens,
# and a full step.
_MEAN, _QUEUE, _FULL = (Local._fields.index(name) for name in ("mean", "queue", "full"))


def _lesser(one: Scalar, other: Scalar, product: Scalar) -> Scalar:
    """The lesser of two, rounded: the product of what each exceeds it by is given."""
    return ((one + other) - jnp.sqrt((one - other) ** 2 + 4 * product)) / 2
