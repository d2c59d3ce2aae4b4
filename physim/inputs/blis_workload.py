"""Workload specifications of the simulator BLIS as loads (version 2).

Source of the fields: inference-sim/inference-sim, ``docs/reference/workload-spec.md``; times are in
microseconds, a prefix comes before the prompt that ``input_distribution`` draws, and fractions of
the rate are over their sum (``sim/workload/client.go``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import ConfigDict, Field, model_validator

from physim.inputs.lengths import Lengths
from physim.inputs.load_request import LoadOptions
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.request_points import scramble
from physim.inputs.stages import Stage
from physim.records import Count, Document, Length, Positive, Spread, Text, checked, disagreement

# Requests that stand for all of them.
_SAMPLE = 2048
# What BLIS takes where a group of prefixes has no length, tokens.
_PREFIX_TOKENS = 50
# What physim has no load for; BLIS's other fields change no latency.
_NOT_READ = ("cohorts", "servegen_data", "inference_perf", "lifecycle", "multimodal", "reasoning")
_DRAWN: Mapping[str, tuple[str, ...]] = {
    "gaussian": ("mean",),
    "exponential": ("mean",),
    "constant": ("value",),
    "empirical": (),
}

Values = Float[np.ndarray, " _"]


class _Strict(Document):
    # BLIS refuses fields that it does not know, so they are misspelt.
    model_config = ConfigDict(extra="forbid")


class _Arrival(_Strict):
    process: Literal["poisson", "gamma", "constant"]
    cv: Positive | None = None

    @model_validator(mode="after")
    def _agrees(self) -> _Arrival:
        if self.process == "gamma" and self.cv is None:
            raise disagreement("cv", "is missing, which gamma arrivals need", "give it")
        return self

    @property
    def shape(self) -> float:
        """Shape of the times between gamma arrivals; 1 of others."""
        return 1.0 if self.process != "gamma" or self.cv is None else 1 / self.cv**2


class _Distribution(_Strict):
    type: Literal["gaussian", "exponential", "constant", "empirical"]
    # Of an empirical one, chances by tokens.
    params: dict[str | int, Spread]

    @model_validator(mode="after")
    def _agrees(self) -> _Distribution:
        for name in _DRAWN[self.type]:
            if self.params.get(name, 0.0) < 1:
                raise disagreement(f"params.{name}", "is missing or below 1", "give tokens")
        if self.type == "empirical":
            tokens = [str(one) for one in self.params]
            if not all(one.isdecimal() and int(one) > 0 for one in tokens):
                raise disagreement("params", "has a key that is no number of tokens", "correct it")
            if not sum(self.params.values()) > 0:
                raise disagreement("params", "has no chance above 0", "correct it")
        low, high = self._ends
        if self.type == "gaussian" and low > high:
            raise disagreement("params.min", "is above max", "correct it")
        return self

    @property
    def _ends(self) -> tuple[float, float]:
        return max(self.params.get("min", 1.0), 1.0), self.params.get("max") or math.inf

    def drawn(self, count: int) -> Values:
        """Lengths of so many equal parts of the requests, from short to long."""
        params = self.params
        if self.type == "empirical":
            pairs = sorted((int(tokens), chance) for tokens, chance in params.items())
            tokens, chances = np.array(pairs, float).T
            below = np.cumsum(chances) / chances.sum()
            middle = (np.arange(count) + 0.5) / count
            return tokens[np.minimum(np.searchsorted(below, middle), len(tokens) - 1)]
        if self.type == "constant":
            return np.full(count, params["value"])
        if self.type == "exponential":
            return _spaced(Lengths.exponential(params["mean"]).fine, count)
        # BLIS clamps what it draws.
        normal = Lengths.normal(params["mean"], params.get("std_dev", 0.0)).fine
        return np.clip(_spaced(normal, count), *self._ends)


class _Client(_Strict):
    rate_fraction: Positive
    arrival: _Arrival
    input_distribution: _Distribution
    output_distribution: _Distribution
    prefix_group: Text | None = None
    prefix_length: Count | None = None
    id: Any = None
    tenant_id: Any = None
    slo_class: Any = None
    model: Any = None
    streaming: Any = None
    network: Any = None
    lifecycle: Any = None
    multimodal: Any = None
    reasoning: Any = None

    @model_validator(mode="after")
    def _is_read(self) -> _Client:
        _refuse(self)
        return self

    @property
    def prefix(self) -> int:
        """Tokens before each of its prompts that are found in the cache."""
        if not self.prefix_group:
            return 0
        return _PREFIX_TOKENS if self.prefix_length is None else self.prefix_length

    def requests(self, count: int) -> tuple[Values, Values, Values]:
        """Prompts, their cached parts and outputs of so many of its requests."""
        outputs = self.output_distribution.drawn(count)[scramble(count)]
        prompts = self.input_distribution.drawn(count) + self.prefix
        return prompts, np.full(count, float(self.prefix)), outputs


class _Workload(_Strict):
    aggregate_rate: Positive
    clients: list[_Client] = Field(default_factory=list)
    num_requests: Count = 0
    # Microseconds.
    horizon: Count | Length = 0
    version: Any = None
    seed: Any = None
    category: Any = None
    cohorts: Any = None
    servegen_data: Any = None
    inference_perf: Any = None

    @model_validator(mode="after")
    def _agrees(self) -> _Workload:
        _refuse(self)
        if not self.clients:
            raise disagreement("clients", "are missing", "give one or more")
        first = self.clients[0].arrival
        for number, client in enumerate(self.clients):
            if (client.arrival.process, client.arrival.shape) != (first.process, first.shape):
                problem = "is not the first's, and a load has one"
                raise disagreement(f"clients[{number}].arrival", problem, "give each its own file")
        if len(self.clients) > 1 and first.process != "poisson":
            problem = f"is {first.process} of several clients, which are not so when they mix"
            raise disagreement("clients[0].arrival", problem, "use poisson, or one client")
        return self


def is_workload(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is such a specification.

    Args:
        content: The mapping.
    """
    return not {"aggregate_rate", "clients"}.isdisjoint(content)


