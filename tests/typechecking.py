"""The run-time type checker of the tests: an integer is a float, as the type system has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

_jaxtyped = jaxtyping.jaxtyped


def _outermost(*, typechecker: Any) -> Callable[[Any], Any]:
    """The decorator of jaxtyping's import hook, but for functions within functions.

    Those would be checked by code that is made anew each time the outer function is called, which
    takes a hundred times as long as most of them run.
    """
    decorate = _jaxtyped(typechecker=typechecker)

    def decorated(one: Any) -> Any:
        return one if "<locals>" in getattr(one, "__qualname__", "") else decorate(one)

    return decorated


jaxtyping.jaxtyped = _outermost
