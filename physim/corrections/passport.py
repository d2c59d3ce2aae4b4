"""What a fit was made on, and what of that another case does not share."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from physim.inputs.case import Case
from physim.service.phases import DECODE
from physim.service.server import Server

_WORDS = {
    "version": "the engine's version",
    "kv_cache_dtype": "the KV cache's format",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "async_scheduling": "asynchronous scheduling",
    "draft": "the draft",
}


@dataclass(frozen=True)
class MadeOn:
    """A kind of server that a fit's runs are of.

    Attributes:
        gpu: Key of the GPU.
        engine: The engine,
        version: and its version.
        model: The model,
        family: and its family.
        layout: How GPUs share it.
        kv_cache_dtype: Format of the KV cache.
        max_num_seqs: Requests that ran at once.
        max_num_batched_tokens: Tokens of a step.
        async_scheduling: Whether a step was scheduled while one ran.
        draft: What proposed tokens; empty for nothing.
        rows: How many runs.
    """

    gpu: str
    engine: str
    version: str
    model: str
    family: str
    layout: str
    kv_cache_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool
    draft: str
    rows: int = 0

    @classmethod
    def from_server(cls, server: Server) -> MadeOn:
        """The kind of a server, with no run yet."""
        return cls(
            gpu=server.gpu.key,
            engine=server.profile.engine,
            version=server.profile.version,
            model=server.model.name,
            family=server.model.family,
            layout=str(server.parallelism),
            kv_cache_dtype=server.kv_cache_dtype,
            max_num_seqs=server.sizes.max_num_seqs,
            max_num_batched_tokens=server.sizes.max_num_batched_tokens,
            async_scheduling=server.policy.async_scheduling,
            draft=server.draft.method if server.draft else "",
        )

    def is_of(self, case: Case) -> bool:
        """Whether a case has such a server."""
        return dataclasses.replace(self, rows=0) == MadeOn.from_server(case.server_of(DECODE))

    def is_like(self, case: Case) -> bool:
        """Whether a case has such a server but for its limits and how it schedules."""
        here = MadeOn.from_server(case.server_of(DECODE))
        names = ("gpu", "engine", "version", "model", "layout", "kv_cache_dtype", "draft")
        return all(getattr(self, name) == getattr(here, name) for name in names)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MadeOn:
        """What `to_dict` made.

        Raises:
            TypeError: A value is missing, unknown or of another type.
        """
        found = cls(**values)
        for field in dataclasses.fields(cls):
            if type(getattr(found, field.name)).__name__ != field.type:
                raise TypeError(field.name)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The kind as plain values, for JSON."""
        return dataclasses.asdict(self)


def made_on(cases: Iterable[Case]) -> list[MadeOn]:
    """The kinds of servers that some runs are of, those with most runs first.

    Args:
        cases: The runs.
    """
    counts = Counter(MadeOn.from_server(case.server_of(DECODE)) for case in cases)
    return [dataclasses.replace(kind, rows=rows) for kind, rows in counts.most_common()]


def elsewhere(kinds: Sequence[MadeOn], case: Case) -> list[str]:
    """In what a case differs from all servers that a fit's runs are of, one line each.

    A line says what of the fit holds there all the same: what differs by GPU, engine, version or
    family is otherwise as uncertain as those levels are wide (`physim.corrections.levels`).

    Args:
        kinds: The servers of the fit's runs.
        case: The case.
    """
    if not kinds:
        return []
    here = MadeOn.from_server(case.server_of(DECODE))

    def shared(kind: MadeOn) -> list[bool]:
        names = ("engine", "gpu", "family", "version", "model", "layout", *_WORDS)
        return [getattr(kind, name) == getattr(here, name) for name in names]

    nearest = max(kinds, key=shared)
    lines = []
    if here.engine != nearest.engine:
        lines.append(f"{here.engine}, and the fit's runs are of {nearest.engine}")
    if here.gpu != nearest.gpu:
        lines.append(
            f"{here.gpu}, and the fit's runs are of {nearest.gpu}: corrections of kernels hold "
            "there only in part"
        )
    if here.family != nearest.family:
        lines.append(f"{here.model}, and the fit's runs are of {nearest.model}")
    if here.engine != nearest.engine:
        return lines
    for name, words in _WORDS.items():
        one, other = getattr(here, name), getattr(nearest, name)
        if one != other:
            lines.append(f"{words} is {_text(one)}, and {_text(other)} in the fit's runs")
    return lines


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"
