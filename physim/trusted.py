"""Whether what lies in a folder or file was put there by this user and nobody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def doubt_of(status: os.stat_result, what: str) -> str:
    """Why something cannot be trusted, in a line with its remedy; empty if it can.

    It can if this user owns it and nobody else may write to it. A folder of the system's may be
    written to by all if each may only remove what is theirs, as in ``/tmp``.

    Args:
        status: What the system says of it.
        what: Its name, for the line.
    """
    if not hasattr(os, "geteuid"):  # Windows has no such owners
        return ""
    shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_uid != os.geteuid() and not (shared and status.st_uid == 0):
        return f"{what}: belongs to another user; name a folder of your own"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
        return f"{what}: others may write to it; chmod go-w it, or name a folder of your own"
    return ""


def doubt_of_folder(path: Path) -> str:
    """Why a folder cannot be trusted, as `doubt_of`; empty if it can, or is not there."""
    try:
        return doubt_of(path.stat(), str(path))
    except OSError:
        return ""
