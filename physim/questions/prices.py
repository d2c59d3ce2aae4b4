"""Prices of GPUs, and of what they generate."""

from __future__ import annotations

import math
from collections.abc import Mapping

from physim.errors import InputError
from physim.service.hardware import load_hardware
from physim.service.service import Service


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


def hourly_price(prices: Mapping[str, float], service: Service) -> float | None:
    """The price of a service for an hour; None where that of a GPU of it is not known.

    Args:
        prices: Of one GPU for an hour, by its key.
        service: The service.
    """
    known = [prices.get(pool.server.gpu.key) for pool in service.pools]
    priced = [price for price in known if price is not None]
    if len(priced) < len(known):
        return None
    return sum(price * pool.gpus for price, pool in zip(priced, service.pools, strict=True))


def per_million_tokens(hour: float | None, tokens_per_s: float) -> float | None:
    """The price of a million generated tokens; None without a price.

    Args:
        hour: Of what generates them, for an hour.
        tokens_per_s: How fast.
    """
    return None if hour is None else hour / 3600 / tokens_per_s * 1e6
