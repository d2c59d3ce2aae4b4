"""Files of measured steps, read into one table and held against the step model."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from commands import run
from hypothesis import given

import physim
from physim.errors import InputError
from physim.measured import step_table
from physim.measured.step_files import STEP_FORMATS, read_step_files
from physim.measured.step_summary import summary_of
from physim.measured.steps import COLUMNS, MeasuredSteps
from physim.step.batch import Batch
from physim.step.many_batches import named_seconds
from physim.validation.step_errors import compare_steps, errors_of

REPORTS = Path(__file__).parent / "reports"


def read(name, **options):
    return read_step_files([REPORTS / name], **options)


def columns_of(steps, *names):
    return [getattr(steps, name).tolist() for name in names]


def test_iteration_log():
    steps = read("iterations.log")
    assert (steps.engine, steps.clock) == ("vllm", "worker")
    assert columns_of(steps, "prefill_requests", "prefill_tokens") == [[2, 1, 0], [4096, 512, 0]]
    assert columns_of(steps, "decode_requests", "drafts") == [[0, 2, 3], [0, 3, 3]]
    np.testing.assert_allclose(steps.seconds, [0.06125, 0.0215, 0.01175])
    np.testing.assert_allclose(steps.kv_usage, [0.008, 0.009, 0.01])
    assert np.isnan(steps.context_tokens).all()
    assert steps.notes == (
        "1 steps without requests are left out",
        "its steps took 0.1 s of the 2 s that it covers",
    )
    older = read("iterations_older.log")
    np.testing.assert_allclose(older.seconds, [0.0251, 0.0084])
    assert np.isnan(older.kv_usage).all()


def test_contexts_follow_from_the_kv_cache_in_use():
    steps = read("iterations.log").with_contexts(1_000_000)
    # 9,000 tokens in use less a chunk of 512 and 2 x 4 computed; 10,000 less 3 x 4.
    np.testing.assert_allclose(steps.context_tokens, [0, 9000 - 512 - 8, 10_000 - 12])
    small = read("iterations.log").with_contexts(1000)
    np.testing.assert_allclose(small.context_tokens, [0, 2, 3])
    np.testing.assert_array_equal(steps.with_contexts(5).context_tokens, steps.context_tokens)


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ("Engine 000: Iteration(4): 2 context requ", "the last line is cut off and left out"),
        ("some other line", "1 steps without requests are left out"),
    ],
)
def test_a_log_that_is_still_written_to(tmp_path, end, note):
    path = tmp_path / "server.log"
    path.write_text((REPORTS / "iterations.log").read_text() + end)
    steps = read_step_files([path])
    assert len(steps) == 3
    assert note in steps.notes


def test_waits_for_steps_are_not_steps(tmp_path):
    path = tmp_path / "server.log"
    line = (REPORTS / "iterations.log").read_text().splitlines()[1]
    path.write_text("\n".join([line, *[line.replace("61.25", "0.03")] * 3, line, ""]))
    notes = read_step_files([path]).notes
    assert any(note.startswith("60% of the steps took less than 0.2 ms") for note in notes)
    assert "the engine was started 5 times" in notes


def test_forward_pass_metrics(tmp_path):
    steps = read("forward_pass.jsonl")
    assert steps.clock == "scheduler"
    assert columns_of(steps, "seconds", "cached_tokens") == [[0.031, 0.019], [0, 600]]
    # Of two whole prompts the chunks' variance is known, of one chunk it is none.
    assert columns_of(steps, "prefill_variance", "context_tokens") == [[40000, 0], [5400, 6608]]
    assert steps.notes == ()
    assert read("forward_pass.jsonl", clock="gpu").clock == "gpu"
    assert read("forward_pass_timed.jsonl").clock == "gpu"
    message = json.loads((REPORTS / "forward_pass.jsonl").read_text().splitlines()[0])
    flat = {**message.pop("scheduled_requests"), **message, "counter_id": 9}
    path = tmp_path / "flat.jsonl"
    path.write_text("\n".join([json.dumps({**flat, "counter_id": 2}), json.dumps(flat), '{"ver']))
    steps = read_step_files([path])
    assert len(steps) == 2
    assert steps.notes == (
        "the last line is cut off and left out",
        "6 messages between these were not received",
    )


def test_timed_batches_are_exact():
    steps = read("vllm_bench_forward.json")
    assert steps.clock == "forward"
    assert columns_of(steps, "decode_requests", "drafts") == [[2, 1], [0, 3]]
    # The KV length counts the query.
    assert columns_of(steps, "context_tokens", "context_variance") == [[6000, 4092], [1e6, 0]]
    assert columns_of(steps, "prefill_tokens", "cached_products") == [[0, 2560], [0, 2048 * 8192]]
    assert steps.prefill_variance.tolist() == [0, 768**2]
    assert steps.notes == ("the timing of mix was unstable",)
    batches = steps.batches()
    exact = Batch.exact(
        np.array([2048.0, 512.0, 4.0]),
        np.array([8192.0, 0.0, 4092.0]),
        decodes=np.array([False, False, True]),
    )
    known = {name: value for name, value in vars(exact).items() if value is not None}
    for name, value in known.items():
        np.testing.assert_allclose(
            np.ravel(np.broadcast_to(getattr(batches, name), (2, *np.shape(value)))[1]),
            np.ravel(value),
            err_msg=name,
        )


def as_parquet(path, frame, **metadata):
    frame.to_parquet(path)
    about = {
        "schema_name": "aic_fpm_forward_perf",
        "row_count": len(frame),
        "parquet_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    path.with_suffix(".metadata.json").write_text(json.dumps(about | metadata))
    return path


def test_forward_table(tmp_path):
    frame = pd.read_csv(REPORTS / "forward_table.csv")
    path = as_parquet(tmp_path / "fpm_forward_perf.parquet", frame)
    steps = read_step_files([path])
    assert (steps.engine, steps.engine_version, steps.notes) == ("vllm", "0.25.1", ())
    assert columns_of(steps, "prefill_requests", "cached_tokens") == [[2, 0], [8192, 0]]
    assert columns_of(steps, "decode_requests", "context_tokens") == [[0, 32], [0, 65536]]
    np.testing.assert_allclose(steps.seconds, [0.0955, 0.0112])
    two = pd.concat([frame, frame.assign(tp=8)])
    as_parquet(path, two)
    with pytest.raises(InputError, match="with different tp; choose one with --where"):
        read_step_files([path])
    assert len(read_step_files([path], where="tp == 8")) == 2
    as_parquet(path, frame, row_count=3)
    with pytest.raises(InputError, match="row_count: is 3 of 2 rows"):
        read_step_files([path])
    as_parquet(path, frame, parquet_sha256="0" * 64)
    with pytest.raises(InputError, match="parquet_sha256: is another file's"):
        read_step_files([path])


def test_step_trace_keeps_its_cycles():
    steps = read("steps.csv")
    assert steps.clock == "loop"
    assert (steps.seconds > 0).all()
    assert steps.kv_usage.max() <= 1
    gaps = steps.gaps_s[:-1]
    assert (gaps[np.diff(steps.start_s) > 0] > -1e-9).all()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    "name", ["iterations.log", "forward_pass.jsonl", "vllm_bench_forward.json"]
)
def test_a_written_table_is_read_as_it_was(tmp_path, name, suffix):
    steps, path = read(name), tmp_path / f"steps{suffix}"
    step_table.write(path, steps)
    again = read_step_files([path])
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(steps, column), getattr(again, column))
    assert (again.clock, again.engine) == (steps.clock, steps.engine)
    assert len(read_step_files([path], where="seconds < 0.02")) == sum(steps.seconds < 0.02)


def test_files_are_joined_if_they_are_alike():
    log = REPORTS / "iterations.log"
    both = read_step_files([log, log])
    assert len(both) == 6
    assert both.notes[0].startswith(f"{log}: ")
    with pytest.raises(InputError, match="has clock scheduler, unlike"):
        read_step_files([log, REPORTS / "forward_pass.jsonl"])


LINE = (REPORTS / "forward_pass.jsonl").read_text().splitlines()[0]
BENCH = (REPORTS / "vllm_bench_forward.json").read_text()
LOG = (REPORTS / "iterations.log").read_text()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.log", "", "is empty"),
        ("a.log", "nothing of steps\n", "holds no line of a step"),
        ("a.log", LOG.replace("8 generation tokens", "many tokens"), "line 3: is no whole line"),
        ("a.log", LOG.replace("8 generation tokens", "1 generation tokens"), "are fewer than"),
        ("a.log", LOG.replace("0.9%", "190%"), "kv_usage: 1.9 is above 1"),
        ("a.log", LOG.replace("2 context requests", "9000 context requests"), "do not go with"),
        ("a.jsonl", LINE.replace("0.031", "-0.031"), "wall_time: -0.031 is below 0"),
        ("a.jsonl", LINE.replace("0.031", "NaN"), "wall_time: nan is not a number"),
        ("a.jsonl", LINE.replace('"version": 1', '"version": 2'), "version: 2 is unknown; use"),
        ("a.jsonl", '{"version": 1}\n', "wall_time: is missing; pass the messages"),
        ("a.jsonl", LINE[:50] + "\n" + LINE, "line 1: is no JSON message"),
        ("a.jsonl", f"{LINE}\n[1]\n", "line 2: is no JSON object"),
        ("a.jsonl", LINE.replace("0.031", "0.0"), "holds no step with requests"),
        ("a.json", "[]", "holds no case"),
        ("a.json", BENCH[:-9], "broken JSON"),
        ("a.json", BENCH.replace("6210.4", '"6210.4"'), "median_us: '6210.4' is not a number"),
        ("a.json", BENCH.replace("4001", "0"), "kv_len: 0 is not positive"),
        ("a.csv", "a,b\n1,2\n", "has no column experiment_id"),
        ("a.csv", "", "is not a CSV table"),
        ("a.parquet", "PAR1", "is not a table"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read_step_files([path])
    assert "\n" not in str(raised.value)


def test_options_that_say_nothing_of_a_format():
    with pytest.raises(InputError, match="format: 'x' is unknown; use one of iteration-log"):
        read("iterations.log", kind="x")
    with pytest.raises(InputError, match="where: chooses rows of tables, not of iteration-log"):
        read("iterations.log", where="tp == 2")
    with pytest.raises(InputError, match="clock: is given by iteration-log already"):
        read("iterations.log", clock="gpu")
    with pytest.raises(InputError, match="clock: 'x' is unknown"):
        read("forward_pass.jsonl", clock="x")
    with pytest.raises(InputError, match="No such file"):
        read("nothing.csv")
    with pytest.raises(InputError, match="files: are none"):
        read_step_files([])
    assert len(set(STEP_FORMATS)) == 6


def test_contexts_must_be_known():
    with pytest.raises(InputError, match="step 2: context_tokens: are not known; say how many"):
        read("iterations_older.log").batches()
    steps = read("iterations_older.log").with_mean_context(900)
    assert steps.batches().attended.ravel().tolist() == [0, 901]


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=30),
    st.floats(1, 5000),
)
def test_a_window_sees_no_more_than_itself_or_the_contexts(contexts, window):
    values = np.array(contexts, float)
    steps = MeasuredSteps.from_columns(
        {
            "decode_requests": [len(values)],
            "prefill_requests": [0],
            "prefill_tokens": [0],
            "context_tokens": [values.sum()],
            "context_variance": [values.var()],
            "seconds": [0.01],
        },
        "gpu",
        "here",
    )
    attended = steps.batches(np.array([window, np.inf])).attended[0]
    assert attended[1] == pytest.approx(values.sum() + len(values))
    assert 0 <= attended[0] <= min(window * len(values), attended[1]) * (1 + 1e-9)
    if values.max() + 1 <= window / 2:
        assert attended[0] >= 0.9 * attended[1]


def test_predicted_steps_have_no_error():
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm")
    model = physim.step_model(case)
    decode, chunk = np.array([1.0, 40.0, 0.0, 16.0]), np.array([0.0, 0.0, 2000.0, 500.0])
    batches = model.batch(
        decode_requests=decode,
        context=np.full(4, 1001.0),
        prefill_requests=(chunk > 0) * 1.0,
        chunk=chunk,
        cached=np.zeros(4),
        query_tokens=np.ones(4),
    )
    parts = named_seconds(model, batches)
    known = {
        "decode_requests": decode,
        "context_tokens": 1000 * decode,
        "prefill_requests": (chunk > 0) * 1.0,
        "prefill_tokens": chunk,
        "cached_tokens": 0 * chunk,
    }
    host = parts["host"]
    assert (host > 0).all()
    for clock, unseen in (("scheduler", 0.0), ("gpu", host)):
        seconds = sum(parts.values()) - unseen
        steps = MeasuredSteps.from_columns(known | {"seconds": seconds}, clock, "here")
        compared = compare_steps(steps, case)
        assert [one.kind for one in compared.errors] == ["decode", "prompts", "mixed", "all"]
        assert max(one.mean_pct for one in compared.errors) < 1e-3
    forward = replace(steps, clock="forward")
    assert (compare_steps(forward, case).predicted_s < compared.predicted_s).all()


def test_errors_by_hand():
    steps = read("forward_pass.jsonl")
    (decode,) = errors_of(steps, np.array([0.062, 0.019]))[-1:]
    assert decode.mean_pct == pytest.approx(50)
    assert decode.bias_pct == pytest.approx(100 * 0.031 / 0.05)
    assert decode.within_10pct == 50
    (mixed,) = summary_of(steps)
    assert (mixed.kind, mixed.steps, mixed.decode_requests) == ("mixed", 2, 7)
    assert mixed.context_tokens == pytest.approx(12008 / 14)


def test_steps_on_the_command_line(tmp_path):
    out = tmp_path / "steps.csv"
    log = str(REPORTS / "iterations.log")
    said = run("data", "steps", log, "--out", str(out)).stdout
    assert "3 steps; the clock covers a step from when" in said
    assert len(read_step_files([out])) == 3
    server = str(REPORTS / "vllm.log")
    said = run(
        "data",
        "steps",
        log,
        "--model",
        "Qwen/Qwen3-30B-A3B",
        "--gpu",
        "h100",
        "--server-log",
        server,
        "--json",
    )
    found = json.loads(said.stdout)
    assert [one["kind"] for one in found["errors"]] == ["decode", "prompts", "mixed", "all"]
    assert found["clock"] == "worker"
    assert any(note.startswith("contexts follow from the use of") for note in found["notes"])
    assert "the server had dtype float32, which physim does not predict" in found["notes"]
    assert "give --model and --gpu" in run("data", "steps", log, "--gpu", "h100").stderr
