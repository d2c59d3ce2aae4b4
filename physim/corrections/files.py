"""Fit files: offsets of corrections by level, how well they are known, and where they come from."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from physim import data
from physim.corrections.calibration import Calibration, Scatter
from physim.corrections.fields import CORRECTIONS, Corrections, flat, labels, unflat
from physim.corrections.levels import (
    LEVELS,
    Branch,
    Evidence,
    Spread,
    Tree,
    Vector,
    Widths,
    branch_of,
    population_of,
    prior_widths,
)
from physim.corrections.passport import MadeOn, elsewhere
from physim.corrections.residual import Residual
from physim.errors import InputError
from physim.inputs.case import Case
from physim.metrics import METRICS
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

NO_FIT = "none"
DEFAULT_FIT = "default"
# The fit that `default` stands for.
STANDS_FOR_DEFAULT = "public-2026-11"
Range: TypeAlias = tuple[float, float]

_SUFFIX = ".json"
_SCHEMA_VERSION = 3
_DIGITS = 5
# The corrections that have offsets; the residual is shared, and taken as known.
_COUNT = len(CORRECTIONS)
# Beyond any of these a file is damaged: of logarithms of factors and of their standard deviations,
# of standard deviations that are not zero, of curvatures, and of what runs cover.
_LOGARITHMS, _DEVIATIONS, _WIDTHS = (-10.0, 10.0), (0.0, 10.0), (1e-6, 10.0)
_CURVATURES, _COVERED = (-1e12, 1e12), (0.0, 1e18)


@dataclass(frozen=True)
class Fit:
    """Corrections by level, how well they are known, and what is left beside them.

    Attributes:
        name: Name, for the record.
        offsets: The corrections of each node, by level and name; see `physim.corrections.levels`.
        widths: Standard deviations of offsets by level; None if nothing is known of them.
        evidence: What runs tell of the corrections; None if it is not known.
        common: What all of its own runs are of. If these are of one campaign, it is for that one,
            whose offsets hold for whatever is predicted.
        noise: Standard deviation of the logarithm of what was measured, by metric ``ttft``,
            ``itl``, ``e2e``: what runs like these scatter.
        scatter: Standard deviation of the logarithm of what was measured over what is predicted,
            for models that the fit has not seen; by population
            (`physim.corrections.levels.population_of`) and metric.
        ranges: Least and largest of what the measured runs covered, by quantity.
        made_on: The kinds of servers that its own runs are of.
        own_scatter: The scatter of predictions of just such a server, in whose place that of models
            that the fit has not seen is else; by metric, where steps tell it.
        record: Everything else that the file holds: data and their hashes, report, metrics.
    """

    name: str
    offsets: Mapping[tuple[str, str], Vector] = field(default_factory=dict)
    widths: Widths | None = None
    evidence: Evidence | None = None
    common: Branch = ("all", *[""] * (len(LEVELS) - 1))
    noise: Mapping[str, float] = field(default_factory=dict)
    scatter: Mapping[str, Scatter] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    made_on: Sequence[MadeOn] = ()
    own_scatter: Scatter = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_corrections(cls, name: str, corrections: Corrections) -> Fit:
        """A fit that has the same corrections for all, of which nothing more is known."""
        return cls(name, {("shared", "all"): flat(corrections)})

    def on(self, case: Case) -> Calibration:
        """What the fit says of a case."""
        found = self.at_branch(branch_of(case, self.common[-1]))
        # Runs of several campaigns are of too many servers to say what is new.
        news = tuple(elsewhere(self.made_on, case)) if self.common[-1] else ()
        scatter = self._scatter(population_of(case))
        if self.own_scatter and any(kind.is_like(case) for kind in self.made_on):
            scatter = {**scatter, **self.own_scatter}
        return dataclasses.replace(found, scatter=scatter, elsewhere=news)

    def at_branch(self, branch: Branch) -> Calibration:
        """What the fit says of a branch, with the scatter of no engine."""
        if branch not in self._calibrations:
            self._calibrations[branch] = self._at_branch(branch)
        return self._calibrations[branch]

    def _at_branch(self, branch: Branch) -> Calibration:
        nodes = zip(LEVELS, branch, strict=True)
        own = [self.offsets[node] for node in nodes if node in self.offsets]
        covariance = None
        if self._spread is not None:
            covariance = np.zeros((len(labels()),) * 2)
            covariance[:_COUNT, :_COUNT] = self._spread.at_branch(branch)
        values = np.sum(own, axis=0) if own else flat(Corrections())
        return Calibration(self.name, unflat(values), covariance, ranges=self.ranges)

    @property
    def prior(self) -> Vector:
        """Standard deviation of each correction before any run, of all levels together."""
        widths = prior_widths() if self.widths is None else self.widths
        found: Vector = np.sqrt(np.sum(widths[:, :_COUNT] ** 2, axis=0))
        return found

    @functools.cached_property
    def _spread(self) -> Spread | None:
        if self.widths is None or self.evidence is None:
            return None
        try:
            return self.evidence.spread(self.widths)
        except np.linalg.LinAlgError as error:
            raise InputError(
                f"{self.name}: evidence", "is no curvature of a loss", "write the fit again"
            ) from error

    @functools.cached_property
    def _calibrations(self) -> dict[Branch, Calibration]:
        """By branch; some are asked for often."""
        return {}

    def _scatter(self, population: str) -> Scatter:
        """That of a population; of one that no run was of, the largest."""
        if population in self.scatter or not self.scatter:
            return self.scatter.get(population, {})
        metrics = {metric for own in self.scatter.values() for metric in own}
        every = self.scatter.values()
        return {metric: max(own.get(metric, 0.0) for own in every) for metric in sorted(metrics)}

    def to_dict(self) -> dict[str, Any]:
        """The fit as its file holds it."""
        shared = self.offsets.get(("shared", "all"), flat(Corrections()))
        levels: dict[str, Any] = {}
        for (level, name), values in self.offsets.items():
            if level != "shared":
                levels.setdefault(level, {})[name] = _named(values)
        content: dict[str, Any] = {
            "schema_version": _SCHEMA_VERSION,
            "corrections": _plain(unflat(shared)),
            "levels": levels,
            "common": list(self.common),
            "noise": dict(self.noise),
            "scatter": {name: dict(own) for name, own in self.scatter.items()},
            "ranges": {name: list(pair) for name, pair in self.ranges.items()},
            "made_on": [kind.to_dict() for kind in self.made_on],
            "own_scatter": dict(self.own_scatter),
            **self.record,
        }
        if self.widths is not None:
            rows = zip(LEVELS, self.widths, strict=True)
            content["widths"] = {level: _named(own) for level, own in rows}
        if self.evidence is not None:
            content["evidence"] = _told(self.evidence)
        return content

    def write(self, path: str | Path) -> None:
        """Writes the fit; the file appears whole or not at all.

        Raises:
            InputError: The file cannot be written.
        """
        content = self.to_dict()
        for one in content.get("evidence", []):
            one["curvature"] = json.dumps(one["curvature"])
        content["made_on"] = [json.dumps(kind) for kind in content["made_on"]]
        # Each matrix and each kind of server on a line. Within a name the quotation marks have
        # backslashes.
        text = re.sub(r'"curvature": "([^"]*)"', r'"curvature": \1', json.dumps(content, indent=1))
        text = re.sub(
            r'^  ("\{.*\}")(,?)$',
            lambda found: f"  {json.loads(found[1])}{found[2]}",
            text,
            flags=re.M,
        )
        with data.replacing(Path(path)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        runs = sum(kind.rows for kind in self.made_on)
        kinds = f"of {runs:,} runs on {len(self.made_on)} kinds of servers"
        noise = ", ".join(f"{name.upper()} {100 * own:.1f}%" for name, own in self.noise.items())
        return shown(
            self,
            f"{self.name}, {kinds if self.made_on else 'of no run that is known'}",
            f"offsets of {len(self.offsets)} branches of levels"
            + (f"; runs scatter by {noise}" if noise else ""),
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each branch that has offsets, with that of each correction, a logarithm."""
        import pandas as pd

        rows = [
            {
                "level": level,
                "name": name,
                **dict(zip(CORRECTIONS, own[:_COUNT].tolist(), strict=True)),
            }
            for (level, name), own in self.offsets.items()
        ]
        return pd.DataFrame(rows, columns=["level", "name", *CORRECTIONS])


