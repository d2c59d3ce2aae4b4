"""Fit files: corrections with their covariance, and where they come from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.corrections.fields import CORRECTIONS, PRIOR_WIDTHS, Corrections, flat, labels, unflat
from physim.corrections.residual import Residual
from physim.errors import InputError

NO_FIT = "none"
DEFAULT_FIT = "default"
# The fit that `default` stands for; where it was made on another GPU, what carries over of it.
STANDS_FOR_DEFAULT = "vllm-h100"
_SUFFIX = ".json"
_WHOLE = "whole:"
_SCHEMA_VERSION = 2
# Marks what is a line of numbers in the file.
_ROW = "@"
# What the rows of the covariance are of in files of version 1, which do not say so.
_LABELS_1 = (
    "gemm_memory",
    "gemm_compute",
    "experts",
    "prefill_attention",
    "cached_attention",
    "decode_attention",
    "decode_context",
    "elementwise",
    "all_reduce",
    "lm_head",
    "sampling",
    "penalties",
    "step_overhead",
    "layer_overhead",
    "host_step",
    "host_request",
    "host_sharpness",
    "front_end",
    "handover",
    "output_handling",
    *(f"residual[{i}]" for i in range(28)),
)
# How many standard deviations hold 90% of a normal distribution.
TWO_SIDED_90 = 1.645


@dataclass(frozen=True)
class Fit:
    """Corrections, how well they are known, and what is left between prediction and measurement.

    Attributes:
        name: Name, for the record.
        corrections: The corrections.
        covariance: Of the numbers that `physim.corrections.fields.labels` names; None if it is not
            known.
        scatter: Standard deviation of the logarithm of what was measured over what is predicted,
            for models that the fit has not seen; by metric ``ttft``, ``itl``, ``e2e``.
        ranges: Least and largest of what the measured runs covered, by quantity.
        gpus: Keys of the GPUs that it was fitted on; empty for any.
        record: Everything else that the file holds: data and their hashes, report, metrics.
    """

    name: str
    corrections: Corrections
    covariance: Float[np.ndarray, "n n"] | None = None
    scatter: Mapping[str, float] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def on(self, gpu: str) -> Fit:
        """What of the fit holds on a GPU: on one that it was not fitted on, what carries over.

        The other corrections go back to their prior, and so does their uncertainty.
        """
        if not self.gpus or gpu in self.gpus:
            return self
        names = [name for name, one in CORRECTIONS.items() if one.carries_over]
        carried: dict[str, Any] = {name: getattr(self.corrections, name) for name in names}
        kept = np.isin(labels(), names)
        covariance = np.diag(flat(PRIOR_WIDTHS) ** 2)
        if self.covariance is not None:
            covariance[np.ix_(kept, kept)] = self.covariance[np.ix_(kept, kept)]
        return dataclasses.replace(
            self,
            name=f"{self.name}, as far as it carries over",
            corrections=Corrections(**carried),
            covariance=covariance,
        )

    def beyond(self, distance: float) -> Fit:
        """What is known of the corrections for a case outside the runs that it was fitted to.

        The further, the more of each one's variance is the prior's again.

        Args:
            distance: How far outside: the logarithm of the ratio, summed over `ranges`.
        """
        prior = np.diag(flat(PRIOR_WIDTHS) ** 2)
        known = np.zeros_like(prior) if self.covariance is None else self.covariance
        share = -math.expm1(-distance)
        return dataclasses.replace(self, covariance=(1 - share) * known + share * prior)

    def draws(self, pairs: int, seed: int = 0) -> list[Corrections]:
        """Corrections drawn from their distribution, in pairs that mirror each other.

        No draws if nothing is known of their spread.

        Args:
            pairs: How many pairs.
            seed: Seed of the draws.
        """
        if self.covariance is None:
            return []
        values, vectors = np.linalg.eigh(self.covariance)
        # The symmetric root: the signs of eigenvectors are whatever the library makes them.
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        normal = np.random.default_rng(seed).normal(size=(pairs, len(values)))
        centre = flat(self.corrections)
        return [unflat(centre + sign * root @ row) for row in normal for sign in (1, -1)]

    def to_dict(self) -> dict[str, Any]:
        """The fit as its file holds it."""
        content = {
            "schema_version": _SCHEMA_VERSION,
            "corrections": _plain(self.corrections),
            "gpus": list(self.gpus),
            "scatter": dict(self.scatter),
            "ranges": {name: list(pair) for name, pair in self.ranges.items()},
            **self.record,
        }
        if self.covariance is not None:
            rows = [[float(f"{x:.4g}") for x in row] for row in self.covariance]
            content["covariance"] = {"labels": labels(), "rows": rows}
        return content

    def write(self, path: Path) -> None:
        """Writes the fit; the file appears whole or not at all.

        Raises:
            InputError: The file cannot be written.
        """
        content = self.to_dict()
        if self.covariance is not None:
            rows = content["covariance"]["rows"]
            content["covariance"]["rows"] = [f"{_ROW}{json.dumps(row)}{_ROW}" for row in rows]
        text = json.dumps(content, indent=1) + "\n"
        with data.replacing(path) as temporary:
            # Rows of the covariance on one line each, which is how one reads a matrix.
            temporary.write_text(
                text.replace(f'"{_ROW}', "").replace(f'{_ROW}"', ""), encoding="utf-8"
            )


def shipped_fits() -> list[str]:
    """Names of the fits that come with physim; ``none``, the bare physics, is always known."""
    return [NO_FIT, *data.names("fits", _SUFFIX)]


def load_fit(fit: str | Path, gpu: str | None = None) -> Fit:
    """A fit: a shipped name, the path of a file, ``default`` or ``none``.

    A fit file is a JSON object with ``schema_version`` 2 and ``corrections``, an object that
    gives some or all of the fields of `Corrections`; the others stay zero. Its ``covariance`` names
    what its rows are of; what it does not name has its prior's. Files of version 1 are read too.

    Args:
        fit: Name or path; after ``whole:`` it is taken as it is on any GPU.
        gpu: The GPU that it is for. Of a fit that was made on others, only what carries over is
            taken.

    Raises:
        InputError: The fit is unknown, of another version, or holds a value that cannot be used.
    """
    name = str(fit)
    found = _load(name.removeprefix(_WHOLE))
    carried = found if gpu is None else found.on(gpu)
    if carried is not found and name.startswith(_WHOLE):
        return dataclasses.replace(found, name=f"{found.name}, whole, from another GPU")
    return carried


def _load(name: str) -> Fit:
    if name == NO_FIT:
        return Fit(NO_FIT, Corrections())
    if name == DEFAULT_FIT:
        if STANDS_FOR_DEFAULT not in shipped_fits():
            return Fit(NO_FIT, Corrections())
        return _load(STANDS_FOR_DEFAULT)
    path = Path(name) if name.endswith(_SUFFIX) else data.folder("fits") / f"{name}{_SUFFIX}"
    if not name.endswith(_SUFFIX) and not path.is_file():
        known = ", ".join([DEFAULT_FIT, *shipped_fits()])
        raise InputError(f"fit {name!r}", "is unknown", f"use one of {known}, or pass a file")
    content = data.read_json(path)
    version = content.pop("schema_version", None)
    if version not in (1, _SCHEMA_VERSION):
        raise InputError(
            f"{path}: schema_version",
            f"{version!r} is unknown",
            f"physim reads 1 and {_SCHEMA_VERSION}",
        )
    corrections = _corrections(path, content.pop("corrections", None))
    covariance = content.pop("covariance", None)
    if covariance is not None:
        named = {"labels": list(_LABELS_1), "rows": covariance} if version == 1 else covariance
        covariance = _covariance(path, named)
    scatter, ranges = content.pop("scatter", {}), content.pop("ranges", {})
    gpus = content.pop("gpus", [])
    for field_name, values, kind in (
        ("scatter", scatter, dict),
        ("ranges", ranges, dict),
        ("gpus", gpus, list),
    ):
        if not isinstance(values, kind):
            raise InputError(f"{path}: {field_name}", "is damaged", "write the fit again")
    return Fit(
        name,
        corrections,
        covariance,
        {m: float(_numbers(path, f"scatter.{m}", value, ())) for m, value in scatter.items()},
        {q: tuple(_numbers(path, f"ranges.{q}", pair, (2,))) for q, pair in ranges.items()},
        gpus,
        content,
    )


def _covariance(path: Path, named: Any) -> Float[np.ndarray, "n n"]:
    """The covariance of all corrections: as the file has it, and the prior's of what it lacks."""
    own = labels()
    names = named.get("labels") if isinstance(named, dict) else None
    if not isinstance(names, list) or any(names.count(x) > 1 or x not in own for x in names):
        raise InputError(f"{path}: covariance.labels", "is damaged", "write the fit again")
    known = _numbers(path, "covariance.rows", named.get("rows"), (len(names),) * 2)
    covariance = np.diag(flat(PRIOR_WIDTHS) ** 2)
    places = [own.index(name) for name in names]
    covariance[np.ix_(places, places)] = known
    return covariance


def _corrections(path: Path, values: Any) -> Corrections:
    if not isinstance(values, dict):
        raise InputError(f"{path}: corrections", "is not a JSON object", "write the fit again")
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


def _numbers(path: Path, name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Finite numbers of a shape."""
    numbers = [value] if not shape else np.ravel(np.array(value, dtype=object)).tolist()
    for number in numbers:
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not math.isfinite(number)
        ):
            shown = repr(number) if len(repr(number)) < 40 else "a value"
            raise InputError(
                f"{path}: {name}", f"{shown} is not a finite number", "write the fit again"
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
