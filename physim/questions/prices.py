"""Prices of GPUs, and of what they generate."""

from __future__ import annotations

import math
from collections.abc import Mapping

from physim.errors import InputError
from physim.service.hardware import load_hardware


def hourly_prices(prices: Mapping[str, float] | None) -> dict[str, float]:
    """Prices of one GPU for an hour by its key, whatever it is called here.

    Raises:
        InputError: A GPU is unknown, or its price is not positive.
    """
    found = {load_hardware(gpu).key: price for gpu, price in (prices or {}).items()}
    for gpu, price in found.items():
        if not (math.isfinite(price) and price > 0):
            raise InputError(f"price of {gpu}", f"{price:g} is not positive", "correct it")
    return found


def per_million_tokens(price: float | None, gpus: int, tokens_per_s: float) -> float | None:
    """The price of a million generated tokens; None without a price.

    Args:
        price: Of one GPU for an hour.
        gpus: GPUs that generate them.
        tokens_per_s: How fast.
    """
    return None if price is None else price * gpus / 3600 / tokens_per_s * 1e6
