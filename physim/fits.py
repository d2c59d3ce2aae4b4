"""Fit files: corrections by name, with where they come from."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from physim import data
from physim.corrections import Corrections
from physim.errors import InputError

NO_FIT = "none"
_SUFFIX = ".json"
_SCHEMA_VERSION = 1


def shipped_fits() -> list[str]:
    """Names of the fits that come with physim; ``none``, the bare physics, is always known."""
    return [NO_FIT, *data.names("fits", _SUFFIX)]


def load_corrections(fit: str | Path) -> Corrections:
    """The corrections of a fit: a shipped name, the path of a file, or ``none``.

    A fit file is a JSON object with ``schema_version`` 1 and ``corrections``, an object that
    gives some or all of the fields of `Corrections`; the others stay zero.

    Raises:
        InputError: The fit is unknown, of another version, or holds a correction that is unknown
            or no finite number.
    """
    name = str(fit)
    if name == NO_FIT:
        return Corrections()
    path = Path(name) if name.endswith(_SUFFIX) else data.folder("fits") / f"{name}{_SUFFIX}"
    if not name.endswith(_SUFFIX) and not path.is_file():
        raise InputError(
            f"fit {name!r}", "is unknown", f"known are {', '.join(shipped_fits())}, or pass a file"
        )
    content = data.read_json(path)
    version = content.get("schema_version")
    if version != _SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version", f"{version!r} is unknown", f"physim reads {_SCHEMA_VERSION}"
        )
    values = content.get("corrections")
    if not isinstance(values, dict):
        raise InputError(f"{path}: corrections", "is no JSON object", "write the fit anew")
    known = [field.name for field in dataclasses.fields(Corrections)]
    for field, value in values.items():
        if field not in known:
            raise InputError(
                f"{path}: corrections.{field}", "is unknown", f"known are {', '.join(known)}"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InputError(
                f"{path}: corrections.{field}",
                f"{value!r} is no finite number",
                "write the fit anew",
            )
    return Corrections(**{field: float(value) for field, value in values.items()})
