"""What the fluid does under a load that changes."""

from __future__ import annotations

from jaxtyping import Bool, Float

from physim.pytree import Pytree
from physim.types import AnyArray


class Trajectory(Pytree):
    """What happens over time, at the solver's own steps; those it did not need repeat the last.

    Attributes:
        time: Time, seconds.
        waiting: Requests that wait.
        batch: Requests that decode.
        running: Requests that are prefilled or decode, mean over time.
        arrived: Requests that have arrived.
        taken: Of them, those that have left the queue, to run or because their client gave up.
        steps: Engine steps.
        start: Prompts that start in a step, in units of a mean one.
        age: Tokens that a decoding request has generated, mean.
        full: Whether requests start because others finish, from 0 to 1.
        kv_use: Share of the KV blocks that running requests hold.
        solved: Whether the solver came to the end.
    """

    time: Float[AnyArray, " times"]
    waiting: Float[AnyArray, " times"]
    batch: Float[AnyArray, " times"]
    running: Float[AnyArray, " times"]
    arrived: Float[AnyArray, " times"]
    taken: Float[AnyArray, " times"]
    steps: Float[AnyArray, " times"]
    start: Float[AnyArray, " times"]
    age: Float[AnyArray, " times"]
    full: Float[AnyArray, " times"]
    kv_use: Float[AnyArray, " times"]
    solved: Bool[AnyArray, ""]
