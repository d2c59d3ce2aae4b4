"""What a decoder layer is made of: what mixes its tokens, its linear layers, and its experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physim.mixers.mixer import Mixer
from physim.models.formats import BFLOAT16, WeightFormat


@dataclass(frozen=True)
class Linear:
    """A linear layer: ``[tokens, rows] @ [rows, columns]``.

    Columns and rows are units, such as heads, of some width: GPUs share the units, and each has one
    where there are fewer. What all GPUs hold whole is one unit.

    Attributes:
        name: Its name among the operations of a step.
        part: The part of a step's time that it belongs to; empty where the measured time of the
            layer's attention holds it.
        columns: Units and their width, of each block of columns.
        rows: Units and their width.
        form: Format of its weights.
        bias: Whether it adds one.
    """

    name: str
    part: str
    columns: tuple[tuple[int, int], ...]
    rows: tuple[int, int]
    form: WeightFormat = BFLOAT16
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights, bias included."""
        columns = sum(units * width for units, width in self.columns)
        return columns * (self.rows[0] * self.rows[1] + self.bias)

    def on_gpu(self, tp: int) -> tuple[float, float]:
        """Columns and rows on each of ``tp`` GPUs."""
        columns = sum(max(units / tp, 1.0) * width for units, width in self.columns)
        return columns, max(self.rows[0] / tp, 1.0) * self.rows[1]


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of a layer's MLP.

    Attributes:
        count: Routed experts.
        per_token: Routed experts that each token visits.
        intermediate_size: Hidden width of one routed expert.
        shared_intermediate_size: Hidden width of the expert that every token visits, 0 if none.
        load: How unevenly tokens choose, where nothing else is known: the exponent of a power law,
            0 for experts that are chosen alike. Mixtral's and Qwen3-30B-A3B's measured runs are
            near 0, Llama-4 Scout's and Kimi-K2.5's near 1 (seed16.csv, ML.ENERGY, trainval.csv,
            aiconfigurator-core).
        hidden_size: Width of what enters an expert; 0 for that of the residual stream.
        matrices: Matrices of an expert: gate, up and down, or without a gate up and down.
        form: Format of their weights.
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int
    load: float = 0.0
    hidden_size: int = 0
    matrices: int = 3
    form: WeightFormat = BFLOAT16


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are alike.

    Attributes:
        layers: How many there are.
        attention: Their attention, or what stands for it; None where they have an MLP alone.
        linears: Their linear layers but for routed experts.
        intermediate_size: Hidden width of their dense MLP; 0 where they have none.
        experts: Their routed experts; None where they have none.
        norms: Weights of their norms, and others that are neither of a linear layer nor of experts.
    """

    layers: int
    attention: Mixer | None
    linears: tuple[Linear, ...]
    intermediate_size: int = 0
    experts: Experts | None = None
    norms: int = 0

    def named(self, *names: str) -> tuple[Linear, ...]:
        """The linear layers of some names."""
        return tuple(linear for linear in self.linears if linear.name in names)

    def form(self, *parts: str) -> WeightFormat:
        """The format of the first linear layer of some parts of a step; 16 bit if there is none."""
        return next((one.form for one in self.linears if one.part in parts), BFLOAT16)


def padded(sizes: tuple[float, float], multiples: tuple[int, int]) -> tuple[float, float]:
    """Sizes of a matrix as a kernel pads them, each up to a multiple."""
    rows, columns = (
        float(math.ceil(size / multiple) * multiple)
        for size, multiple in zip(sizes, multiples, strict=True)
    )
    return rows, columns
