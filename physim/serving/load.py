"""The load that a server is put under."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physim.errors import InputError
from physim.inputs.deployment import ResolvedDeployment

ARRIVALS = ("constant", "poisson")


@dataclass(frozen=True)
class Load:
    """Requests that arrive at a server: open loop with a rate, or closed loop with a concurrency.

    Attributes:
        input_tokens: Mean prompt length, tokens.
        output_tokens: Mean generated length, tokens.
        rate: Arrivals per second (open loop).
        concurrency: Clients that send the next request when the last is answered (closed loop).
        cached_tokens: Prompt tokens that are found in the prefix cache.
        arrival: ``constant`` for evenly spaced arrivals, or ``poisson``.

    Raises:
        InputError: A figure is not positive, not finite or out of range, or both or neither of
            ``rate`` and ``concurrency`` are given.
    """

    input_tokens: float
    output_tokens: float
    rate: float | None = None
    concurrency: float | None = None
    cached_tokens: float = 0.0
    arrival: str = "constant"

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise InputError("load", "needs a rate or a concurrency, one of them", "give one")
        for field in ("input_tokens", "output_tokens", "rate", "concurrency"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(field, f"{value} is not positive", "correct it")
        for field in ("input_tokens", "output_tokens", "concurrency"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InputError(field, f"{value} is below 1", "correct it")
        if not 0 <= self.cached_tokens <= self.input_tokens:
            raise InputError(
                "cached_tokens",
                f"{self.cached_tokens} is not between 0 and the input's {self.input_tokens}",
                "correct it",
            )
        if self.arrival not in ARRIVALS:
            raise InputError(
                "arrival", f"{self.arrival!r} is unknown", f"known are {', '.join(ARRIVALS)}"
            )

    def check_fits(self, deployment: ResolvedDeployment) -> None:
        """Refuses a request that the engine could never run.

        Raises:
            InputError: It is longer than max_model_len or than the KV cache.
        """
        length = self.input_tokens + self.output_tokens
        if length > deployment.max_model_len:
            raise InputError(
                "input and output",
                f"{length:g} tokens exceed max_model_len {deployment.max_model_len}",
                "shorten them or raise max_model_len",
            )
        capacity = deployment.kv_blocks * deployment.block_size
        if length > capacity:
            raise InputError(
                "input and output",
                f"{length:g} tokens exceed the KV cache of {capacity} tokens",
                "shorten them, raise tp, or take a larger GPU",
            )
