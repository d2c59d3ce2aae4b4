"""The tour: asked in a terminal, answered, and nothing left behind."""

import importlib

import pytest
from commands import refused
from typer.testing import CliRunner

from physim.cli import app

demo = importlib.import_module("physim.cli.demo")


def test_it_needs_a_terminal():
    line = refused("demo")
    assert line.startswith("demo: asks questions, and there is no terminal; use physim pred")


def test_it_shows_the_command_and_its_answer(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "_in_terminal", lambda: True)
    monkeypatch.chdir(tmp_path)
    # The second question is answered by a number that is not in the list first.
    done = CliRunner().invoke(app, ["demo"], input="1\n9\n1\n\n2\n", env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    command = "physim predict Qwen/Qwen3-8B --gpu h100_sxm --tp 1 --rate 4 --input 500 --output 250"
    assert f"$ {command}" in done.output
    assert "TTFT and ITL against the load" in done.output
    assert "(90%)" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gpu", demo._GPUS)
@pytest.mark.parametrize("model", demo._MODELS)
def test_every_choice_has_an_answer(model, gpu):
    assert demo._least(model, gpu, 1.0, 4000, 300).server.parallelism.tp in demo._TPS