def load_of(content: Mapping[str, Any], place: str) -> LoadOptions:
    """The load that a specification describes, as options of a case.

    Args:
        content: What the file holds.
        place: The file, for messages.

    Raises:
        InputError: A field is missing, unknown or out of range, or says what no load of physim's
            has: Weibull arrivals, cohorts, conversations, windows of activity.
    """
    spec = checked(_Workload, content, place, "a workload of BLIS")
    arrival = spec.clients[0].arrival
    options: LoadOptions = {
        "arrival": arrival.process,
        "burstiness": arrival.shape,
        "lengths": _lengths(spec.clients, Path(place).stem),
    }
    rate, lasts_s = spec.aggregate_rate, spec.horizon / 1e6
    if spec.num_requests and not 0 < lasts_s < spec.num_requests / rate:
        return {**options, "rate": rate, "requests": spec.num_requests}
    if lasts_s:
        return {**options, "stages": (Stage(rate, lasts_s),)}
    return {**options, "rate": rate}


def _lengths(clients: Sequence[_Client], name: str) -> RequestLengths:
    """Requests of all clients by their shares of the rate, each of one at least."""
    whole = sum(client.rate_fraction for client in clients)
    parts = [
        client.requests(max(round(_SAMPLE * client.rate_fraction / whole), 1)) for client in clients
    ]
    prompts, cached, outputs = (
        np.rint(np.concatenate(column)) for column in zip(*parts, strict=True)
    )
    prompts = np.maximum(prompts, 1.0)
    # A prompt's last token is computed in any case.
    return RequestLengths.from_columns(
        prompts, np.maximum(outputs, 1.0), np.minimum(cached, prompts - 1), name
    )


def _spaced(fine: Values, count: int) -> Values:
    """So many of sorted values, evenly spaced."""
    return fine[((np.arange(count) + 0.5) / count * len(fine)).astype(int)]


def _refuse(spec: _Strict) -> None:
    for name in _NOT_READ:
        if getattr(spec, name, None):
            raise disagreement(name, "has no place in a load of physim's", "leave it out")
