"""Prices of GPUs, as commands take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

Price = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU=PRICE", help="Price of one GPU for an hour: h100_sxm=2.5. May be repeated."
    ),
]


def prices_in(texts: Sequence[str] | None) -> dict[str, float]:
    """Prices by the names of GPUs.

    Raises:
        InputError: A text is no price.
    """
    from physim.errors import InputError

    prices = {}
    for text in texts or ():
        gpu, _, value = text.partition("=")
        try:
            prices[gpu.strip()] = float(value)
        except ValueError as error:
            raise InputError(
                f"price {text!r}", "is not a price", "write it like h100_sxm=2.5"
            ) from error
    return prices
