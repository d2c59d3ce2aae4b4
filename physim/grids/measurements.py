"""Measured rows of a kernel: coordinates, roofline and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from physim.types import Number

if TYPE_CHECKING:
    import pandas as pd

# Tokens, columns and rows of the weight, of each measured row.
Gemms = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """The rows of one table as a package has them.

    Attributes:
        table: The table's name.
        frame: The rows, with their time in ms as ``latency``.
        coordinates: The axes' names and each row's value on them.
        roofline_s: Each row's roofline time, seconds.
        other_gemms: GEMMs that the time holds as well.
        around_s: What the smallest layer takes at most once they are taken off, seconds.
        starts_by: The axis at each of whose knots the smallest call is looked for, where efficiency
            is relative to its time as well; empty where it is not.
    """

    table: str
    frame: pd.DataFrame
    coordinates: dict[str, np.ndarray]
    roofline_s: Number
    other_gemms: tuple[Gemms, ...] = ()
    around_s: np.ndarray | float = np.inf
    starts_by: str = ""


@dataclass(frozen=True)
class Measurements:
    """The measured rows of one table.

    Attributes:
        table: The table's name.
        coordinates: The axes' names and each row's value on them.
        roofline_s: Each row's roofline time, seconds.
        measured_s: Each row's measured time, seconds.
        source: Path of the rows' file inside the package.
        sha256: Hash of that file.
        kernels: Kernels that were measured.
        other_gemms: GEMMs in 16 bit that the measured time holds as well and that are rows of a
            step, each as the tokens, columns and rows of the weight of every row.
        around_s: What the smallest row takes at most once they are taken off, seconds; or an array
            of it, for each row.
        starts_by: The axis at each of whose knots the smallest call is looked for, where efficiency
            is relative to its time as well; empty where it is not.
        taken_s: Time that was taken off each row's, seconds.
        start_s: Time that was added to the rooflines: what the smallest rows take.
    """

    table: str
    coordinates: dict[str, np.ndarray]
    roofline_s: np.ndarray
    measured_s: np.ndarray
    source: str
    sha256: str
    kernels: tuple[str, ...]
    other_gemms: tuple[Gemms, ...] = ()
    around_s: np.ndarray | float = np.inf
    starts_by: str = ""
    taken_s: np.ndarray | float = 0.0
    start_s: float = 0.0

    def subset(self, rows: np.ndarray) -> Measurements:
        """The rows that a mask selects."""
        picked = {name: values[rows] for name, values in self.coordinates.items()}
        return Measurements(
            self.table,
            picked,
            self.roofline_s[rows],
            self.measured_s[rows],
            self.source,
            self.sha256,
            self.kernels,
            tuple((m[rows], n[rows], k[rows]) for m, n, k in self.other_gemms),
            self.around_s[rows] if isinstance(self.around_s, np.ndarray) else self.around_s,
            self.starts_by,
            self.taken_s[rows] if isinstance(self.taken_s, np.ndarray) else self.taken_s,
            self.start_s,
        )
