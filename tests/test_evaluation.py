"""Predictions against measured runs, and tables that are not in order."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from commands import run

import physim
from physim.errors import InputError
from physim.inputs.case import Case
from physim.measured.run_cases import cached_tokens, case_of, different_prompts
from physim.measured.runs_csv import read_tables, unread_columns
from physim.measured.schema import REQUIRED, RunRow
from physim.measured.template import template
from physim.plot import draw_groups
from physim.validation.by_group import by_group
from physim.validation.doubts import doubts
from physim.validation.evaluation import batch_of
from physim.validation.suspects import suspect

ROW = {
    "experiment": "run",
    "stage": 0,
    "model": "Qwen/Qwen3-8B",
    "hardware": "h100_sxm",
    "tp": 1,
    "max_model_len": 4096,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.9,
    "prefix_caching": True,
    "arrival": "constant",
    "rate_rps": 2.0,
    "duration_s": 600,
    "prompt_groups": 9,
    "input_len_mean": 575,
    "output_len": 248,
    "ttft_mean": 0.02,
    "e2e_mean": 2.0,
}


def table(tmp_path, *rows):
    path = tmp_path / "runs.csv"
    pd.DataFrame([{**ROW, **row} for row in rows]).to_csv(path, index=False)
    return path


def test_a_row(tmp_path):
    path = table(tmp_path, {})
    evaluation = physim.evaluate([path], fit="none")
    (row,) = evaluation.rows
    assert row["metrics"]["itl_mean"]["observed"] == pytest.approx((2.0 - 0.02) / 247)
    expected = physim.predict(
        "Qwen/Qwen3-8B",
        gpu="h100_sxm",
        stages=[(2, 600)],
        arrival="constant",
        input_tokens=575,
        output_tokens=248,
        cached_tokens=560,
        prefixes=9,
        max_model_len=4096,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        fit="none",
    )
    assert row["metrics"]["e2e_mean"]["predicted"] == pytest.approx(expected.e2e_s)
    error = (expected.e2e_s / 2.0 - 1) * 100
    assert row["metrics"]["e2e_mean"]["error_pct"] == pytest.approx(error)
    summary = evaluation.summary["e2e_mean"]
    assert summary["n"] == 1
    assert summary["mape"] == summary["max_ape"] == pytest.approx(abs(error))
    assert summary["bias_pct"] == pytest.approx(error)
    assert json.loads(json.dumps(evaluation.to_dict())) == {
        "rows": evaluation.rows,
        "summary": evaluation.summary,
        "skipped": [],
        "left_out": [],
    }
    assert len(evaluation.to_frame()) == 1


@pytest.mark.slow
def test_rows_that_are_left_out_count_for_no_error(tmp_path):
    path = table(
        tmp_path,
        {},
        {"experiment": "broken", "left_out": "the node was shared"},
        {"experiment": "plain", "left_out": ""},
    )
    evaluation = physim.evaluate([path])
    assert [row["experiment"] for row in evaluation.rows] == ["run", "plain"]
    assert {metric["n"] for metric in evaluation.summary.values()} == {2}
    assert {row["experiment"]: row["reason"] for row in evaluation.left_out} == {
        "broken": "the node was shared",
    }
    assert evaluation.left_out[0]["metrics"] == evaluation.rows[0]["metrics"]


def test_skipped_rows_have_a_reason(tmp_path):
    path = table(
        tmp_path,
        {},
        {"experiment": "other", "model": "nobody/knows-this-one"},
        {"experiment": "third", "tp": 3},
        {"experiment": "fourth", "stage": 0},
        {"experiment": "fourth", "stage": 1, "output_len": 300},
    )
    evaluation = physim.evaluate([path])
    reasons = {(row["experiment"], row["stage"]): row["reason"] for row in evaluation.skipped}
    assert "nobody/knows-this-one" in reasons["other", 0]
    assert "does not divide" in reasons["third", 0]
    assert "output_len differs between stages" in reasons["fourth", 0].replace(": ", " ", 2)
    assert len(evaluation.rows) == 1


@pytest.mark.slow
def test_stages_follow_one_another(tmp_path):
    path = table(
        tmp_path,
        {"stage": 1, "rate_rps": 300.0, "duration_s": 60},
        {"stage": 0, "duration_s": 60},
        {"stage": 2, "duration_s": 60},
        {"stage": -1, "duration_s": 180},
    )
    rows = {row["stage"]: row["metrics"] for row in physim.evaluate([path]).rows}
    ttft = {stage: metrics["ttft_mean"]["predicted"] for stage, metrics in rows.items()}
    # The second stage is far above capacity, and the third finds its queue.
    assert ttft[1] > 100 * ttft[0]
    assert ttft[2] > 100 * ttft[0]
    requests = {0: 120, 1: 18000, 2: 120}
    mean = sum(requests[s] * ttft[s] for s in requests) / sum(requests.values())
    assert ttft[-1] == pytest.approx(mean, rel=1e-3)
    # A filter chooses rows, not what went before them.
    (row,) = physim.evaluate([path], where="stage == 2").rows
    assert row["metrics"]["ttft_mean"]["predicted"] == pytest.approx(ttft[2], rel=1e-6)


@pytest.mark.slow
def test_the_whole_run_alone_is_one_stage(tmp_path):
    path = table(tmp_path, {"stage": 0}, {"stage": -1, "experiment": "alone"})
    first, second = physim.evaluate([path]).rows
    assert first["metrics"]["e2e_mean"] == second["metrics"]["e2e_mean"]


def test_the_replay_evaluates_too(tmp_path):
    path = table(tmp_path, {"duration_s": 100})
    fluid, replayed = (physim.evaluate([path], method=m).rows[0] for m in ("fluid", "replay"))
    for metric, tolerance in (("e2e_mean", 0.01), ("ttft_mean", 0.05)):
        assert fluid["metrics"][metric]["predicted"] == pytest.approx(
            replayed["metrics"][metric]["predicted"], rel=tolerance
        )


def test_one_output_token_has_no_itl(tmp_path):
    evaluation = physim.evaluate([table(tmp_path, {"output_len": 1, "e2e_mean": 0.02})])
    assert "itl_mean" not in evaluation.rows[0]["metrics"]
    assert evaluation.summary["itl_mean"] == {"n": 0}


def test_where(tmp_path):
    path = table(tmp_path, {}, {"experiment": "two", "tp": 2})
    assert len(physim.evaluate([path], where="tp == 2").rows) == 1
    with pytest.raises(InputError, match="where 'tp == 99': holds for no row; relax it"):
        physim.evaluate([path], where="tp == 99")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rate_rps": float("nan")}, "line 3: rate_rps: is empty; fill it in"),
        ({"rate_rps": 0.0}, "line 3: rate_rps: 0.0 is not positive"),
        ({"rate_rps": -2.0}, "line 3: rate_rps: -2.0 is not positive"),
        ({"output_len": "many"}, "line 3: output_len: many is not a number"),
        ({"e2e_mean": float("inf")}, "line 3: e2e_mean"),
        ({"model": None}, "line 3: model: is empty"),
        ({"model": "  "}, "line 3: model: is empty"),
        ({"tp": 1.9}, "line 3: tp: 1.9 is not a whole number"),
        ({"stage": "first"}, "line 3: stage: first is not a whole number"),
        ({"stage": -2}, "line 3: stage: -2 is below -1"),
        ({"max_num_seqs": "9" * 5000}, "line 3: max_num_seqs: 999"),
        ({"gpu_memory_utilization": 90}, "line 3: gpu_memory_utilization: 90"),
        ({"prefix_caching": "maybe"}, "line 3: prefix_caching: maybe is neither true nor false"),
        ({"async_scheduling": "2"}, "line 3: async_scheduling: 2 is neither true nor false"),
        ({"prompt_groups": -1}, "line 3: prompt_groups: -1 is below 0"),
        ({"arrival": "bursty"}, "line 3: arrival: bursty is unknown; use one of 'constant'"),
        ({"input_len_mean": 0.5}, "line 3: input_len_mean: 0.5 is below 1"),
        ({"output_len_std": -3}, "line 3: output_len_std: -3"),
        ({"n_failed": -1}, "line 3: n_failed: -1"),
        ({"ttft_mean": 0.0}, "line 3: ttft_mean: 0.0 is not positive"),
        ({"ttft_mean": 3.0}, "line 3: e2e_mean: 2 s is less than ttft_mean, 3 s"),
        ({"ttft_mean": 20, "e2e_mean": 2000}, "e2e_mean: makes 8.02 s a token; times are in sec"),
        ({"itl_mean": 8.0}, "line 3: itl_mean: makes 8 s a token"),
    ],
)
def test_bad_values_name_their_place(tmp_path, change, complaint):
    with pytest.raises(InputError, match=r"runs\.csv") as caught:
        physim.evaluate([table(tmp_path, {}, change)])
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["no", "off", "False", "FALSE", "0", " false "])
def test_prefix_caching_that_is_off(tmp_path, text):
    path = table(tmp_path, {}, {"experiment": "two", "prefix_caching": text})
    on, off = (case_of([row], None).load for row in read_tables([path]).rows)
    assert (on.cached_tokens, off.cached_tokens) == (560, 0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hardware": "a100_sxm"}, r"run: hardware: differs between stages \(a100_sxm, h100_sxm\)"),
        ({"max_num_seqs": 64}, "run: max_num_seqs: differs between stages"),
        ({"prefix_caching": False}, "run: prefix_caching: differs between stages"),
        (
            {"engine_version": "0.11.0"},
            r"run: engine_version: differs between stages \(0.11.0, None",
        ),
    ],
)
def test_stages_of_a_run_share_a_server(tmp_path, change, complaint):
    rows = read_tables([table(tmp_path, {}, {"stage": 1, **change})]).rows
    with pytest.raises(InputError, match=complaint):
        case_of(rows, None)


MINIMAL = {
    name: value
    for name, value in ROW.items()
    if name
    not in (
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"),
        *("prefix_caching", "prompt_groups"),
    )
}


@pytest.mark.parametrize("given", [{}, {"prompt_groups": math.nan, "prefix_caching": math.nan}])
def test_what_has_a_default_need_not_be_given(tmp_path, given):
    path = tmp_path / "runs.csv"
    pd.DataFrame([MINIMAL | given]).to_csv(path, index=False)
    ((one,),) = (read_tables([path]).rows,)
    assert (one.row.prefix_caching, one.row.prompt_groups) == (True, 0)
    case = case_of([one], None)
    assert case.server.sizes.max_num_seqs == 1024
    assert case.demanded.cached_tokens == 0


def test_a_table_that_is_there_is_kept(tmp_path):
    path = tmp_path / "runs.csv"
    assert run("data", "template", "--out", path).returncode == 0
    path.write_text(path.read_text() + "mine\n")
    found = run("data", "template", "--out", path)
    assert found.returncode == 1
    assert "is there already" in found.stderr
    assert path.read_text().endswith("mine\n")


def test_a_table_to_fill_in_is_the_least_that_is_read(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(template())
    assert [one.row.rate_rps for one in read_tables([path]).rows] == [2, 8]
    assert set(pd.read_csv(path)) == {*REQUIRED, "ttft_mean", "e2e_mean"}
    assert unread_columns([path]) == {}


def test_columns_that_are_not_read_are_named(tmp_path):
    path = table(tmp_path, {"kv_dtype": "fp8", "colour": "red", "ttft_p99": 1, "note": "?"})
    assert unread_columns([path]) == {"kv_dtype": "kv_cache_dtype", "colour": ""}


def _compared(gpu="h100_sxm", itl=1.0, rate=2.0, ttft=0.02, seats=128):
    case = Case.from_options(
        "Qwen/Qwen3-8B",
        gpu=gpu,
        rate=rate,
        input_tokens=575,
        output_tokens=248,
        max_num_seqs=seats,
    )
    pairs = {"e2e": (ttft + 1.8 * itl, 1.82), "ttft": (ttft, 0.02), "itl": (0.0073 * itl, 0.0073)}
    metrics = {
        f"{name}_mean": {"observed": seen, "predicted": told}
        for name, (seen, told) in pairs.items()
    }
    return {"experiment": "run", "stage": 0, "hardware": gpu, "metrics": metrics}, case


@pytest.mark.parametrize(
    ("given", "doubt"),
    [
        ({}, None),
        # 120 a minute: 120 x 1.8 s = 216 requests in 128 seats.
        (
            {"rate": 120},
            r"216 requests decoding \(Little's law\) in 128 seats; is rate_rps per min",
        ),
        # 900 x 823 tokens x 2 x 6.95e9 FLOP is 5.2 times the 1.979e15 FLOP/s of fp8.
        ({"rate": 900, "seats": 4096}, r"takes 5\.2 times the peak FLOP/s of its GPUs"),
        # They may have queued.
        ({"rate": 120, "ttft": 30.0}, None),
        ({"rate": 70}, None),
        # 3.35 TB/s of an H100 SXM, 2.0 of an A100.
        ({"itl": 1.66}, "1.66 times what is predicted: another GPU"),
        ({"itl": 1.2}, None),
    ],
)
def test_rows_that_cannot_be_are_doubted(given, doubt):
    row, case = _compared(**given)
    found = doubts([row], [case])
    assert len(found) == (doubt is not None)
    if doubt:
        assert re.search(doubt, found[0])


def test_a_stage_is_there_once(tmp_path):
    with pytest.raises(InputError, match="line 3: stage: 0 of 'run' is there twice"):
        physim.evaluate([table(tmp_path, {}, {"ttft_mean": 0.03})])


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        ("model,gpu,rate", "rename gpu to hardware, rate to rate_rps, and add the others"),
        ("model;hardware;tp", "separate columns by commas"),
        ("model,other", "add it"),
    ],
)
def test_what_a_table_lacks_may_have_another_name(tmp_path, header, remedy):
    path = tmp_path / "runs.csv"
    path.write_text(f"{header}\n" + re.sub(r"\w+", "1", header) + "\n")
    with pytest.raises(InputError) as refused:
        read_tables([path])
    assert refused.value.remedy == remedy


def test_a_missing_column(tmp_path):
    path = tmp_path / "runs.csv"
    frame = pd.DataFrame([ROW])
    frame.drop(columns=["duration_s", "tp"]).to_csv(path, index=False)
    with pytest.raises(InputError, match="has no column tp, duration_s"):
        physim.evaluate([path])
    frame.drop(columns="ttft_mean").to_csv(path, index=False)
    with pytest.raises(
        InputError, match="ttft_mean: is empty; give ttft_mean and e2e_mean, or itl"
    ):
        physim.evaluate([path])


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\xff\xfe\x00"])
def test_files_that_are_no_table(tmp_path, content):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a CSV table"):
        physim.evaluate([path])
    with pytest.raises(InputError, match="No such file"):
        physim.evaluate([tmp_path / "none.csv"])


@pytest.mark.parametrize(("length", "hits"), [(575, 560), (576, 560), (577, 576), (16, 0)])
def test_all_full_blocks_before_the_last_token_are_hits(length, hits):
    row = RunRow.model_validate({**ROW, "input_len_mean": length})
    assert cached_tokens(row, 16) == hits
    assert cached_tokens(row.model_copy(update={"prefix_caching": False}), 16) == 0


@pytest.mark.parametrize(
    ("groups", "each", "different"),
    [(9, 5, 45), (23, 1, 300), (400, 1, 400), (9, None, 9), (0, 1, 1)],
)
def test_how_many_prompts_are_sent_in_turn(groups, each, different):
    row = RunRow.model_validate({**ROW, "prompt_groups": groups, "prompts_per_group": each})
    assert different_prompts(row) == different


@pytest.mark.slow
def test_zero_shot_accuracy_on_the_measured_runs(ground_truth):
    """The shipped fit moves no correction; the bounds are a little above what was seen."""
    path = ground_truth / "trainval.csv"
    everything = physim.evaluate([path])
    kinds = pd.read_csv(path).groupby("weight_dtype")["experiment"].unique()

    def errors(kind, metric):
        rows = [row for row in everything.rows if row["experiment"] in kinds[kind]]
        stages = [row["metrics"][metric] for row in rows if row["stage"] >= 0]
        return [abs(stage["error_pct"]) for stage in stages]

    assert (len(errors("bf16", "itl_mean")), len(errors("fp8", "itl_mean"))) == (15, 6)
    assert np.mean(errors("bf16", "itl_mean")) <= 3
    assert np.mean(errors("bf16", "e2e_mean")) <= 3
    assert np.mean(errors("fp8", "itl_mean")) <= 9
    assert len(everything.rows) + len(everything.skipped) == 34


@pytest.mark.slow
def test_errors_by_group_count_what_is_not_predicted(tmp_path):
    path = table(
        tmp_path,
        {"experiment": "a"},
        {"experiment": "b", "concurrency": 16.0, "engine": "sglang"},
        {"experiment": "c", "ep": 3},
    )
    found = physim.evaluate([path])
    groups = by_group(found, ["backend", "concurrency"])
    assert [(g["backend"], g["concurrency"], g["rows"], g["predicted_pct"]) for g in groups] == [
        ("sglang", "up to 64", 1, 100.0),
        ("vllm", "open loop", 2, 50.0),
    ]
    (row,) = [row for row in found.rows if row["experiment"] == "a"]
    error = abs(row["metrics"]["ttft_mean"]["error_pct"])
    assert groups[1]["ttft_mean"]["mape"] == pytest.approx(error)
    assert {row["layout"] for row in (*found.rows, *found.skipped)} == {"tp1", "ep3"}
    with pytest.raises(InputError, match="by: 'colour': is nothing to group by; use model, gpu"):
        by_group(found, ["colour"])


@pytest.mark.slow
def test_intervals_of_rows_are_those_of_predictions(tmp_path):
    clients = {"concurrency": 16.0, "requests": 160}
    path = table(tmp_path, clients, {"experiment": "far", "e2e_mean": 9.0, **clients})
    found = physim.evaluate([path], intervals=True)
    alone = physim.predict(found.cases[0])
    for metric, name in (("ttft_mean", "ttft_s"), ("tpot_mean", "itl_s"), ("e2e_mean", "e2e_s")):
        pair = found.rows[0]["metrics"][metric]
        assert (pair["low"], pair["high"]) == pytest.approx(alone.intervals[name], rel=1e-6)
    # Nine seconds are beyond any interval about two.
    assert found.summary["e2e_mean"]["in_interval_pct"] <= 50
    with pytest.raises(InputError, match="intervals: are not known for the replay"):
        physim.evaluate([path], method="replay", intervals=True)


@pytest.mark.slow
def test_a_suspect_explains_an_error(tmp_path):
    found = physim.evaluate([table(tmp_path, {"concurrency": 64.0})])
    (case,) = found.cases
    culprit = suspect(case, "itl", 1.15)
    moved = physim.Corrections(**{culprit.name: np.log(culprit.factor)})
    bare, corrected = physim.predict_cases([case, case], [physim.Corrections(), moved])
    assert culprit.factor > 1
    assert corrected.itl_s / bare.itl_s == pytest.approx(1.15, rel=0.03)


@pytest.mark.slow
def test_groups_are_drawn_with_their_errors(tmp_path):
    # Loads in one stage and in two, for which other tests compile the fluid.
    other = {"experiment": "other", "tp": 2}
    path = table(tmp_path, {}, {**other, "stage": 0}, {**other, "stage": 1})
    found = physim.evaluate([path])
    axes = draw_groups(found, ["layout"])
    labels = [text.get_text() for text in axes[1].get_legend().get_texts()]
    layouts = {row["layout"] for row in found.rows}
    errors = {
        name: np.mean(
            [
                abs(row["metrics"]["itl_mean"]["error_pct"])
                for row in found.rows
                if row["layout"] == name
            ]
        )
        for name in layouts
    }
    assert sorted(labels) == sorted(f"{name}: {error:.0f}%" for name, error in errors.items())


def test_batches_that_are_told_apart():
    found = [batch_of(requests) for requests in (0.3, 16, 16.5, 257)]
    assert found == ["1 to 16", "1 to 16", "17 to 64", "more than 256"]


def test_one_table_may_be_named_by_itself_and_none_is_none():
    path = "bench_data/runs.csv"
    assert len(read_tables(path).rows) == len(read_tables([path]).rows) == 12
    for reads in (physim.evaluate, physim.crossval):
        with pytest.raises(InputError, match="tables: are none"):
            reads([])
