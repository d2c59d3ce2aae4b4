"""How the tokens of a step spread over the experts of a layer."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.fields import Corrections
from physim.grids.efficiency import hat_weights
from physim.step.curves import SPREADS
from physim.types import AnyArray, Number, Scalar

# All experts are taken to be visited where a hundredth is left.
_LEFT = 0.01


def independent_tokens(tokens: Number, corrections: Corrections) -> Number:
    """Tokens that, choosing experts on their own, would visit as many as a step's tokens do.

    Args:
        tokens: Tokens of the step.
        corrections: Corrections, of which ``expert_independence`` is the logarithm of the exponent:
            with alike requests ``T^0.9`` of ``T`` tokens, say.
    """
    exponent = jnp.exp(corrections.expert_independence)
    return tokens * jnp.maximum(tokens, 1.0) ** (exponent - 1)


def full_at(share: Number) -> Number:
    """Tokens that visit all experts of a layer, but for a hundredth.

    Args:
        share: Share of the experts that a token visits.
    """
    return np.log(_LEFT) / jnp.log1p(-jnp.clip(share, 1e-6, 1 - _LEFT))


def looked_up_tokens(
    tokens: Scalar, independent: Scalar, share: Float[AnyArray, " kinds"]
) -> Float[AnyArray, " kinds"]:
    """Tokens at which the time of expert layers is looked up, for each kind of them.

    Until all experts are visited, those that visit as many; beyond, when only computing grows, all.
    It rises with the tokens.

    Args:
        tokens: Tokens of the step.
        independent: Those that choose on their own.
        share: Share of the experts that a token visits.
    """
    full = full_at(share)
    some = jnp.maximum(tokens, 1.0)
    return tokens * jnp.minimum(independent, full) / jnp.minimum(some, full)


def spread_weights(spread: Scalar, corrections: Corrections) -> Float[AnyArray, " spreads"]:
    """Weights of the measured spreads in the interpolation at one, held at the ends.

    No load is more even than an even one: below 0 nothing changes, and at 0 the derivative is that
    towards uneven loads.

    Args:
        spread: Exponent of the power law by which experts are chosen, 0 where they share evenly.
        corrections: Corrections, of which ``expert_spread`` is added to it.
    """
    # Axes are logarithmic, and this one is not.
    return hat_weights(np.exp(SPREADS), jnp.exp(spread + corrections.expert_spread))
