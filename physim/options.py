"""What there is to say of an option, where it is declared: with a field of a frozen dataclass.

Keywords, options of commands, columns of measured rows and reports derive from the field: its name,
type and default, and what `option` says of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

_KEY = "option"
# Whether measured rows have a column for an option, and whether it may be empty.
Column = Literal["none", "optional", "required"]


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        kind: Its type.
        default: Its default.
        help: What it is, for people.
        panel: The group of options that a command lists it in.
        column: Whether measured rows have a column for it.
    """

    kind: Any
    default: Any
    help: str
    panel: str
    column: Column


def option(default: Any, told: str, *, panel: str = "Engine", column: Column = "none") -> Any:
    """A field of a dataclass that is an option.

    Args:
        default: Its default.
        told: What it is, for people.
        panel: The group of options that a command lists it in.
        column: Whether measured rows have a column for it, and whether that may be empty.
    """
    return field(default=default, metadata={_KEY: (told, panel, column)})


def options_of(record: type) -> Mapping[str, Option]:
    """The options among the fields of a dataclass, by name.

    Args:
        record: The dataclass.
    """
    kinds = get_type_hints(record)
    return {
        own.name: Option(kinds[own.name], own.default, *own.metadata[_KEY])
        for own in fields(record)
        if _KEY in own.metadata
    }
