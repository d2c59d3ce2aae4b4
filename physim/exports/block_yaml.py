"""Plain values as YAML in block style, without a library of which only readers have need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_yaml(documents: Sequence[Mapping[str, Any]], comments: Sequence[str]) -> str:
    """Documents as one YAML file.

    Args:
        documents: Mappings of plain values.
        comments: Lines above them.
    """
    head = "".join(f"# {line}\n" for line in comments)
    return head + "---\n".join("\n".join(_lines(one, "")) + "\n" for one in documents)


def _lines(content: Mapping[str, Any], indent: str) -> Iterator[str]:
    """A mapping in YAML, whose scalars and lists of scalars are written as JSON."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}:"
            for one in value:
                first, *rest = _lines(one, indent + "    ")
                yield f"{indent}  - {first.strip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {json.dumps(value)}"
