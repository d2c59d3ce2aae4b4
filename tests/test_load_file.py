"""Loads from files of load generators and simulators."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim import data
from physim.cli.load_options import load_options
from physim.inputs.lengths import Lengths, lengths
from physim.inputs.load_file import read_load, staying

REPORTS = Path(__file__).parent / "reports"
SERVER = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "fit": "none"}


def changed(tmp_path, **sections):
    content = data.read_yaml(REPORTS / "workload.yaml")
    for name, own in sections.items():
        content[name] = {**content[name], **own}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    return path


def test_stages_and_lengths():
    found = read_load(REPORTS / "workload.yaml")
    prompts = found.pop("input_tokens")
    assert found == {
        "arrival": "poisson",
        "stages": (physim.Stage(4, 120), physim.Stage(8.5, 60)),
        "timeout_s": 900,
        "output_tokens": 251.0,
    }
    assert prompts.mean == pytest.approx(786, rel=0.01)
    assert np.std(prompts.values) == pytest.approx(297, rel=0.01)
    assert (min(prompts.values), max(prompts.values)) == (10, 1500)


def test_a_shared_prefix_comes_again(tmp_path):
    found = read_load(REPORTS / "workload_prefix.yaml")
    assert found == {
        "concurrency": 16.0,
        "requests": 400,
        "input_tokens": 1200.0,
        "output_tokens": 150.0,
        "cached_tokens": 1200.0,
        "prefixes": 45,
        "popularity": "in-turn",
    }
    # Of so few requests none is sent twice.
    content = data.read_yaml(REPORTS / "workload_prefix.yaml")
    content["load"]["stages"][0]["num_requests"] = 45
    path = tmp_path / "few.json"
    path.write_text(json.dumps(content))
    few = read_load(path)
    assert (few["cached_tokens"], few["prefixes"], few["popularity"]) == (1000.0, 9, "uniform")


def test_questions_have_distributions(tmp_path):
    questions = {"type": "uniform", "min": 100, "max": 300}
    shared = {"system_prompt_len": 1000, "question_distribution": questions}
    path = changed(tmp_path, data={"type": "shared_prefix", "shared_prefix": shared})
    found = read_load(path)
    assert found["input_tokens"].mean == pytest.approx(1200, abs=0.1)
    assert found["output_tokens"] == 50
    assert found["cached_tokens"] == found["input_tokens"].mean


@given(
    kind=st.sampled_from(["normal", "lognormal", "uniform", "fixed"]),
    least=st.integers(0, 500),
    more=st.integers(1, 4000),
    share=st.floats(0.01, 1.0),
    std=st.floats(0.0, 100.0),
)
@settings(max_examples=30)
def test_lengths_are_within_their_range(tmp_path_factory, kind, least, more, share, std):
    told = {"type": kind, "min": least, "max": least + more, "mean": least + share * more}
    folder = tmp_path_factory.mktemp("load")
    own = {"input_distribution": {**told, "std_dev": std}}
    found = lengths(read_load(changed(folder, data=own))["input_tokens"])
    assert found.fine.min() >= max(least, 1) - (kind == "fixed")
    assert found.fine.max() <= least + more
    if kind == "uniform":
        assert found.mean == pytest.approx(least + more / 2, abs=1)
    if kind == "fixed":
        assert found == Lengths.fixed(max(int(told["mean"]), 1))


def test_a_load_that_stays_has_the_highest_rate():
    found = staying(read_load(REPORTS / "workload.yaml"))
    assert (found["rate"], found["arrival"]) == (8.5, "poisson")
    assert "stages" not in found
    clients = staying(read_load(REPORTS / "workload_prefix.yaml"))
    assert clients["concurrency"] == 16
    assert "requests" not in clients


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"load": {"type": "trace_replay"}}, "load.type: 'trace_replay' says no rate or clients"),
        ({"load": {"stages": []}}, "load.stages: are missing"),
        ({"load": {"stages": [{"rate": 1}]}}, r"load.stages\[0\]: has no rate and duration"),
        ({"load": {"stages": [{"rate": -1}]}}, "rate"),
        ({"load": {"type": "concurrent"}}, "are 2 of clients"),
        ({"load": {"type": "concurrent", "stages": [{}]}}, "has no concurrency_level"),
        ({"data": {"type": "mock"}}, "data.type: 'mock' says no lengths"),
        ({"data": {"input_distribution": None}}, "data.input_distribution: is missing"),
        ({"data": {"input_distribution": {"mean": 5000}}}, "5000 is not from 10 to 1024"),
        ({"data": {"input_distribution": {"min": 9000, "type": "uniform"}}}, "more than the max"),
        ({"data": {"input_distribution": {"type": "zipf"}}}, "input_distribution.type"),
        (
            {"data": {"type": "shared_prefix", "shared_prefix": {"enable_multi_turn_chat": True}}},
            "has conversations",
        ),
    ],
)
def test_what_is_no_load_is_named(tmp_path, sections, complaint):
    with pytest.raises(physim.InputError, match=complaint) as caught:
        read_load(changed(tmp_path, **sections))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "load", "- 1", "load: {", "load: {type: poisson}", "\x00"])
def test_what_is_no_configuration_is_one_line(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(physim.InputError) as caught:
        read_load(path)
    assert "\n" not in str(caught.value)


COMMAND = ("predict", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--fit", "none", "--workload")


@pytest.mark.slow
def test_a_workload_is_predicted():
    own = physim.predict(**SERVER, **read_load(REPORTS / "workload_prefix.yaml"))
    said = run(*COMMAND, REPORTS / "workload_prefix.yaml", "--json")
    assert json.loads(said.stdout) == json.loads(json.dumps(own.to_dict()))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rate", "3"], "--rate: is given by --workload already"),
        (["--requests", "3"], "--requests: is given by --workload already"),
        (["--cached", "3"], "--cached: is given by --workload already"),
        (["--trace", "a.csv"], "cannot be combined with a load"),
    ],
)
def test_what_a_workload_says_is_not_said_again(options, complaint):
    assert complaint in run(*COMMAND, REPORTS / "workload_prefix.yaml", *options).stderr


def test_commands_whose_load_stays_take_the_highest_rate():
    own = dict.fromkeys(("input_tokens", "output_tokens", "lengths", "rate"))
    beside = {"turns": "1", "cached_tokens": "0", "arrival": None}
    given = {**own, **beside, "workload": REPORTS / "workload.yaml"}
    found = load_options(given)
    assert (found["rate"], found["arrival"], found["output_tokens"]) == (8.5, "poisson", 251.0)
    assert "stages" not in found
    kept = load_options({**given, "stages": [], "timeout_s": None})
    assert [stage.rate for stage in kept["stages"]] == [4, 8.5]
