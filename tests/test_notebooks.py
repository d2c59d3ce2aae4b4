"""The notebooks run from top to bottom."""

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.ipynb")))
# A kernel that is shut down leaves its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_notebook_runs(name, tmp_path, request, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra `test`")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra `test`")
    content = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    if any("PHYSIM_RUNS" in cell.source for cell in content.cells):
        # It fits measured runs, which are not part of the project.
        runs = request.getfixturevalue("ground_truth") / "trainval.csv"
        monkeypatch.setenv("PHYSIM_RUNS", str(runs))
    assert not any(cell.get("outputs") for cell in content.cells), "clear the outputs"
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    nbclient.NotebookClient(
        content, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute(env=dict(os.environ))
    pictures = [
        output
        for cell in content.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures or name == "tables_for_a_simulator"
