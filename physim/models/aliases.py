"""Hub ids of models that are laid out as a shipped one: ``model_configs/aliases.csv``."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from physim import data


@dataclass(frozen=True)
class Alias:
    """A shipped configuration under another model's name.

    Attributes:
        config: The shipped model whose fields are all the same that physim reads.
        generation: The model whose sampling defaults it has; empty where it asks for nothing.
        source: How that is known.
    """

    config: str
    generation: str
    source: str


@functools.lru_cache
def aliases() -> Mapping[str, Alias]:
    """The aliases by hub id."""
    with data.opened(data.folder("model_configs") / "aliases.csv") as file:
        return {row.pop("model"): Alias(**row) for row in csv.DictReader(file)}
