"""Finds the data folders that physim ships, and writes files without leaving half of one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from physim.errors import InputError


def folder(name: str) -> Path:
    """The folder ``hardware``, ``engines``, ``model_configs``, ``bench_data`` or ``fits``.

    A wheel carries it inside the package (``physim/_data``); in an editable install it is the
    folder of that name at the top of the checkout.
    """
    package = Path(str(resources.files("physim")))
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def names(name: str, suffix: str) -> list[str]:
    """Sorted names, without ``suffix``, of the files in a data folder."""
    return sorted(path.name.removesuffix(suffix) for path in folder(name).glob(f"*{suffix}"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        InputError: The file cannot be read, is no JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            str(path), error.strerror or "cannot be read", "check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "pass a JSON file") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}", f"broken JSON ({error.msg})", "repair or refetch it"
        ) from error
    except (RecursionError, ValueError) as error:  # of numbers of thousands of digits
        raise InputError(
            str(path), "is nested too deeply, or holds too long a number", "pass another file"
        ) from error
    if not isinstance(content, dict):
        raise InputError(str(path), "holds no JSON object", "pass a JSON object {...}")
    return content


def check_writable(path: Path) -> None:
    """Refuses a file that cannot be written, before the work whose result it is to hold.

    Raises:
        InputError: The folder of ``path`` is not there, or cannot be written to.
    """
    if not path.parent.is_dir():
        raise InputError(str(path), f"{path.parent} is not a folder", "make it, or choose another")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(str(path), "cannot be written", "choose another file")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path`` and renames it there when the block succeeds.

    What a link names is replaced, not the link, and a file that was there keeps its permissions.
    What is no file, such as a pipe, is written to as it is.

    Raises:
        InputError: The folder of ``path`` cannot be written to.
    """
    if path.exists() and not path.is_file():
        with tempfile.TemporaryDirectory() as folder_of_it:
            temporary = Path(folder_of_it) / path.name
            yield temporary
            _pour(temporary, path)
        return
    path = path.resolve()
    mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix
        )
    except OSError as error:
        raise InputError(
            str(path),
            error.strerror or "cannot be written",
            "choose a folder that can be written to",
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _pour(source: Path, target: Path) -> None:
    try:
        with source.open("rb") as content, target.open("wb") as pipe:
            shutil.copyfileobj(content, pipe)
    except OSError as error:
        raise InputError(
            str(target), error.strerror or "cannot be written", "choose another file"
        ) from error


@contextlib.contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Keeps other processes of physim out of a folder for a while, where the system can do that.

    Args:
        place: The folder.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object; the file appears whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def replacing_folder(path: Path, force: bool = False) -> Iterator[Path]:
    """Yields a temporary folder beside ``path`` and renames it there when the block succeeds.

    Args:
        path: The folder to make; what is missing above it is made too.
        force: Whether one that is there, and not empty, is replaced.

    Raises:
        InputError: The folder is there and not empty, is a file, or cannot be made.
    """
    path = path.resolve()
    if path.is_dir() and any(path.iterdir()) and not force:
        raise InputError(
            str(path), "already exists and is not empty", "name another, or pass --force"
        )
    if path.exists() and not path.is_dir():
        raise InputError(str(path), "is a file", "name a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise InputError(
            str(path),
            error.strerror or "cannot be made",
            "choose a folder that can be written to",
        ) from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if path.is_dir():
            # Out of the way first, since a folder that is not empty cannot be renamed over.
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
            path.replace(old)
            temporary.replace(path)
            shutil.rmtree(old)
        else:
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
