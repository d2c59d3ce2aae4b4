"""What a component of a step is: rows that it makes of a model, and all there is to say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from physim.grids.store import gpu_or_stand_in, grids_of, measured_gpus
from physim.models.architecture import ModelArch
from physim.models.formats import FLOAT32, MXFP4, MXFP4_MXFP8, WeightFormat
from physim.models.parallelism import Parallelism
from physim.service.hardware import Hardware
from physim.service.server import Server
from physim.step.rows import Row


@dataclass(frozen=True)
class Part:
    """A part of a step's time, as breakdowns, tables and pictures name it.

    Attributes:
        name: Its key.
        label: What it is, for people.
    """

    name: str
    label: str


@dataclass(frozen=True)
class Placement:
    """A server, of which components make their rows.

    Attributes:
        server: The engine with the model on its GPUs.
    """

    server: Server

    @property
    def model(self) -> ModelArch:
        """The model."""
        return self.server.model

    @property
    def gpu(self) -> Hardware:
        """The GPU."""
        return self.server.gpu

    @property
    def tp(self) -> int:
        """GPUs that share every layer but routed experts."""
        return self.layout.tp

    @property
    def layout(self) -> Parallelism:
        """How GPUs share the model."""
        return self.server.parallelism

    @property
    def is_measured(self) -> bool:
        """Whether the GPU has measured efficiencies of its own."""
        return self.gpu.key in measured_gpus()

    @property
    def grids(self) -> str:
        """The GPU, and the engine if not the default, whose measured efficiencies are taken."""
        profile = self.server.profile
        return grids_of(gpu_or_stand_in(self.gpu.key), profile.engine, profile.kernel_tables)

    def multiplied(self, form: WeightFormat) -> WeightFormat:
        """How the GPU multiplies weights of a format.

        One without tensor cores for it keeps the weights and multiplies in 16 bit.
        """
        # GPUs that multiply fp4 multiply the microscaling formats too.
        casts = self.server.casts_mxfp4 and self.gpu.peak("fp4")
        if form.name == MXFP4.name and casts:
            return replace(MXFP4_MXFP8, is_padded=form.is_padded)
        if form.compute == FLOAT32.compute and not self.server.profile.float32_routers:
            return form.stored
        return form if self.gpu.peak(form.compute) else form.stored

    def peak_flops(self, form: WeightFormat) -> float:
        """Peak FLOP/s for weights of a format."""
        peak = self.gpu.peak(self.multiplied(form).compute)
        assert peak is not None  # every Hardware has bfloat16: load_hardware
        return peak

    def sustained_share(self, form: WeightFormat) -> float:
        """Share of `peak_flops` that GEMMs of weights of a format keep up."""
        return self.gpu.sustained_share(self.multiplied(form).compute)


def _nothing(_: Placement) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Component:
    """A component of a step.

    Attributes:
        name: Its name: that of its module.
        parts: The parts of a step's time that it owns; none where it adds to another's.
        lower: Makes its rows of a model on a GPU.
        source: Where its formulas and constants come from.
        attention_kinds: Kinds of attention that it describes (`Attention.kind`).
        assumptions: Where it stands on something else than a measurement, a line each.
    """

    name: str
    parts: tuple[Part, ...]
    lower: Callable[[Placement], Iterable[Row]]
    source: str
    attention_kinds: tuple[str, ...] = ()
    assumptions: Callable[[Placement], Sequence[str]] = _nothing
