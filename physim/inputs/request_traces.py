"""Recorded requests, read from the formats in which traces of them are published."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from pydantic import AfterValidator, Field, model_validator

from physim import data
from physim.errors import InputError
from physim.records import (
    Count,
    Document,
    Moment,
    Record,
    Text,
    Whole,
    checked,
    disagreement,
    read_cells,
    read_rows,
)
from physim.service.phases import decode_steps

# Tokens of a block of Mooncake's prefix hashes (its README).
BLOCK_TOKENS = 512
_AZURE = "ContextTokens"
# Characters that are read to see whether a file is of JSON lines.
_SNIFFED = 256


class RequestTrace(NamedTuple):
    """Requests in the order in which they came.

    Attributes:
        arrival_s: When each came, seconds from the first; None where a file of lengths alone says
            nothing of it.
        input_tokens: Prompt lengths, tokens.
        cached_tokens: Of each prompt, what a prefix cache without limit finds, tokens.
        output_tokens: Generated lengths, tokens.
        blocks: What each prompt is made of, in names of blocks of `BLOCK_TOKENS`, of which the last
            may not be full; None where the file does not say. Of a turn whose prompt is not told
            from its front on, nothing.
        turns: The conversations that they are of; None where the file names none.
    """

    arrival_s: Float[np.ndarray, " requests"] | None
    input_tokens: Float[np.ndarray, " requests"]
    cached_tokens: Float[np.ndarray, " requests"]
    output_tokens: Float[np.ndarray, " requests"]
    blocks: list[list[int]] | None = None
    turns: RecordedTurns | None = None


class RecordedTurns(NamedTuple):
    """How requests of a trace follow one another.

    Attributes:
        after: The request that each comes after, by its place in the trace; itself for the first of
            a conversation.
        delay_s: Time from that one's answer to it, seconds; not a number where the trace says when
            it came.
    """

    after: Int[np.ndarray, " requests"]
    delay_s: Float[np.ndarray, " requests"]


class RecordedRequest(Record):
    """A row of physim's own table of requests; `prefix_group` shares a prefix."""

    arrival_s: Moment | None = None
    input_tokens: Whole
    output_tokens: Whole
    cached_tokens: Count | None = None
    prefix_group: Text | None = None
    prefix_tokens: Count | None = None

    @model_validator(mode="after")
    def _agrees(self) -> RecordedRequest:
        if self.prefix_tokens and self.prefix_group is None:
            raise disagreement("prefix_group", "is empty, and prefix_tokens is not", "fill it in")
        if (self.cached_tokens or 0) > self.input_tokens:
            problem = f"{self.cached_tokens} are more than the prompt's {self.input_tokens}"
            raise disagreement("cached_tokens", problem, "correct it")
        if self.cached_tokens is not None and self.prefix_group is not None:
            problem = "is given beside prefix_group, which says it too"
            raise disagreement("cached_tokens", problem, "leave one of the two out")
        return self


class ArrivedRequest(RecordedRequest):
    """A row of a trace, which says when the request came."""

    arrival_s: Moment


def prefix_lengths(rows: Sequence[RecordedRequest], where: str) -> dict[str, int]:
    """The length of the prefix that requests of each group share.

    It is what the rows say, or the shortest prompt of the group.

    Args:
        rows: The requests.
        where: What they are in, for messages.

    Raises:
        InputError: Rows of a group disagree, or one of its prompts is shorter.
    """
    groups: dict[str, list[RecordedRequest]] = defaultdict(list)
    for row in rows:
        if row.prefix_group is not None:
            groups[row.prefix_group].append(row)
    found = {}
    for group, own in groups.items():
        shortest, told = min(row.input_tokens for row in own), {row.prefix_tokens for row in own}
        tokens = told.pop()
        if told or (tokens or 0) > shortest:
            raise InputError(
                f"{where}: prefix_tokens of group {group}",
                "is not one length, at most that of its prompts",
                "correct it",
            )
        found[group] = shortest if tokens is None else tokens
    return found


