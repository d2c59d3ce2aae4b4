"""Records that JAX takes apart and puts together again: frozen dataclasses of arrays.

They are what `equinox.Module` is, without a quarter of the time that JAX takes to import, before
every command.
"""

from __future__ import annotations

import dataclasses
from typing import dataclass_transform

import jax


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pytree:
    """The base of such a record, whose fields are annotated as a dataclass's.

    All are traced but those whose metadata are ``{"static": True}``, which are compared.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        fields = dataclasses.fields(cls)
        static = [one.name for one in fields if one.metadata.get("static")]
        traced = [one.name for one in fields if one.name not in static]
        jax.tree_util.register_dataclass(cls, data_fields=traced, meta_fields=static)

    def __repr__(self) -> str:
        return outlined(self)


def outlined(record: Pytree) -> str:
    """A record as its fields, with the shapes of arrays rather than their numbers.

    Args:
        record: The record.
    """
    import equinox as eqx

    text: str = eqx.tree_pformat(record)
    return text
