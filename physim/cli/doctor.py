"""``physim doctor``: what is installed and works, to be pasted into a bug report.

Each line is found by itself, so that one that fails says why and keeps none of the others.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path

import typer

from physim.cli.console import milliseconds, print_line

_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "pandas", "pydantic", "typer", "rich")
# Extras, the modules that each brings, and what needs them.
_EXTRAS = (
    ("hub", ("huggingface_hub",), "configurations from the Hugging Face hub"),
    ("plot", ("matplotlib",), "pictures (--plot) and physim report"),
    ("data", ("pyarrow",), "Parquet"),
    ("sweep", ("joblib", "pyarrow", "yaml"), "physim sweep and YAML"),
    ("dask", ("distributed",), "sweeps on Dask"),
    ("ray", ("ray",), "sweeps on Ray"),
    ("app", ("marimo", "matplotlib"), "physim app"),
    ("serve", ("starlette", "uvicorn"), "physim serve"),
    ("baselines", ("sklearn",), "baselines of physim crossval"),
    ("grids", ("aiconfigurator_core", "pyarrow"), "physim grids build"),
)
_DATA = ("model_configs", "hardware", "engines", "fits", "bench_data")
# Variables that change where physim looks or how JAX works.
_SETTINGS = ("JAX_", "XLA_", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE", "PHYSIM_")
_MISSING = "missing"


def doctor() -> None:
    """Say what is installed, what is missing and whether a prediction works: for bug reports.

    It ends with exit code 1 if something that every command needs does not work.

    For example:

    physim doctor
    """
    works = True
    for name, found in (
        ("physim", _version),
        ("Python", _python),
        ("system", _system),
        ("packages", _packages),
        ("data", _data),
        ("cache", _cache),
        ("settings", _settings),
        ("prediction", _prediction),
    ):
        line, well = _tried(found)
        works = works and well
        print_line(f"{name:<12}{line}")
    for line in _extras():
        print_line(f"{'extra':<12}{line}")
    if not works:
        raise typer.Exit(1)


def _tried(found: Callable[[], str]) -> tuple[str, bool]:
    """A line and whether it was found, or what went wrong."""
    try:
        return found(), True
    except Exception as error:
        said = " ".join(str(error).split())
        return f"FAILED: {type(error).__name__}: {said[:200]}", False


def _version() -> str:
    import physim

    return f"{metadata.version('physim-llm')} in {Path(physim.__file__).parent}"


def _python() -> str:
    return f"{platform.python_version()} ({platform.python_implementation()}) {sys.executable}"


def _system() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.platform()}, {_processor()}, {usable} of {os.cpu_count()} cores"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _packages() -> str:
    """Versions of what every command needs.

    Raises:
        ImportError: One is not installed.
    """
    found = {name: _installed(name) for name in _PACKAGES}
    line = ", ".join(f"{name} {version}" for name, version in found.items())
    if _MISSING in found.values():
        raise ImportError(f"{line}; pip install --force-reinstall physim-llm")
    return line


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _MISSING


def _data() -> str:
    """How many files each data folder has.

    Raises:
        FileNotFoundError: One has none.
    """
    from physim import data

    counts = {}
    for name in _DATA:
        folder = data.folder(name)
        counts[name] = sum(path.is_file() for path in folder.rglob("*"))
        if not counts[name]:
            raise FileNotFoundError(f"{folder}: is empty or not there; install physim-llm anew")
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _cache() -> str:
    from physim import kept, kept_files

    folder = kept.folder()
    if folder is None:
        return "compiled functions are not kept; every process compiles them"
    sizes = [path.stat().st_size for path in kept_files.files(folder)]
    return f"{folder}, {len(sizes)} compiled functions, {sum(sizes) / 2**20:.0f} MiB"


def _settings() -> str:
    # Their names and values alone, of which none is a secret.
    found = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SETTINGS)]
    return ", ".join(sorted(found)) or "none"


def _prediction() -> str:
    """The README's first prediction, with the time of the first and of the next.

    Raises:
        InputError: It is refused.
    """
    from physim.api import predict

    seconds = []
    for rate in (4.0, 5.0):
        start = time.perf_counter()
        found = predict(
            "Qwen/Qwen3-8B", gpu="h100_sxm", rate=rate, input_tokens=575, output_tokens=248
        )
        seconds.append(time.perf_counter() - start)
    first, again = seconds
    return (
        f"works: Qwen3-8B on h100_sxm, TTFT {milliseconds(found.ttft_s)} ms, "
        f"E2E {milliseconds(found.e2e_s)} ms; took {first:.2f} s, then {again * 1e3:.1f} ms"
    )


def _extras() -> Iterator[str]:
    for extra, modules, purpose in _EXTRAS:
        lacking = [name for name in modules if util.find_spec(name) is None]
        if lacking:
            needs = ", ".join(lacking)
            yield f"{extra:<10} lacks {needs} for {purpose}: pip install 'physim-llm[{extra}]'"
        else:
            yield f"{extra:<10} installed, for {purpose}"
