"""A digest of the source that a module depends on: its own and what it imports of the package."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

_PACKAGE = "physim"
# What only the type checker imports.
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_IMPORTED = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_PACKAGE}[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|(.*))"
    rf"|import[ \t]+({_PACKAGE}[\w.]*))",
    re.MULTILINE,
)


def digest_of(modules: Iterable[str]) -> str:
    """A digest of the source of modules, and of all that they import of this package.

    Comments count, since reading source is quick and telling what matters in it is not.

    Args:
        modules: Names of modules; of those outside of the package only the file itself counts.
    """
    digest = hashlib.sha256()
    for name in sorted(_reached(modules)):
        digest.update(name.encode() + _source(name))
    return digest.hexdigest()


def _reached(modules: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    ahead = list(modules)
    while ahead:
        name = ahead.pop()
        if name not in seen and _path(name) is not None:
            seen.add(name)
            ahead += _imported(name)
    return seen


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """Names that a module imports of the package: modules, and what may be one."""
    text = _FOR_TYPES.sub("", _source(module).decode())
    found = set()
    for base, within, after, whole in _IMPORTED.findall(text):
        own = re.findall(r"\w+", re.sub(r"#.*", "", within or after))
        found |= {base or whole, *(f"{base}.{name}" for name in own)}
    return frozenset(found)


@functools.cache
def _source(module: str) -> bytes:
    path = _path(module)
    return b"" if path is None else path.read_bytes()


@functools.cache
def _path(module: str) -> Path | None:
    """The file of a module; None if there is no such module, or it has no file."""
    if module.partition(".")[0] != _PACKAGE:
        file = getattr(sys.modules.get(module), "__file__", None)
        return Path(file) if file and file.endswith(".py") and Path(file).is_file() else None
    return _modules().get(module)


@functools.cache
def _modules() -> dict[str, Path]:
    """Files of all modules of the package, by their names."""
    root = Path(str(resources.files(_PACKAGE)))
    found = {}
    for folder, _, files in os.walk(root):
        parts = Path(folder).relative_to(root.parent).parts
        for file in files:
            if file.endswith(".py"):
                stem = file.removesuffix(".py")
                own = parts if stem == "__init__" else (*parts, stem)
                found[".".join(own)] = Path(folder, file)
    return found
