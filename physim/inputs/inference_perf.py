"""Loads as inference-perf's configurations say them: YAML with ``load`` and ``data``.

The form is that of inference-perf up to 0.7 (``docs/config.md``, ``utils/distribution.py`` and
``datagen/shared_prefix_datagen.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from physim.errors import InputError
from physim.inputs.lengths import Lengths, Tokens, lengths, observed
from physim.inputs.load_request import LoadOptions
from physim.inputs.stages import Stage
from physim.records import Count, Document, Positive, Spread, Text, Whole, checked, disagreement

_SOURCE = "inference-perf's configuration"
# Lengths of a distribution that stand for all.
_POINTS = 4096


class _Distribution(Document):
    """Lengths that are drawn and then cut to their range; figures that are left out are its own."""

    type: Literal["normal", "lognormal", "uniform", "fixed"] = "normal"
    min: Count = 10
    max: Whole = 1024
    mean: Positive = 512.0
    std_dev: Spread = 200.0

    @model_validator(mode="after")
    def _is_in_range(self) -> _Distribution:
        if self.type != "uniform" and not self.min <= self.mean <= self.max:
            problem = f"{self.mean:g} is not from {self.min} to {self.max}"
            raise disagreement("mean", problem, "correct it")
        if self.min > self.max:
            problem = f"{self.min} is more than the max, {self.max}"
            raise disagreement("min", problem, "correct it")
        return self

    def tokens(self) -> Tokens:
        """The lengths, one token at least."""
        if self.type == "fixed":
            return max(float(int(self.mean)), 1.0)
        if self.type == "uniform":
            share = (np.arange(_POINTS) + 0.5) / _POINTS
            drawn = self.min + (self.max - self.min) * share
        elif self.type == "normal":
            drawn = Lengths.normal(max(self.mean, 1.0), self.std_dev).fine
        else:
            # What is beyond the least is log-normal.
            beyond = max(self.mean - self.min, 1.0)
            drawn = self.min + Lengths.lognormal(beyond, self.std_dev).fine
        return observed(np.maximum(np.rint(np.clip(drawn, self.min, self.max)), 1.0).tolist())


class _SharedPrefix(Document):
    num_groups: Whole = 10
    num_prompts_per_group: Whole = 10
    system_prompt_len: Count = 100
    question_len: Whole | _Distribution = 50
    output_len: Whole | _Distribution = 50
    question_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    enable_multi_turn_chat: bool = False


class _Data(Document):
    type: Text = "mock"
    input_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None
    shared_prefix: _SharedPrefix | None = None


class _Stage(Document):
    rate: Positive | None = None
    duration: Positive | None = None
    num_requests: Whole | None = None
    concurrency_level: Whole | None = None


class _Load(Document):
    type: Text = "constant"
    stages: list[_Stage] = Field(default=[], max_length=1000)
    request_timeout: Positive | None = None


class _Configuration(Document):
    load: _Load
    data: _Data


def is_configuration(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping is such a configuration.

    Args:
        content: The mapping.
    """
    return "load" in content


def load_of(content: Mapping[str, Any], place: str) -> LoadOptions:
    """The load that a configuration describes, as options of a case.

    Args:
        content: What the file holds.
        place: The file, for messages.

    Raises:
        InputError: A field is missing or out of range, or it says a load that no option says.
    """
    told = checked(_Configuration, content, place, _SOURCE)
    found = _arrivals(told.load, place)
    return LoadOptions(**found, **_requests(told.data, found, place))  # type: ignore[typeddict-item]


def _arrivals(load: _Load, place: str) -> dict[str, Any]:
    """How requests come."""
    beside = {} if load.request_timeout is None else {"timeout_s": load.request_timeout}
    where = f"{place}: load"
    if load.type not in ("constant", "poisson", "concurrent"):
        remedy = "pass a trace itself, with --trace"
        raise InputError(f"{where}.type", f"{load.type!r} says no rate or clients", remedy)
    if not load.stages:
        raise InputError(f"{where}.stages", "are missing", "give them: a sweep is found by a run")
    if load.type != "concurrent":
        stages = []
        for number, stage in enumerate(load.stages):
            if stage.rate is None or stage.duration is None:
                problem = "has no rate and duration"
                raise InputError(f"{where}.stages[{number}]", problem, "give both")
            stages.append(Stage(stage.rate, stage.duration))
        return {"arrival": load.type, "stages": tuple(stages), **beside}
    if len(load.stages) != 1:
        problem = f"are {len(load.stages)} of clients, each a load of its own"
        raise InputError(f"{where}.stages", problem, "leave one of them")
    (stage,) = load.stages
    if stage.concurrency_level is None or stage.num_requests is None:
        problem = "has no concurrency_level and num_requests"
        raise InputError(f"{where}.stages[0]", problem, "give both")
    return {
        "concurrency": float(stage.concurrency_level),
        "requests": stage.num_requests,
        **beside,
    }


def _requests(told: _Data, arrivals: dict[str, Any], place: str) -> dict[str, Any]:
    """How long requests are, and what they share."""
    where = f"{place}: data"
    if told.type in ("random", "synthetic"):
        if told.input_distribution is None or told.output_distribution is None:
            side = "input" if told.input_distribution is None else "output"
            raise InputError(f"{where}.{side}_distribution", "is missing", "give it")
        return {
            "input_tokens": told.input_distribution.tokens(),
            "output_tokens": told.output_distribution.tokens(),
        }
    if told.type != "shared_prefix":
        remedy = "give the lengths by options, --input and --output or --lengths, with a rate"
        raise InputError(f"{where}.type", f"{told.type!r} says no lengths", remedy)
    shared = told.shared_prefix or _SharedPrefix()
    if shared.enable_multi_turn_chat:
        problem = "has conversations, whose turns it does not say"
        remedy = "give them by options, --turns among them"
        raise InputError(f"{where}.shared_prefix", problem, remedy)
    question, output = (
        _tokens(own if own is not None else fixed)
        for own, fixed in (
            (shared.question_distribution, shared.question_len),
            (shared.output_distribution, shared.output_len),
        )
    )
    prefix, prompts = shared.system_prompt_len, shared.num_groups * shared.num_prompts_per_group
    coming = arrivals.get("requests") or sum(
        stage.rate * stage.duration_s for stage in arrivals["stages"]
    )
    whole = _longer(question, prefix)
    again = coming > prompts
    return {
        "input_tokens": whole,
        "output_tokens": output,
        "cached_tokens": float(lengths(whole).mean if again else prefix),
        "prefixes": prompts if again else shared.num_groups,
        "popularity": "in-turn" if again or shared.num_groups == 1 else "uniform",
    }


def _tokens(told: int | _Distribution) -> Tokens:
    return told.tokens() if isinstance(told, _Distribution) else float(told)


def _longer(tokens: Tokens, prefix: int) -> Tokens:
    """Prompts of a prefix and a question."""
    if isinstance(tokens, Lengths):
        return Lengths.empirical(tuple(own + prefix for own in tokens.values))
    return tokens + prefix
