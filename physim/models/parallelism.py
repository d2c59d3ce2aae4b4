"""How many GPUs share a model, and in which ways."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from physim.errors import InputError
from physim.options import option

# How data-parallel ranks exchange tokens with experts.
ALL2ALL = ("allgather", "deepep_high_throughput", "deepep_low_latency")
_PANEL = "Parallelism"
_OPEN: Literal["optional"] = "optional"


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism.

    Attributes:
        tp: GPUs that share every layer but routed experts (tensor parallelism).
        pp: Stages of layers, each on GPUs of its own (pipeline parallelism).
        dp: Ranks of attention with batches and KV caches of their own, between which the experts of
            a stage are shared (data parallelism).
        ep: Of the ``tp x dp`` GPUs of a stage, those over which experts are spread whole (expert
            parallelism); the rest share the width of each.

    Raises:
        InputError: A degree is no positive integer, or ``ep`` does not divide ``tp x dp``.
    """

    tp: int = option(1, "GPUs that share every layer.", panel=_PANEL, column="required")
    pp: int = option(
        1,
        "Stages of layers on GPUs of their own (pipeline parallelism).",
        panel=_PANEL,
        column=_OPEN,
    )
    dp: int = option(
        1, "Ranks of attention that share experts (data parallelism).", panel=_PANEL, column=_OPEN
    )
    ep: int = option(
        1, "GPUs over which experts are spread whole: 1, or tp x dp.", panel=_PANEL, column=_OPEN
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            degree = getattr(self, field.name)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                problem = f"{repr(degree)[:80]} is not a positive integer"
                raise InputError(field.name, problem, "correct it")
        if self.stage_gpus % self.ep:
            raise InputError(
                "ep",
                f"{self.ep} does not divide the {self.stage_gpus} GPUs of tp {self.tp} and dp "
                f"{self.dp}",
                "use a divisor, such as all of them",
            )

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.stage_gpus * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of a stage, which hold its experts together."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """GPUs that share the width of each routed expert."""
        return self.stage_gpus // self.ep

    def __str__(self) -> str:
        used = (f"{f.name} {getattr(self, f.name)}" for f in fields(self))
        return ", ".join(text for text in used if not text.endswith(" 1")) or "tp 1"
