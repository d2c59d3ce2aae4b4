"""Commands of physim: in this process, which shares what it compiles, or in one of their own."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import typer

import physim.cli
from physim.errors import InputError
from physim.waits import compiling

PROGRESS = re.compile(r"physim: .*, \d+ s so far$")
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Run:
    """What a command printed, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, columns: str = "100") -> Run:
    """Runs a command in this process, as its entry point would."""
    out, err = io.StringIO(), io.StringIO()
    words = ["physim", *map(str, arguments)]
    code: object = 0
    with (
        _as_it_was(),
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(os.environ, OFFLINE | {"COLUMNS": columns}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            physim.cli.main()
        except SystemExit as end:
            code = end.code
    return Run(code if isinstance(code, int) else 0, out.getvalue(), _said(err.getvalue()))


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """What the entry point sets for the whole process is as it was, afterwards."""
    thresholds, handler = gc.get_threshold(), signal.getsignal(signal.SIGTERM)
    try:
        with mock.patch.dict(os.environ):
            yield
    finally:
        gc.set_threshold(*thresholds)
        signal.signal(signal.SIGTERM, handler)
        compiling.tell(None)


def refused(*arguments: object) -> str:
    """The line that ends a command that cannot be done."""
    with pytest.raises(InputError) as caught:
        typer.main.get_command(physim.cli.app).main([*map(str, arguments)], standalone_mode=False)
    (line,) = str(caught.value).splitlines()
    return line


def process(*arguments: object, **environment: str) -> Run:
    """Runs a command in a process of its own, where that is the point."""
    command = Path(sys.executable).with_name("physim")
    done = subprocess.run(
        [str(command), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **OFFLINE, "COLUMNS": "100", **environment},
    )
    return Run(done.returncode, done.stdout, _said(done.stderr))


def _said(stderr: str) -> str:
    """What a command said but for waits, which are those of the machine."""
    lines = stderr.splitlines(keepends=True)
    return "".join(
        line
        for line in lines
        if not line.startswith("physim: compiling") and not PROGRESS.match(line)
    )
