"""The command line. Results go to stdout, errors to stderr; nothing heavy loads before it is used.

Exit codes: 0 success, 1 input that cannot be used, 2 a command that is not understood.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from physim.cli.commands import Commands
from physim.cli.console import print_line
from physim.data import FULL
from physim.errors import InputError
from physim.trusted import doubt_of_folder
from physim.waits import compiling

# Of an error; more is of no use to anyone.
_LONGEST_LINE = 1000
_GARBAGE = (1_000_000, 50, 50)
# Of glibc: the number of the setting by how much more the heap grows than it must, and bytes.
_TOP_PAD, _GROWN_BYTES = -2, 2**26
_COMPILING = "physim: compiling, once on this machine; the next such command starts at once"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Predicts what an LLM server will do, from a config.json, a GPU and a load.",
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        import physim

        typer.echo(f"physim {physim.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Predicts what an LLM server will do, from a config.json, a GPU and a load."""


def script() -> None:
    """Runs the command line and ends the process, as the installed command does."""
    try:
        main()
    except SystemExit as end:
        # Python would take apart all that was loaded first: a twentieth of a short command's time.
        if isinstance(end.code, int) and threading.active_count() == 1:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise


def main() -> None:
    """Runs the command line; input that cannot be used ends it with one line and exit code 1."""
    # Whoever ends a command finds nothing that is not whole.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A command is soon over: looking for garbage would take a tenth of its time.
    gc.set_threshold(*_GARBAGE)
    _grow_in_leaps()
    # XLA's remarks on its own work are not for whoever asks for a prediction.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # A command's matrices are small, and OpenBLAS's threads spin while they wait for work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _shun_cache_of_others()
    compiling.tell(lambda: print_line(_COMPILING, err=True))
    # A terminal that cannot show a letter gets another one.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            _refuse_untaken(sys.argv[1:])
            app()
        finally:
            sys.stdout.flush()
    except InputError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader had enough
        _fail("")
    except OSError as error:
        if error.errno in FULL:
            _fail(f"{error.filename or 'stdout'}: the disk is full; make room on it")
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}; check the path and the room on the disk")


def _refuse_untaken(words: Sequence[str]) -> None:
    """Says why an option that somebody will look for is not there."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and "lora" in name:
            raise InputError(name, "adapters (LoRA) are not modelled", "leave it out")
        if words[0] == "capacity" and name in ("--rate", "--concurrency"):
            raise InputError(
                name,
                "is not taken: capacity finds the highest rate",
                "leave it out, or use predict",
            )


def _grow_in_leaps() -> None:
    """Has glibc take memory in large pieces, where it is the C library.

    XLA allocates and frees a hundred thousand records to load a function, and the heap would grow
    and shrink with them: a sixteenth of a command's time.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_TOP_PAD, _GROWN_BYTES)


def _shun_cache_of_others() -> None:
    """Keeps JAX from running what somebody else may have put into the cache that it is told of."""
    told = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    doubt = doubt_of_folder(Path(told)) if told else ""
    if doubt:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        print_line(f"physim: {doubt}; compiled functions are not kept", err=True)


def _fail(line: str) -> None:
    """Ends with a line on stderr, and without Python's complaint about a stdout that is gone."""
    if line:
        shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
        print_line(f"physim: error: {shown}", err=True)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
