"""Finds the data folders that physim ships, and writes files without leaving half of one."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

from physim.errors import InputError
from physim.workshop import put_file, put_folder, workshop

_ANOTHER_FOLDER = "choose a folder that can be written to"
# What the system says where a disk, or the part of it that is one's own, is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


def paths_of(names: str | Path | Iterable[Any], what: str) -> list[Path]:
    """Paths of files: of one that is named by itself, or of some.

    Args:
        names: What names them.
        what: What they are, for the message.

    Raises:
        InputError: There are none, or one is no path.
    """
    every = [names] if isinstance(names, str | Path) else list(names)
    if not every:
        raise InputError(what, "are none", "name some")
    for name in every:
        if not isinstance(name, str | Path):
            kind = type(name).__name__
            raise InputError(
                what, f"has a {kind}, which is no path", "write it to a file, name that"
            )
    return [Path(name) for name in every]


def folder(name: str) -> Path:
    """One of the folders of data, such as ``hardware``, ``engines`` or ``fits``.

    A wheel carries it inside the package (``physim/_data``); in an editable install it is the
    folder of that name at the top of the checkout.
    """
    package = Path(str(resources.files("physim")))
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / name


def names(name: str, suffix: str) -> list[str]:
    """Sorted names, without ``suffix``, of the files in a data folder."""
    return sorted(path.name.removesuffix(suffix) for path in folder(name).glob(f"*{suffix}"))


def modified_ns(path: Path) -> int:
    """When a file was last changed, for the keys of caches; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):  # a name too long, or with a null in it
        return 0


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Says in one line which file cannot be read.

    Raises:
        InputError: What runs within could not open or read the file.
    """
    try:
        yield
    except gzip.BadGzipFile as error:
        raise InputError(str(path), "is not compressed by gzip", "rename or refetch it") from error
    except OSError as error:
        raise InputError(
            str(path), error.strerror or "cannot be read", "check the path and its permissions"
        ) from error


@contextlib.contextmanager
def opened(path: Path, errors: str = "strict") -> Iterator[IO[str]]:
    """The text of a file, which is decompressed if its name ends in ``.gz``.

    Args:
        path: The file.
        errors: What becomes of bytes that are no UTF-8, as `open` takes it.

    Raises:
        InputError: What runs within could not open, read or decompress the file.
    """
    text: dict[str, Any] = {"encoding": "utf-8-sig", "newline": "", "errors": errors}
    packed = path.suffix == ".gz"
    try:
        with (
            reading(path),
            gzip.open(path, "rt", **text) if packed else path.open(**text) as file,
        ):
            yield file
    except (EOFError, zlib.error) as error:
        raise InputError(str(path), "is cut off or damaged", "fetch it again") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        InputError: The file cannot be read, is no JSON, or holds something else than an object.
    """
    content = _json_in(path)
    if not isinstance(content, dict):
        raise InputError(str(path), "holds no JSON object", "pass a JSON object {...}")
    return content


def read_json_list(path: Path) -> list[Any]:
    """A JSON list from a file.

    Raises:
        InputError: The file cannot be read, is no JSON, or holds something else than a list.
    """
    content = _json_in(path)
    if not isinstance(content, list):
        raise InputError(str(path), "holds no JSON list", "pass a JSON list [...]")
    return content


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file: the one that it holds, or those of its list.

    Raises:
        InputError: The file cannot be read, is no JSON, or holds neither.
    """
    content = _json_in(path)
    found = content if isinstance(content, list) else [content]
    if not found or not all(isinstance(one, dict) for one in found):
        raise InputError(str(path), "holds no JSON object", "pass a JSON object {...}")
    return found


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file that has one on each line, with their places for messages.

    Raises:
        InputError: The file cannot be read, or a line that is not empty is no JSON object.
    """
    try:
        with opened(path) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                place = f"{path}, line {number}"
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(place, "is no JSON", "correct it") from error
                if not isinstance(content, dict):
                    raise InputError(place, "holds no JSON object", "pass one on each line")
                yield place, content
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "pass a file of JSON lines") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file, or a JSON object, which is one too.

    Raises:
        InputError: The file cannot be read, is no YAML, or holds something else than a mapping; or
            PyYAML is not installed.
    """
    if path.suffix == ".json":
        return read_json(path)
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise InputError(
            str(path), "needs PyYAML", 'install it: pip install "physim-llm[sweep]"'
        ) from error
    try:
        with reading(path):
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    # Dates and numbers that are none, and what is nested too deeply, are not YAML's own errors.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(str(path), f"is no YAML: {said}", "correct it") from error
    if not isinstance(content, dict):
        raise InputError(str(path), "holds no YAML mapping", "write lines such as `key: value`")
    return content


def _json_in(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: The file cannot be read, or is no JSON.
    """
    try:
        with reading(path):
            text = path.read_text(encoding="utf-8")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not UTF-8 text", "pass a JSON file") from error
    except ValueError as error:  # a name with a null in it
        raise InputError(repr(str(path)), "is no file's name", "check the path") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}", f"broken JSON ({error.msg})", "repair or refetch it"
        ) from error
    except (RecursionError, ValueError) as error:  # of numbers of thousands of digits
        raise InputError(
            str(path), "is nested too deeply, or holds too long a number", "pass another file"
        ) from error


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
def _writing(path: Path, remedy: str) -> Iterator[None]:
    """Says in one line what cannot be written, and whether the disk is full.

    Raises:
        InputError: What runs within could not write.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            what, remedy = "the disk is full", "make room on it, and among temporary files (TMPDIR)"
            raise InputError(str(path), what, remedy) from error
        raise InputError(str(path), error.strerror or "cannot be written", remedy) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file takes the place of ``path`` when the block succeeds.

    What a link names is replaced, not the link, and a file that was there keeps its owner, group
    and permissions. What is no file, such as a pipe, is written to as it is. A process that is
    killed leaves nothing beside ``path``.

    Raises:
        InputError: The folder of ``path`` cannot be written to, or the file that is there is
            another user's and cannot stay so.
    """
    takes_all = path.exists() and not path.is_file()
    if not takes_all:
        path = path.resolve()
        check_writable(path)
    with _writing(path, "choose another file"), workshop() as place:
        temporary = place / path.name
        yield temporary
        if takes_all:
            with temporary.open("rb") as content, path.open("wb") as pipe:
                shutil.copyfileobj(content, pipe)
        else:
            temporary.chmod(0o666 & ~_umask())
            put_file(temporary, path)


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
def replacing_folder(
    path: Path, force: bool = False, remedy: str = "name another, or pass --force"
) -> Iterator[Path]:
    """Yields a temporary folder, which takes the place of ``path`` when the block succeeds.

    Args:
        path: The folder to make; what is missing above it is made too.
        force: Whether one that is there, and not empty, is replaced.
        remedy: What to do about one that is not.

    Raises:
        InputError: The folder is there and not empty, is a file, or cannot be made.
    """
    path = path.resolve()
    if path.is_dir() and any(path.iterdir()) and not force:
        raise InputError(str(path), "already exists and is not empty", remedy)
    if path.exists() and not path.is_dir():
        raise InputError(str(path), "is a file", "name a folder")
    with _writing(path, _ANOTHER_FOLDER):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    with _writing(path, _ANOTHER_FOLDER), workshop() as place:
        temporary = place / path.name
        temporary.mkdir()
        yield temporary
        put_folder(temporary, path)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
