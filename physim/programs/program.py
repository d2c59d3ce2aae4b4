"""A program, how long it takes, and its form in a file."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from physim.programs.operations import NAMES


class UnwrittenError(Exception):
    """What JAX traced has no program."""


@dataclass(frozen=True)
class Program:
    """A function of arrays as Python on NumPy.

    Attributes:
        code: What defines it, by the name of ``run``.
        constants: Arrays that it names.
        kinds: Types of its arguments' numbers.
        lines: How many lines it has, loops once.
        work_s: About how long a call takes, seconds.
    """

    code: CodeType
    constants: Mapping[str, Any]
    kinds: Sequence[str]
    lines: int
    work_s: float

    @classmethod
    def from_text(cls, text: str, **others: Any) -> Program:
        """A program from Python that defines ``run``.

        Args:
            text: It.
            **others: The other attributes.
        """
        return cls(compile(text, "<program>", "exec"), **others)

    def run(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the function finds.

        Args:
            leaves: Its arguments.
        """
        # What JAX computes beyond a function's domain is no number either, without a word.
        with np.errstate(all="ignore"):
            arrays = map(np.asarray, leaves, self.kinds)
            return [np.asarray(one) for one in self._function(*arrays)]

    @cached_property
    def _function(self) -> Callable[..., list[Any]]:
        names = {**NAMES, **self.constants}
        exec(self.code, names)
        run: Callable[..., list[Any]] = names["run"]
        return run

    def to_bytes(self) -> bytes:
        """The program as bytes, for the same version of Python."""
        arrays = {
            name: (one.dtype.str, np.shape(one), np.asarray(one).tobytes())
            for name, one in self.constants.items()
        }
        return marshal.dumps((self.code, arrays, tuple(self.kinds), self.lines, self.work_s))

    @classmethod
    def from_bytes(cls, content: bytes) -> Program:
        """The program that `to_bytes` wrote, which must be known to have done so."""
        code, arrays, *others = marshal.loads(content)
        constants = {
            name: np.frombuffer(numbers, kind).reshape(shape)[()]
            for name, (kind, shape, numbers) in arrays.items()
        }
        return cls(code, constants, *others)