def shipped_fits() -> list[str]:
    """Names of the fits that come with physim; ``none``, the bare physics, is always known."""
    return [NO_FIT, *data.names("fits", _SUFFIX)]


def load_fit(fit: str | Path | Fit) -> Fit:
    """A fit: a shipped name, the path of a file, ``default`` or ``none``.

    A fit file is a JSON object with ``schema_version`` 3 and ``corrections``, an object that
    gives some or all of the fields of `Corrections`; the others stay zero.

    Args:
        fit: Name or path; or a fit, which is taken as it is.

    Raises:
        InputError: The fit is unknown, of another version, or holds a value that cannot be used.
    """
    if isinstance(fit, Fit):
        return fit
    name = str(fit)
    if name == DEFAULT_FIT:
        name = STANDS_FOR_DEFAULT if STANDS_FOR_DEFAULT in shipped_fits() else NO_FIT
    if name == NO_FIT:
        return Fit(NO_FIT)
    path = Path(name) if name.endswith(_SUFFIX) else data.folder("fits") / f"{name}{_SUFFIX}"
    if not name.endswith(_SUFFIX) and not path.is_file():
        known = ", ".join([DEFAULT_FIT, *shipped_fits()])
        raise InputError(f"fit {name!r}", "is unknown", f"use one of {known}, or pass a file")
    return _read(name, path, data.modified_ns(path))


