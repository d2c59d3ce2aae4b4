"""Folders for what is not whole yet, and how what is whole gets to its place.

A workshop is a folder with a random name. It holds a marker that only physim writes, and its maker
keeps the marker locked. One that was left behind by a process that was killed goes when the same
user makes the next beside it, and only if name, owner, marker and lock all say that it is such.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing can be locked, so what was left behind stays.
    fcntl = None  # type: ignore[assignment]

_PREFIX = "physim-"
_MARKER = ".physim-workshop"
# Of renameat2(2): paths that are relative are so to the process's folder; names are exchanged.
_HERE, _EXCHANGE = -100, 2


@contextlib.contextmanager
def workshop(root: Path | None = None) -> Iterator[Path]:
    """A folder for what is not whole yet; it goes in the end, with all that is in it.

    Args:
        root: The folder to make it in, where its name is hidden; that of the system's temporary
            files if not given.
    """
    prefix = _PREFIX if root is None else f".{_PREFIX}"
    parent = Path(tempfile.gettempdir()) if root is None else root
    _sweep(parent, prefix)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    marker = os.open(place / _MARKER, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        # The lock comes before the content, so that no other process takes it for left behind.
        if fcntl is not None:
            fcntl.flock(marker, fcntl.LOCK_EX)
        os.write(marker, _content(place))
        yield place
    finally:
        _remove(place)
        os.close(marker)


def _remove(place: Path) -> None:
    """Removes a workshop, its marker last: a process that is killed leaves one that can be told."""
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _MARKER:
            path.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _content(place: Path) -> bytes:
    """What the marker of a workshop says; a copy of the folder elsewhere has another name."""
    return f"a workshop of physim: {place.name}\n".encode()


def _sweep(parent: Path, prefix: str) -> None:
    """Removes workshops that processes of this user left behind when they were killed."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        for place in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                _remove_if_left_behind(place)


def _remove_if_left_behind(place: Path) -> None:
    def is_own(status: os.stat_result) -> bool:
        return status.st_uid == os.geteuid()

    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or not is_own(status):
        return
    # A marker that is a pipe must not hold this process up.
    marker = os.open(place / _MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(marker)
        if not stat.S_ISREG(status.st_mode) or not is_own(status):
            return
        expected = _content(place)
        if os.read(marker, len(expected) + 1) != expected:
            return
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(place)
    finally:
        os.close(marker)


def put_file(source: Path, target: Path) -> None:
    """Puts a file in the place of another, at once, with the owner and permissions of that one.

    What comes from another disk is copied into a file without a name first: nothing of it is left
    if the process is killed, unless between two calls of the system.

    Raises:
        OSError: It cannot be put there.
    """
    if target.exists():
        _take_after(source, target.stat())
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_file(source, target)


def _take_after(path: Path, other: os.stat_result) -> None:
    """Gives a file another's owner, group and permissions.

    Raises:
        PermissionError: This user may not give files to that owner or group.
    """
    status = path.stat()
    if hasattr(os, "chown") and (status.st_uid, status.st_gid) != (other.st_uid, other.st_gid):
        try:
            os.chown(path, other.st_uid, other.st_gid)
        except PermissionError as error:
            why = "belongs to another user or group, which a new file could not keep"
            raise PermissionError(errno.EPERM, why) from error
    # Afterwards, for another owner takes permissions away.
    path.chmod(stat.S_IMODE(other.st_mode))


def _copy_file(source: Path, target: Path) -> None:
    status = source.stat()
    try:
        handle = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except (AttributeError, OSError):  # neither every system nor every disk has files without names
        with workshop(target.parent) as folder:
            copy = folder / target.name
            shutil.copyfile(source, copy)
            _take_after(copy, status)
            copy.replace(target)
        return
    named = target.with_name(f".{_PREFIX}{secrets.token_hex(8)}")
    with os.fdopen(handle, "wb") as copy_, source.open("rb") as content:
        shutil.copyfileobj(content, copy_)
        copy_.flush()
        unnamed = Path(f"/proc/self/fd/{handle}")
        _take_after(unnamed, status)
        # A link cannot take the place of a file, so for a moment it has a name of its own. Without
        # a folder os.link would link the symbolic link.
        os.link(unnamed, named, src_dir_fd=handle, follow_symlinks=True)
        try:
            named.replace(target)
        except OSError:
            named.unlink()
            raise


def put_folder(source: Path, target: Path) -> None:
    """Puts a folder in the place of another, which goes; or where there is none.

    Args:
        source: A folder within a workshop.
        target: Its place.

    Raises:
        OSError: It cannot be put there; what was there is there.
    """
    try:
        _exchange(source, target, source.parent)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with workshop(target.parent) as folder:
            copy = folder / target.name
            shutil.copytree(source, copy, symlinks=True)
            _exchange(copy, target, folder)


def _exchange(source: Path, target: Path, folder: Path) -> None:
    """Renames, for a folder that is not empty cannot be renamed over."""
    if target.is_dir() and _swapped(source, target):
        return
    old = folder / f"{_MARKER}-old"
    if target.is_dir():
        target.rename(old)
    try:
        source.rename(target)
    except OSError:
        if old.is_dir():
            old.rename(target)
        raise


def _swapped(one: Path, other: Path) -> bool:
    """Whether two folders have exchanged names at once, as Linux does on most file systems.

    Of two renames a process may be killed after the first.
    """
    import ctypes

    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
