"""Conditions on the columns of a table, such as ``tp == 2 and model.str.contains('Qwen3')``.

A condition is parsed, checked and worked out here, by its own rules: columns, numbers, text and
lists, comparisons, ``and``, ``or``, ``not``, and three searches in text. Nothing of it is run as
code.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from physim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Characters of a condition; what is longer is a mistake, or meant to take long.
_MOST = 2000
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SEARCHES = ("contains", "startswith", "endswith")
# Of a regular expression: searches are for text as it stands.
_SPECIAL = "|*^$\\"


class _ConditionError(Exception):
    """What is wrong with a condition, in words."""


def filtered(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The rows for which a condition over the columns holds.

    Args:
        frame: A table.
        where: Columns, numbers, text in quotes and lists of either, compared by ``== != < <= > >=
            in`` and ``not in``; ``column.str.contains('text')``, ``startswith`` and ``endswith``;
            all joined by ``and``, ``or`` (``&``, ``|``), ``not`` (``~``) and parentheses. What is
            empty is unlike everything.

    Raises:
        InputError: The condition is none, or holds for no row.
    """
    place = f"where {where if len(where) <= 80 else where[:77] + '...'!r}"
    try:
        holds = _truth(frame, _parsed(where))
    except _ConditionError as wrong:
        raise InputError(
            place, str(wrong), f"columns: {', '.join(map(str, frame.columns))}"
        ) from None
    except RecursionError:
        raise InputError(place, "is nested too deeply", "simplify it") from None
    if not holds.any():
        raise InputError(place, "holds for no row", "relax it")
    return frame.loc[holds]


def _parsed(where: str) -> ast.expr:
    if len(where) > _MOST:
        raise _ConditionError(f"has {len(where)} characters, and {_MOST} are the most")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of odd escapes in text
            return ast.parse(where.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        raise _ConditionError("is not a condition over the columns") from None


def _truth(frame: pd.DataFrame, node: ast.expr) -> np.ndarray:
    """For each row whether a condition holds."""
    match node:
        case ast.BoolOp(op, values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return join.reduce([_truth(frame, value) for value in values])
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr() as op, right):
            join = np.logical_and if isinstance(op, ast.BitAnd) else np.logical_or
            return join(_truth(frame, left), _truth(frame, right))
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            return ~_truth(frame, operand)
        case ast.Compare(left, ops, others):
            sides = [left, *others]
            found = [
                _compared(frame, one, op, other)
                for one, op, other in zip(sides, ops, sides[1:], strict=False)
            ]
            return np.logical_and.reduce(found)
        case ast.Call(
            ast.Attribute(ast.Attribute(ast.Name(column), "str"), search),
            [ast.Constant(str(text))],
            [],
        ) if search in _SEARCHES:
            return _found(_column(frame, column), column, search, text)
        case ast.Name(column) if _kind(_column(frame, column)) == "flag":
            return _column(frame, column).fillna(False).to_numpy(bool)
    raise _ConditionError(f'{_shown(node)} is not a condition on rows; write one such as "tp == 2"')


def _compared(frame: pd.DataFrame, left: ast.expr, op: ast.cmpop, right: ast.expr) -> np.ndarray:
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set):
            raise _ConditionError(f"{_shown(right)} is not a list, such as [1, 2]")
        equal = [_compared(frame, left, ast.Eq(), one) for one in right.elts]
        among = np.logical_or.reduce(equal) if equal else np.zeros(len(frame), bool)
        return among if isinstance(op, ast.In) else ~among
    if type(op) not in _COMPARE:
        raise _ConditionError("compares by `is`; write ==")
    one, other = _value(frame, left), _value(frame, right)
    kinds = {_kind(one), _kind(other)}
    if "text" in kinds and len(kinds) > 1:
        raise _ConditionError(
            f"{_shown(left)} and {_shown(right)} are not both text, or both numbers"
        )
    found = _COMPARE[type(op)](one, other)
    if isinstance(found, bool):
        raise _ConditionError(f"{_shown(left)} and {_shown(right)} are no columns")
    # What is empty is unlike everything. Only columns of text or flags leave it open.
    return found.fillna(isinstance(op, ast.NotEq)).to_numpy(bool)


def _found(column: pd.Series[Any], name: str, search: str, text: str) -> np.ndarray:
    if _kind(column) != "text":
        raise _ConditionError(f"{name} is not text")
    if any(sign in text for sign in _SPECIAL):
        raise _ConditionError(
            f"{text!r} is searched as it stands, without {' '.join(_SPECIAL)}; use `or`"
        )
    strings = column.fillna("").astype(str)
    if search == "contains":
        return strings.str.contains(text, regex=False).to_numpy(bool)
    ends = strings.str.startswith if search == "startswith" else strings.str.endswith
    return ends(text).to_numpy(bool)


def _value(frame: pd.DataFrame, node: ast.expr) -> Any:
    """A column, or a number, text or flag."""
    match node:
        case ast.Name(name):
            return _column(frame, name)
        case ast.Constant(str() | int() | float() as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
    raise _ConditionError(f"{_shown(node)} is neither a column nor a number nor text in quotes")


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in frame:
        raise _ConditionError(f"{name} is not a column")
    return frame[name]


def _kind(value: Any) -> str:
    """Whether a column or a literal holds text, numbers or flags."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | int | float):
        return "flag" if isinstance(value, bool) else "number"
    return "flag" if is_bool_dtype(value) else "number" if is_numeric_dtype(value) else "text"


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."
