"""Traces whose rows name their conversation, and how long after an answer they come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.request_traces import read_requests, read_turns
from physim.prediction.replayed import replay_of
from physim.replay.workload import read_trace

# Two conversations in new tokens a turn, of which the second comes by the clock.
DELTA: list[dict[str, Any]] = [
    {"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 41},
    {"session_id": "b", "timestamp": 2000, "input_length": 600, "output_length": 9},
    {"session_id": "a", "delay": 5000, "input_length": 100, "output_length": 11},
    {"session_id": "b", "timestamp": 2001, "input_length": 50, "output_length": 9},
    {"session_id": "a", "delay": 0, "input_length": 64, "output_length": 5},
]
DELTA[0]["hash_ids"] = DELTA[1]["hash_ids"] = [7]
# The same in whole prompts: the second begins with the first one's full block.
WHOLE = [
    {"session_id": 4 * "c", "timestamp": 0, "input_length": 600, "output_length": 200},
    {"session_id": 4 * "c", "delay": 1000, "input_length": 1000, "output_length": 5},
]
WHOLE[0]["hash_ids"], WHOLE[1]["hash_ids"] = [1, 2], [1, 3]


def written(folder, rows, name="trace.jsonl"):
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def replayed(path):
    """The requests of a replay in the order in which they came."""
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm")
    return replay_of(read_trace(path, 16), case, Corrections()).requests


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.txt"])
def test_prompts_hold_what_was_said_before(tmp_path, name):
    found = read_turns(written(tmp_path, DELTA, name))
    assert found.input_tokens.tolist() == [600, 600, 659, 741, 816]
    # Of what was said the last answer's last token was never computed.
    assert found.cached_tokens.tolist() == [0, 512, 608, 640, 751]
    assert found.turns.after.tolist() == [0, 1, 1, 0, 3]


def test_a_turn_comes_after_the_answer_and_its_delay(tmp_path):
    one, two, by_clock, later, last = replayed(written(tmp_path, DELTA))
    assert (one.arrival_s, two.arrival_s) == (0, 1)
    assert later.arrival_s == pytest.approx(one.finished_s + 5, abs=0.01)
    assert last.arrival_s == pytest.approx(later.finished_s, abs=0.01)
    # It was due a millisecond after the first, which had no answer then.
    assert by_clock.arrival_s == pytest.approx(two.finished_s, abs=0.01)
    # Blocks of 16 of 512, 608, 640 and 751 tokens.
    found = [r.cached_tokens for r in (one, two, by_clock, later, last)]
    assert found == [0, 512, 608, 640, 736]


def test_a_prompt_that_is_told_whole_holds_the_answer_before_it(tmp_path):
    path = written(tmp_path, WHOLE)
    assert read_turns(path).input_tokens.tolist() == [600, 1000]
    assert read_turns(path).cached_tokens.tolist() == [0, 799]
    one, two = replayed(path)
    assert two.arrival_s == pytest.approx(one.finished_s + 1, abs=0.01)
    assert two.cached_tokens == 784


def test_their_lengths_are_known_and_not_when_they_come(tmp_path):
    path = written(tmp_path, DELTA)
    lengths = physim.RequestLengths.read(path)
    assert sorted(lengths.input_tokens) == [600, 600, 659, 741, 816]
    assert not lengths.recorded
    with pytest.raises(InputError, match="timestamp: says of some turns how long after an answer"):
        read_requests(path, arrivals=True)


def test_a_trace_of_conversations_is_predicted(tmp_path):
    found = physim.predict_trace(
        "Qwen/Qwen3-8B", written(tmp_path, DELTA), gpu="h100_sxm", fit="none"
    )
    assert found.pool.hit_rate == pytest.approx((512 + 608 + 640 + 736) / 3416)
    assert found.whole.completed == 5


@pytest.mark.parametrize("option", ["--turns=3", "--think=2"])
def test_a_trace_says_itself_how_turns_come(tmp_path, option):
    path = str(written(tmp_path, DELTA))
    words = ["predict", "Qwen3-8B", "--gpu", "h100", "--trace", path, option]
    found = CliRunner().invoke(app, words)
    assert "trace: cannot be combined with a load" in str(found.exception)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"session_id": "a", "input_length": 9, "output_length": 9}, "timestamp: is missing"),
        (
            {"session_id": "new", "delay": 9, "input_length": 9, "output_length": 9},
            "timestamp: is missing; give it, or of later turns the delay",
        ),
        ({**DELTA[2], "delay": -1}, "delay: "),
        ({**DELTA[2], "session_id": 5}, "session_id: "),
        ({**DELTA[2], "input_length": 0}, "input_length: "),
        ({"input_length": 9, "output_length": 9}, "timestamp: is missing; give it, in milli"),
        ("{", "is no JSON object"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_line(tmp_path, row, line):
    with pytest.raises(InputError) as error:
        read_turns(written(tmp_path, [*DELTA, row]))
    assert f"line 6: {line}" in str(error.value)
