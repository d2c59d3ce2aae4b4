"""Where an engine works under a load: its steps, as the fluid goes through them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from physim.batching.demand import Demand
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.prediction.transient import trajectory_of
from physim.step.batch import Batch
from physim.step.many_batches import total_seconds
from physim.step.model import StepModel

# How long a load without end is run, seconds.
LASTS_S = 600.0
# Prefill chunks of a step, at most, and the least share of the steps that counts.
_MOST_CHUNKS, _LEAST_SHARE = 8, 1e-9


@dataclass(frozen=True)
class Region:
    """Steps that an engine goes through.

    Attributes:
        batches: What each carries.
        share: Its share of all steps; they sum to one.
        starts: Requests that start in a mean step at that time.
        seconds: Its time.
        prompt_tokens: Mean prompt, tokens.
    """

    batches: Batch
    share: Float[np.ndarray, " rows"]
    starts: Float[np.ndarray, " rows"]
    seconds: Float[np.ndarray, " rows"]
    prompt_tokens: float

    @property
    def mean_step_s(self) -> float:
        """Time of a mean step."""
        return float(self.share @ self.seconds)

    @property
    def met_step_s(self) -> float:
        """Time of a mean step when a request arrives: more arrive while the load is high."""
        return self._met(self.seconds)

    @property
    def met_requests(self) -> float:
        """Requests of a mean step when a request arrives."""
        return self._met(np.asarray(self.batches.requests))

    def _met(self, values: Float[np.ndarray, " rows"]) -> float:
        arrivals = self.share * self.starts
        return float(arrivals @ values / arrivals.sum())


def operating_region(case: Case, model: StepModel, corrections: Corrections) -> Region:
    """The steps of a load, from the fluid's trajectory of it.

    At each time the batch and the prompts that start in a step are known in the mean; how many
    start in one step is whole: the two nearest numbers if arrivals are even, else by chance
    (Poisson), and so is how many decode.

    Args:
        case: What is served; a load without end lasts `LASTS_S`.
        model: Step times.
        corrections: Corrections of the components.

    Raises:
        InputError: The load is a closed loop, or of conversations.
    """
    load = case.demanded
    load.refuse_turns("table of what an engine goes through")
    if load.concurrency is not None:
        raise InputError("concurrency", "has no trajectory over time", "give --rate or --stage")
    if load.rate is not None and load.requests is None:
        load = dataclasses.replace(load, rate=None, stages=(Stage(load.rate, LASTS_S),))
    budget = case.server.sizes.max_num_batched_tokens
    trajectory = trajectory_of(case.under(load), corrections)
    demand = Demand.from_load(load, case.server.kv.block_size, case.server.draft)
    steps = np.maximum(np.diff(trajectory.steps, append=trajectory.steps[-1]), 0.0)
    new = float(demand.new_tokens)
    chunks = np.ceil(new / budget)
    rows, shares = [], []
    for batch, starts, age, weight in zip(
        trajectory.batch, trajectory.start, trajectory.age, steps, strict=True
    ):
        if weight <= 0:
            continue
        for count, chance in _counts(float(starts * chunks), load):
            for decode, half in _batches(float(batch), load):
                share = weight * chance * half
                if share > _LEAST_SHARE * steps.sum() and decode + count > 0:
                    rows.append((decode, load.mean_input + float(age), count, max(starts, 0.0)))
                    shares.append(share)
    decodes, contexts, prompts, starting = np.array(rows, float).T
    share = np.array(shares, float)
    batches = model.batch(
        decode_requests=decodes,
        context=contexts,
        prefill_requests=prompts,
        chunk=new / chunks,
        cached=load.cached_tokens,
    )
    seconds = total_seconds(model, batches)
    return Region(batches, share / share.sum(), starting, seconds, load.mean_input)


def _counts(mean: float, load: Load) -> list[tuple[int, float]]:
    """Prefill chunks of a step, each number with its chance."""
    mean = max(mean, 0.0)
    if load.arrival_cv2 == 0 or mean > _MOST_CHUNKS / 2:
        low = int(mean)
        return [(low, low + 1 - mean), (low + 1, mean - low)]
    chances = [np.exp(-mean)]
    for count in range(1, _MOST_CHUNKS):
        chances.append(chances[-1] * mean / count)
    return list(enumerate([*chances, max(1 - sum(chances), 0.0)]))


def _batches(mean: float, load: Load) -> list[tuple[float, float]]:
    """Requests that decode, each number with its chance."""
    mean = max(mean, 0.0)
    if load.arrival_cv2 == 0 or mean < 1:
        return [(mean, 1.0)]
    spread = min(np.sqrt(mean * load.arrival_cv2), mean)
    return [(mean - spread, 0.5), (mean + spread, 0.5)]
