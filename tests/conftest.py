"""Tests run in 64 bit, with every array's shape and type checked in every module."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import pkgutil
import platform
import secrets
from pathlib import Path

# Most of the time goes to compiling, so little is optimised, and workers, commands and notebooks
# share what they compile, with those of the next run too. Without YNNPACK, as in physim.kept.
if "PYTEST_XDIST_WORKER" not in os.environ:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    compiled = cache / "physim-tests" / platform.node()
    compiled.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(10**9)
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_cpu_use_fusion_emitters=false",
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_experimental_ynn_fusion_type=",
        ]
    )
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import hypothesis
import jax
import pytest
import typechecking  # noqa: F401
from jaxtyping import install_import_hook

import physim
from physim import kept, progress

jax.config.update("jax_enable_x64", True)

# The first example of a test may compile.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
# The first of the random seeds, for all workers.
_SEED = "PHYSIM_TEST_SEED"


def pytest_addoption(parser):
    parser.addoption(
        "--seeds",
        default="fixed",
        help="of what is drawn at random: fixed, random (more of it, each time other), or the "
        "number that a run with random ones printed",
    )


def pytest_configure(config):
    seeds = config.getoption("--seeds")
    hypothesis.settings.load_profile("fixed" if seeds == "fixed" else "random")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[_SEED] = str(secrets.randbelow(2**31)) if seeds == "random" else seeds


def pytest_report_header():
    return f"seeds: {os.environ[_SEED]}"


# Memory of a worker from which on it forgets what it compiled, bytes: the cache has it. What is
# left after that is no reason to forget again until as much more has come as the second says.
_MOST_MEMORY, _MORE_MEMORY = 4 * 2**30, 2**30
_left_memory = 0
_STATISTICS = Path("/proc/self/statm")


def _memory() -> int:
    """Bytes that this process holds, of Linux alone."""
    return int(_STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def bounded_memory():
    """Of what a worker compiles it would come to have ten gigabytes, half in pieces of glibc's."""
    global _left_memory
    yield
    if not _STATISTICS.exists():
        return
    if _memory() > max(_MOST_MEMORY, _left_memory + _MORE_MEMORY):
        # Not at the head of this file: the hook below is to check the module.
        from physim.kept import Kept

        for one in gc.get_objects():
            if isinstance(one, Kept):
                one.forget()
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        _left_memory = _memory()


@pytest.fixture(scope="session")
def first_seed() -> int | None:
    """The first of random seeds; None if they are fixed."""
    seed = os.environ[_SEED]
    return None if seed == "fixed" else int(seed)


# However often tests call a function, it is what it was at first, so that equal calls find equal
# numbers, and most are never compiled.
kept.OPTIMISED_S = math.inf

# How long a command takes on a busy machine is not to change what it says.
progress.PATIENCE_S = math.inf

# Of commands typer looks at the types, which are not quite those that it passes. The replay's loop
# is plain Python, which checks at each call would slow down twentyfold.
_UNCHECKED = ("physim.cli", "physim.replay")
_ARRAYS = ("physim.replay.step_times", "physim.replay.workload")
_CHECKED = [one.name for one in pkgutil.iter_modules(physim.__path__, "physim.")]
_hook = install_import_hook(
    [*(name for name in _CHECKED if name not in _UNCHECKED), *_ARRAYS], "typechecking.check"
)


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measured data, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip("needs the measured data, ../shared beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def ground_truth() -> Path:
    """The folder of measured runs, which is not part of the project."""
    folder = SHARED / "ground_truth"
    if not folder.is_dir():
        pytest.skip("needs the measured runs, ../shared/ground_truth beside this checkout")
    return folder


@pytest.fixture(scope="session")
def simulator_grids() -> Path:
    """H100 attention and GEMM times that somebody else measured, not part of the project."""
    folder = SHARED / "reference" / "blis_bench_data"
    if not folder.is_dir():
        pytest.skip("needs the simulator's grids, ../shared/reference/blis_bench_data")
    return folder


@pytest.fixture(scope="session")
def traces(shared: Path) -> Path:
    """Public traces of requests that are no part of the repository."""
    folder = shared / "traces"
    if not folder.is_dir():
        pytest.skip("needs the traces, ../shared/traces beside this checkout")
    return folder
