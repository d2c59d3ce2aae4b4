"""Files that are wrong in some random way, made of right ones."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
# The keys and numbers that lead to a value deep in a JSON value.
Way = tuple[Any, ...]

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2.5, -0.5, 1e-300, 1e308, math.nan, math.inf, 2**31, 2**70),
    *("", " ", "no", "off", "False", "true", "nan", "inf", "1e400", "-3", "0x10", "1,5", "∞", "\0"),
    *("10" * 2500, "a" * 5000, [], {}, [[]], [1, "2"], {"a": 1}, "../../etc/passwd", [None], "²"),
    *(10**400, "\ud800", "2026-13-45", "re:(.*)*x$"),
)


def leaves(content: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """The values of a JSON value that hold no others, each with the way there."""
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from leaves(content[key], (*way, key))
    else:
        yield way, content


def field_of(way: Way) -> str:
    """The name of a field, which the entries of a list share."""
    return "".join("[]" if isinstance(key, int) else f".{key}" for key in way).lstrip(".")


def exchanged(content: Any, way: Way, other: Any) -> Any:
    """A copy with another value in one place."""
    content = holder = copy.deepcopy(content)
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = other
    return content


def changed(rng: Rng, content: Any) -> Any:
    """A JSON value with one thing in it changed at random."""
    content = copy.deepcopy(content)
    spots = []

    def walk(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            spots.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    if isinstance(content, dict | list):
        walk(content)
    if not spots:
        return ODD[rng.integers(len(ODD))]
    holder, key = spots[rng.integers(len(spots))]
    if rng.random() < 0.3:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
    return content


def spoilt(rng: Rng, text: str) -> bytes:
    """A file's content, cut short or with bytes that do not belong there."""
    content = bytearray(text.encode("utf-8", "surrogatepass"))
    how = rng.integers(4)
    if how == 0:
        del content[rng.integers(len(content) + 1) :]
    elif how == 1:
        for _ in range(rng.integers(1, 9)):
            content[rng.integers(len(content))] = rng.integers(256)
    elif how == 2:
        content = bytearray(b"\xff\xfe" + bytes(content))
    else:
        content = bytearray(b"[" * int(rng.integers(1, 20_000)))
    return bytes(content)


def json_file(rng: Rng, path: Path, content: Any) -> Path:
    """A file of JSON that is wrong in one or several ways."""
    for _ in range(rng.integers(1, 4)):
        content = changed(rng, content)
    text = json.dumps(content)
    path.write_bytes(spoilt(rng, text) if rng.random() < 0.15 else text.encode())
    return path


def csv_file(rng: Rng, path: Path, rows: list[dict[str, Any]]) -> Path:
    """A CSV that is wrong in one or several ways."""
    columns = list(rows[0])
    rows = [dict(row) for row in rows]
    for _ in range(rng.integers(1, 4)):
        how, column = rng.random(), columns[rng.integers(len(columns))]
        row = rows[rng.integers(len(rows))]
        if how < 0.7:
            row[column] = ODD[rng.integers(len(ODD))]
        elif how < 0.8 and len(columns) > 1:
            columns.remove(column)
        elif how < 0.9:
            rows.append(dict(row))
        else:
            columns[columns.index(column)] = str(ODD[rng.integers(len(ODD))])
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    table.writeheader()
    table.writerows(rows)
    written = text.getvalue()
    as_it_is = written.encode("utf-8", "surrogatepass")
    path.write_bytes(spoilt(rng, written) if rng.random() < 0.15 else as_it_is)
    return path


def odd_text(rng: Rng, text: str) -> str:
    """Text with some of its characters exchanged for others, or for a word."""
    for _ in range(rng.integers(1, 3)):
        start = int(rng.integers(len(text) + 1))
        end = start + int(rng.integers(0, 4))
        other = ODD[rng.integers(len(ODD))]
        text = text[:start] + (other if isinstance(other, str) else str(other)[:400]) + text[end:]
    return text
