"""Measured steps of an engine, whatever wrote them: what each carried and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtr

from physim.errors import InputError
from physim.printable import shown
from physim.step.batch import UNLIMITED, Batch
from physim.types import AnyArray

if TYPE_CHECKING:
    import pandas as pd

# What a clock of steps covers, from the least to the most.
CLOCKS: Mapping[str, str] = {
    "forward": "the GPU's work on a captured forward pass, without logits and sampling",
    "gpu": "the GPU's work on a step",
    "worker": "a step from when it is handed to the workers until its tokens are back",
    "scheduler": "a step with its scheduling and the handling of its tokens",
    "loop": "from a step's start to the next one's",
}
# Parts of a step that a clock does not see. A forward pass that is captured whole, prompts too, has
# no gaps between its kernels' launches.
NOT_TIMED: Mapping[str, tuple[str, ...]] = {
    "forward": ("lm_head", "sampling", "step_overhead", "host"),
    "gpu": ("host",),
}
# A step is of one of these kinds.
KINDS = ("decode", "prompts", "mixed")
# No step takes as long, in seconds, and none has as many tokens.
_LONGEST_S, _MOST = 1e4, 1e9
# No GPU computes a step so fast, seconds; and so many are in every log, when little is waited for.
_TOO_SHORT_S, _TOO_MANY = 2e-4, 0.05
WAITS = (
    "took less than 0.2 ms: the engine logs how long it waits for a step's tokens, which says "
    "little of one that runs ahead"
)
WHOLE_STEPS = "start it without asynchronous scheduling to see whole steps"
# What a step must say; the rest may be unknown.
_NEEDED = ("decode_requests", "prefill_requests", "prefill_tokens", "seconds")

Column = Float[np.ndarray, " steps"]


def too_short(seconds: Column) -> float:
    """Share of steps that no GPU computes so fast, if it is larger than a log of whole steps has.

    Args:
        seconds: How long the steps took.
    """
    share = float(np.mean(seconds < _TOO_SHORT_S)) if len(seconds) else 0.0
    return share if share > _TOO_MANY else 0.0


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Steps of one engine, a row each. What a source does not say of a step is NaN.

    Attributes:
        decode_requests: Requests that decode.
        drafts: Proposed tokens that the step verifies for each of them, mean.
        context_tokens: Tokens that they have in the KV cache before the step, summed.
        context_variance: Population variance of these.
        prefill_requests: Requests with a prefill chunk.
        prefill_tokens: Tokens of the chunks, summed.
        prefill_variance: Population variance of the chunks' tokens.
        cached_tokens: Tokens that the chunks' requests have in the KV cache already, summed.
        cached_products: Products of each chunk's tokens with its cached tokens, summed.
        seconds: How long the step took, by the clock.
        start_s: When it started, seconds since any moment.
        kv_usage: Share of the KV cache that requests hold.
        clock: What the clock covers, one of `CLOCKS`.
        source: The file that they are from, for messages.
        engine: The engine, if it is known.
        engine_version: Its version, if it is known.
        notes: What was odd in the source, and what was made of it, one line each.

    Raises:
        InputError: There is no step, or a value is missing, out of range or contradicts another.
    """

    decode_requests: Column
    prefill_requests: Column
    prefill_tokens: Column
    seconds: Column
    drafts: Column
    context_tokens: Column
    context_variance: Column
    prefill_variance: Column
    cached_tokens: Column
    cached_products: Column
    start_s: Column
    kv_usage: Column
    clock: str
    source: str
    engine: str | None = None
    engine_version: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            known = ", ".join(CLOCKS)
            raise InputError("clock", f"{self.clock!r} is unknown", f"use one of {known}")
        if not len(self):
            raise InputError(self.source, "holds no step with requests", "record some under load")
        for name in COLUMNS:
            self._check(name)
        self._refuse(
            (self.prefill_tokens < self.prefill_requests)
            | ((self.prefill_requests == 0) & (self.prefill_tokens > 0)),
            "prefill_tokens",
            "do not go with prefill_requests",
        )
        self._refuse(self.decode_requests + self.prefill_requests == 0, "requests", "are none")

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, AnyArray], clock: str, source: str, **about: AnyArray
    ) -> MeasuredSteps:
        """Steps of which some things are known.

        Args:
            columns: What is known, by the names of the attributes.
            clock: What the clock covers.
            source: The file.
            **about: The engine, its version, and notes.

        Raises:
            InputError: As `MeasuredSteps` does.
        """
        known = {name: np.asarray(values, float) for name, values in columns.items()}
        unknown = np.full(len(known["seconds"]), np.nan)
        arrays: dict[str, Any] = {name: known.get(name, unknown) for name in COLUMNS}
        return cls(**arrays, clock=clock, source=source, **about)

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, chosen: Bool[np.ndarray, " steps"] | slice) -> MeasuredSteps:
        """Some of the steps."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def columns(self) -> dict[str, Column]:
        """What is known of each step, by name."""
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def kinds(self) -> dict[str, Bool[np.ndarray, " steps"]]:
        """Which steps only decode, which only compute prompts, and which do both."""
        decode, prompts = self.decode_requests > 0, self.prefill_requests > 0
        return {
            "decode": decode & ~prompts,
            "prompts": prompts & ~decode,
            "mixed": decode & prompts,
        }

    @property
    def gaps_s(self) -> Column:
        """Time from the end of each step to the start of the next, seconds; NaN of the last."""
        return np.append(np.diff(self.start_s), np.nan) - self.seconds

    def with_contexts(self, kv_tokens: float) -> MeasuredSteps:
        """The steps with the contexts that follow from the share of the KV cache in use.

        What is in use is the contexts of all requests after the step. Of that, the chunks of
        prompts and what they find cached are theirs; the rest is held by requests that decode.
        Prefixes that requests share count once, so contexts are then too short. Contexts that are
        known stay.

        Args:
            kv_tokens: Tokens that the KV cache holds.
        """
        prompts = self.prefill_tokens + np.nan_to_num(self.cached_tokens)
        computed = self.decode_requests * (1 + np.nan_to_num(self.drafts))
        held = np.maximum(self.kv_usage * kv_tokens - prompts - computed, self.decode_requests)
        missing = np.isnan(self.context_tokens)
        found = np.where(self.decode_requests > 0, held, 0.0)
        return replace(self, context_tokens=np.where(missing, found, self.context_tokens))

    def with_mean_context(self, tokens: float) -> MeasuredSteps:
        """The steps with a context for requests of which none is known.

        Args:
            tokens: The mean, before a step.
        """
        missing = np.isnan(self.context_tokens)
        found = self.decode_requests * tokens
        return replace(self, context_tokens=np.where(missing, found, self.context_tokens))

    def completed(self, kv_tokens: float, context: float | None = None) -> MeasuredSteps:
        """The steps with what is taken of requests that a source says nothing of, and notes of it.

        Args:
            kv_tokens: Tokens that the KV cache holds, of which contexts follow where its use is
                known.
            context: Mean tokens that requests have in the KV cache before a step; None for what
                follows from the cache in use.

        Raises:
            InputError: The context is no number of tokens.
        """
        found, notes = self, [*self.notes]
        unknown = np.isnan(self.context_tokens) & (self.decode_requests > 0)
        if unknown.any() and context is not None:
            if not 0 < context < np.inf:
                raise InputError("context", f"{context} is no number of tokens", "correct it")
            found = self.with_mean_context(context)
            notes.append(f"requests have {context:g} tokens of context each")
        elif (unknown & ~np.isnan(self.kv_usage)).any():
            found = self.with_contexts(kv_tokens)
            notes.append(
                f"contexts follow from the use of {kv_tokens:g} tokens of KV cache; prefixes that "
                "requests share count once"
            )
        if (np.isnan(self.cached_tokens) & (self.prefill_requests > 0)).any():
            notes.append("nothing is said of cached tokens of prompts: none are taken")
        return replace(found, notes=tuple(notes))

    def batches(self, windows: Float[AnyArray, " windows"] = UNLIMITED) -> Batch:
        """What the steps carried, as the step model takes it.

        What is not known of the spread of requests is none: chunks are alike, and contexts are. Of
        known spread, contexts are taken to be normal where attention has a window. Nothing is
        cached of prompts, and no draft is verified, where nothing is said of them.

        Args:
            windows: Tokens that the model's attention looks back, for each of its kinds
                (`StepOps.windows`).

        Raises:
            InputError: Contexts of requests that decode are not known.
        """
        decode, prefill = self.decode_requests, self.prefill_requests
        self._refuse(
            np.isnan(self.context_tokens) & (decode > 0),
            "context_tokens",
            "are not known",
            "say how many tokens the KV cache holds, or the mean context",
        )
        query = 1 + np.nan_to_num(self.drafts)
        requests, chunks = np.maximum(decode, 1), np.maximum(prefill, 1)
        context = np.nan_to_num(self.context_tokens) / requests + np.where(decode > 0, query, 0)
        deviation = np.sqrt(np.nan_to_num(self.context_variance))
        cached = np.nan_to_num(self.cached_tokens)
        products = self.prefill_tokens * cached / chunks
        return Batch(
            decode_requests=decode,
            query_tokens=query,
            attended=decode[:, None]
            * _within(context[:, None], deviation[:, None], np.asarray(windows, float)),
            prefill_requests=prefill,
            prefill_tokens=self.prefill_tokens,
            prefill_squares=self.prefill_tokens**2 / chunks
            + prefill * np.nan_to_num(self.prefill_variance),
            cached_tokens=cached,
            cached_products=np.where(
                np.isnan(self.cached_products), products, self.cached_products
            ),
        )

    def _check(self, name: str) -> None:
        values = getattr(self, name)
        if len(values) != len(self):
            raise InputError(self.source, f"has {len(values)} of {name}", f"give {len(self)}")
        if name in _NEEDED:
            self._refuse(np.isnan(values), name, "is missing")
        self._refuse(np.isinf(values), name, "is infinite")
        self._refuse(values < 0, name, "is negative")
        if name == "seconds":
            self._refuse(values == 0, name, "is 0")
            self._refuse(
                values > _LONGEST_S, name, f"is above {_LONGEST_S:g}", "times are in seconds"
            )
        elif name == "kv_usage":
            self._refuse(values > 1, name, "is above 1")
        elif name.endswith(("requests", "tokens", "drafts")):
            self._refuse(values > _MOST, name, f"is above {_MOST:g}")
        else:
            self._refuse(values > _MOST**2, name, f"is above {_MOST**2:g}")

    def _refuse(
        self,
        wrong: Bool[np.ndarray, " steps"],
        name: str,
        problem: str,
        remedy: str = "correct it, or leave the step out",
    ) -> None:
        if wrong.any():
            step = int(np.argmax(wrong))
            value = getattr(self, name, None)
            shown = "" if value is None or np.isnan(value[step]) else f"{value[step]:g} "
            raise InputError(f"{self.source}, step {step + 1}: {name}", shown + problem, remedy)

    def __repr__(self) -> str:
        engine = (
            f"{self.engine} {self.engine_version or ''}".strip() if self.engine else "an engine"
        )
        kinds = ", ".join(f"{int(own.sum()):,} {kind}" for kind, own in self.kinds.items())
        return shown(
            self,
            f"{len(self):,} steps of {engine} ({self.source}): {kinds}",
            f"mean {1e3 * float(np.mean(self.seconds)):.4g} ms by the clock {self.clock}",
            *self.notes,
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each step; what the source does not say is NaN."""
        import pandas as pd

        return pd.DataFrame(self.columns)


COLUMNS = tuple(one.name for one in fields(MeasuredSteps) if one.type == "Column")


def _within(
    mean: Float[np.ndarray, "steps 1"],
    deviation: Float[np.ndarray, "steps 1"],
    windows: Float[np.ndarray, " windows"],
) -> Float[np.ndarray, "steps windows"]:
    """Mean of the lesser of a normal length and a window.

    E[min(X, w)] = w - (w - m) F(z) - s f(z) with z = (w - m) / s, the partial expectation of the
    normal distribution.
    """
    finite = np.where(np.isfinite(windows), windows, 0.0)
    z = (finite - mean) / np.where(deviation > 0, deviation, 1.0)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    spread = finite - (finite - mean) * ndtr(z) - deviation * density
    least = np.minimum(mean, windows)
    found = np.where((deviation > 0) & np.isfinite(windows), spread, least)
    return np.clip(found, 0.0, least)
