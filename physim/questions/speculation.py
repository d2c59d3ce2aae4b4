"""Where speculative decoding pays: time for each token with drafts and without, by the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.prediction.arrays import step_model_of
from physim.step.many_batches import total_seconds

# Requests that decode, each a quarter more than the one before.
_LARGEST, _POINTS = 1024, 32


@dataclass(frozen=True)
class Speculation:
    """What drafts gain in steps that only decode.

    Attributes:
        requests: Requests that decode.
        plain_s: Time from token to token without drafts, seconds.
        drafted_s: The same with drafts: a step's time over the tokens that it gives.
        stops_at: Requests from which on drafts make tokens slower; infinite if none do, 1 if all.
        draft_tokens: Tokens that are proposed in each step.
        accepted_length: Tokens that a step gives a request, mean.
    """

    requests: Float[np.ndarray, " n"]
    plain_s: Float[np.ndarray, " n"]
    drafted_s: Float[np.ndarray, " n"]
    stops_at: float
    draft_tokens: int
    accepted_length: float

    @property
    def gain(self) -> Float[np.ndarray, " n"]:
        """Tokens per second with drafts, over those without."""
        return self.plain_s / self.drafted_s

    @property
    def verdict(self) -> str:
        """Where drafts pay."""
        if np.isinf(self.stops_at):
            return "drafts pay at any batch"
        if self.stops_at <= 1:
            return "drafts pay at no batch"
        return f"drafts pay up to {self.stops_at:.0f} requests that decode together"

    def describe(self) -> str:
        """Where drafts pay, and how much, in a sentence."""
        first, last = (f"{gain:.2f} times as fast" for gain in (self.gain[0], self.gain[-1]))
        return f"{self.verdict}: tokens come {first} for one request, {last} for {_LARGEST}"

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "draft_tokens": self.draft_tokens,
            "accepted_length": self.accepted_length,
            "stops_at": None if np.isinf(self.stops_at) else self.stops_at,
            "requests": self.requests.tolist(),
            "plain_s": self.plain_s.tolist(),
            "drafted_s": self.drafted_s.tolist(),
        }


def speculation(case: Case, corrections: Corrections) -> Speculation:
    """What the drafts of a case's server gain, by how many requests decode.

    Contexts are those of the load's requests with half of their answers.

    Args:
        case: The case.
        corrections: Corrections of the components.

    Raises:
        InputError: Nothing proposes tokens, or there is no load.
    """
    draft, load = case.server.draft, case.demanded
    if draft is None:
        raise InputError("draft", "is not given", "say what proposes tokens")
    requests = np.geomspace(1.0, _LARGEST, _POINTS)
    context = load.mean_input + load.mean_output / 2
    # Steps without drafts are scheduled ahead, or not, as those with them are.
    plain = case.with_server(replace(case.server, draft=None))

    def step_s(case: Case) -> Float[np.ndarray, " n"]:
        model = step_model_of(case, corrections)
        layout = case.server.parallelism
        batches = model.batch(
            decode_requests=requests,
            context=np.full(_POINTS, context),
            query_tokens=np.full(_POINTS, float(case.server.query_tokens)),
            ranks=layout.dp,
        )
        return total_seconds(model, batches)

    plain_s, drafted_s = step_s(plain), step_s(case) / draft.accepted_length
    return Speculation(
        requests,
        plain_s,
        drafted_s,
        _crossing(requests, np.log(plain_s / drafted_s)),
        draft.tokens,
        draft.accepted_length,
    )


def _crossing(requests: Float[np.ndarray, " n"], log_gain: Float[np.ndarray, " n"]) -> float:
    """Requests at which a gain is lost for good; infinite if it is kept."""
    gains = np.flatnonzero(log_gain > 0)
    if not gains.size:
        return 1.0
    last = gains[-1]
    if last == len(requests) - 1:
        return np.inf
    share = log_gain[last] / (log_gain[last] - log_gain[last + 1])
    logs = np.log(requests[last : last + 2])
    return float(np.exp(logs[0] + share * (logs[1] - logs[0])))
