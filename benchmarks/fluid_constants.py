"""Named numbers of the fluid's modules: where they stand, what they mean, and what is near them.

A constant is a name that begins with an underscore and that a module gives a number, or a tuple of
numbers, written out. Numbers are changed in a copy of the source, so that whatever is computed of
them on import changes too, and what was compiled for others is not met.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLUID = ROOT / "physim" / "fluid"

Number = int | float


@dataclass(frozen=True)
class Constant:
    """A named number, or a tuple of them.

    Attributes:
        module: File of its module, without ``.py``.
        name: Its name there.
        text: What the source says.
        values: The numbers.
        meaning: The comment above it, or behind it.
        begin: Where the text begins in the source, a character,
        end: and where it ends.
    """

    module: str
    name: str
    text: str
    values: tuple[Number, ...]
    meaning: str
    begin: int
    end: int

    @property
    def full_name(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    def changed(self, up: bool) -> tuple[Number, ...]:
        """The numbers with each about twice as large, or half; see `near`."""
        return tuple(near(value, up) for value in self.values)

    def text_of(self, values: tuple[Number, ...]) -> str:
        """The source of other numbers in its place."""
        return repr(values) if isinstance(_value(self.text), tuple) else f"({values[0]!r})"


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


def constants(folder: Path = FLUID) -> list[Constant]:
    """The constants of all modules in a folder."""
    found = (constants_of(path.stem, path.read_text()) for path in sorted(folder.glob("*.py")))
    return [one for some in found for one in some]


def constants_of(module: str, source: str) -> Iterator[Constant]:
    """The constants of a module."""
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign):
            continue
        (target,) = statement.targets
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=True))
        for name, node in pairs:
            text = ast.get_source_segment(source, node) or ""
            value = _value(text)
            if not isinstance(name, ast.Name) or not name.id.startswith("_") or value is None:
                continue
            # Columns count bytes of UTF-8.
            line = lines[node.lineno - 1].encode()
            begin = starts[node.lineno - 1] + len(line[: node.col_offset].decode())
            yield Constant(
                module=module,
                name=name.id,
                text=text,
                values=value if isinstance(value, tuple) else (value,),
                meaning=_meaning(lines, statement),
                begin=begin,
                end=begin + len(text),
            )


def _value(text: str) -> Number | tuple[Number, ...] | None:
    """The number or the flat tuple of numbers that an expression of numbers alone is."""
    tree = ast.parse(f"({text}\n)", mode="eval")
    plain = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(n, (*plain, ast.Tuple, ast.Load)) for n in ast.walk(tree)):
        return None
    value = eval(compile(tree, "constant", "eval"), {"__builtins__": {}})
    flat = value if isinstance(value, tuple) else (value,)
    numbers = flat and all(type(one) in (int, float) for one in flat)
    return value if numbers else None


def _meaning(lines: list[str], statement: ast.Assign) -> str:
    """The comment behind a statement, or else above it and other statements that it is with."""
    _, _, behind = lines[(statement.end_lineno or statement.lineno) - 1].partition("#")
    if behind:
        return behind.strip()
    above = statement.lineno - 2
    while above >= 0 and lines[above].strip() and not lines[above].startswith("#"):
        above -= 1
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
        place = into / "physim" / "fluid" / f"{constant.module}.py"
        source = place.read_text()
        if source[constant.begin : constant.end] != constant.text:
            raise RuntimeError(f"{place}: {constant.name} is not where it was")
        new = constant.text_of(values)
        place.write_text(source[: constant.begin] + new + source[constant.end :])
