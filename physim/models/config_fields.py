"""The fields of a ``config.json``, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from physim.errors import InputError

# Products of a few such numbers can still be floats.
_MOST = 2**53


class ConfigFields:
    """A configuration whose fields are checked as they are read.

    Args:
        fields: The configuration.
        where: Its path or name, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def has(self, field: str) -> bool:
        """Whether a field is there, and neither null nor zero."""
        value = self.fields.get(field)
        # A false or empty value is there, for whoever reads the field to refuse.
        return value is not None and (value != 0 or isinstance(value, bool))

    def count(self, field: str, default: int | None = None) -> int:
        """A positive integer."""
        return self._integer(field, default, minimum=1)

    def at_least_zero(self, field: str, default: int) -> int:
        """An integer that may be zero."""
        return self._integer(field, default, minimum=0)

    def flag(self, field: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.fields.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"{self.where}: {field}", f"{value!r} is not true or false", "correct it"
            )
        return value

    def entries(self, field: str) -> list[Any]:
        """A list, empty where absent."""
        value = self.fields.get(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InputError(f"{self.where}: {field}", "is not a list", "pass a list or remove it")
        return value

    def part(self, field: str) -> ConfigFields:
        """A JSON object within, empty where absent."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{self.where}: {field}", "is not a JSON object", "correct it")
        return ConfigFields(value or {}, f"{self.where}: {field}")

    def text(self, field: str) -> str:
        """Text, empty where absent."""
        value = self.fields.get(field)
        if value is not None and not (isinstance(value, str) and value):
            raise InputError(
                f"{self.where}: {field}", f"{str(value)[:60]!r} is not a name", "correct it"
            )
        return value or ""

    def layer_numbers(self, field: str) -> Sequence[int]:
        """Numbers of layers, counted from 0."""
        found, layers = self.entries(field), self.count("num_hidden_layers")
        for one in found:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < layers:
                raise InputError(
                    f"{self.where}: {field}",
                    f"names {one!r}, and the model has layers 0 to {layers - 1}",
                    "correct it",
                )
        return found

    def of_layers(self, field: str, layers: int, known: Sequence[Any] = ()) -> list[Any]:
        """A list with an entry for each layer, empty where absent; a longer one is cut.

        Configurations list the layers of multi-token prediction after the model's own.

        Args:
            field: The field.
            layers: How many layers there are.
            known: What an entry may be; empty for anything.

        Raises:
            InputError: It is no list, is too short, or has an entry that is none of those.
        """
        found = self.entries(field)
        if self.fields.get(field) is not None and len(found) < layers:
            raise InputError(
                f"{self.where}: {field}",
                f"names {len(found)} layers, and num_hidden_layers is {layers}",
                "correct one of them",
            )
        for one in found[:layers]:
            if known and one not in known:
                raise InputError(
                    f"{self.where}: {field}",
                    f"names {str(one)[:60]!r}",
                    f"use {', '.join(map(str, known))}",
                )
        return found[:layers]

    def of_layer(self, field: str, layers: int, layer: int, known: Sequence[Any]) -> Any:
        """The entry of a layer in a list that has to be there; one of some.

        Raises:
            InputError: There is no list, it is too short, or has an entry that is none of those.
        """
        found = self.of_layers(field, layers, known)
        if not found:
            raise self._missing(field)
        return found[layer]

    def _missing(self, field: str) -> InputError:
        return InputError(
            f"{self.where}: {field}", "is missing", "add it, or pass the model's full config.json"
        )

    def _integer(self, field: str, default: int | None, minimum: int) -> int:
        value = self.fields.get(field)
        if value is None:
            value = default
        elif isinstance(value, list) and value and all(one == value[0] for one in value):
            # One figure for each layer, all alike (Hunyuan-A13B).
            value = value[0]
            if value is None:
                raise InputError(f"{self.where}: {field}", "holds null", "correct it")
        if value is None:
            raise self._missing(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(
                f"{self.where}: {field}",
                f"{value!r} is not an integer of at least {minimum}",
                "correct it",
            )
        if value > _MOST:
            raise InputError(
                f"{self.where}: {field}", "is more than any model has of anything", "correct it"
            )
        return value