def read_requests(path: str | Path, arrivals: bool = False) -> RequestTrace:
    """The requests of a trace, or of a table of lengths.

    Known are tables (CSV) with the columns ``input_tokens`` and ``output_tokens``, and optionally
    ``arrival_s`` (seconds), ``cached_tokens``, or ``prefix_group`` and ``prefix_tokens`` (see
    `physim.replay.workload.read_trace`; but for a group's first, requests find its prefix); the
    tables of the Azure public dataset (``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``); and
    Mooncake's JSON lines (``timestamp`` in milliseconds, ``input_length``, ``output_length``,
    ``hash_ids``), of which a cache without limit finds the blocks of 512 tokens, from the front of
    a prompt on, that came before. Rows of one ``session_id`` are the turns of a conversation, in
    their order: each comes ``delay`` milliseconds after the answer before it, or at its
    ``timestamp`` but not before that, and its ``input_length`` counts the new tokens of a prompt
    that also holds all that was said before; unless its ``hash_ids`` begin with those of the turn
    before, whose prompt it then holds as they say (AIPerf's Mooncake traces). JSON lines are known
    by their name (``.jsonl``) or a first brace, and all may be compressed (``.gz``). A prompt's
    last token is computed in any case.

    Args:
        path: The file.
        arrivals: Whether it must say when requests came.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that cannot be used.
    """
    found = read_turns(path, arrivals)
    if found.arrival_s is None or not np.isnan(found.arrival_s).any():
        return found
    if arrivals:
        problem = "says of some turns how long after an answer they come, and not when"
        raise InputError(f"{path}: timestamp", problem, "give the time of all, or replay the trace")
    return found._replace(arrival_s=None)


def read_turns(path: str | Path, arrivals: bool = False) -> RequestTrace:
    """The same requests as `read_requests`, some of which may come a time after an answer.

    Args:
        path: The file.
        arrivals: Whether it must say when requests came, or after which.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that cannot be used.
    """
    path = Path(path)
    if _is_lines(path):
        found = _mooncake(path)
    elif _is_azure(path):
        found = _azure(path)
    else:
        found = _own(path, ArrivedRequest if arrivals else RecordedRequest)
    arrival_s, inputs = found.arrival_s, found.input_tokens
    return found._replace(
        arrival_s=None if arrival_s is None else arrival_s - np.nanmin(arrival_s),
        cached_tokens=np.minimum(found.cached_tokens, inputs - 1),
    )


def is_own(path: Path) -> bool:
    """Whether a file is a table of physim's own, and not of a format that others publish."""
    return not _is_lines(path) and not _is_azure(path)


def _is_lines(path: Path) -> bool:
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return True
    try:
        with data.opened(path) as file:
            return file.read(_SNIFFED).lstrip().startswith("{")
    except UnicodeDecodeError:
        return False


def _is_azure(path: Path) -> bool:
    return _AZURE in next(read_cells(path))[1]


def _own(path: Path, kind: type[RecordedRequest]) -> RequestTrace:
    rows = [row for _, row in read_rows(kind, path)]
    timed = [row.arrival_s is not None for row in rows]
    if any(timed) and not all(timed):
        raise InputError(f"{path}: arrival_s", "is empty in some rows", "fill it in")
    rows.sort(key=lambda row: row.arrival_s or 0.0)
    prefixes, seen, cached = prefix_lengths(rows, str(path)), set(), []
    for row in rows:
        known = row.prefix_group in seen
        cached.append(prefixes[row.prefix_group or ""] if known else row.cached_tokens or 0)
        if row.prefix_group is not None:
            seen.add(row.prefix_group)
    return RequestTrace(
        np.array([row.arrival_s for row in rows], float) if all(timed) else None,
        np.array([row.input_tokens for row in rows], float),
        np.array(cached, float),
        np.array([row.output_tokens for row in rows], float),
    )


