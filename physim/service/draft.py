"""Speculative decoding: what proposes tokens, and how many of them the model accepts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Num

from physim.mixers.mixer import Mixer
from physim.models.architecture import ModelArch
from physim.models.formats import BYTES_16_BIT


@dataclass(frozen=True)
class Draft:
    """What proposes tokens that the model then verifies, all of a step at once.

    A step gives a request the proposed tokens up to the first that is refused, and one of the
    model's own in its place or after the last (Leviathan, Kalman and Matias, ICML 2023).

    Attributes:
        method: Of `physim.models.drafts.METHODS`: layers of the model that predict further tokens
            (MTP), a layer that was trained for it (EAGLE-3), a smaller model, or a search in what
            was written (n-gram).
        acceptance: Chance that all proposed tokens up to each are accepted, by position.
        content: What was written where that was measured; empty where the user gave it.
        model: The layers that propose, as a model of their own; None where none do.
        shares_embeddings: Whether it has the model's own embedding and lm_head.
    """

    method: str
    acceptance: tuple[float, ...]
    content: str = ""
    model: ModelArch | None = None
    shares_embeddings: bool = False

    def describe(self) -> str:
        """What proposes how many tokens, and how many come of a step."""
        measured = f" on {self.content}" if self.content else ""
        return (
            f"{self.method} with {self.tokens} draft tokens, {self.accepted_length:.3g} tokens a "
            f"step{measured}"
        )

    @property
    def layers(self) -> Mapping[Mixer, int]:
        """Each attention of its layers, and how many have it."""
        return self.model.attention_layers if self.model else {}

    def added_bytes(self, weight_bytes: Callable[[ModelArch], float], tp: int) -> float:
        """Bytes of weights that it adds to a GPU.

        Args:
            weight_bytes: Bytes of a model's weights on a GPU.
            tp: GPUs that share every layer.
        """
        if self.model is None:
            return 0.0
        shared = self.model.embedding_parameters * BYTES_16_BIT / tp
        return weight_bytes(self.model) - self.shares_embeddings * shared

    @property
    def named(self) -> str | None:
        """The name of a model of its own; None where it is the model's own, or none."""
        return None if self.model is None or self.shares_embeddings else self.model.name

    @property
    def tokens(self) -> int:
        """Tokens that it proposes in each step, for each request."""
        return len(self.acceptance)

    @property
    def accepted_length(self) -> float:
        """Tokens that a step gives a request, mean: those that are accepted and one more."""
        return 1.0 + sum(self.acceptance)

    @property
    def variance(self) -> float:
        """Variance of the tokens that a step gives a request."""
        squares = sum((2 * place + 1) * chance for place, chance in enumerate(self.acceptance))
        mean = sum(self.acceptance)
        return max(squares - mean**2, 0.0)

    @property
    def chances(self) -> tuple[float, ...]:
        """Chance that a step gives a request one token, two, and so on up to all and one more."""
        reached = (1.0, *self.acceptance, 0.0)
        return tuple(now - later for now, later in itertools.pairwise(reached))

    def steps(self, tokens: Num[np.ndarray, "*n"]) -> Num[np.ndarray, "*n"]:
        """Steps that give a request so many tokens, mean.

        The last step gives more than are left by ``(E[X^2] / E[X] - 1) / 2`` on average, of the
        tokens ``X`` of a step (Cox, Renewal Theory, 1962), and a step gives one at least.

        Args:
            tokens: Tokens that it is given while it decodes.
        """
        mean = self.accepted_length
        beyond = ((self.variance + mean**2) / mean - 1.0) / 2
        return np.minimum(np.maximum((tokens + beyond) / mean, 1.0), tokens)


def drafted(draft: Draft | None) -> int:
    """Tokens that are proposed in each step for a request: none where there is no draft."""
    return 0 if draft is None else draft.tokens
