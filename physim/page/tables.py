"""Predictions of servers at evenly spaced lengths and loads, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from physim.page.interpolation import Table, look_up

# What a table holds of each server under each load, seconds but for the last two: requests that
# decode, and the share of the KV blocks that is held.
LATENCIES = ("ttft", "ttft_p99", "itl", "itl_p99", "e2e", "e2e_p99")
VALUES = (*LATENCIES, "step", "batch", "kv_use")
SATURATION, PARTS = "saturation", "parts"
# Points of saturation throughputs to one of the rest, over generated lengths.
_FINER = 4
# What there is of servers that are above their capacity too.
FULL = ("itl", "itl_p99", "step", "batch", "kv_use", PARTS)

# The greatest of 16 bits, less the one that stands for none.
_MOST = 2**16 - 2

Numbers = Float[np.ndarray, " n"]
Rows = Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Axis:
    """Evenly spaced points.

    Attributes:
        start: The first.
        step: From one to the next.
        count: How many.
    """

    start: float
    step: float
    count: int

    @classmethod
    def between(cls, first: float, last: float, most: float) -> Axis:
        """Points from one to another, so far apart at most."""
        count = max(int(np.ceil((last - first) / most - 1e-9)), 1) + 1
        return cls(first, (last - first) / (count - 1), count)

    def finer(self, times: int) -> Axis:
        """The same points, and so many times as many."""
        return Axis(self.start, self.step / times, (self.count - 1) * times + 1)

    @property
    def points(self) -> Float[np.ndarray, " points"]:
        """The points."""
        return self.start + self.step * np.arange(self.count)

    def places(self, values: Numbers) -> Numbers:
        """Where values are, in points from the first."""
        return (values - self.start) / self.step


@dataclass(frozen=True)
class Axes:
    """What tables are over.

    Attributes:
        inputs: Binary logarithms of prompt lengths in tokens.
        outputs: Binary logarithms of generated lengths in tokens.
        fine: The same for saturation throughputs, of which an error counts most.
        loads: Logits of shares of the saturation throughput.
    """

    inputs: Axis
    outputs: Axis
    fine: Axis
    loads: Axis

    @classmethod
    def between(
        cls,
        inputs: tuple[float, float],
        outputs: tuple[float, float],
        steps: tuple[float, ...],
        loads: Axis,
    ) -> Axes:
        """Axes of lengths between ends, with points so far apart at most.

        Args:
            inputs: Binary logarithms of the first and the last prompt length,
            outputs: and of the generated lengths.
            steps: How far points are apart on each.
            loads: The axis of the loads.
        """
        own = Axis.between(*outputs, steps[1])
        return cls(Axis.between(*inputs, steps[0]), own, own.finer(_FINER), loads)

    def lengths(self, inputs: Numbers, outputs: Numbers) -> tuple[Numbers, Numbers]:
        """Places of lengths in tokens."""
        return self.inputs.places(np.log2(inputs)), self.outputs.places(np.log2(outputs))

    @property
    def shares(self) -> Numbers:
        """The shares of the saturation throughput."""
        return 1 / (1 + np.exp(-self.loads.points))


@dataclass(frozen=True)
class Tables:
    """Predictions of servers, logarithms but for ``parts``.

    NaN where a request does not fit, or where a queue grows without end.

    Attributes:
        axes: Where they have points.
        saturation: Saturation throughput, requests per second.
        values: The rest by its name, of `VALUES`.
        parts: Shares of the time of a step, in the order of `physim.step.lowering.PART_NAMES`.
        full: What `FULL` names, above capacity.
    """

    axes: Axes
    saturation: Float[np.ndarray, "servers inputs fine"]
    values: Mapping[str, Float[np.ndarray, "servers inputs outputs loads"]]
    parts: Float[np.ndarray, "servers inputs outputs loads parts"]
    full: Mapping[str, Float[np.ndarray, "servers inputs outputs ..."]]

    @classmethod
    def from_named(cls, axes: Axes, named: Mapping[str, Table]) -> Tables:
        """Tables that have the names of `named`."""
        values = {name: named[name] for name in VALUES}
        full = {name: named[f"full_{name}"] for name in FULL}
        return cls(axes, named[SATURATION], values, named[PARTS], full)

    @property
    def named(self) -> dict[str, Table]:
        """All of them by name."""
        full = {f"full_{name}": table for name, table in self.full.items()}
        return {SATURATION: self.saturation, **self.values, PARTS: self.parts, **full}

    def saturation_of(self, rows: Rows, inputs: Numbers, outputs: Numbers) -> Numbers:
        """Saturation throughputs, requests per second; NaN where a request does not fit.

        Args:
            rows: The servers.
            inputs: Prompt lengths,
            outputs: and generated lengths, tokens.
        """
        place, _ = self.axes.lengths(inputs, outputs)
        fine = self.axes.fine.places(np.log2(outputs))
        found: Numbers = np.exp(look_up(self.saturation, rows, place, fine))
        return found

    def look_up(
        self, rows: Rows, inputs: Numbers, outputs: Numbers, rates: Numbers
    ) -> dict[str, Numbers]:
        """What is in the tables of servers under loads, with ``saturation``.

        Args:
            rows: The servers.
            inputs: Prompt lengths,
            outputs: and generated lengths, tokens.
            rates: Arrivals per second. Above the last point it is what is there; above capacity
                what `full` has, of what it has.
        """
        most = self.saturation_of(rows, inputs, outputs)
        shares = np.clip(rates / most, self.axes.shares[0], self.axes.shares[-1])
        load = self.axes.loads.places(np.log(shares / (1 - shares)))
        places = (*self.axes.lengths(inputs, outputs), load)
        found = {name: np.exp(look_up(table, rows, *places)) for name, table in self.values.items()}
        for name in self.values.keys() & self.full.keys():
            full = np.exp(look_up(self.full[name], rows, *places[:2]))
            found[name] = np.where(rates > most, full, found[name])
        return {SATURATION: most} | found


@dataclass(frozen=True)
class Packed:
    """Tables as whole numbers, as a page holds them.

    Attributes:
        arrays: Name, shape, and for what the least and the greatest number stand.
        content: Their numbers, one array after the other; 0 stands for none.
    """

    arrays: list[dict[str, Any]]
    content: bytes

    @classmethod
    def from_named(cls, named: Mapping[str, Table]) -> Packed:
        """Tables in 16 bits a number."""
        arrays, content = [], bytearray()
        for name, table in named.items():
            low, high = _ends(table)
            scaled = np.rint((table - low) / (high - low) * _MOST) + 1
            content += np.where(np.isnan(table), 0, scaled).astype("<u2").tobytes()
            arrays.append({"name": name, "shape": [*table.shape], "low": low, "high": high})
        return cls(arrays, bytes(content))

    def unpacked(self) -> dict[str, Table]:
        """The tables again, as exact as they are packed."""
        named, place = {}, 0
        for array in self.arrays:
            shape, low = array["shape"], array["low"]
            count = int(np.prod(shape))
            whole = np.frombuffer(self.content, "<u2", count, place).reshape(shape)
            place += 2 * count
            scaled = low + (whole - 1.0) / _MOST * (array["high"] - low)
            named[array["name"]] = np.where(whole == 0, np.nan, scaled)
        return named


def _ends(table: Table) -> tuple[float, float]:
    """The least and the greatest value, apart where they are the same."""
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    return low, max(high, low + 1e-6)
