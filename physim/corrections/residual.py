"""A small learned factor for what the named corrections cannot say, bounded and zero at first."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.pytree import Pytree
from physim.types import AnyArray, Scalar

# What the network sees of a step; all are of order one.
FEATURES = ("intensity", "memory_bound", "tokens", "tensor_parallel", "expert_activity")
# Largest share by which it may lengthen or shorten what it multiplies.
LIMIT = 0.10
_UNITS = 4


class Residual(Pytree):
    """A network of one hidden layer whose output multiplies the work on all tokens of a step.

    The factor is ``exp(LIMIT * tanh(output . tanh(hidden f + bias)))``, one wherever ``output`` is
    zero, as it is at first, and within `LIMIT` everywhere. Its features have no units, so they mean
    the same for every model and GPU.

    Attributes:
        hidden: Weights of the hidden units.
        bias: Their biases.
        output: Weights of the output.
    """

    hidden: Float[AnyArray, "units features"]
    bias: Float[AnyArray, " units"]
    output: Float[AnyArray, " units"]

    @classmethod
    def silent(cls) -> Residual:
        """The network before any fit: its factor is one."""
        draws = np.random.default_rng(0).normal(size=(_UNITS, len(FEATURES) + 1))
        return cls(draws[:, 1:], draws[:, 0], np.zeros(_UNITS))

    @classmethod
    def widths(cls, inner: float, output: float) -> Residual:
        """Standard deviations of priors, the same for all inner weights and for all outputs."""
        silent = cls.silent()
        return cls(
            np.full_like(silent.hidden, inner),
            np.full_like(silent.bias, inner),
            np.full_like(silent.output, output),
        )

    def log_factor(self, features: Float[AnyArray, " features"]) -> Scalar:
        """Logarithm of the factor.

        Args:
            features: In the order of `FEATURES`.
        """
        units = jnp.tanh(self.hidden @ features + self.bias)
        return LIMIT * jnp.tanh(self.output @ units)


def features(
    intensity: Scalar, memory_bound: Scalar, tokens: Scalar, gpus: Scalar, activity: Scalar
) -> Float[AnyArray, " features"]:
    """What the network sees, scaled to order one.

    Args:
        intensity: Arithmetic intensity of the matrix products over that at which the GPU's FLOP/s
            and bandwidth balance.
        memory_bound: Share of their roofline time that memory takes.
        tokens: Tokens of the step, at least one.
        gpus: Tensor-parallel degree.
        activity: Share of the experts that the step's tokens visit; 0 for a dense model.
    """
    scaled = (
        jnp.log10(intensity),
        2 * memory_bound - 1,
        jnp.log10(tokens) / 2 - 1,
        jnp.log2(gpus) - 1,
        activity,
    )
    return jnp.stack([jnp.asarray(value) for value in scaled])
