"""Servers of a pool in a cell of a table: ``tp=8,dp=8,ep=8,replicas=2,max_num_seqs=256``.

An option that is not named is as in the columns of the row.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.models.parallelism import Parallelism
from physim.options import options_of

REPLICAS = "replicas"
_DEGREES = tuple(options_of(Parallelism))
_KNOWN = (REPLICAS, "gpu", *_DEGREES, *options_of(Deployment))
_MOST_DIGITS = 6


def pool_text(options: Mapping[str, object]) -> str:
    """Options of a pool as text; those that are None are not named.

    Args:
        options: Values by name, ``replicas`` among them.
    """
    said = {name: value for name, value in options.items() if value is not None}
    return ",".join(f"{name}={value}" for name, value in said.items())


def options_in(text: str) -> dict[str, str]:
    """The options that a pool's text names, in its order.

    Args:
        text: As `pool_text` writes it.

    Raises:
        InputError: A part is no ``option=value``, an option is unknown or there twice, or replicas
            or degrees of parallelism are not whole numbers of at least 1.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = (side.strip() for side in part.partition("="))
        if not (name and sign and value):
            raise InputError(
                "pool", f"{part[:40]!r} is no option=value", "write them like tp=8,dp=8"
            )
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            remedy = f"did you mean {near[0]}?" if near else "name options of a server"
            raise InputError("pool", f"option {name[:40]!r} is unknown", remedy)
        if name in found:
            raise InputError("pool", f"names {name} twice", "name it once")
        if name in (REPLICAS, *_DEGREES) and not _is_positive(value):
            raise InputError("pool", f"{name} {value[:40]!r} is no positive integer", "correct it")
        found[name] = value
    return found


def pool_degrees(text: str) -> dict[str, int]:
    """Degrees of parallelism of a pool's text; 1 where it names none.

    Args:
        text: The pool's text, which `options_in` reads.
    """
    options = options_in(text)
    return {name: int(options.get(name, 1)) for name in _DEGREES}


def _is_positive(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS and int(value) > 0
