"""Records that JAX takes apart and puts together again: frozen dataclasses of arrays.

Like `equinox.Module`, which takes a quarter as long to import as JAX does, before every command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
from jax.tree_util import GetAttrKey


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pytree:
    """The base of such a record, whose fields are annotated as a dataclass's.

    All are traced but those whose metadata are ``{"static": True}``, which are compared. What JAX
    puts together, of any shapes and objects, is not initialised anew.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        fields = dataclasses.fields(cls)
        static = tuple(one.name for one in fields if one.metadata.get("static"))
        traced = tuple(one.name for one in fields if one.name not in static)
        keys = [GetAttrKey(name) for name in traced]

        def compared(record: Pytree) -> tuple[Any, ...]:
            return tuple(getattr(record, name) for name in static)

        def taken_apart(record: Pytree) -> tuple[Iterable[Any], tuple[Any, ...]]:
            return [getattr(record, name) for name in traced], compared(record)

        def with_keys(record: Pytree) -> tuple[Iterable[tuple[Any, Any]], tuple[Any, ...]]:
            leaves, aside = taken_apart(record)
            return zip(keys, leaves, strict=True), aside

        def put_together(aside: tuple[Any, ...], leaves: Iterable[Any]) -> Pytree:
            return _made(cls, dict(zip((*traced, *static), (*leaves, *aside), strict=True)))

        jax.tree_util.register_pytree_with_keys(cls, with_keys, put_together, taken_apart)

    def __repr__(self) -> str:
        return outlined(self)


Record = TypeVar("Record", bound=Pytree)


def swapped(record: Record, **leaves: Any) -> Record:
    """A record with other leaves, of any shapes, such as those of many records at once.

    Args:
        record: The record.
        **leaves: The new ones by the names of their fields.

    Raises:
        TypeError: It has no such field.
    """
    fields = {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}
    if unknown := leaves.keys() - fields.keys():
        raise TypeError(f"{type(record).__name__} has no {', '.join(sorted(unknown))}")
    return _made(type(record), {**fields, **leaves})


def outlined(record: Pytree) -> str:
    """A record as its fields, with the shapes of arrays rather than their numbers.

    Args:
        record: The record.
    """
    import equinox as eqx

    text: str = eqx.tree_pformat(record)
    return text


def _made(kind: type[Record], fields: dict[str, Any]) -> Record:
    """A record of some fields, which are not looked at."""
    record = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record
