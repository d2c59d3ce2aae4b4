"""The notebooks run from top to bottom, and hold the outputs of having done so."""

import os
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def outputs(content):
    return [output for cell in content.cells for output in cell.get("outputs", [])]


def pictures(content):
    return [output for output in outputs(content) if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_its_outputs(name):
    content = read(name)
    counts = [cell.execution_count for cell in content.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom"
    assert not [one for one in outputs(content) if one.get("name") == "stderr"]
    assert not [one for one in outputs(content) if one.output_type == "error"]
    assert pictures(content)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
# A kernel that is shut down leaves its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    # Beside the files that it reads.
    place = tmp_path / "docs" / "notebooks"
    place.mkdir(parents=True)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for table in FOLDER.glob("replayed_*"):
        shutil.copy(table, place)
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    monkeypatch.delenv("PHYSIM_RUNS", raising=False)
    content = read(name)
    nbclient.NotebookClient(
        content, timeout=300, kernel_name="python3", resources={"metadata": {"path": place}}
    ).execute(env=dict(os.environ))
    assert len(pictures(content)) == len(pictures(read(name)))
