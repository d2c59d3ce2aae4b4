"""Prefixes that come up from the host's memory with the steps that compute the prompts' rest."""

from __future__ import annotations

import jax.numpy as jnp

from physim.pytree import Pytree
from physim.types import Scalar


class StepLoads(Pytree):
    """What prompts load with their step, where the engine does not load apart from steps.

    Attributes:
        share: Share of the prompts that load their prefix.
        load_s: What each of them takes of the link, seconds.
        layered: Whether a layer's blocks come up while the one before is computed, so that a step
            takes the longer of both; else a step begins when all are there. 0 or 1.
    """

    share: Scalar
    load_s: Scalar
    layered: Scalar

    def seconds(self, prompts: Scalar, computing_s: Scalar) -> Scalar:
        """How much longer a step is for it, mean, seconds.

        Args:
            prompts: Prompts in the step.
            computing_s: The time of the step without.
        """
        loading_s = prompts * self.load_s
        beyond_s = jnp.where(self.layered > 0, jnp.maximum(loading_s - computing_s, 0.0), loading_s)
        return self.share * beyond_s
