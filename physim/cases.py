"""What is predicted: a model on a GPU, in a deployment, under a load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from physim.inputs.architecture import ModelArch
from physim.inputs.deployment import Deployment, ResolvedDeployment
from physim.inputs.hardware import Hardware, load_hardware
from physim.inputs.models import load_model
from physim.serving.demand import Demand, Limits
from physim.serving.load import Load
from physim.stacking import stack
from physim.step.lowering import StepOps, lower

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Case:
    """One thing to predict.

    Attributes:
        model: The model.
        gpu: The GPU.
        deployment: The engine, every limit known.
        load: The load.
    """

    model: ModelArch
    gpu: Hardware
    deployment: ResolvedDeployment
    load: Load

    @classmethod
    def of(cls, model: str | Path, gpu: str, deployment: Deployment, load: Load) -> Case:
        """A case by names.

        Raises:
            InputError: Any of its parts cannot be used, or they do not go together.
        """
        arch, hardware = load_model(model), load_hardware(gpu)
        resolved = deployment.resolved(arch, hardware)
        load.check_fits(resolved)
        return cls(arch, hardware, resolved, load)


def padded(entries: Sequence[Entry]) -> list[Entry]:
    """The entries and some more, up to a power of two, so that few sizes are ever compiled."""
    return [*entries, *[entries[-1]] * (2 ** math.ceil(math.log2(len(entries))) - len(entries))]


def arrays(cases: Sequence[Case]) -> tuple[StepOps, Demand, Limits]:
    """The cases as numbers, stacked; of a load in stages, the busiest."""
    ops = [lower(case.model, case.gpu, case.deployment) for case in cases]
    demands = [Demand.of(case.load, case.deployment.block_size) for case in cases]
    return stack(ops), stack(demands), stack([Limits.of(case.deployment) for case in cases])


def any_clients(cases: Sequence[Case]) -> bool:
    """Whether one of the loads is of clients, in a closed loop."""
    return any(case.load.concurrency is not None for case in cases)
