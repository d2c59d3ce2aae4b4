"""``physim doctor``, where all is well and where something is broken."""

import tomllib
from pathlib import Path

from commands import process, run

from physim.cli.doctor import _EXTRAS

ROOT = Path(__file__).resolve().parents[1]


def _lines(stdout):
    return dict(line.split(maxsplit=1) for line in stdout.splitlines() if "extra " not in line)


def test_all_is_well():
    found = run("doctor")
    assert found.returncode == 0, found.stdout
    lines = _lines(found.stdout)
    assert list(lines) == [
        *("physim", "Python", "system", "packages", "data", "cache", "settings", "prediction"),
    ]
    assert lines["prediction"].startswith("works: Qwen3-8B on h100_sxm, TTFT ")
    assert "matplotlib" not in found.stdout  # named where it is missing alone
    assert "plot       installed, for pictures" in found.stdout


def test_every_extra_of_a_user_is_told_of():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name for name, *_ in _EXTRAS} == {*project["optional-dependencies"]} - {
        *("test", "docs", "dev"),
    }


def test_what_is_broken_is_said_beside_what_works(tmp_path):
    # JAX is there and cannot be imported, as with a jaxlib of another version.
    (tmp_path / "jax.py").write_text("raise RuntimeError('jaxlib is too old\\nfor this jax')")
    found = process(
        "doctor", PYTHONPATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), HF_TOKEN="hidden"
    )
    assert found.returncode == 1
    assert found.stderr == ""
    lines = _lines(found.stdout)
    assert lines["prediction"] == "FAILED: RuntimeError: jaxlib is too old for this jax"
    assert lines["cache"].startswith("FAILED: ")
    assert "jaxlib 0." in lines["packages"]
    assert lines["data"].startswith("model_configs ")
    assert f"XDG_CACHE_HOME={tmp_path}" in lines["settings"]
    assert "hidden" not in found.stdout


def test_missing_extras_name_what_needs_them(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "yaml" else name)
    found = run("doctor").stdout
    (line,) = (one for one in found.splitlines() if " lacks " in one)
    assert "sweep      lacks yaml for physim sweep and YAML: pip install" in line
