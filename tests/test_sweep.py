"""Sweeps: every case once, whatever happens on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import distributed
import pandas as pd
import pytest
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.questions.sweep import CaseGrid

GRID = """\
model: Qwen/Qwen3-14B
gpu: [h100_sxm, a100_sxm]
tp: [1, 2, 3]
rate: {from: 1, to: 16, steps: 5, scale: log}
input_tokens: [786, "normal:600:100"]
output_tokens: 251
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "grid.yaml"
    path.write_text(GRID)
    return path


@pytest.fixture(scope="module")
def whole(grid, tmp_path_factory):
    """A sweep that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "results"
    assert physim.sweep(grid, out, size=8, jobs=2) == 60
    return out


def parts(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def test_a_grid_is_every_combination(grid):
    read = CaseGrid.read(grid)
    assert len(read) == 2 * 3 * 5 * 2
    assert read.axes["rate"] == pytest.approx([1, 2, 4, 8, 16])
    options = [tuple(read.options(place).values()) for place in range(len(read))]
    assert len(set(options)) == len(read)
    assert options[1][-2:] == ("normal:600:100", 251)


def test_rows_are_what_predict_says(whole):
    frame = pd.read_parquet(whole)
    assert frame["case"].tolist() == list(range(60))
    row = frame[(frame["tp"] == 2) & (frame["rate"] > 7) & (frame["gpu"] == "h100_sxm")].iloc[0]
    one = physim.predict(
        "Qwen/Qwen3-14B", gpu="h100_sxm", tp=2, rate=8, input_tokens=786, output_tokens=251
    )
    assert row["ttft_mean_s"] == pytest.approx(one.ttft_s, rel=1e-4)
    assert row["e2e_p99_s"] == pytest.approx(one.whole.latencies["e2e"]["p99"], rel=1e-3)
    refused = frame[frame["tp"] == 3]
    assert refused["problem"].str.contains("3 does not divide the 40 attention heads").all()
    assert refused["ttft_mean_s"].isna().all()
    assert (frame[frame["tp"] != 3]["problem"] == "").all()


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on(grid, whole, tmp_path):
    out = tmp_path / "results"
    physim_of_these = Path(sys.executable).with_name("physim")
    words = ["sweep", str(grid), "--out", str(out), "--size", "8", "--jobs", "1"]
    running = subprocess.Popen([physim_of_these, *words], start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(out.glob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    some = parts(out)
    assert 0 < len(some) < 8
    with pytest.raises(InputError, match=r"holds a sweep; name another folder, or pass --resume"):
        physim.sweep(grid, out, size=8)
    physim.sweep(grid, out, size=8, jobs=2, resume=True)
    assert parts(out) == parts(whole)
    assert some.items() <= parts(out).items()
    with pytest.raises(InputError, match="is of another grid, size or version"):
        physim.sweep(grid, out, size=9, resume=True)


def test_what_has_no_prediction_is_counted(tmp_path):
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        GRID.replace("steps: 5", "steps: 2").replace("[h100_sxm, a100_sxm]", "h100_sxm")
    )
    words = ["sweep", str(grid), "--out", str(tmp_path / "out"), "--jobs", "1"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    assert "12 cases in" in said
    assert "4 of them have no prediction, 4 since: tp: 3 does not divide" in said


@pytest.mark.slow
def test_a_cluster_gives_the_same(grid, whole, tmp_path):
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as own:
        address = own.scheduler_address
        physim.sweep(grid, tmp_path / "out", size=8, backend="dask", address=address)
    assert parts(tmp_path / "out") == parts(whole)


@pytest.mark.slow
def test_ray_gives_the_same(grid, whole, tmp_path):
    pytest.importorskip("ray", reason="needs Ray (extra `ray`)")
    words = ["sweep", str(grid), "--out", str(tmp_path / "out"), "--size", "8", "--backend", "ray"]
    # Ray warns of many things, and leaves processes of its own behind for a while.
    command = Path(sys.executable).with_name("physim")
    subprocess.run([command, *words], check=True, start_new_session=True, timeout=300)
    assert parts(tmp_path / "out") == parts(whole)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tp: [1, 2]", "grid.yaml: model: is missing"),
        ("model: x\ntpx: 1", "option 'tpx': is unknown"),
        ("model: x\nrate: {from: 1, to: 2}", "rate.steps: is no range: field required"),
        ("model: x\nrate: {from: 0, to: 2, steps: 2, scale: log}", "need ends above zero"),
        (
            "model: x\nrate: {from: 1, to: .nan, steps: 2}",
            "rate.to: is no range: input should be a f",
        ),
        ("model: x\nrate: {from: 1, to: 2, steps: 0}", "rate.steps: .* greater than or equal to 1"),
        ("model: x\nrate: {from: 1, to: 2, steps: 1000000000000}", "rate.steps: is no range"),
        ("model: x\nrate: {from: 1, to: 2, steps: true}", "rate.steps: is no range"),
        ("model: x\nrate: {from: 1, to: 2, steps: 2, scale: [log]}", "rate.scale: is no range"),
        ("model: x\nrate: {from: 1, to: 2, steps: 2, by: 1}", "rate.by: is no range: extra inputs"),
        ("model: [", "is no YAML"),
        ("model: " + "[" * 9999, "is no YAML"),
        ("model: 2026-13-45", "is no YAML: month must be in 1..12"),
        ("model: x\0", "is no YAML"),
        ("model: []", "model: is no value, list or range"),
        ("model: ['', []]", "model: is no value, list or range"),
        ("model: [null]", "model: is no value, list or range"),
        ("model: {}", "model.from: is no range"),
        ("model: 2026-01-01", "model: is no value, list or range"),
        ('model: "\\ud800"', "model: is no value, list or range"),
        ("model: x\nrate: [1, .inf]", "rate: is no value, list or range"),
        ("model: x\nstages: [1]", "stages: cannot be swept"),
        (
            "model: x\nrate: {from: 1, to: 2, steps: 100000}\n"
            "input_tokens: {from: 1, to: 2, steps: 100000}",
            "has 1e[+]10 cases; give fewer values",
        ),
        ("- 1", "holds no YAML mapping"),
    ],
)
def test_what_is_no_grid(text, complaint, tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        CaseGrid.read(path)


def test_values_of_a_grid_keep_their_kinds(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("model: ['', é, 1, 2.5, true]\nrate: {from: 1, to: 4, steps: 3, scale: log}")
    found = CaseGrid.read(path).axes
    assert found["model"] == ["", "é", 1, 2.5, True]
    assert [type(one) for one in found["model"]] == [str, str, int, float, bool]
    assert found["rate"] == pytest.approx([1, 2, 4])


def test_what_cannot_be_swept(grid, tmp_path):
    with pytest.raises(InputError, match="backend: 'mpi' is unknown; use one of loky, dask, ray"):
        physim.sweep(grid, tmp_path / "one", backend="mpi")
    with pytest.raises(InputError, match="address: is of no use to loky"):
        physim.sweep(grid, tmp_path / "two", address="tcp://somewhere:8786")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="already exists and holds no sweep"):
        physim.sweep(grid, tmp_path, resume=True)


def test_a_grid_takes_the_commands_names(tmp_path, grid):
    path = tmp_path / "grid.yaml"
    lines = GRID.replace("input_tokens", "input").replace("output_tokens", "--output")
    path.write_text(lines + "max-num-seqs: 64\nas: LlamaForCausalLM\n")
    read = CaseGrid.read(path)
    more = {"max_num_seqs": [64], "read_as": ["LlamaForCausalLM"]}
    assert read.axes == {**CaseGrid.read(grid).axes, **more}


def test_a_hit_rate_is_of_the_prompts_of_its_case(tmp_path):
    path = tmp_path / "grid.yaml"
    lines = GRID.replace("tp: [1, 2, 3]", 'tp: 2\ncached: "50%"')
    path.write_text(lines.replace("steps: 5", "steps: 1"))
    assert physim.sweep(path, tmp_path / "out", size=8, jobs=1) == 4
    frame = pd.read_parquet(tmp_path / "out")
    assert set(frame["problem"]) == {""}
    assert set(frame["cached_tokens"]) == {"50%"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("input: 5", "option 'input': is input_tokens, which is there already; give one"),
        ("inputs: 5", "option 'inputs': is unknown; did you mean input_tokens?"),
        ("max-num-seq: 5", "option 'max_num_seq': is unknown; did you mean max_num_seqs?"),
        ("enable-lora: true", "option 'enable_lora': adapters .LoRA. are not modelled; leave"),
        ("max_loras: 4", "option 'max_loras': adapters .LoRA. are not modelled"),
    ],
)
def test_names_that_a_grid_does_not_take(tmp_path, line, complaint):
    path = tmp_path / "grid.yaml"
    path.write_text(f"{GRID}{line}\n")
    with pytest.raises(InputError, match=complaint):
        CaseGrid.read(path)


def test_a_grid_asks_for_lists():
    for axes, said in (
        ({"model": "Qwen/Qwen3-8B"}, r"write \['Qwen/Qwen3-8B'\]"),
        ({"model": ["Qwen/Qwen3-8B"], "input_tokens": 1000}, r"input_tokens: 1000 is no list"),
    ):
        with pytest.raises(InputError, match=said):
            CaseGrid(axes)
