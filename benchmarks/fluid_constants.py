"""Chosen numbers of the fluid's modules: where they stand, what they mean, and what is near them.

A chosen number is one that a module gives a name, alone, in a tuple or within an array. Of a name
that is computed, 0, 1, 2 and a half are form: `len(GROUPS) // 2` chooses nothing. Nor do numbers of
published schemes and closed forms (`FORMS`) and enumerations (`A, B = range(2)`). Within functions
only form may stand (`inline`). Numbers are changed in a copy of the source, so that whatever is
computed of them on import changes too, and what was compiled for others is not met.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Rooms whose numbers are the fluid's.
ROOMS = ("batching", "fluid")

Number = int | float

# What is form wherever it stands, with either sign: and 100, of percentages.
PLAIN = {0, 0.5, 1, 2, 100}
# Modules, names and functions whose other numbers are nobody's choice, and why.
FORMS = {
    "rosenbrock": "Rodas3, a published method",
    "batch_statistics.GOLDEN": "the golden ratio",
    "batch_statistics.square_of_range": "an even distribution's variance",
    "arrival_numbers._NODES": "a quadrature of a closed form, of which a test holds the error",
    "arrival_numbers._POWER": "the same",
    "arrival_numbers._PHASES": "the same",
    "arrival_numbers._MOST_BEFORE": "the same",
    "arrival_numbers._MOMENTS": "Gauss's rule",
    "arrival_numbers._WITHIN": "Lobatto's rule",
    "arrival_numbers._OF_WITHIN": "its weights",
    "arrival_numbers._of_all_spaced": "sums of whole numbers and of their squares",
    "percentiles._EVENLY": "places at which a mean is taken",
    "distributions._DEGREE": "terms of a series with all digits of 64 bit",
    "distributions._NARROW": "a published fit to the Weibull distribution",
    "batch_statistics.decoding": "roots of the second Charlier polynomial",
    "benchmark.benchmark": "the mean of a square",
    "ending._longest": "Wilson and Hilferty's cube root",
    "percentiles.lattice": "the kernel of Sloan and Reztsov",
    "queueing.wait_for_tokens": "the sum of squares",
    "kind_times._of_fullest": "Blom's quantile of the largest of some normal numbers",
    "rounds.density_of": "the overlap of two normal distributions",
    "table_look_up.cubic": "Catmull and Rom's cubic",
    "transient._given_up": "a logistic curve of slope one",
    "transient._lesser": "the root of a quadratic",
    "transient._by_tokens": "the root of a quadratic",
}


@dataclass(frozen=True)
class Constant:
    """A named number, or several in a tuple or an array.

    Attributes:
        module: File of its module, without ``.py``.
        name: Its name there.
        text: What the source says.
        values: The numbers.
        meaning: The comment above it, or behind it.
        spans: Where each of them begins and ends in the source, characters.
    """

    module: str
    name: str
    text: str
    values: tuple[Number, ...]
    meaning: str
    spans: tuple[tuple[int, int], ...]

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    def changed(self, up: bool) -> tuple[Number, ...]:
        """The numbers with each about twice as large, or half; see `near`."""
        return tuple(near(value, up) for value in self.values)

    def within(self, source: str, values: tuple[Number, ...]) -> str:
        """The module's source with other numbers in its place."""
        for (begin, end), value in reversed(list(zip(self.spans, values, strict=True))):
            source = f"{source[:begin]}({value!r}){source[end:]}"
        return source


