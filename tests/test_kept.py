"""Functions that are compiled once on a machine."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physim import kept, kept_files, sources
from physim.pytree import Pytree

# Says so whenever it is traced.
MODULE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from physim.kept import kept

@kept
def both(matrix, right):
    print("traced")
    factors = jax.scipy.linalg.lu_factor(matrix)
    return {"total": jnp.sum(matrix), "solved": jax.scipy.linalg.lu_solve(factors, right)}

found = both(2 * np.eye(2), np.arange(2.0))
print(float(found["total"]), np.asarray(found["solved"]).tolist())
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


class Pair(NamedTuple):
    total: Any
    solved: Any


class Named(Pytree):
    rows: dict[str, Any]
    label: Any = None


traced: list[str] = []


def both(matrix, right):
    traced.append("both")
    factors = jax.scipy.linalg.lu_factor(matrix)
    solved = jax.scipy.linalg.lu_solve(factors, right)
    return Pair(jnp.sum(matrix), [Named({"solved": solved}), (right,)])


@pytest.fixture(autouse=True)
def told(tmp_path):
    """The folder that JAX is told to keep things in, with nothing in it."""
    traced.clear()
    kept._trusted.cache_clear()
    path = tmp_path / "cache"
    usual = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(path))
    yield path
    jax.config.update("jax_compilation_cache_dir", usual)
    kept._trusted.cache_clear()


def called(size: int = 2) -> Pair:
    """What the function finds that a process calls which has not called it before."""
    return kept.kept(both)(2 * np.eye(size), np.arange(float(size)))


def files(told: Path) -> list[Path]:
    return sorted((told / "physim").glob("*.compiled"))


def solved(found: Pair) -> list[float]:
    return np.asarray(found.solved[0].rows["solved"]).tolist()


def test_the_next_process_does_not_trace(tmp_path):
    (tmp_path / "solving.py").write_text(MODULE)
    own = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}

    def lines() -> list[str]:
        command = [sys.executable, str(tmp_path / "solving.py")]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert lines() == ["traced", "4.0 [0.0, 0.5]"]
    assert lines() == ["4.0 [0.0, 0.5]"]


def test_what_was_kept_is_found_again(told):
    for _ in range(2):
        found = called()
        assert isinstance(found, Pair)
        assert isinstance(found.solved[0], Named)
        assert (float(found.total), solved(found)) == (4.0, [0.0, 0.5])
        assert np.asarray(found.solved[1][0]).tolist() == [0.0, 1.0]
    assert traced == ["both"]
    called(3)
    # A setting that changes what is computed.
    jax.config.update("jax_enable_x64", False)
    try:
        called()
    finally:
        jax.config.update("jax_enable_x64", True)
    assert traced == ["both"] * 3
    assert len(files(told)) == 3


def test_any_damage_is_noticed_and_mended(told):
    expected = solved(called())
    (place,) = files(told)
    whole = place.read_bytes()
    rng = np.random.default_rng(0)
    spoilt = [whole[:end] for end in (0, 1, 30, 100, len(whole) // 2, len(whole) - 1)]
    for bit in rng.integers(0, 8 * len(whole), 80):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        spoilt.append(bytes(content))
    for content in spoilt:
        place.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            kept_files.load(place)
    assert solved(called()) == expected
    assert traced == ["both"] * 2
    called()
    assert traced == ["both"] * 2


class Payload:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(os.environ["PHYSIM_TEST_VICTIM"]),)


def test_nothing_is_unpickled(told, tmp_path, monkeypatch):
    monkeypatch.setenv("PHYSIM_TEST_VICTIM", str(tmp_path / "victim"))
    called()
    (place,) = files(told)
    place.write_bytes(pickle.dumps(Payload()))
    called()
    assert not (tmp_path / "victim").exists()
    assert traced == ["both"] * 2


@pytest.mark.parametrize("inner", ["", "physim"])
@pytest.mark.parametrize("how", ["group", "all", "owner"])
def test_a_folder_of_others_is_refused_in_one_line(told, caplog, how, inner):
    called()
    folder = told / inner
    if how == "owner":
        if os.geteuid() != 0:
            pytest.skip("needs root, who alone can give folders away")
        os.chown(folder, 12345, -1)
    else:
        folder.chmod(0o770 if how == "group" else 0o777)
    before = [path.stat().st_mtime_ns for path in files(told)]
    kept._trusted.cache_clear()
    for _ in range(2):
        called()
    assert traced == ["both"] * 3
    assert [path.stat().st_mtime_ns for path in files(told)] == before
    (line,) = (record.getMessage() for record in caplog.records)
    assert "\n" not in line
    why = "belongs to another user" if how == "owner" else "others may write to it; chmod go-w"
    assert line.startswith(f"physim: {folder}: {why}")


def test_a_folder_that_is_everybodys_may_hold_ones_own(told):
    told.mkdir()
    told.chmod(0o1777)
    called(), called()
    assert traced == ["both"]


def test_a_file_of_others_is_made_anew(told):
    called()
    (place,) = files(told)
    place.chmod(0o666)
    with pytest.raises(ValueError, match="others may write to it"):
        kept_files.load(place)
    called(), called()
    assert traced == ["both"] * 2
    assert place.stat().st_mode & 0o777 == 0o600


def test_files_that_are_not_ours_stay(told):
    called()
    folder = told / "physim"
    (own,) = files(told)
    (folder / "results").mkdir()
    (folder / "results" / "year.csv").write_text("1")
    (folder / "theirs.compiled").write_text("of another program")
    for path in (own, folder / "theirs.compiled", folder / "results"):
        os.utime(path, (0, 0))
    called(3)
    assert not own.exists()
    assert (folder / "results" / "year.csv").exists()
    assert (folder / "theirs.compiled").exists()


def test_what_was_unused_longest_goes_beyond_a_bound(tmp_path, monkeypatch):
    files = [tmp_path / f"{name}.compiled" for name in "abcd"]
    for days, path in enumerate(files):
        path.write_bytes(kept_files._FORM + b"x" * 1000)
        os.utime(path, (time.time() - 86400 * days,) * 2)
    # Of whatever age, a file of somebody else's form stays.
    files[3].write_bytes(b"another form\n" + b"x" * 1000)
    os.utime(files[3], (time.time() - 86400 * 40,) * 2)
    kept_files._forget(tmp_path)
    assert all(path.exists() for path in files)
    monkeypatch.setattr(kept_files, "_MOST_BYTES", 3500)
    kept_files._forget(tmp_path)
    assert [path.exists() for path in files] == [True, True, False, True]


def test_what_is_kept_is_made_again_beside_jaxs_cache(told):
    name = "jax_persistent_cache_min_compile_time_secs"
    usual = getattr(jax.config, name)
    jax.config.update(name, 0)
    try:
        called()
        for path in files(told):
            path.unlink()
        called(), called()
    finally:
        jax.config.update(name, usual)
    assert traced == ["both"] * 2


def test_nothing_is_kept_where_that_is_wanted_or_impossible(told):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        called()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not told.exists()
    told.write_text("a file")
    assert solved(called()) == [0.0, 0.5]


def test_a_function_that_calls_python_is_not_kept(told):
    @kept.kept
    def doubled(x):
        return jax.pure_callback(lambda value: 2 * np.asarray(value), jnp.zeros(2), x)

    assert np.asarray(doubled(np.arange(2.0))).tolist() == [0.0, 2.0]
    assert files(told) == []


def test_what_a_result_is_made_of_is_named():
    tree = Named({"b": (0, [1, None]), "a": Pair(2, 3)}, label=4)
    content = json.loads(json.dumps(kept_files._written(tree)))
    assert jax.tree.structure(kept_files._read(content)) == jax.tree.structure(tree)
    with pytest.raises(TypeError, match=r"a builtins:set cannot be kept"):
        kept_files._written({"a": {1, 2}})
    with pytest.raises(LookupError):
        kept_files._read({"no_such_module:Thing": {}})


def test_source_that_is_not_reached_does_not_count(monkeypatch):
    solving = "physim.prediction.steady"
    reached = sources._reached([solving])
    assert {"physim.fluid.steady", "physim.step.components.experts"} <= reached
    assert not [name for name in reached if name.startswith(("physim.cli", "physim.plot"))]
    before = sources.digest_of([solving])
    own = sources._source
    for name, counts in (("physim.cli.predict", False), ("physim.fluid.steady", True)):
        monkeypatch.setattr(
            sources, "_source", lambda module, name=name: own(module) + b"#" * (module == name)
        )
        assert (sources.digest_of([solving]) != before) == counts


def test_within_what_is_traced_it_is_the_function():
    calls = []

    @kept.kept
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
