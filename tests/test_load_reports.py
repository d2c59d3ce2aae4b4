"""Reports that say more than latencies: AIPerf's and llm-d's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import physim
from physim.errors import InputError
from physim.measured import aiperf, guidellm, inference_perf, mlperf, vllm_bench
from physim.measured.formats import FORMATS
from physim.measured.llm_d_report import as_report, write_report
from physim.measured.recognised import format_of

REPORTS = Path(__file__).parent / "reports"


def test_the_summary_of_aiperf():
    (stage,) = aiperf.read(REPORTS / "aiperf.json")
    assert (stage.rate_rps, stage.arrival, stage.concurrency) == (4.0, "poisson", None)
    assert (stage.ttft_mean, stage.e2e_mean) == pytest.approx((0.0413, 1.6512))
    assert (stage.input_len_mean, stage.input_len_std, stage.output_len) == (512.5, 31.2, 201.0)
    assert (stage.n_success, stage.n_failed, stage.cached_len_mean) == (234, 6, 128.0)
    assert stage.note.startswith("outputs have 201 tokens of the 1024 that were asked for")


def test_how_aiperf_sends_requests():
    (clients,) = aiperf.read(REPORTS / "aiperf_clients.json")
    assert (clients.concurrency, clients.rate_rps) == (16, 3.9)
    assert clients.note.startswith("outputs have 201 tokens of the 256 that were asked for")
    assert clients.draft_acceptance == "2.4"
    (bursts,) = aiperf.read(REPORTS / "aiperf_gamma.json")
    assert (bursts.arrival, bursts.burstiness, bursts.rate_rps) == ("gamma", 0.5, 4.0)


def test_a_rate_that_aiperf_held_back_is_none(tmp_path):
    """3.9 requests a second of 1.65 s are 6.4 under way: of at most 7 the bound decides."""
    report = json.loads((REPORTS / "aiperf_gamma.json").read_text())
    report["input_config"]["phases"][-1]["concurrency"] = 7
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(report))
    (stage,) = aiperf.read(path)
    assert (stage.rate_rps, stage.concurrency) == (3.9, None)
    assert "no open rate" in stage.note


def test_the_requests_of_aiperf():
    """Three requests are answered and one fails, a second apart; one that warms up is left out."""
    (stage,) = aiperf.read(REPORTS / "aiperf.jsonl")
    assert (stage.rate_rps, stage.duration_s, stage.arrival) == (1.0, 3.0, "constant")
    assert (stage.n_success, stage.n_failed) == (3, 1)
    assert stage.ttft_mean == pytest.approx(0.050)
    assert stage.e2e_mean == pytest.approx(0.470)
    assert (stage.input_len_mean, stage.output_len) == (520, 60)
    assert "outputs have 60 tokens of the 100" in stage.note


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "request_count: is missing"),
        ('{"request_count": {"avg": 3}}', "request_throughput: is missing"),
        ("[]", "holds no JSON object"),
    ],
)
def test_what_is_no_summary_of_aiperf(tmp_path, text, said):
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        aiperf.read(path)


def test_lines_that_are_no_requests_of_aiperf(tmp_path):
    path = tmp_path / "profile_export.jsonl"
    for text, said in (("{", "line 1: is no JSON"), ("[1]", "line 1: holds no JSON object")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            aiperf.read(path)
    path.write_text("")
    with pytest.raises(InputError, match="fewer than two answered requests"):
        aiperf.read(path)


def test_rows_of_aiperf():
    frame = physim.read_report(
        "aiperf", REPORTS / "aiperf.json", model="Qwen/Qwen3-8B", gpu="h100_sxm"
    )
    (row,) = frame.to_dict("records")
    assert (row["cached_len_mean"], row["arrival"]) == (128.0, "poisson")


def of_llm_d(name):
    frame = physim.read_report("llm-d", REPORTS / name)
    (row,) = frame.to_dict("records")
    return row


def test_a_report_of_llm_d_is_a_whole_case():
    """Each of two replicas gets half of ten requests a second; prompts of groups come again."""
    row = of_llm_d("llm_d.json")
    assert (row["model"], row["hardware"], row["tp"]) == ("Qwen/Qwen3-8B", "h100_sxm", 1)
    assert (row["engine"], row["engine_version"]) == ("vllm", "0.11.0")
    assert (row["max_model_len"], row["max_num_seqs"]) == (16384, 128)
    assert (row["max_num_batched_tokens"], row["gpu_memory_utilization"]) == (4096, 0.92)
    assert (row["rate_rps"], row["duration_s"], row["arrival"]) == (5.0, 60.0, "poisson")
    assert (row["n_success"], row["n_failed"], row["stage"]) == (594, 6, 3)
    assert (row["prompt_groups"], row["prompts_per_group"]) == (32, 8)
    assert (row["ttft_mean"], row["e2e_mean"]) == (0.061, 1.9)
    assert "one of 2 replicas" in row["note"]
    assert "outputs have 201 tokens of the 1000" in row["note"]


def test_pools_of_llm_d():
    """E2E is TTFT and 200 gaps: 0.061 + 200 x 0.0092 s."""
    row = of_llm_d("llm_d_apart.json")
    assert row["prefill"] == "tp=1,pp=1,dp=1,ep=1,replicas=2,max_num_seqs=64"
    assert row["decode"].startswith("tp=2,pp=1,dp=1,ep=1,replicas=1,max_num_seqs=128")
    assert (row["concurrency"], row["rate_rps"]) == (64, 9.8)
    assert row["e2e_mean"] == pytest.approx(0.061 + 200 * 0.0092)


def test_a_report_of_llm_d_in_yaml():
    row = of_llm_d("llm_d.yaml")
    assert (row["rate_rps"], row["arrival"], row["prompt_groups"]) == (10.0, "poisson", 0)
    assert "are taken to compute prompts too" in row["note"]
    assert "vllm 0.33 takes by default" in row["note"]


def test_what_is_given_counts_before_a_report_of_llm_d():
    (row,) = physim.read_report(
        "llm-d", REPORTS / "llm_d.json", model="Qwen/Qwen3-14B", tp=2, max_num_seqs=64
    ).to_dict("records")
    assert (row["model"], row["tp"], row["max_num_seqs"]) == ("Qwen/Qwen3-14B", 2, 64)


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("version",), "0.1", "version: 0.1 is unknown"),
        (("scenario", "stack"), [], "stack"),
        (("scenario", "stack", 0, "standardized", "role"), "router", "role"),
        (("scenario", "stack", 0, "standardized", "role"), "prefill", "compute prompts alone"),
        (("scenario", "stack", 0, "standardized", "kind"), "generic", "has no inference_engine"),
        (("scenario", "stack", 0, "native", "args"), {"--max-num-seqs": "x"}, "max-num-seqs"),
        (
            ("results", "request_performance", "aggregate", "requests", "failures"),
            601,
            "600 are fewer than failed, 601",
        ),
    ],
)
def test_what_is_no_report_of_llm_d(tmp_path, way, value, said):
    report = json.loads((REPORTS / "llm_d.json").read_text())
    place = report
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    with pytest.raises(InputError, match=said) as caught:
        physim.read_report("llm-d", path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- a", "3", "a: 2026-99-99"])
def test_what_is_no_yaml(tmp_path, text):
    path = tmp_path / "report.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="YAML"):
        physim.read_report("llm-d", path)


def test_other_reports_do_not_name_the_model():
    with pytest.raises(InputError, match="model: is missing, and the report does not say it"):
        physim.read_report("aiperf", REPORTS / "aiperf.json", gpu="h100_sxm")


@pytest.fixture(scope="module")
def predicted():
    return physim.predict(
        "Qwen/Qwen3-8B",
        gpu="h100_sxm",
        rate=4.0,
        arrival="poisson",
        input_tokens=800,
        output_tokens=200,
        replicas=2,
        max_num_seqs=64,
    )


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rate=st.floats(0.1, 1e3),
    ttft=st.floats(1e-3, 10.0),
    gap=st.floats(1e-4, 0.5),
    arrival=st.sampled_from(["constant", "poisson"]),
)
def test_a_prediction_that_is_written_is_read_back(predicted, tmp_path, rate, ttft, gap, arrival):
    load = replace(predicted.load, rate=rate, arrival=arrival)
    e2e = ttft + 199 * gap
    times = {"ttft": {"mean": ttft}, "tpot": {"mean": gap}, "e2e": {"mean": e2e}}
    one = replace(
        predicted,
        load=load,
        requests_per_s=rate,
        whole=replace(predicted.whole, latencies=times),
    )
    path = tmp_path / "report.json"
    write_report(one, path)
    (row,) = physim.read_report("llm-d", path).to_dict("records")
    server = predicted.pools[0].server
    assert (row["ttft_mean"], row["e2e_mean"], row["rate_rps"]) == (ttft, e2e, rate / 2)
    assert (row["arrival"], row["input_len_mean"], row["output_len"]) == (arrival, 800, 200)
    assert (row["model"], row["hardware"], row["tp"]) == (predicted.model, "h100_sxm", 1)
    assert (row["engine"], row["engine_version"]) == ("vllm", server.profile.version)
    assert (row["max_num_seqs"], row["max_model_len"]) == (64, server.sizes.max_model_len)
    assert row["note"] == "the row is what one of 2 replicas gets of the load"


def test_what_llm_d_has_no_report_of(predicted):
    for load, said in ((None, "is a trace"), (replace(predicted.load, turns=3), "conversation")):
        with pytest.raises(InputError, match=said):
            as_report(replace(predicted, load=load))
    over = replace(predicted, whole=replace(predicted.whole, latencies={}))
    with pytest.raises(InputError, match="above capacity"):
        as_report(over)


def test_a_sweep_of_vllm_has_a_row_for_each_run(tmp_path):
    frame = physim.read_report(
        "vllm-bench", REPORTS / "vllm_bench_sweep.json", model="Qwen/Qwen3-8B", gpu="h100_sxm"
    )
    assert list(frame["stage"]) == [0, 1]
    assert list(frame["rate_rps"]) == [2.0, 4.0]
    runs = json.loads((REPORTS / "vllm_bench_sweep.json").read_text())
    del runs[1]["duration"]
    path = tmp_path / "summary.json"
    for content, said in ((runs, r"\[1\]: duration: is missing"), ([], "holds no JSON object")):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=said):
            vllm_bench.read(path)


def test_a_row_notes_failures_and_another_model(tmp_path):
    result = json.loads((REPORTS / "vllm_bench.json").read_text())
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result | {"completed": 60, "failed": 40}))
    rows = physim.read_report("vllm-bench", path, model="Qwen/Qwen3-14B", gpu="h100_sxm")
    note = rows["note"][0]
    assert "40 of 100 requests failed" in note
    assert "the report is of the model Qwen/Qwen3-8B" in note
    # The report says which model it is of.
    (note,) = physim.read_report("vllm-bench", REPORTS / "vllm_bench.json", gpu="h100_sxm")["note"]
    assert "failed" not in note
    assert "of the model" not in note


def vllm_bench_result(path, **fields):
    result = json.loads((REPORTS / "vllm_bench.json").read_text())
    path.write_text(json.dumps({**result, **fields}))
    return vllm_bench.read(path)[0]


def test_vllm_sends_all_requests_at_once_without_a_rate(tmp_path):
    stage = vllm_bench_result(tmp_path / "result.json", request_rate="inf")
    assert (stage.concurrency, stage.requests) == (100, 100)
    assert stage.note == "no rate: all 100 requests are sent at once"
    some = vllm_bench_result(tmp_path / "result.json", request_rate="inf", max_concurrency=16)
    assert (some.concurrency, some.requests, some.note) == (16, 100, "")


def test_a_bound_of_vllm_that_is_seldom_reached_leaves_the_rate(tmp_path):
    """3.7 requests a second of 1.046 s are 3.9 under way: of at most 4 the bound decides."""
    path = tmp_path / "result.json"
    seldom = vllm_bench_result(path, max_concurrency=32)
    assert (seldom.rate_rps, seldom.arrival, seldom.concurrency) == (4.0, "gamma", None)
    held = vllm_bench_result(path, max_concurrency=4)
    assert (held.rate_rps, held.arrival) == (3.7, "constant")
    assert held.note == "max_concurrency held the rate back: it enters with the 3.7/s achieved"


LOOKS = {
    "inference-perf": [["inference-perf"]],
    "guidellm": [["guidellm.json"], ["guidellm_strategies.json"]],
    "vllm-bench": [["vllm_bench.json"], ["vllm_bench_older.json"], ["vllm_bench_sweep.json"]],
    "blis-trace": [["blis.csv"]],
    "aiperf": [["aiperf.json"], ["aiperf_clients.json"], ["aiperf.jsonl"]],
    "llm-d": [["llm_d.json"], ["llm_d_apart.json"], ["llm_d.yaml"]],
    "mlperf": [["mlperf.txt"]],
    "metrics": [
        ["metrics_before.txt", "metrics_after.txt"],
        ["metrics_sglang_before.txt", "metrics_sglang_after.txt"],
        ["prometheus_vllm.json"],
    ],
}


def test_reports_tell_their_format():
    assert set(LOOKS) == set(FORMATS)
    for kind, examples in LOOKS.items():
        for names in examples:
            assert format_of([REPORTS / name for name in names]) == kind


def test_a_report_is_read_as_what_it_looks_like():
    frame, same = (
        physim.read_report(kind, REPORTS / "llm_d.json").to_dict("records")
        for kind in ("auto", "llm-d")
    )
    assert str(frame) == str(same)


@pytest.mark.parametrize(
    "names",
    [
        *([], ["runs.csv"], ["vllm.log"], ["steps.csv"], ["mooncake.jsonl"]),
        *(["vllm_bench_forward.json"], ["guidellm.json", "metrics_after.txt"]),
        *(["."], ["missing.json"]),
    ],
)
def test_what_is_no_report_is_said_in_one_line(names):
    with pytest.raises(InputError) as caught:
        format_of([REPORTS / name for name in names])
    assert "\n" not in str(caught.value)


def test_a_command_says_which_format_it_took(tmp_path):
    out = tmp_path / "runs.csv"
    done = run("data", "read", "auto", REPORTS / "llm_d.json", "--out", out)
    assert done.stdout.startswith("read as llm-d"), done.stderr
    assert out.is_file()
    refused = run("data", "read", "auto", REPORTS / "aiperf.json", "--out", out)
    assert "model: is missing" in refused.stderr


MLPERF = REPORTS / "mlperf.txt"
LLAMA = {"model": "meta-llama/Llama-2-70b-chat-hf", "gpu": "h100_sxm", "tp": 8}


def test_the_summary_of_mlperf(tmp_path):
    (stage,) = mlperf.read(MLPERF, input_len=294.0)
    assert (stage.rate_rps, stage.arrival, stage.duration_s) == (101.3, "poisson", 600.0)
    assert stage.output_len == 28541.80 / 98.42
    assert (stage.ttft_mean, stage.e2e_mean) == (0.921440873, 36.518220442)
    assert stage.n_success == 60780
    assert stage.note == "the number of queries is the least that the test allows"
    behind = tmp_path / "mlperf_log_summary.txt"
    text = MLPERF.read_text().replace(": VALID", ": INVALID").replace(": 98.42", ": 90.00")
    text = text.replace("tokens per second: 28541.80", "tokens per second (inferred): 28541.80")
    text = text.replace("Completed tokens per second                 : 28541.80\n", "")
    behind.write_text(text.replace("min_query_count : 100", "min_query_count : 202600"))
    (stage,) = mlperf.read(behind, input_len=294.0)
    assert stage.output_len == 28541.80 / 90
    assert (stage.duration_s, stage.n_success) == (2000.0, 202600)
    assert "MLPerf calls it INVALID; 90/s of the 101/s scheduled were completed" in stage.note


def test_rows_of_mlperf(tmp_path):
    (row,) = physim.read_report("auto", MLPERF, input_tokens=294, **LLAMA).to_dict("records")
    assert (row["input_len_mean"], row["tp"], row["concurrency"]) == (294, 8, None)
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens\n200,290\n388,290\n")
    (row,) = physim.read_report("mlperf", MLPERF, lengths=lengths, **LLAMA).to_dict("records")
    assert row["input_len_mean"] == 294
    with pytest.raises(InputError, match="input: is not given, and the summary does not say"):
        physim.read_report("mlperf", MLPERF, **LLAMA)
    with pytest.raises(InputError, match="input: is given by aiperf"):
        physim.read_report("aiperf", REPORTS / "aiperf.json", input_tokens=3, **LLAMA)


def test_a_throughput_of_mlperf_is_compared_with_a_prediction(tmp_path):
    """All samples are sent at once, and the last is answered after 150 s: 15,000 of them."""
    path = tmp_path / "mlperf_log_summary.txt"
    text = MLPERF.read_text().replace("Scenario : Server", "Scenario : Offline")
    longest = "Max latency (ns)                : 149873302118"
    assert longest in text
    text = text.replace(longest, "Max latency (ns) : 150000000000")
    path.write_text(
        text.replace("Completed samples per second    : 98.42", "Samples per second: 100")
    )
    command = "compare its 100 samples/s .* --concurrency 15000 --requests 15000"
    with pytest.raises(InputError, match=command):
        physim.read_report("mlperf", path, input_tokens=294, **LLAMA)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("Scenario : Server", "Scenario : Offline"), "Samples per second: is missing"),
        (("Scenario : Server", "Scenario : MultiStream"), "'MultiStream' has no .* of Server"),
        (("PerformanceOnly", "AccuracyOnly"), "Mode"),
        (("Mean First Token latency (ns)", "First"), "Mean First Token latency .* is missing"),
        ((": 921440873", ": soon"), "Mean First Token latency"),
        ((": 921440873", ": 99921440873"), "e2e_mean"),
        (("MLPerf Results Summary", "Results"), "is no summary of MLPerf"),
        (("min_query_count : 100", "min_query_count : -1"), "min_query_count"),
    ],
)
def test_what_is_no_summary_of_mlperf(tmp_path, change, complaint):
    path = tmp_path / "mlperf_log_summary.txt"
    path.write_text(MLPERF.read_text().replace(*change))
    with pytest.raises(InputError, match=complaint) as caught:
        physim.read_report("mlperf", path, input_tokens=294, **LLAMA)
    assert "\n" not in str(caught.value)


SHORT = "of the 1000 that were asked for: answers ended by themselves"


def test_guidellm_says_what_it_asked_for(tmp_path):
    report = json.loads((REPORTS / "guidellm.json").read_text())
    path = tmp_path / "benchmarks.json"
    for data, short in (
        ([{"kind": "synthetic_text", "prompt_tokens": 9, "output_tokens": 1000}], True),
        ([{"kind": "synthetic_text", "prompt_tokens": 9, "output_tokens": 1}], False),
        ([{"kind": "synthetic_text", "prompt_tokens": 9}], False),
        ([{"output_tokens": 1000}, {"output_tokens": 1000}], False),
    ):
        path.write_text(json.dumps({**report, "config": {"spec": {"data": data}}}))
        assert [SHORT in one.note for one in guidellm.read(path)] == [short] * len(
            report["benchmarks"]
        )


def test_a_sweep_of_vllm_says_what_it_asked_for(tmp_path):
    result = json.loads((REPORTS / "vllm_bench.json").read_text())
    path = tmp_path / "summary.json"
    for name in ("random_output_len", "random-output-len"):
        path.write_text(json.dumps([{**result, name: 1000}, {**result, name: 1}, result]))
        assert [SHORT in one.note for one in vllm_bench.read(path)] == [True, False, False]


def test_the_configuration_beside_a_report_says_what_was_asked_for(tmp_path):
    for source in (REPORTS / "inference-perf").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    plain = inference_perf.read(tmp_path)
    load = "load: {type: constant, stages: [{rate: 1, duration: 9}]}"
    for output, short in ((1000, True), (1, False)):
        fixed = f"{{type: fixed, min: 1, max: 2000, mean: {output}}}"
        data = f"data: {{type: random, input_distribution: {fixed}, output_distribution: {fixed}}}"
        (tmp_path / "config.yaml").write_text(f"{load}\n{data}\n")
        assert [SHORT in one.note for one in inference_perf.read(tmp_path)] == [short] * len(plain)
    for text in ("data: {type: mock}", "{", ""):
        (tmp_path / "config.yaml").write_text(f"{load}\n{text}\n")
        assert inference_perf.read(tmp_path) == plain
