"""How many GPUs share a model, and in which ways."""

from __future__ import annotations

from dataclasses import dataclass, fields

from physim.errors import InputError


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism.

    Attributes:
        tp: GPUs that share every layer (tensor parallelism).
        pp: Groups of layers, each on GPUs of its own (pipeline parallelism).
        dp: Replicas of attention with batches of their own (data parallelism).
        ep: GPUs over which experts are spread whole (expert parallelism).

    Raises:
        InputError: A degree is no positive integer, or one but ``tp`` is above one: only tensor
            parallelism is modelled.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            degree = getattr(self, field.name)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise InputError(field.name, f"{degree!r} is not a positive integer", "correct it")
            if degree > 1 and field.name != "tp":
                raise InputError(field.name, f"{degree} is not modelled", "use 1, and tp instead")

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        used = (f"{f.name} {getattr(self, f.name)}" for f in fields(self))
        return ", ".join(text for text in used if not text.endswith(" 1")) or "tp 1"