@functools.lru_cache(maxsize=16)
def _read(name: str, path: Path, _: int) -> Fit:
    """A file, once for each time that it was changed."""
    content = data.read_json(path)
    version = content.pop("schema_version", None)
    if version in (1, 2):
        raise InputError(
            f"{path}: schema_version", f"{version} is of an older physim", "run physim fit again"
        )
    if version != _SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version", f"{version!r} is unknown", f"physim reads {_SCHEMA_VERSION}"
        )
    taken = {
        key: content.pop(key, {})
        for key in ("corrections", "levels", "noise", "scatter", "own_scatter", "ranges", "widths")
    }
    for key, value in taken.items():
        if not isinstance(value, dict):
            raise _damaged(path, key)
    common, told = content.pop("common", list(Fit.common)), content.pop("evidence", [])
    try:
        kinds = [MadeOn.from_dict(kind) for kind in content.pop("made_on", [])]
    except TypeError as error:
        raise _damaged(path, "made_on") from error
    if not _are_texts(common) or len(common) != len(LEVELS):
        raise _damaged(path, "common")
    offsets = {("shared", "all"): flat(_corrections(path, taken["corrections"]))}
    for level, own in _levels(path, "levels", taken["levels"]):
        for node, values in own.items():
            offsets[level, node] = _vector(path, f"levels.{level}.{node}", values)
    widths = np.zeros((len(LEVELS), _COUNT))
    for level, own in _levels(path, "widths", taken["widths"]):
        place = f"widths.{level}"
        widths[LEVELS.index(level)] = _vector(path, place, own, _WIDTHS)[:_COUNT]
    scatter = {
        population: _by_metric(path, f"scatter.{population}", own)
        for population, own in taken["scatter"].items()
    }
    ranges = {
        quantity: tuple(_numbers(path, f"ranges.{quantity}", pair, (2,), _COVERED))
        for quantity, pair in taken["ranges"].items()
    }
    for quantity, (least, most) in ranges.items():
        if least > most:
            raise _damaged(path, f"ranges.{quantity}")
    if not _are_texts(content.get("frozen", [])):
        raise _damaged(path, "frozen")
    _numbers(path, "prior_scale", content.get("prior_scale", 1.0), (), _DEVIATIONS)
    return Fit(
        name,
        offsets,
        widths if taken["widths"] else None,
        _evidence(path, told) if told else None,
        tuple(common),
        _by_metric(path, "noise", taken["noise"]),
        scatter,
        ranges,
        kinds,
        _by_metric(path, "own_scatter", taken["own_scatter"]),
        content,
    )


def _damaged(path: Path, key: str) -> InputError:
    return InputError(f"{path}: {key}", "is damaged", "write the fit again")


