"""What there is to say of an option, where it is declared: with a field of a frozen dataclass.

Keywords, options of commands, columns of measured rows and reports derive from the field: its name,
type and default, and what `option` says of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_type_hints

_KEY = "option"
_Function = TypeVar("_Function", bound=Callable[..., Any])
# Whether measured rows have a column for an option, and whether it may be empty.
Column = Literal["none", "optional", "required"]


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        kind: Its type, as commands and measured rows take it.
        default: Its default.
        help: What it is, for people.
        panel: The group of options that a command lists it in.
        flag: How commands call it.
        column: Whether measured rows have a column for it.
    """

    kind: Any
    default: Any
    help: str
    panel: str
    flag: str
    column: Column = "none"


def option(
    default: Any,
    told: str,
    *,
    panel: str = "Engine",
    flag: str = "",
    kind: Any = None,
    column: Column = "none",
) -> Any:
    """A field of a dataclass that is an option.

    Args:
        default: Its default.
        told: What it is, for people.
        panel: The group of options that a command lists it in.
        flag: How commands call it, where that is not the field's name.
        kind: Its type as commands take it, where text stands for the field's.
        column: Whether measured rows have a column for it, and whether that may be empty.
    """
    return field(default=default, metadata={_KEY: (told, panel, flag, kind, column)})


def options_of(record: type) -> Mapping[str, Option]:
    """The options among the fields of a dataclass, by name.

    Args:
        record: The dataclass.
    """
    kinds, found = get_type_hints(record), {}
    for own in fields(record):
        if _KEY in own.metadata:
            told, panel, flag, kind, column = own.metadata[_KEY]
            flag = flag or f"--{own.name.replace('_', '-')}"
            kind = kinds[own.name] if kind is None else kind
            found[own.name] = Option(kind, own.default, told, panel, flag, column)
    return found


def named_options(function: _Function) -> _Function:
    """Gives a function whose last argument is ``**options`` a signature that lists them.

    Sessions complete the names of arguments by the signature, and know nothing of
    ``Unpack[TypedDict]``. The default of each is None, which stands for what the record that
    declares it has, as if it were left out.

    Args:
        function: The function; its options are annotated with ``Unpack`` of a `TypedDict`.
    """
    signature = inspect.signature(function)
    *named, others = signature.parameters.values()
    kind = others.annotation.removeprefix("Unpack[").removesuffix("]")
    declared = inspect.unwrap(function).__globals__[kind].__annotations__
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=getattr(hint, "__forward_arg__", hint),
        )
        for name, hint in declared.items()
        if name not in signature.parameters
    ]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*named, *options]
    )
    return function
