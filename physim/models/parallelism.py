"""How many GPUs share a model, and in which ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from physim.errors import InputError
from physim.options import option
from physim.printable import shown_fields

# How data-parallel ranks exchange tokens with experts.
ALLGATHER, NVLINK_ONE_SIDED = "allgather", "nvlink_one_sided"
HIGH_THROUGHPUT, LOW_LATENCY = "deepep_high_throughput", "deepep_low_latency"
ALL2ALL = (ALLGATHER, HIGH_THROUGHPUT, LOW_LATENCY, NVLINK_ONE_SIDED)
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
        1,
        "Groups of GPUs over which experts are spread; divides tp x dp.",
        panel=_PANEL,
        column=_OPEN,
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            check_degree(field.name, getattr(self, field.name))
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

    def on(self, gpu: str) -> str:
        """As `on_gpus` says it.

        Args:
            gpu: The key of the GPU.
        """
        return on_gpus(gpu, asdict(self))

    def __str__(self) -> str:
        return layout_name(asdict(self))

    def __repr__(self) -> str:
        return shown_fields(self)


def check_degree(name: str, degree: Any) -> None:
    """Refuses what is no degree of parallelism.

    Args:
        name: What the degree is given as.
        degree: What is given.

    Raises:
        InputError: It is no positive integer.
    """
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise InputError(name, f"{repr(degree)[:80]} is not a positive integer", "correct it")


def telling(degrees: Mapping[str, Any]) -> dict[str, int]:
    """The degrees that tell a layout from others: tp, and those that are not 1.

    Args:
        degrees: All of a layout by name, among whatever else; the layout need not be possible.
    """
    own = {field.name: degrees[field.name] for field in fields(Parallelism)}
    return {name: degree for name, degree in own.items() if name == "tp" or degree != 1}


def layout_name(degrees: Mapping[str, Any]) -> str:
    """A layout in words, such as ``tp 2, pp 2``.

    Args:
        degrees: As for `telling`.
    """
    return ", ".join(f"{name} {degree}" for name, degree in telling(degrees).items())


def on_gpus(gpu: str, degrees: Mapping[str, Any]) -> str:
    """GPUs and their layout, such as ``4 x h100_sxm (tp 2, pp 2)``; without it where tp is all.

    Args:
        gpu: The key of the GPU.
        degrees: As for `telling`.
    """
    count = degrees["tp"] * degrees["pp"] * degrees["dp"]
    layout = "" if [*telling(degrees)] == ["tp"] else f" ({layout_name(degrees)})"
    return f"{count} x {gpu}{layout}"