def near(value: Number, up: bool) -> Number:
    """Twice or half of a number; of one between 0 and 1, the number of twice or half the odds.

    Whole numbers stay whole, and at least one.
    """
    if isinstance(value, int):
        return 2 * value if up else (value + 1) // 2
    factor = 2.0 if up else 0.5
    if 0 < value < 1:
        return factor * value / (1 - value + factor * value)
    return factor * value


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The fluid's modules, by name.

    Args:
        root: Where the package stands.
    """
    rooms = (root / "physim" / room for room in ROOMS)
    return {path.stem: path for room in rooms for path in sorted(room.glob("*.py"))}


def constants(root: Path = ROOT) -> list[Constant]:
    """The constants of all the fluid's modules.

    Args:
        root: Where the package stands.
    """
    found = (constants_of(name, path.read_text()) for name, path in modules(root).items())
    return [one for some in found for one in some]


def constants_of(module: str, source: str) -> Iterator[Constant]:
    """The constants of a module."""
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]

    def place(line: int, column: int) -> int:
        # Columns count bytes of UTF-8.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign) or _enumerates(statement):
            continue
        (target,) = statement.targets
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=True))
        for name, node in pairs:
            if not isinstance(name, ast.Name) or {module, f"{module}.{name.id}"} & set(FORMS):
                continue
            numbers = _numbers(node)
            if not _of_numbers_alone(node):
                numbers = [one for one in numbers if abs(_value(one)) not in PLAIN]
            if not numbers:
                continue
            yield Constant(
                module=module,
                name=name.id,
                text=ast.get_source_segment(source, node) or "",
                values=tuple(_value(one) for one in numbers),
                meaning=_meaning(lines, statement),
                spans=tuple(
                    (
                        place(one.lineno, one.col_offset),
                        place(one.end_lineno or 0, one.end_col_offset or 0),
                    )
                    for one in numbers
                ),
            )


def inline(module: str, source: str) -> Iterator[str]:
    """Numbers within functions and classes that are not form: ``module.function: number``."""
    if module in FORMS:
        return
    for statement in ast.parse(source).body:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        parts = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for part in parts:
            name = part.name if isinstance(part, ast.FunctionDef) else statement.name
            if f"{module}.{name}" in FORMS:
                continue
            for number in _written(part):
                if number not in PLAIN:
                    yield f"{module}.{name}: {number}"


def _written(node: ast.AST) -> Iterator[Number]:
    """The numbers within, but for indices."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    for field, child in ast.iter_fields(node):
        if not (isinstance(node, ast.Subscript) and field == "slice"):
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST):
                    yield from _written(one)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_arithmetic(node: ast.AST) -> bool:
    """Whether an expression is of written numbers alone."""
    if isinstance(node, ast.BinOp):
        return _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return _is_arithmetic(node.operand) if isinstance(node, ast.UnaryOp) else _is_number(node)


def _numbers(node: ast.AST) -> list[ast.expr]:
    """The largest parts of an expression that are of written numbers alone, in order."""
    if isinstance(node, ast.expr) and _is_arithmetic(node):
        return [node]
    return [one for child in ast.iter_child_nodes(node) for one in _numbers(child)]


def _of_numbers_alone(node: ast.AST) -> bool:
    """Whether it is a number or a flat tuple of them."""
    return all(map(_is_arithmetic, node.elts if isinstance(node, ast.Tuple) else [node]))


def _value(node: ast.expr) -> Number:
    value: Number = eval(ast.unparse(node), {"__builtins__": {}})
    return value


def _enumerates(statement: ast.Assign) -> bool:
    """Whether it gives names to the numbers from 0 on."""
    named = isinstance(statement.targets[0], ast.Tuple)
    return named and any(
        isinstance(node, ast.Name) and node.id == "range" for node in ast.walk(statement.value)
    )


def _meaning(lines: list[str], statement: ast.Assign) -> str:
    """The comment behind a statement, or else right above it."""
    _, _, behind = lines[(statement.end_lineno or statement.lineno) - 1].partition("#")
    if behind:
        return behind.strip()
    above = statement.lineno - 2
    comment: list[str] = []
    while above >= 0 and lines[above].startswith("#"):
        comment.insert(0, lines[above].lstrip("#").strip())
        above -= 1
    return " ".join(comment)


def copy_with(constant: Constant | None, values: tuple[Number, ...], into: Path) -> None:
    """Copies the package into a folder, with other numbers for a constant.

    Data folders beside the package are linked.
    """
    shutil.copytree(
        ROOT / "physim", into / "physim", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    for beside in ROOT.iterdir():
        if beside.is_dir() and beside.name != "physim" and not beside.name.startswith("."):
            (into / beside.name).symlink_to(beside)
    if constant is not None:
        place = modules(into)[constant.module]
        source = place.read_text()
        found = list(constants_of(constant.module, source))
        if constant not in found:
            raise RuntimeError(f"{place}: {constant.name} is not where it was")
        place.write_text(constant.within(source, values))