def _moment(text: str) -> float:
    """Seconds since 1970 of a date and time, which is in UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise disagreement("", f"{text} is no date and time", "correct it") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


class _Azure(Record):
    time_s: Annotated[Text, AfterValidator(_moment)] = Field(alias="TIMESTAMP")
    prompt: Whole = Field(alias="ContextTokens")
    output: Whole = Field(alias="GeneratedTokens")


def _azure(path: Path) -> RequestTrace:
    rows = sorted((row for _, row in read_rows(_Azure, path)), key=lambda row: row.time_s)
    return RequestTrace(
        np.array([row.time_s for row in rows], float),
        np.array([row.prompt for row in rows], float),
        np.zeros(len(rows)),
        np.array([row.output for row in rows], float),
    )


class _Mooncake(Document):
    timestamp: Moment | None = None
    delay: Moment | None = None
    session_id: Text | None = None
    input_length: Whole
    output_length: Whole
    hash_ids: list[Count] = Field(default_factory=list)


class _Turn(NamedTuple):
    """A row of a trace, as a turn of a conversation.

    Attributes:
        row: The row.
        time_ms: When it comes, or would if answers took no time.
        after: The turn before it.
        cumulative: Whether its blocks begin with those of the turn before.
    """

    row: _Mooncake
    time_ms: float
    after: _Turn | None
    cumulative: bool

    @property
    def clock_ms(self) -> float:
        """When it comes, if that does not go by an answer; else not a number."""
        return math.nan if self.row.timestamp is None else self.time_ms


def _mooncake(path: Path) -> RequestTrace:
    turns = sorted(_turns_of(path), key=lambda turn: turn.time_ms)
    places = {id(turn): place for place, turn in enumerate(turns)}
    known: set[int] = set()
    prompts: list[float] = []
    cached: list[float] = []
    blocks: list[list[int]] = []
    for turn in turns:
        row = turn.row
        before = None if turn.after is None else places[id(turn.after)]
        names, said, found = row.hash_ids, 0.0, 0.0
        if before is not None:
            context = prompts[before] + turns[before].row.output_length
            if not turn.cumulative:
                names, said = [], context
            if said + row.input_length > context:
                found = decode_steps(context)
        count = next((place for place, block in enumerate(names) if block not in known), len(names))
        known.update(names)
        prompts.append(said + row.input_length)
        cached.append(max(found, min(count * BLOCK_TOKENS, prompts[-1])))
        blocks.append(names)
    return RequestTrace(
        np.array([turn.clock_ms for turn in turns], float) / 1e3,
        np.array(prompts, float),
        np.array(cached, float),
        np.array([turn.row.output_length for turn in turns], float),
        blocks,
        _recorded_turns(turns, places),
    )


def _recorded_turns(turns: Sequence[_Turn], places: Mapping[int, int]) -> RecordedTurns | None:
    """How turns in order follow one another; None where none does."""
    if all(turn.after is None for turn in turns):
        return None
    after = [places[id(turn if turn.after is None else turn.after)] for turn in turns]
    delays = [
        math.nan if turn.row.timestamp is not None else turn.row.delay or 0.0 for turn in turns
    ]
    return RecordedTurns(np.array(after), np.array(delays) / 1e3)


def _turns_of(path: Path) -> Iterator[_Turn]:
    """The rows of a file in Mooncake's format, each with the turn that it follows.

    Raises:
        InputError: A row cannot be used, or does not say when it comes.
    """
    last: dict[str, _Turn] = {}
    for place, content in _json_lines(path):
        row = checked(_Mooncake, content, place)
        after = None if row.session_id is None else last.get(row.session_id)
        if row.timestamp is None and (after is None or row.delay is None):
            what = "or of later turns the delay" if row.session_id else "in milliseconds"
            raise InputError(f"{place}: timestamp", "is missing", f"give it, {what}")
        time_ms = row.timestamp
        if time_ms is None:
            assert after is not None
            time_ms = after.time_ms + (row.delay or 0.0)
        cumulative = False
        if after is not None:
            # The last block of a prompt may not be full, and has another name when it is.
            before = after.row.hash_ids[: after.row.input_length // BLOCK_TOKENS]
            cumulative = bool(before) and row.hash_ids[: len(before)] == before
            time_ms = max(time_ms, after.time_ms)
        turn = _Turn(row, time_ms, after, cumulative)
        if row.session_id is not None:
            last[row.session_id] = turn
        yield turn


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """The objects of a file with one on each line, each with its place for messages.

    Raises:
        InputError: The file cannot be read, or a line is no JSON object.
    """
    count = 0
    try:
        with data.opened(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                count += 1
                place = f"{path}, line {number}"
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError):
                    content = None
                if not isinstance(content, dict):
                    raise InputError(place, "is no JSON object", "correct it")
                yield place, content
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "pass JSON lines") from error
    if not count:
        raise InputError(str(path), "holds no row", "add some")
