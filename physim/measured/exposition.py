r"""What a server shows at ``/metrics``, in Prometheus's text format or OpenMetrics.

https://prometheus.io/docs/instrumenting/exposition_formats: a sample on each line, such as
``name{label="value"} 12 1763900000000``, with a time in milliseconds if any. A label's value has
``\\``, ``\"`` and ``\n`` for what they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from physim import data
from physim.errors import InputError

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*"'
_LINE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{_LABEL},?)*)\}})?[ \t]+(\S+)(?:[ \t]+(-?[\d.]+))?"
    r"[ \t]*(?:#.*)?\n?"
)
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
# No scrape is as large.
_MOST_LINES = 1_000_000
# Later than any time in seconds: the text format has milliseconds, OpenMetrics seconds.
_LATEST_S = 1e11


@dataclass(frozen=True)
class Sample:
    """A value of a metric.

    Attributes:
        name: The metric's name.
        labels: Its labels.
        value: The value; may be NaN.
        time_s: When it was taken, seconds since 1970; None where nothing says it.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    time_s: float | None


def read_samples(path: Path, prefixes: tuple[str, ...]) -> list[Sample]:
    """The samples of a scrape.

    Args:
        path: The file, which may be compressed (``.gz``).
        prefixes: How names begin that are kept.

    Raises:
        InputError: The file cannot be read, or a line is no sample.
    """
    return list(_samples(path, prefixes))


def _samples(path: Path, prefixes: tuple[str, ...]) -> Iterator[Sample]:
    with data.opened(path, errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if number > _MOST_LINES:
                raise InputError(str(path), f"has more than {_MOST_LINES} lines", "pass a scrape")
            if line.startswith("#") or not line.strip():
                continue
            match = _LINE.fullmatch(line.replace("\r\n", "\n"))
            value = None if match is None else _number(match[3])
            if match is None or value is None or not line.endswith("\n"):
                raise InputError(
                    f"{path}, line {number}",
                    "is no whole sample of Prometheus's text format",
                    "scrape /metrics anew",
                )
            if not match[1].startswith(prefixes):
                continue
            labels = {name: _plain(text) for name, text in _PAIR.findall(match[2] or "")}
            yield Sample(match[1], labels, value, _time_s(match[4]))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _time_s(text: str | None) -> float | None:
    time = None if text is None else _number(text)
    return time / 1e3 if time is not None and abs(time) > _LATEST_S else time


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text)