def _levels(path: Path, key: str, values: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    for level, own in values.items():
        if level not in LEVELS or not isinstance(own, dict):
            raise _damaged(path, f"{key}.{level}")
    return list(values.items())


def _by_metric(path: Path, key: str, values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        raise _damaged(path, key)
    found = {}
    for metric, value in values.items():
        if metric not in METRICS:
            known = ", ".join(METRICS)
            raise InputError(f"{path}: {key}.{metric}", "is no metric", f"use one of {known}")
        found[metric] = float(_numbers(path, f"{key}.{metric}", value, (), _DEVIATIONS))
    return found


def _named(values: Vector) -> dict[str, float]:
    """The corrections that are not zero, by name."""
    own = zip(CORRECTIONS, values[:_COUNT].tolist(), strict=True)
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in own if value}


def _vector(path: Path, key: str, values: Any, within: Range = _LOGARITHMS) -> Vector:
    """What `_named` made a dictionary of."""
    if not isinstance(values, dict):
        raise _damaged(path, key)
    found = np.zeros(len(labels()))
    for name, value in values.items():
        if name not in CORRECTIONS:
            raise InputError(f"{path}: {key}.{name}", "is no correction", "write the fit again")
        found[labels().index(name)] = _numbers(path, f"{key}.{name}", value, (), within)
    return found


def _told(evidence: Evidence) -> list[dict[str, Any]]:
    """Of each branch its curvature: the corrections that it says something of, and the triangle."""
    found = []
    for branch, curvature in zip(evidence.tree.branches, evidence.curvature, strict=True):
        own = np.flatnonzero(np.diag(curvature)[:_COUNT] > 0)
        rows, columns = np.tril_indices(len(own))
        triangle = curvature[np.ix_(own, own)][rows, columns]
        found.append(
            {
                "branch": list(branch),
                "corrections": [labels()[place] for place in own.tolist()],
                "curvature": [float(f"{value:.{_DIGITS}g}") for value in triangle],
            }
        )
    return found


def _evidence(path: Path, told: Any) -> Evidence:
    """What `_told` wrote."""
    if not isinstance(told, list):
        raise _damaged(path, "evidence")
    names = list(CORRECTIONS)
    branches, curvatures = [], []
    for place, one in enumerate(told):
        key = f"evidence[{place}]"
        if not isinstance(one, dict):
            raise _damaged(path, key)
        branch, own = one.get("branch"), one.get("corrections")
        if not _are_texts(branch) or len(branch) != len(LEVELS):
            raise _damaged(path, f"{key}.branch")
        if not _are_texts(own) or len(set(own)) < len(own) or not set(own) <= set(names):
            raise _damaged(path, f"{key}.corrections")
        rows, columns = np.tril_indices(len(own))
        triangle = _numbers(
            path, f"{key}.curvature", one.get("curvature"), (len(rows),), _CURVATURES
        )
        some = np.zeros((len(own),) * 2)
        some[rows, columns] = some[columns, rows] = triangle
        places = [names.index(name) for name in own]
        whole = np.zeros((_COUNT, _COUNT))
        whole[np.ix_(places, places)] = some
        branches.append(tuple(branch))
        curvatures.append(whole)
    return Evidence(Tree(tuple(branches)), np.array(curvatures))


def _are_texts(values: Any) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _corrections(path: Path, values: Mapping[str, Any]) -> Corrections:
    known = {field.name for field in dataclasses.fields(Corrections)}
    read: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{path}: corrections.{name}"
        if name not in known:
            listed = ", ".join(field.name for field in dataclasses.fields(Corrections))
            raise InputError(place, "is unknown", f"use one of {listed}")
        if name == "residual":
            read[name] = _residual(path, value)
        else:
            read[name] = float(_numbers(path, f"corrections.{name}", value, ()))
    return Corrections(**read)


def _residual(path: Path, values: Any) -> Residual:
    silent = Residual.silent()
    names = [field.name for field in dataclasses.fields(Residual)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise InputError(f"{path}: corrections.residual", "is damaged", "write the fit again")
    return Residual(
        **{
            name: _numbers(
                path, f"corrections.residual.{name}", values[name], getattr(silent, name).shape
            )
            for name in names
        }
    )


def _numbers(
    path: Path, name: str, value: Any, shape: tuple[int, ...], within: Range = _LOGARITHMS
) -> Any:
    """Numbers of a shape that are within a range, or zero."""
    numbers = [value] if not shape else np.ravel(np.array(value, dtype=object)).tolist()
    least, most = within
    for number in numbers:
        shown = repr(number) if len(repr(number)) < 40 else "a value"
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not -math.inf < number < math.inf
        ):
            raise InputError(
                f"{path}: {name}", f"{shown} is not a finite number", "write the fit again"
            )
        if number and not least <= number <= most:
            raise InputError(
                f"{path}: {name}",
                f"{shown} is not between {least:g} and {most:g}",
                "write the fit again",
            )
    array = np.array(value, float)
    if array.shape != shape:
        raise InputError(
            f"{path}: {name}", f"has the shape {array.shape}, not {shape}", "write the fit again"
        )
    return array if shape else float(array)


def _plain(corrections: Corrections) -> dict[str, Any]:
    """Corrections as plain numbers."""
    plain: dict[str, Any] = {}
    for entry in dataclasses.fields(corrections):
        value = getattr(corrections, entry.name)
        if isinstance(value, Residual):
            plain[entry.name] = {
                f.name: np.round(np.asarray(getattr(value, f.name), float), 6).tolist()
                for f in dataclasses.fields(value)
            }
        else:
            plain[entry.name] = round(float(value), 6)
    return plain
