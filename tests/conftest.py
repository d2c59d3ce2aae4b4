"""Tests run in 64 bit, with every array's shape and type checked in every module."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# Without its fusion emitters XLA compiles in two thirds of the time. Only here: commands that tests
# start run as they do elsewhere.
_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = f"{_flags or ''} --xla_cpu_use_fusion_emitters=false"
jax.devices()
if _flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _flags

# The first example of a test may compile.
hypothesis.settings.register_profile("physim", deadline=None, derandomize=True)
hypothesis.settings.load_profile("physim")

_hook = install_import_hook("physim", "typechecking.check")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measured data, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip("the measured data are not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def ground_truth() -> Path:
    """The folder of measured runs, which is not part of the project."""
    folder = SHARED / "ground_truth"
    if not folder.is_dir():
        pytest.skip("the measured runs are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def simulator_grids() -> Path:
    """H100 attention and GEMM times that somebody else measured, not part of the project."""
    folder = SHARED / "reference" / "blis_bench_data"
    if not folder.is_dir():
        pytest.skip("the simulator's grids are not beside this checkout")
    return folder
