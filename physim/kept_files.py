"""Files of functions made ready, read only if they are whole and nobody else can have written them.

A file is a line that names the form, a line with the SHA-256 of the rest, a line of JSON, and the
code. XLA and Python run whatever code they are given, and crash on half of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physim.trusted import doubt_of
from physim.workshop import put_file, workshop

_FORM = b"physim compiled function 2\n"
# Of what XLA compiled, and of programs.
COMPILED, PROGRAM = ".compiled", ".program"
# What nothing used for so long goes when something is added, and so does what was unused longest
# beyond so many bytes.
_UNUSED_DAYS, _MOST_BYTES = 30, 2e9


def save(path: Path, code: bytes, result: Any, told: Mapping[str, Any]) -> None:
    """Keeps a function.

    Args:
        path: The file.
        code: What it was made into, which takes all arrays that it is given to a list of arrays.
        result: The tree that these become, with places in the list for leaves.
        told: What else must be known of it.

    Raises:
        OSError: The file cannot be written.
        TypeError: The tree holds something that has no form in JSON.
    """
    content = json.dumps({**told, "result": _written(result)}).encode() + b"\n" + code
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700, parents=True)
    _forget(path.parent)
    with workshop() as place:
        temporary = place / path.name
        temporary.write_bytes(_FORM + _digest(content) + content)
        temporary.chmod(0o600)
        # One that is there is damaged, or could have been written by others, and lends no mode.
        path.unlink(missing_ok=True)
        put_file(temporary, path)


def load(path: Path) -> tuple[bytes, Any, dict[str, Any]]:
    """The code of a function that was kept, the tree of its result, and what else was told.

    Raises:
        OSError: There is none.
        ValueError: The file is damaged, or another user may have written it.
        LookupError: Its result is of a class that is not known here.
    """
    with path.open("rb") as file:
        doubt = doubt_of(os.fstat(file.fileno()), str(path))
        if doubt:
            raise ValueError(doubt)
        form, digest, content = file.readline(), file.readline(), file.read()
    if form != _FORM or digest != _digest(content):
        raise ValueError(f"{path}: is damaged")
    line, _, code = content.partition(b"\n")
    told = json.loads(line)
    found = code, _read(told["result"]), told
    os.utime(path)
    return found


def files(folder: Path) -> list[Path]:
    """The files of functions in a folder, which need not be there."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix in (COMPILED, PROGRAM)]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _written(tree: Any) -> Any:
    """A tree with numbers for leaves as JSON: classes by name, tuples and lists told apart."""
    if tree is None or isinstance(tree, int):
        return tree
    if isinstance(tree, dict):
        return {"dict": {key: _written(value) for key, value in tree.items()}}
    kind = type(tree)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if dataclasses.is_dataclass(tree):
        fields = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
        return {name: {field: _written(value) for field, value in fields.items()}}
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        return {name: {field: _written(value) for field, value in tree._asdict().items()}}
    if kind in (list, tuple):
        return {kind.__name__: [_written(value) for value in tree]}
    raise TypeError(f"a {name} cannot be kept")


def _read(content: Any) -> Any:
    """The tree that `_written` wrote."""
    if content is None or isinstance(content, int):
        return content
    ((name, held),) = content.items()
    if name in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[name](map(_read, held))
    fields = {field: _read(value) for field, value in held.items()}
    if name == "dict":
        return fields
    module, _, path = name.partition(":")
    # Only what is there already: a file makes nothing be imported.
    kind: Any = sys.modules[module]
    for part in path.split("."):
        kind = getattr(kind, part)
    if dataclasses.is_dataclass(kind):
        # Past the constructor, as copies are made.
        made = object.__new__(kind)  # type: ignore[arg-type]
        for field, value in fields.items():
            object.__setattr__(made, field, value)
        return made
    return kind(**fields)


def _forget(folder: Path) -> None:
    """Removes files of functions unused for long, and beyond `_MOST_BYTES` for longest."""
    found = []
    for path in files(folder):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used_s, size, path in sorted(found):
        is_old = time.time() - used_s > _UNUSED_DAYS * 86400
        if not is_old and total <= _MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            if _is_form(path):
                path.unlink()
                total -= size


def _is_form(path: Path) -> bool:
    with path.open("rb") as file:
        # Those of earlier versions, too.
        return file.readline().startswith(_FORM[:-2])
