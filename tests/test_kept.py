"""Functions that are compiled once on a machine."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physim.kept import kept

# Says so whenever it is traced.
MODULE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from typing import NamedTuple
from physim.kept import kept

class Pair(NamedTuple):
    total: object
    solved: object

@kept
def both(matrix, right):
    print("traced")
    factors = jax.scipy.linalg.lu_factor(matrix)
    return Pair(jnp.sum(matrix), jax.scipy.linalg.lu_solve(factors, right))

size = int(sys.argv[1])
found = both(2 * np.eye(size), np.arange(float(size)))
print(type(found).__name__, float(found.total), np.asarray(found.solved).tolist())
"""

# The sum of a matrix's products with vectors, of which jaxlib 0.10.2 lost the last.
SUMS = """
import jax
import numpy as np
from physim.kept import kept

jax.config.update("jax_enable_x64", True)

@kept
def sums(matrix, vectors):
    return jax.vmap(lambda row: ((matrix @ row) ** 2).sum())(vectors)

print(float(sums(np.eye(3), np.arange(16_385.0)[:, None] * np.eye(3)[0])[-1]))
"""


@pytest.fixture
def run(tmp_path):
    """Calls a kept function in a process of its own, and says what that printed."""
    (tmp_path / "solving.py").write_text(MODULE)

    def in_process(size: int, **environment: str) -> list[str]:
        own = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), **environment}
        command = [sys.executable, str(tmp_path / "solving.py"), str(size)]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return in_process


def kept_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "physim" in path.parts]


def test_the_next_process_does_not_trace(run, tmp_path):
    first = run(2)
    assert first == ["traced", "Pair 4.0 [0.0, 0.5]"]
    assert run(2) == first[1:]
    assert run(3)[0] == "traced"
    # A setting that changes what is computed.
    assert run(2, JAX_ENABLE_X64="true")[0] == "traced"
    assert len(kept_files(tmp_path / "cache")) == 3


def test_what_is_kept_may_be_broken(run, tmp_path):
    run(2)
    (place,) = kept_files(tmp_path / "cache")
    place.write_bytes(b"half a fi")
    assert run(2)[0] == "traced"
    assert len(run(2)) == 1


def test_what_is_kept_is_made_again_beside_jaxs_cache(run, tmp_path):
    own = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    first = run(2, **own)
    for path in kept_files(tmp_path / "cache"):
        path.unlink()
    assert run(2, **own) == first
    assert run(2, **own) == first[1:]


def test_nothing_is_kept_where_that_is_wanted_or_impossible(run, tmp_path):
    run(2, JAX_ENABLE_COMPILATION_CACHE="false")
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").write_text("a file")
    assert len(run(2)) == len(run(2)) == 2


def test_within_what_is_traced_it_is_the_function():
    calls = []

    @kept
    def squared(x):
        calls.append(type(x))
        return {"square": x**2}

    assert jax.grad(lambda x: squared(x)["square"])(3.0) == 6.0
    many = jax.vmap(squared)(jnp.arange(3.0))
    np.testing.assert_array_equal(many["square"], [0.0, 1.0, 4.0])
    calls.clear()
    assert [float(squared(x)["square"]) for x in (1.0, 2.0, np.float64(3.0))] == [1.0, 4.0, 9.0]
    assert len(calls) <= 1


def test_no_product_is_lost():
    plain = {**os.environ, "XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", SUMS], env=plain, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == 16_384.0**2
