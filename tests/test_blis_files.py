"""BLIS's own files: its workloads as loads, and its traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import run

import physim
from physim.errors import InputError
from physim.inputs.load_file import read_load, staying
from physim.inputs.stages import Stage
from physim.measured.recognised import format_of

REPORTS = Path(__file__).parent / "reports"
CLIENT = {
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "constant", "params": {"value": 500}},
    "output_distribution": {"type": "constant", "params": {"value": 200}},
}
SPEC = {"aggregate_rate": 4.0, "clients": [CLIENT]}


def written(folder, spec):
    path = folder / "load.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def gaussian(**params):
    return client(input_distribution={"type": "gaussian", "params": params})


def client(**change):
    return SPEC | {"clients": [CLIENT | change]}


def test_clients_of_a_workload_are_one_load():
    """Three in four requests are of the first client, with 100 tokens of a prefix before each."""
    load = read_load(REPORTS / "blis_workload.yaml")
    assert (load["rate"], load["requests"], load["arrival"]) == (8.0, 600, "poisson")
    prompts, cached, outputs = load["lengths"].arrays
    chat = cached == 100
    assert chat.mean() == 0.75
    # Clamped as BLIS does it, at 32 and 150, and the prefix before it.
    assert (prompts[chat].min(), prompts[chat].max()) == (132, 250)
    assert outputs[chat].mean() == pytest.approx(64, rel=0.01)
    assert set(prompts[~chat]) == {1000}
    np.testing.assert_array_equal(
        np.unique(outputs[~chat], return_counts=True), [[10, 20], [128, 384]]
    )
    # Prompts and outputs say nothing of each other.
    assert abs(np.corrcoef(prompts[chat], outputs[chat])[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (SPEC, {"rate": 4.0}),
        (SPEC | {"num_requests": 100}, {"rate": 4.0, "requests": 100}),
        # A horizon is in microseconds; whichever ends first counts.
        (SPEC | {"horizon": 60_000_000}, {"stages": (Stage(4.0, 60.0),)}),
        (SPEC | {"horizon": 60_000_000, "num_requests": 100}, {"rate": 4.0, "requests": 100}),
        (SPEC | {"horizon": 6_000_000, "num_requests": 100}, {"stages": (Stage(4.0, 6.0),)}),
        # A variation of 2 is a shape of a quarter.
        (client(arrival={"process": "gamma", "cv": 2.0}), {"rate": 4.0, "burstiness": 0.25}),
    ],
)
def test_when_requests_of_a_workload_come(tmp_path, spec, wanted):
    load = read_load(written(tmp_path, spec))
    assert {name: load[name] for name in wanted} == wanted
    assert len({"rate", "stages"} & set(load)) == 1


def test_a_workload_is_predicted_as_its_options(tmp_path):
    """Fixed lengths and a prefix are what --input, --output and --cached say."""
    server = {"gpu": "h100_sxm", "fit": "none"}
    spec = client(prefix_group="a", prefix_length=100)
    found = physim.predict("Qwen/Qwen3-8B", **server, **read_load(written(tmp_path, spec)))
    told = physim.predict(
        *("Qwen/Qwen3-8B",),
        **{**server, "rate": 4.0, "arrival": "poisson"},
        lengths=physim.RequestLengths.from_columns([600.0], [200.0], [100.0]),
    )
    assert found.ttft_s == pytest.approx(told.ttft_s)
    assert found.itl_s == pytest.approx(told.itl_s)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"clients": [CLIENT]}, "aggregate_rate: is missing"),
        (SPEC | {"aggregate_rate": 0}, "aggregate_rate: 0 is not positive"),
        (SPEC | {"agregate_rate": 1}, "agregate_rate: 1 is of a field that is unknown"),
        (SPEC | {"clients": []}, "clients: are missing"),
        (SPEC | {"cohorts": [1]}, "cohorts: has no place in a load"),
        (client(reasoning={"multi_turn": {}}), "reasoning: has no place in a load"),
        (
            client(arrival={"process": "weibull", "cv": 2.0}),
            "process: weibull is unknown",
        ),
        (client(arrival={"process": "gamma"}), "cv: is missing"),
        (
            gaussian(std_dev=3),
            "params.mean: is missing",
        ),
        (
            client(input_distribution={"type": "empirical", "params": {"a": 1}}),
            "params: has a key that is no number",
        ),
        (
            gaussian(mean=9, min=8, max=4),
            "params.min: is above max",
        ),
        (
            SPEC | {"clients": [CLIENT, CLIENT | {"arrival": {"process": "constant"}}]},
            r"clients\[1\].arrival: is not the first's",
        ),
    ],
)
def test_workloads_that_cannot_be_used_are_one_line(tmp_path, spec, said):
    with pytest.raises(InputError, match=said) as error:
        read_load(written(tmp_path, spec))
    assert "\n" not in str(error.value)


COMMAND = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--fit", "none", "--json", "--workload")


@pytest.mark.slow
def test_the_command_takes_a_workload():
    path = REPORTS / "blis_workload.yaml"
    own = physim.predict("Qwen/Qwen3-8B", gpu="h100_sxm", fit="none", **read_load(path))
    assert json.loads(run(*COMMAND, path).stdout) == json.loads(json.dumps(own.to_dict()))


@pytest.mark.parametrize("option", ["--rate", "--input", "--cached", "--burstiness"])
def test_what_a_workload_says_is_not_said_again(option):
    said = run(*COMMAND, REPORTS / "blis_workload_gamma.yaml", option, "3").stderr
    assert f"{option}: is given by --workload already" in said


def test_commands_whose_load_stays_take_a_workload(tmp_path):
    """Its rate and lengths, without an end."""
    load = read_load(written(tmp_path, SPEC | {"horizon": 60_000_000}))
    found = staying(load)
    assert (found["rate"], found["lengths"]) == (4.0, load["lengths"])
    assert "stages" not in found
    assert "requests" not in staying(read_load(REPORTS / "blis_workload.yaml"))


@pytest.mark.parametrize("name", ["blis_workload.yaml", "workload.yaml"])
def test_a_workload_is_no_report(name):
    with pytest.raises(InputError, match=r"describes a load.* with --workload"):
        physim.read_report("auto", REPORTS / name, model="Qwen/Qwen3-8B", gpu="h100")


def test_a_trace_is_read_by_its_header_too(tmp_path):
    """What the header says of the server is the case, unless an option says otherwise."""
    for name in ("blis.csv", "blis.yaml"):
        shutil.copy(REPORTS / name, tmp_path)
    header = tmp_path / "blis.yaml"
    server = {
        "type": "vllm",
        "model": "Qwen/Qwen3-8B",
        "tensor_parallel": 2,
        "max_num_seqs": 64,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.85,
    }
    header.write_text(header.read_text() + yaml.safe_dump({"server": server}))
    assert format_of([header]) == "blis-trace"
    (row,) = physim.read_report("auto", header, gpu="h100_sxm").to_dict("records")
    assert (row["model"], row["tp"], row["max_num_seqs"]) == ("Qwen/Qwen3-8B", 2, 64)
    assert (row["max_model_len"], row["gpu_memory_utilization"]) == (8192, 0.85)
    (other,) = physim.read_report("blis-trace", header, gpu="h100_sxm", tp=1).to_dict("records")
    assert (other["tp"], other["ttft_mean"]) == (1, row["ttft_mean"])
    header.write_text(header.read_text().replace("max_num_seqs: 64", "max_num_seqs: many"))
    with pytest.raises(InputError, match="server: max_num_seqs: many is not a whole number"):
        physim.read_report("auto", header, gpu="h100_sxm")
