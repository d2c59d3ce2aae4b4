"""Waits that come once are said once, when they are long."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from physim.waits import Patience


def test_long_waits_are_told_once():
    told, waits = [], Patience(0.02)
    waits.tell(lambda: told.append(1))
    for _ in range(3):
        with waits.once():
            time.sleep(0.06)
    assert told == [1]


def test_short_ones_add_up():
    told, waits = [], Patience(0.08)
    waits.tell(lambda: told.append(1))
    with waits.once():
        pass
    assert not told
    for _ in range(4):
        with waits.once():
            time.sleep(0.03)
    assert told == [1]


def test_nobody_is_told_where_nobody_asked():
    waits = Patience(0.0)
    with pytest.raises(KeyError), waits.once():
        raise KeyError
    waits.tell(lambda: None)
    with waits.once():
        time.sleep(0.01)


@pytest.mark.slow
def test_a_first_command_says_that_it_compiles(tmp_path):
    command = Path(sys.executable).with_name("physim")
    words = [
        "capacity",
        "Qwen3-8B",
        "--gpu",
        "h100",
        "--input",
        "786",
        "--output",
        "251",
        "--slo",
        "ttft=500ms",
    ]
    first, second = (
        subprocess.run(
            [command, *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "XLA_FLAGS": ""},
        )
        for _ in range(2)
    )
    assert first.stderr.count("compiling, once on this machine") == 1
    assert "compiling" not in second.stderr
    assert first.stdout == second.stdout
