"""How long the requests of a load are: prompt, its cached part and output, as they go together."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from physim import data
from physim.errors import InputError
from physim.inputs.lengths import Lengths, Tokens, lengths, observed
from physim.inputs.request_points import (
    RequestMoments,
    RequestPoints,
    Requests,
    joint_points,
    longest_parts,
    moments_of,
    scramble,
)
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

_PRESETS = "bench_data/request_lengths"
# Groups of prompts by which many requests are condensed, and requests that stand for each.
CONDENSED = 32
# Files that are kept as they were read, for the cases of a sweep.
_KEPT = 8
Some: TypeAlias = Sequence[float] | Float[np.ndarray, " n"] | Int[np.ndarray, " n"]


@dataclass(frozen=True)
class RequestLengths:
    """A joint distribution of prompt lengths, their cached parts and output lengths.

    It is a sample: requests that are all as likely. `of` makes one of arrays, `read` of a file or a
    preset, `independent` of two distributions that say nothing of each other.

    Attributes:
        input_tokens: Prompt length of each request, tokens.
        cached_tokens: Of each prompt, found in the prefix cache, tokens. It is taken to be found
            whenever the request starts, and to be shared with no request that runs beside it.
        output_tokens: Generated length of each request, tokens.
        name: What it is called, for messages and records.
        exact: Means over all requests, where the sample stands for more of them.
        recorded: Whether requests are in the order in which they came, so that they go with the
            arrivals of the same trace (`physim.Load`); else their order says nothing.
        handed: Whether what is cached came with the requests from other servers: all of it, where
            a prefix cache finds full blocks only.

    Raises:
        InputError: There is no request, a list is longer than another, a length is below one or no
            number, or more is cached of a prompt than it is long.
    """

    input_tokens: tuple[float, ...]
    cached_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    name: str = field(default="requests", compare=False)
    exact: RequestMoments | None = None
    recorded: bool = False
    handed: bool = False

    def __post_init__(self) -> None:
        where = f"lengths {self.name!r}"
        counts = len(self.input_tokens), len(self.cached_tokens), len(self.output_tokens)
        if len(set(counts)) != 1:
            said = "have {} prompts, {} cached parts and {} outputs".format(*counts)
            raise InputError(where, said, "give as many of each")
        if not counts[0]:
            raise InputError(where, "have no request", "give at least one")
        inputs, cached, outputs = self.arrays
        for name, values, least in (
            ("input_tokens", inputs, 1.0),
            ("cached_tokens", cached, 0.0),
            ("output_tokens", outputs, 1.0),
        ):
            wrong = values[~(np.isfinite(values) & (values >= least))]
            if wrong.size:
                problem = f"{wrong[0]:g} is below {least:g}"
                raise InputError(f"{where}: {name}", problem, "correct it")
        if (cached > inputs).any():
            problem = "are more than the prompt has, in some requests"
            raise InputError(f"{where}: cached_tokens", problem, "correct them")

    @classmethod
    def from_columns(
        cls,
        input_tokens: Some,
        output_tokens: Some,
        cached_tokens: Some | None = None,
        name: str = "requests",
        recorded: bool = False,
        handed: bool = False,
    ) -> RequestLengths:
        """The lengths of some requests.

        Args:
            input_tokens: Prompt length of each, tokens.
            output_tokens: Generated length of each, tokens.
            cached_tokens: Of each prompt, found in the prefix cache; None for nothing.
            name: What they are called.
            recorded: Whether they are in the order in which they came, and stay so.
            handed: Whether what is cached came with them from other servers.

        Raises:
            InputError: They cannot be used.
        """
        inputs, outputs = (np.asarray(own, float) for own in (input_tokens, output_tokens))
        found = np.zeros(len(inputs)) if cached_tokens is None else cached_tokens
        cached = np.asarray(found, float)
        if not recorded and len(inputs) == len(cached) == len(outputs):
            # The same requests in another order are the same lengths.
            order = np.lexsort((outputs, cached, inputs))
            inputs, cached, outputs = inputs[order], cached[order], outputs[order]
        own = _columns(inputs, cached, outputs)
        return cls(**own, name=name, recorded=recorded, handed=handed)

    @classmethod
    def independent(
        cls, input_tokens: Tokens, output_tokens: Tokens, name: str = "requests"
    ) -> RequestLengths:
        """Prompts and outputs of two distributions that say nothing of each other.

        Args:
            input_tokens: Prompt length: a number, or a distribution.
            output_tokens: Generated length, likewise.
            name: What they are called.
        """
        inputs, outputs = lengths(input_tokens).fine, lengths(output_tokens).fine
        return cls.from_columns(inputs, outputs[scramble(len(outputs))], name=name)

    @classmethod
    def read(cls, source: str | Path) -> RequestLengths:
        """Lengths of a preset or a file.

        Args:
            source: A name of `presets`; a table of requests (CSV); or a trace: physim's own, of the
                Azure public dataset, or Mooncake's. See
                `physim.inputs.request_traces.read_requests`.

        Raises:
            InputError: It is none of these, or holds a value that cannot be used.
        """
        text = str(source)
        if text in presets():
            return _preset(text)
        if not Path(text).suffix:
            known = f"use one of {', '.join(presets())}, or a .csv or .jsonl file"
            raise InputError(f"lengths {text[:60]!r}", "is no preset and no file", known)
        return _read(Path(text), data.modified_ns(Path(text)))

    def of_rows(self, rows: Int[np.ndarray, " rows"]) -> RequestLengths:
        """Some of the requests alone.

        Args:
            rows: Which, from 0 on.
        """
        columns = (own[rows] for own in self.arrays)
        return replace(self, **_columns(*columns), exact=None)

    def below(self, tokens: float) -> RequestLengths:
        """Those of the requests whose prompts are shorter than so many tokens."""
        return self.of_rows(np.flatnonzero(self.arrays[0] < tokens))

    @functools.cached_property
    def arrays(self) -> tuple[Requests, Requests, Requests]:
        """Prompt lengths, cached parts and output lengths of the sample."""
        return (
            np.array(self.input_tokens, float),
            np.array(self.cached_tokens, float),
            np.array(self.output_tokens, float),
        )

    @functools.cached_property
    def inputs(self) -> Tokens:
        """Prompt lengths alone."""
        return observed(self.input_tokens)

    @functools.cached_property
    def outputs(self) -> Tokens:
        """Output lengths alone."""
        return observed(self.output_tokens)

    @property
    def mean_cached(self) -> float:
        """Prompt tokens that are found in the prefix cache, mean."""
        # Both means are rounded, and no more is cached than prompts have.
        mean = math.fsum(self.cached_tokens) / len(self.cached_tokens)
        return min(mean, lengths(self.inputs).mean)

    @functools.cached_property
    def points(self) -> RequestPoints:
        """Requests of equal weight that stand for all; see `joint_points`."""
        inputs, cached, outputs = self.arrays
        # The same requests in another order have the same points.
        order = np.lexsort((outputs, cached, inputs))
        return joint_points(inputs[order], cached[order], outputs[order])

    @functools.cached_property
    def longest(self) -> Requests:
        """New tokens of the longest prompts; see `longest_parts`."""
        inputs, cached, _ = self.arrays
        return longest_parts(np.maximum(inputs - cached, 1.0))

    @functools.cached_property
    def moments(self) -> RequestMoments:
        """Means over all requests."""
        return moments_of(*self.arrays) if self.exact is None else self.exact

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        numbers: Int[np.ndarray, " count"] | None = None,
    ) -> tuple[Int[np.ndarray, " count"], Int[np.ndarray, " count"], Int[np.ndarray, " count"]]:
        """Draws requests: prompt lengths, cached parts and output lengths, tokens.

        Lengths that are no whole numbers, as in presets, are kept on average.

        Args:
            rng: Where chance comes from.
            count: How many.
            numbers: Which of the sample they are, starting over after its last; None for chance.
        """
        most = len(self.input_tokens)
        chosen = rng.integers(most, size=count) if numbers is None else numbers % most
        rounding = rng.random(count)
        inputs, cached, outputs = (
            np.floor(own[chosen] + rounding).astype(np.int64) for own in self.arrays
        )
        return inputs, np.minimum(cached, inputs), outputs

    def share_beyond(self, tokens: float) -> float:
        """Share of the requests of which prompt and output are more than so many tokens."""
        inputs, _, outputs = self.arrays
        return float(np.mean(inputs + outputs > tokens))

    def up_to(self, tokens: float) -> RequestLengths:
        """The same requests, but that outputs end where prompt and output are so many tokens."""
        inputs, _, outputs = self.arrays
        shorter = np.minimum(outputs, tokens - inputs)
        return replace(self, output_tokens=tuple(shorter.tolist()), exact=None)

    def uncached(self) -> RequestLengths:
        """The same requests, of which nothing is found in the prefix cache."""
        nothing, exact = (0.0,) * len(self.input_tokens), self.exact
        if exact is not None:
            exact = exact._replace(
                cached=0.0,
                new=exact.input,
                new_squared=exact.input_squared,
                new_output=exact.input_output,
            )
        return replace(self, cached_tokens=nothing, exact=exact)

    def with_means(self, input_tokens: float, output_tokens: float) -> RequestLengths:
        """The same requests, all made longer or shorter so that these are their means.

        Outputs of less than a token are one token long, so that very short means are not kept.

        Args:
            input_tokens: Mean prompt length, tokens; cached parts change with the prompts.
            output_tokens: Mean generated length, tokens.

        Raises:
            InputError: A mean is below one token.
        """
        for name, mean in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if not mean >= 1:
                raise InputError(f"lengths: mean {name}", f"{mean:g} is below 1", "correct it")
        prompts, answers = input_tokens / self.moments.input, output_tokens / self.moments.output
        inputs, cached, outputs = self.arrays
        columns = _columns(
            np.maximum(inputs * prompts, 1.0),
            cached * prompts,
            np.maximum(outputs * answers, 1.0),
        )
        exact = None if self.exact is None else self.exact.scaled(prompts, answers)
        return replace(self, **columns, exact=exact)

    def condensed(self) -> RequestLengths:
        """As many requests as presets have, which stand for all where there are more."""
        if len(self.input_tokens) <= CONDENSED**2:
            return self
        points = joint_points(*self.arrays, CONDENSED)
        return RequestLengths(**_columns(*points), name=self.name, exact=self.moments)

    def to_dict(self) -> dict[str, Any]:
        """What it is, in plain values: its name, how many requests there are and their means."""
        about = {"name": self.name, "requests": len(self.input_tokens)}
        return about | {"moments": self.moments._asdict()}

    def __repr__(self) -> str:
        inputs, cached, outputs = (float(np.mean(own)) for own in self.arrays)
        means = f"means {inputs:.6g} tokens in ({cached:.6g} cached), {outputs:.6g} out"
        return shown(self, f"{self.name}: {len(self.input_tokens):,} requests, {means}")

    def to_frame(self) -> pd.DataFrame:
        """A row for each request of the sample: its prompt, its cached part and its output."""
        import pandas as pd

        return pd.DataFrame(
            {
                name: getattr(self, name)
                for name in ("input_tokens", "cached_tokens", "output_tokens")
            }
        )


def _columns(*arrays: Float[np.ndarray, " _"]) -> dict[str, Any]:
    """The fields of `RequestLengths` of prompts, cached parts and outputs."""
    names = RequestPoints._fields
    return {name: tuple(own.tolist()) for name, own in zip(names, arrays, strict=True)}


def filled_in(where: str, record: Any) -> None:
    """Takes a frozen record's lengths from its joint ones, where those are given.

    Args:
        where: What the record is, for messages.
        record: Has ``input_tokens`` and ``output_tokens``, None for not given, ``cached_tokens``
            and ``lengths``. What came of the same lengths before may be given beside them.

    Raises:
        InputError: Lengths are given twice, or not at all.
    """
    joint = record.lengths
    for name in ("input_tokens", "output_tokens"):
        if joint is None and getattr(record, name) is None:
            raise InputError(f"{where}: {name}", "is missing", "give it, or lengths")
    if joint is None:
        return
    own = {
        "input_tokens": (joint.inputs, None),
        "output_tokens": (joint.outputs, None),
        "cached_tokens": (joint.mean_cached, 0.0),
    }
    for name, (value, missing) in own.items():
        given = getattr(record, name)
        if given != missing and given != value:
            remedy = "leave one of the two out"
            raise InputError(f"{where}: {name}", "is given by lengths already", remedy)
        object.__setattr__(record, name, value)


def presets() -> list[str]:
    """Names of lengths that ship with physim."""
    return data.names(_PRESETS, ".json")


@functools.lru_cache(maxsize=_KEPT)
def _read(path: Path, _modified_ns: int) -> RequestLengths:
    # The file's time is part of the key, so that an edited file is read anew.
    from physim.inputs.request_traces import read_requests

    found = read_requests(path)
    return RequestLengths.from_columns(
        found.input_tokens,
        found.output_tokens,
        found.cached_tokens,
        path.name,
        recorded=found.arrival_s is not None,
    )


@functools.cache
def _preset(name: str) -> RequestLengths:
    content: Mapping[str, Any] = data.read_json(data.folder(_PRESETS) / f"{name}.json")
    if "independent" in content:
        both = content["independent"]
        inputs, outputs = (Lengths.parse(both[own], name) for own in ("input", "output"))
        return RequestLengths.independent(inputs, outputs, name)
    points, moments = content["points"], RequestMoments(**content["moments"])
    columns = [tuple(points[own]) for own in RequestPoints._fields]
    return RequestLengths(columns[0], columns[1], columns[2], name, moments)
