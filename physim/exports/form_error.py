"""How far a form of step times is off: from physim's steps, and from a replay on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from physim.exports.subject import SHARES, Subject, case_at
from physim.prediction.replayed import config_of
from physim.replay.cluster import replay
from physim.replay.step_times import DecodeRuns, ModelStepTimes, StepTimes
from physim.replay.workload import drawn
from physim.tables.operating_region import operating_region

Steps = Float[np.ndarray, " rows"]
# Seconds of steps, of requests that decode, tokens that they attend to, summed, prompts, and their
# new tokens, summed.
Form = Callable[[Steps, Steps, Steps, Steps], Steps]
# Requests that are replayed at each load, and the seed that draws them.
_REQUESTS, _SEED = 2000, 0


@dataclass(frozen=True)
class LoadError:
    """A replay that takes its steps from a form, against physim's at the same load.

    Attributes:
        share: Share of saturation throughput.
        rate_rps: Requests per second.
        itl_pct: Error of the mean inter-token latency, signed.
        ttft_pct: Error of the mean TTFT, signed.
    """

    share: float
    rate_rps: float
    itl_pct: float
    ttft_pct: float


@dataclass(frozen=True)
class FormError:
    """Errors of a form.

    Attributes:
        median_pct: Median absolute error of the time of steps under the three loads.
        worst_pct: The largest, of steps that are a thousandth of all or more.
        loads: Errors of replays, one for each of `SHARES`.
    """

    median_pct: float
    worst_pct: float
    loads: tuple[LoadError, ...]

    def to_dict(self) -> dict[str, Any]:
        """The errors as plain values."""
        return dataclasses.asdict(self) | {"loads": [vars(one) for one in self.loads]}


@dataclass(frozen=True)
class Walk:
    """Steps that the engine goes through under the three loads.

    Attributes:
        decodes: Requests that decode.
        attended: Tokens that they attend to, summed.
        prompts: Prompts of the step.
        tokens: Their new tokens, summed.
        seconds: Its time.
        share: Its share of all steps; they sum to one.
    """

    decodes: Steps
    attended: Steps
    prompts: Steps
    tokens: Steps
    seconds: Steps
    share: Steps


class FormStepTimes:
    """A form as the step times of a replay (`physim.replay.step_times.StepTimes`).

    Args:
        form: The form.
        max_context: Longest context, tokens.
    """

    def __init__(self, form: Form, max_context: int) -> None:
        self._form = form
        self._decodes = DecodeRuns(self._seconds, max_context)

    def step(
        self,
        *,
        decode_requests: int,
        decode_context: int,
        prefill_requests: int,
        prefill_tokens: int,
        **_: int,
    ) -> float:
        """Seconds of a step."""
        sums = (decode_requests, decode_context, prefill_requests, prefill_tokens)
        return float(self._form(*(np.array([one], float) for one in sums))[0])

    def decode(
        self,
        requests: int,
        context: int,
        steps: int,
        until_s: float,
        elsewhere: int = 0,  # noqa: ARG002
    ) -> tuple[int, float, float]:
        """A run of decode-only steps."""
        return self._decodes.run(requests, context, steps, until_s)

    def _seconds(self, requests: int, contexts: Steps) -> Steps:
        none = np.zeros_like(contexts)
        return self._form(np.full_like(contexts, requests), requests * contexts, none, none)


def walk_of(subject: Subject) -> Walk:
    """The steps of a subject under its three loads, each load counting alike.

    Args:
        subject: What is exported.
    """
    parts = []
    for found in subject.loads:
        assert found.load is not None
        case = case_at(subject.case, float(found.load.rate or 0.0))
        region = operating_region(case, subject.steps, subject.corrections)
        batch = region.batches
        columns = (
            batch.decode_requests,
            np.asarray(batch.attended)[:, -1],
            batch.prefill_requests,
            batch.prefill_tokens,
            region.seconds,
            region.share / len(subject.loads),
        )
        parts.append(np.stack([np.broadcast_to(one, region.seconds.shape) for one in columns]))
    return Walk(*np.concatenate(parts, axis=1))


def form_error(subject: Subject, form: Form, walk: Walk) -> FormError:
    """How far a form is off.

    Args:
        subject: What is exported.
        form: Seconds of steps.
        walk: The subject's steps, of `walk_of`.
    """
    found = form(walk.decodes, walk.attended, walk.prompts, walk.tokens)
    off = 100 * np.abs(found / walk.seconds - 1)
    order = np.argsort(off)
    middle = order[np.searchsorted(np.cumsum(walk.share[order]), 0.5)]
    loads = tuple(
        _replayed(subject, form, share, float(load.load.rate or 0.0))
        for share, load in zip(SHARES, subject.loads, strict=True)
        if load.load is not None
    )
    often = walk.share >= min(1e-3, float(walk.share.max()))
    return FormError(round(float(off[middle]), 2), round(float(off[often].max()), 2), loads)


def _replayed(subject: Subject, form: Form, share: float, rate: float) -> LoadError:
    case = case_at(subject.case, rate)
    load = dataclasses.replace(case.demanded, requests=_REQUESTS)
    sizes, config = case.server.sizes, config_of(case, subject.corrections)
    longest = drawn(load, case.server, _SEED).longest
    own = ModelStepTimes(subject.steps, sizes.max_num_seqs, sizes.max_num_batched_tokens, longest)
    times: list[StepTimes] = [own, FormStepTimes(form, longest)]
    (itl, ttft), (form_itl, form_ttft) = (
        _latencies(replay(drawn(load, case.server, _SEED), one, config).to_frame()) for one in times
    )
    return LoadError(
        share,
        rate,
        round(100 * (form_itl / itl - 1), 2),
        round(100 * (form_ttft / ttft - 1), 2),
    )


def _latencies(frame: Any) -> tuple[float, float]:
    """Mean time between tokens and mean TTFT, seconds."""
    gaps = float((frame["output_tokens"] - 1).clip(lower=0).sum())
    return float((frame["e2e_s"] - frame["ttft_s"]).sum()) / max(gaps, 1.0), float(
        frame["ttft_s"].mean()
    )
