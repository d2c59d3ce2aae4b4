"""Reports of load generators, read into the common form; small files of their real form."""

import json
from pathlib import Path

import pandas as pd
import pytest

import physim
from physim.errors import InputError
from physim.fitting.observations import observe
from physim.measured import blis_trace, guidellm, inference_perf, ml_energy, vllm_bench
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import TableRow, read_tables
from physim.measured.schema import RunRow
from physim.measured.stage_report import write_rows
from physim.measured.step_trace import read_steps


def spread(mean):
    return {"mean": mean, "p90": mean}


def lifecycle(gap=0.0074):
    """As `summarize_requests` of inference-perf 0.7.0 nests it."""
    return {
        "benchmark_time_seconds": 610.0,
        "load_summary": {
            "count": 4800,
            "schedule_delay": spread(0.001),
            "send_duration": 599.9,
            "requested_rate": 8.0,
            "achieved_rate": 8.0,
        },
        "successes": {
            "count": 4790,
            "latency": {
                "request_latency": spread(1.85),
                "normalized_time_per_output_token": spread(0.0077),
                "time_per_output_token": spread(gap),
                "time_to_first_token": spread(0.025),
                "inter_token_latency": spread(gap),
            },
            "prompt_len": spread(575.0),
            "output_len": spread(195.0),
        },
        "failures": {"count": 10, "request_latency": None},
    }


def test_inference_perf(tmp_path):
    for stage in (1, 0):
        path = tmp_path / f"stage_{stage}_lifecycle_metrics.json"
        path.write_text(json.dumps(lifecycle()))
    (tmp_path / "summary_lifecycle_metrics.json").write_text("{}")
    first, second = inference_perf.read(tmp_path, output_len=248)
    assert (first.stage, second.stage) == (0, 1)
    assert (first.rate_rps, first.duration_s, first.n_failed) == (8.0, 600.0, 10)
    assert (first.ttft_mean, first.e2e_mean, first.output_len) == (0.025, 1.85, 248)
    assert first.note == ""
    # Without it, the client's own count.
    assert inference_perf.read(tmp_path)[0].output_len == 195


def test_two_chunks_a_token_are_noticed(tmp_path):
    # 1.825 s over 247 tokens are 7.39 ms each; the gaps between chunks are half of that.
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps(lifecycle(gap=0.0037)))
    (stage,) = inference_perf.read(tmp_path, output_len=248)
    assert "two chunks a token (2.00)" in stage.note


def test_the_servers_own_count_comes_first(tmp_path):
    report = lifecycle()
    report["successes"]["output_tokens"] = {"total": 1.0, **spread(248.0)}
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    assert inference_perf.read(tmp_path)[0].output_len == 248


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda r: r.pop("successes"), "successes: is missing"),
        (lambda r: r["load_summary"].pop("requested_rate"), "load_summary.requested_rate"),
        (lambda r: r["successes"]["latency"].pop("request_latency"), "latency.request_latency: is"),
    ],
)
def test_broken_reports_of_inference_perf(tmp_path, change, complaint):
    report = lifecycle()
    change(report)
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    with pytest.raises(InputError, match=complaint):
        inference_perf.read(tmp_path)


def test_a_folder_without_reports(tmp_path):
    with pytest.raises(InputError, match="holds no stage_N"):
        inference_perf.read(tmp_path / "nowhere")


REPORTS = Path(__file__).parent / "reports"


def test_reports_that_the_tools_wrote():
    """Of inference-perf 0.7.0 and GuideLLM 0.8.1 (cut down to what has means).

    Both sent requests of 20 tokens to a server that waited 30 ms, then sent a token every 8 ms.
    """
    (first,) = inference_perf.read(REPORTS / "inference-perf")
    (second,) = guidellm.read(REPORTS / "guidellm.json")
    for report, count in ((first, 20), (second, 30)):
        assert (report.rate_rps, report.output_len) == (5.0, 20.0)
        assert (report.n_success, report.n_failed, report.note) == (count, 0, "")
        assert 0.030 < report.ttft_mean < 0.035
        assert 19 * 0.008 < report.e2e_mean - report.ttft_mean < 19 * 0.009
    assert (first.input_len_mean, first.duration_s) == (40.0, 4.0)


def benchmark(strategy):
    """As GuideLLM nests it."""

    def by_status(mean):
        return {"successful": {"mean": mean, "percentiles": {"p50": mean}}, "errored": {"mean": 0}}

    return {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy},
        "duration": 60.0,
        "metrics": {
            "request_totals": {"successful": 118, "errored": 2, "incomplete": 0, "total": 120},
            "requests_per_second": by_status(1.97),
            "request_latency": by_status(2.0),
            "prompt_token_count": by_status(512.0),
            "output_token_count": by_status(128.0),
            "time_to_first_token_ms": by_status(40.0),
        },
    }


def test_guidellm(tmp_path):
    path = tmp_path / "benchmarks.json"
    strategies = ({"type_": "poisson", "rate": 2.0}, {"type_": "concurrent", "streams": 4})
    path.write_text(json.dumps({"benchmarks": [benchmark(one) for one in strategies]}))
    paced, closed = guidellm.read(path)
    assert (paced.arrival, paced.rate_rps, paced.ttft_mean, paced.e2e_mean) == (
        "poisson",
        2.0,
        0.04,
        2.0,
    )
    assert (paced.n_success, paced.n_failed) == (118, 2)
    assert (closed.rate_rps, closed.concurrency, closed.note) == (1.97, 4.0, "")
    assert paced.concurrency is None
    path.write_text("{}")
    with pytest.raises(InputError, match="benchmarks: is missing"):
        guidellm.read(path)


RESULT = {
    "backend": "vllm",
    "model_id": "Qwen/Qwen3-8B",
    "request_rate": 4.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 27.0,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 51200,
    "total_output_tokens": 12800,
    "request_throughput": 3.7,
    "mean_ttft_ms": 30.0,
    "mean_tpot_ms": 8.0,
}


def test_vllm_bench(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    (stage,) = vllm_bench.read(path)
    assert (stage.arrival, stage.rate_rps, stage.duration_s) == ("poisson", 4.0, 25.0)
    assert stage.e2e_mean == pytest.approx(0.030 + 127 * 0.008)
    path.write_text(json.dumps({**RESULT, "mean_e2el_ms": 1100.0, "request_rate": "inf"}))
    (stage,) = vllm_bench.read(path)
    assert (stage.rate_rps, stage.e2e_mean) == (3.7, 1.1)
    assert (stage.concurrency, stage.requests) == (100, 100)
    assert "sent at once" in stage.note
    clients = {**RESULT, "request_rate": "inf", "max_concurrency": 8}
    path.write_text(json.dumps(clients))
    (stage,) = vllm_bench.read(path)
    assert (stage.concurrency, stage.output_len_std, stage.note) == (8.0, 0.0, "")
    # Lengths that differ, as the mean shows, or as they are listed.
    path.write_text(json.dumps({**clients, "total_output_tokens": 12850}))
    assert vllm_bench.read(path)[0].output_len_std == pytest.approx(12.85)
    path.write_text(json.dumps({**clients, "output_lens": [100, 156]}))
    assert vllm_bench.read(path)[0].output_len_std == 28.0
    path.write_text(json.dumps({**RESULT, "completed": 0}))
    with pytest.raises(InputError, match="no request was answered"):
        vllm_bench.read(path)


def test_blis_trace(tmp_path):
    path = tmp_path / "trace.csv"
    requests = [
        {
            "request_id": n,
            "input_tokens": 500,
            "output_tokens": 100,
            "arrival_time_us": 250_000 * n,
            "send_time_us": 250_000 * n + 100,
            "first_chunk_time_us": 250_000 * n + 30_100,
            "last_chunk_time_us": 250_000 * n + 1_000_100,
            "status": "ok" if n else "error",
        }
        for n in range(41)
    ]
    pd.DataFrame(requests).to_csv(path, index=False)
    header = path.with_suffix(".yaml")
    header.write_text(
        "trace_version: 3\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 0\n"
    )
    (stage,), _ = blis_trace.read_run(path)
    assert (stage.rate_rps, stage.arrival, stage.n_failed) == (4.0, "constant", 1)
    assert (stage.ttft_mean, stage.e2e_mean) == pytest.approx((0.03, 1.0))
    header.write_text("trace_version: 2\ntime_unit: microseconds\n")
    with pytest.raises(InputError, match="trace_version: 2 is unknown"):
        blis_trace.read_run(path)


STAGE = "stage_0_lifecycle_metrics.json"
WRONG = (0, -1, -0.5, float("nan"), float("inf"), 10**400, 1e308, True, "4", None, [], {}, [[]])


def changed(content, value):
    """Each way to put a value in the place of another, however deep."""
    for key in content if isinstance(content, dict) else range(len(content)):
        within = content[key]
        deeper = changed(within, value) if isinstance(within, dict | list) else ()
        for inner in (value, *deeper):
            copy = content.copy()
            copy[key] = inner
            yield copy


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("inference-perf", lifecycle()),
        ("vllm-bench", RESULT),
        ("vllm-bench", {**RESULT, "output_lens": [100, 156], "max_concurrency": 8}),
        ("guidellm", {"benchmarks": [benchmark({"type_": "poisson", "rate": 2.0})]}),
        ("guidellm", {"benchmarks": [benchmark({"type_": "concurrent", "streams": 4})]}),
    ],
)
def test_a_report_with_one_wrong_value_is_refused_or_makes_a_good_row(tmp_path, kind, content):
    path = tmp_path if kind == "inference-perf" else tmp_path / "report.json"
    file = tmp_path / STAGE if kind == "inference-perf" else path
    refused = 0
    for value in WRONG:
        for report in changed(content, value):
            file.write_text(json.dumps(report))
            try:
                frame = physim.read_report(kind, path, model="Qwen/Qwen3-8B", gpu="h100_sxm")
            except InputError:
                refused += 1
                continue
            (row,) = frame.to_dict("records")
            assert 0 < row["ttft_mean"] <= row["e2e_mean"] <= 1e9
            assert 0 < row["rate_rps"] <= 1e9
    assert refused > 50


# The lines of vLLM's log that say how it was started, as issues of vllm-project/vllm quote them.
LOG = """\
INFO 01-20 16:28:10 [api_server.py:1882] vLLM API server version 0.15.1
INFO 01-20 16:28:10 [utils.py:328] non-default args: {'model': 'Qwen/Qwen3-8B', \
'max_num_seqs': 64, 'gpu_memory_utilization': 0.85, 'block_size': 32}
INFO 01-20 16:28:17 [scheduler.py:222] Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO 01-20 16:28:23 [core.py:75] Initializing a V1 LLM engine (v0.15.1) with config: \
model='Qwen/Qwen3-8B', max_seq_len=32768, tensor_parallel_size=2, pipeline_parallel_size=1, \
kv_cache_dtype=fp8_e4m3, enable_prefix_caching=False, chunked_prefill_enabled=True
INFO 01-20 16:28:40 [kv_cache_utils.py:849] GPU KV cache size: 922,496 tokens
INFO 01-20 16:28:41 [launcher.py:46] Application startup complete.
INFO 01-20 16:28:42 [core.py:75] something else, max_seq_len=1
"""


def read_result(tmp_path, result=None, **options):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result or RESULT))
    frame = physim.read_report("vllm-bench", path, model="Qwen/Qwen3-8B", gpu="h100", **options)
    write_rows(tmp_path / "runs.csv", frame)
    (row,) = read_tables([tmp_path / "runs.csv"]).frame.to_dict("records")
    return row


def test_how_the_server_was_started_is_in_its_log(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(LOG)
    row = read_result(tmp_path, server_log=log)
    assert (row["engine"], row["engine_version"], row["tp"]) == ("vllm", "0.15.1", 2)
    assert (row["max_num_seqs"], row["max_num_batched_tokens"]) == (64, 4096)
    assert (row["max_model_len"], row["gpu_memory_utilization"]) == (32_768, 0.85)
    # Of 16 tokens.
    assert (row["kv_blocks"], row["kv_cache_dtype"]) == (57_656, "fp8")
    assert row["prefix_caching"] is False
    assert pd.isna(row["note"])
    # An option counts before the log.
    assert read_result(tmp_path, server_log=log, max_num_seqs=32)["max_num_seqs"] == 32


def test_host_memory_for_kv_blocks_is_in_the_log(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(LOG.replace("'block_size'", "'kv_offloading_size': 64.0, 'block_size'"))
    row = read_result(tmp_path, server_log=log)
    assert row["kv_host_bytes"] == 64 * 2**30
    assert pd.isna(row["kv_host_bandwidth"])


def test_drafts_are_in_the_log_and_what_was_accepted_in_the_result(tmp_path):
    log = tmp_path / "vllm.log"
    drafts = "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=2), "
    logged = LOG.replace("kv_cache_dtype", drafts + "kv_cache_dtype")
    log.write_text(logged)
    accepted = {"spec_decode_acceptance_length": 1.9}
    row = read_result(tmp_path, result=RESULT | accepted, server_log=log)
    assert (row["draft"], row["draft_tokens"], row["draft_acceptance"]) == ("ngram", 2, "1.9")
    by_position = accepted | {"spec_decode_per_position_acceptance_rates": [0.6, 0.3]}
    row = read_result(tmp_path, result=RESULT | by_position, server_log=log)
    assert row["draft_acceptance"] == "0.6,0.3"
    # What is said counts before the result.
    row = read_result(tmp_path, result=RESULT | by_position, server_log=log, draft_acceptance="0.5")
    assert row["draft_acceptance"] == "0.5"
    row = read_result(tmp_path, result=RESULT | accepted)
    assert "drafts were accepted (1.9): say what proposed them" in row["note"]
    log.write_text(logged.replace("ngram", "medusa"))
    row = read_result(tmp_path, server_log=log)
    assert "the server had drafts by medusa, which physim does not predict" in row["note"]


def test_what_nobody_said_is_the_engines_default_and_said(tmp_path):
    row = read_result(tmp_path, engine_version="0.15", max_num_seqs=32)
    limits = [row[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")]
    assert limits == [32, 8192, 40_960]
    assert row["note"].endswith(
        "max_num_batched_tokens 8192, max_model_len 40960, gpu_memory_utilization 0.9 "
        "as vllm 0.15 takes by default"
    )


@pytest.mark.parametrize(
    ("log", "options", "complaint"),
    [
        ("nothing of vLLM\n", {}, "says no version"),
        (LOG.replace("pipeline_parallel_size=1", "data_parallel_size=2"), {}, "dp: 2 shares"),
        (None, {}, "No such file"),
        (LOG, {"block_size": 32}, "'block_size': is unknown"),
    ],
)
def test_logs_and_options_that_cannot_be_used(tmp_path, log, options, complaint):
    path = tmp_path / "vllm.log"
    if log is not None:
        path.write_text(log)
    with pytest.raises(InputError, match=complaint):
        read_result(tmp_path, server_log=path, **options)


def test_rows_that_are_there_stay_as_they_are(tmp_path):
    path = tmp_path / "runs.csv"
    write_rows(path, pd.DataFrame([{"engine_version": "0.10", "tp": 2}]))
    write_rows(path, pd.DataFrame([{"engine_version": "0.9", "tp": 1}]), append=True)
    assert path.read_text().split() == ["engine_version,tp", "0.10,2", "0.9,1"]


def test_rows_are_a_table_that_can_be_read(tmp_path):
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps(lifecycle()))
    path = tmp_path / "runs.csv"
    for name in ("one", "two"):
        found = physim.read_report(
            "inference-perf", tmp_path, model="Qwen/Qwen3-8B", gpu="h100_sxm", experiment=name
        )
        write_rows(path, found, append=True)
    frame = read_tables([path]).frame
    assert frame["experiment"].tolist() == ["one", "two"]


def steps(tmp_path, ids, **columns):
    frame = pd.DataFrame(
        {
            "experiment_id": "run",
            "step.id": ids,
            "step.ts_start_ns": [1_000_000 * 10 * n for n in ids],
            "batch.num_decode_reqs": 4,
            "batch.num_prefill_reqs": 0,
            "batch.prefill_tokens": 0,
        }
        | columns
    )
    path = tmp_path / "steps.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_kv_cache_of_a_row():
    row = {"experiment": "x", "model": "Qwen/Qwen3-8B", "hardware": "h100_sxm", "tp": 1}
    row |= {"stage": 0, "max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    row |= {"gpu_memory_utilization": 0.9, "input_len_mean": 100, "output_len": 100}
    row |= {"prefix_caching": False, "prompt_groups": 0, "arrival": "constant"}
    row |= {"rate_rps": 1.0, "duration_s": 60.0, "itl_mean": 0.01}
    for given, dtype in (({}, "bfloat16"), ({"kv_cache_dtype": "fp8"}, "fp8")):
        said = TableRow(RunRow.model_validate({**row, **given}))
        assert case_of([said], None).server.kv_cache_dtype == dtype


def test_consecutive_steps_give_cycles(tmp_path):
    found = read_steps(steps(tmp_path, [5, 6, 9, 11, 12, 13]))
    assert found["step"].tolist() == [5, 11, 12]
    assert found["cycle_s"].tolist() == pytest.approx([0.01] * 3)


def test_tables_of_steps_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="no two consecutive steps"):
        read_steps(steps(tmp_path, [1, 3, 5]))
    with pytest.raises(InputError, match=r"line 2: step.ts_start_ns: a is not a whole number"):
        read_steps(steps(tmp_path, [1, 2], **{"step.ts_start_ns": ["a", "b"]}))
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="has no column experiment_id, step"):
        read_steps(path)
    with pytest.raises(InputError, match="check the path"):
        read_steps(tmp_path / "none.csv")


@pytest.mark.slow
def test_clients_are_predicted_as_clients(tmp_path):
    """A benchmark of clients, replayed, is what the fluid makes of its rows, not of a rate."""
    common = {"hardware": "h100_sxm", "max_model_len": 4096, "max_num_seqs": 128}
    common |= {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9, "tp": 1}
    common |= {"prefix_caching": True, "prompt_groups": 0, "arrival": "constant"}
    rows = []
    for stage, clients in enumerate((4, 16)):
        case = {"gpu": "h100_sxm", "concurrency": clients, "max_num_seqs": 128, "fit": "none"}
        case |= {"max_num_batched_tokens": 2048, "max_model_len": 4096}
        seen = physim.predict(
            "Qwen/Qwen3-8B", input_tokens=500, output_tokens=200, method="replay", **case
        )
        rows.append(
            {"experiment": "sweep", "model": "Qwen/Qwen3-8B", **common, "stage": stage}
            | {"rate_rps": seen.requests_per_s, "duration_s": 60.0, "concurrency": clients}
            | {"input_len_mean": 500, "output_len": 200, "output_len_std": 0.0}
            | {"ttft_mean": seen.ttft_s, "e2e_mean": seen.e2e_s}
        )
    path = tmp_path / "sweep.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    errors = physim.evaluate([path], fit="none").to_frame()
    assert errors["stage"].tolist() == [0, 1]
    assert errors["e2e_mean_error_pct"].abs().max() < 1
    assert errors["ttft_mean_error_pct"].abs().max() < 10
    assert [case.load.concurrency for case in observe([path]).cases] == [4, 16]
    open_loop = [{**row, "concurrency": None} for row in rows[1:]]
    pd.DataFrame(open_loop).to_csv(path, index=False)
    (as_a_rate,) = physim.evaluate([path], fit="none").to_frame()["ttft_mean_error_pct"]
    assert as_a_rate < -40
    pd.DataFrame([{**rows[0], "concurrency": -1}]).to_csv(path, index=False)
    with pytest.raises(InputError, match="concurrency: -1 is below 1"):
        physim.evaluate([path])


# ---- what must not be misread ----


@pytest.mark.parametrize(
    ("told", "arrival", "burstiness"),
    [({"burstiness": 0.5}, "gamma", 0.5), ({}, "poisson", 1.0), ({"burstiness": 3}, "gamma", 3.0)],
)
def test_arrivals_are_as_bursty_as_they_were_sent(tmp_path, told, arrival, burstiness):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **told}))
    frame = physim.read_report("vllm-bench", path, model="Qwen/Qwen3-8B", gpu="h100_sxm")
    write_rows(tmp_path / "runs.csv", frame)
    load = case_of(read_tables([tmp_path / "runs.csv"]).rows, None).demanded
    assert (load.arrival, load.burstiness) == (arrival, burstiness)
    assert load.arrival_cv2 == pytest.approx(1 / burstiness)


def test_requests_that_failed_are_counted_by_older_versions_too(tmp_path):
    path = tmp_path / "result.json"
    older = {name: value for name, value in RESULT.items() if name != "failed"}
    path.write_text(json.dumps({**older, "num_prompts": 104}))
    (stage,) = vllm_bench.read(path)
    assert (stage.n_success, stage.n_failed, stage.duration_s) == (100, 4, 26.0)


def test_lengths_that_are_listed_have_a_spread(tmp_path):
    path = tmp_path / "result.json"
    lists = {"input_lens": [400, 600, 500], "output_lens": [100, 0, 156]}
    path.write_text(json.dumps({**RESULT, **lists}))
    (stage,) = vllm_bench.read(path)
    # The request that failed generated nothing, which is no length.
    assert (stage.input_len_std, stage.output_len_std) == (pytest.approx(81.65, abs=0.01), 28.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"failed": "0"}, "failed: '0' is not a whole number"),
        ({"completed": True}, "completed: True is not a number"),
        ({"burstiness": 0}, "burstiness: 0 is not positive"),
        ({"num_prompts": 3}, "num_prompts: 3 were sent, fewer than the 100 that came back"),
        (
            {"mean_ttft_ms": 0.03, "median_ttft_ms": 30.0},
            "mean_ttft_ms: 0.03 is less than half of the median, 30; give both in milliseconds",
        ),
        ({"mean_tpot_ms": 0}, "e2e_mean: leaves no time for 128 tokens"),
        ({"request_throughput": float("nan")}, "request_throughput: nan is not a number"),
    ],
)
def test_results_that_contradict_themselves(tmp_path, change, complaint):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **change}))
    with pytest.raises(InputError, match=complaint):
        physim.read_report("vllm-bench", path, model="Qwen/Qwen3-8B", gpu="h100_sxm")


def test_a_load_generator_that_did_not_keep_up(tmp_path):
    report = lifecycle()
    report["load_summary"]["achieved_rate"] = 6.0
    report["successes"]["prompt_tokens"] = {"total": 1000.0, "cached": 250.0, **spread(500.0)}
    (tmp_path / STAGE).write_text(json.dumps(report))
    (stage,) = inference_perf.read(tmp_path)
    assert (stage.rate_rps, stage.duration_s) == (6.0, 800.0)
    assert "6/s were sent instead of 8" in stage.note
    assert "25% of the prompts' tokens were in the prefix cache" in stage.note
    report["failures"]["count"] = 11
    (tmp_path / STAGE).write_text(json.dumps(report))
    with pytest.raises(InputError, match="4800 are not the 4801 that succeeded or failed"):
        inference_perf.read(tmp_path)


def test_a_rate_that_was_held_back_is_no_rate(tmp_path):
    path = tmp_path / "benchmarks.json"
    # 1.97/s that take 2 s each are 3.94 under way.
    strategies = [{"type_": "poisson", "rate": 9.0, "max_concurrency": most} for most in (4, 64)]
    path.write_text(json.dumps({"benchmarks": [benchmark(one) for one in strategies]}))
    held, free = guidellm.read(path)
    assert (held.rate_rps, held.arrival) == (1.97, "constant")
    assert "held back by max_concurrency" in held.note
    assert (free.rate_rps, free.arrival, free.note) == (9.0, "poisson", "")


def blis(tmp_path, *changes, header="trace_version: 3\ntime_unit: microseconds\n"):
    """A trace of requests each 250 ms, of which the last ones are changed."""
    rows = [
        {"input_tokens": 500, "output_tokens": 100, "arrival_time_us": 250_000 * n}
        | {"send_time_us": 250_000 * n, "first_chunk_time_us": 250_000 * n + 30_000}
        | {"last_chunk_time_us": 250_000 * n + 1_000_000, "status": "ok"}
        for n in range(4 + len(changes))
    ]
    for row, change in zip(rows[4:], changes, strict=True):
        row.update(change)
    path = tmp_path / "trace.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    path.with_suffix(".yaml").write_text(header)
    return path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"first_chunk_time_us": -5}, "line 6: first_chunk_time_us: -5 is below 0"),
        ({"send_time_us": None}, "line 6: send_time_us: is empty"),
        ({"first_chunk_time_us": 9}, "first_chunk_time_us: 9 is not after send_time_us, 1000000"),
        ({"last_chunk_time_us": 1_000_001}, "1000001 is not after first_chunk_time_us, 1030000"),
        ({"send_time_us": 3}, "send_time_us: 3 is not after arrival_time_us, 1000000"),
        ({"first_chunk_time_us": 1_000_000}, "first_chunk_time_us: 1000000 is not after send"),
        ({"status": "fine"}, "status: fine is unknown; use one of 'ok'"),
        ({"input_tokens": 2.5}, "input_tokens: 2.5 is not a whole number"),
        ({"output_tokens": 0}, "output_tokens: is 0 of an answered request"),
        ({"streaming": False}, "streaming: is false, so that no first token was seen"),
    ],
)
def test_times_of_a_trace_that_cannot_be(tmp_path, change, complaint):
    with pytest.raises(InputError, match=complaint):
        blis_trace.read_run(blis(tmp_path, change))


def test_a_prompt_is_its_prefix_and_the_rest_or_what_the_server_counted(tmp_path):
    failed = {"status": "error", "first_chunk_time_us": 0, "last_chunk_time_us": 0}
    alone = [{"prefix_length": 0, "server_input_tokens": 0}] * 2
    (stage,), _ = blis_trace.read_run(blis(tmp_path, *alone, failed))
    assert (stage.input_len_mean, stage.n_success, stage.n_failed) == (500, 6, 1)
    counted = {"prefix_length": 100, "server_input_tokens": 620}
    (stage,), _ = blis_trace.read_run(blis(tmp_path, {"prefix_length": 100}, counted))
    assert stage.input_len_mean == pytest.approx((4 * 500 + 600 + 620) / 6)
    assert stage.input_len_std == pytest.approx(52.17, abs=0.01)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("trace_version: 3\ntime_unit: seconds\n", "time_unit: seconds is unknown"),
        ("time_unit: microseconds\n", "trace_version: is missing"),
        ("trace_version: 3\ntime_unit: microseconds\nwarm_up_requests: -1\n", "-1 is below 0"),
        ("trace_version: 3\ntrace_version: 2\n", "trace_version: is there twice"),
    ],
)
def test_headers_of_a_trace_that_cannot_be(tmp_path, header, complaint):
    with pytest.raises(InputError, match=complaint):
        blis_trace.read_run(blis(tmp_path, header=header))


def test_what_a_header_says_of_the_server_is_not_of_the_trace(tmp_path):
    header = "trace_version: 3 # of 2026\ntime_unit: 'microseconds'\nserver:\n  trace_version: 9\n"
    assert len(blis_trace.read_run(blis(tmp_path, header=header))[0]) == 1


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("tensor_parallel_size=2", "tensor_parallel_size=1.5", "tp: 1.5 is not a whole number"),
        ("'max_num_seqs': 64", "'max_num_seqs': 1e9", "max_num_seqs: 1e9 is not a whole number"),
        ("'max_num_seqs': 64", "'max_num_seqs': 6,4", "max_num_seqs: 6,4 is not a whole number"),
        ("memory_utilization': 0.85", "memory_utilization': 8.5", "8.5 is above 1"),
        ("prefix_caching=False", "prefix_caching=Falsehood", "is neither true nor false"),
        ("922,496", "9,22,496", "kv_tokens: 9,22,496 is not a whole number"),
        ("922,496", "0", "kv_tokens: 0 is not positive"),
        ("fp8_e4m3", "nf8_e4m3", "kv_cache_dtype: 'nf8_e4m3' is unknown"),
    ],
)
def test_fronts_of_values_in_a_log_are_not_values(tmp_path, old, new, complaint):
    log = tmp_path / "vllm.log"
    log.write_text(LOG.replace(old, new))
    with pytest.raises(InputError, match=complaint):
        read_result(tmp_path, server_log=log)


def test_what_physim_does_not_predict_of_a_server_is_said(tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(LOG.replace("pipeline_", "enforce_eager=True, quantization=fp8, pipeline_"))
    row = read_result(tmp_path, server_log=log)
    assert row["note"] == (
        "the server had enforce_eager, steps without CUDA graphs, which physim does not predict; "
        "the server had weights in fp8, which Qwen/Qwen3-8B has not"
    )


ML_ENERGY = "model,hardware,tp,ep,n_gpus_total,workload,output_len_mean,max_num_seqs," + (
    "avg_batch_size,itl_mean_ms\nQwen/Qwen3-14B,H100-SXM-80GB,1,1,1,gpqa,600.5,8,7.9,12.5\n"
)


def test_ml_energy(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(ML_ENERGY)
    (row,) = ml_energy.read(path).to_dict("records")
    assert (row["hardware"], row["concurrency"], row["itl_mean"]) == ("h100_sxm", 7.9, 0.0125)
    assert row["rate_rps"] == pytest.approx(7.9 / (0.0125 * 600.5))
    assert (row["max_model_len"], row["engine_version"], row["async_scheduling"]) == (
        *(40960, "0.11.1"),
        True,
    )


def test_ml_energy_shares_all_layers_where_it_spreads_experts(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(ML_ENERGY.replace("1,1,1,gpqa", "1,2,2,lm-arena-chat"))
    (row,) = ml_energy.read(path).to_dict("records")
    assert (row["tp"], row["ep"], row["max_model_len"]) == (2, 2, 20480)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("12.5", "", "line 2: itl_mean_ms: is empty"),
        ("12.5", "-1", "line 2: itl_mean_ms: -1 is not positive"),
        ("12.5", "1e400", "line 2: itl_mean_ms: 1e400 is not a number"),
        ("12.5", "12.5,3", "line 2: has 11 cells for 10 columns"),
        ("12.5", "12500", "line 2: itl_mean: makes 12.5 s a token"),
        ("1,1,1", "1,1,2", "line 2: n_gpus_total: 2 are not the 1 of tp and ep"),
        ("n_gpus_total", "tp", "has a column tp twice"),
        ("itl_mean_ms", "itl", "has no column itl_mean_ms"),
        ("Qwen/Qwen3-14B", "Qwen\x1b[2J", r"model: .* holds control characters"),
        ("Qwen/Qwen3-14B", '"Qwen', "is not a CSV table"),
    ],
)
def test_tables_of_ml_energy_that_cannot_be_used(tmp_path, old, new, complaint):
    path = tmp_path / "runs.csv"
    path.write_text(ML_ENERGY.replace(old, new))
    with pytest.raises(InputError, match=complaint) as refusal:
        ml_energy.read(path)
    assert "\n" not in str(refusal.value)


def test_steps_that_cannot_be(tmp_path):
    for columns, complaint in (
        ({"step.ts_start_ns": [1e9, 3e9, 2e9]}, "after step 2 of run a later one starts no later"),
        ({"step.id": [1, 2, 2]}, "step.id: 2 of run is there twice"),
        ({"batch.prefill_tokens": [0, 0, 9]}, "line 4: batch.num_prefill_reqs: is 0 of 9 tokens"),
        ({"batch.num_decode_reqs": [4, -4, 4]}, "line 3: batch.num_decode_reqs: -4 is below 0"),
        ({"experiment_id": ["run", "", "run"]}, "line 3: experiment_id: is empty"),
    ):
        with pytest.raises(InputError, match=complaint):
            read_steps(steps(tmp_path, [1, 2, 3], **columns))


def test_steps_in_parquet_are_checked_as_those_in_csv(tmp_path):
    table = pd.read_csv(steps(tmp_path, [5, 6, 9]))
    path = tmp_path / "steps.parquet"
    table.to_parquet(path)
    assert read_steps(path).equals(read_steps(tmp_path / "steps.csv"))
    table.assign(**{"batch.num_decode_reqs": True}).to_parquet(path)
    with pytest.raises(InputError, match=r"row 1: batch.num_decode_reqs: True is not a number"):
        read_steps(path)


def test_a_missing_value_in_parquet_is_named(tmp_path):
    table = pd.read_csv(steps(tmp_path, [5, 6, 9]))
    path = tmp_path / "steps.parquet"
    table["step.id"] = pd.array([5, None, 9], dtype="Int64")
    table.to_parquet(path)
    with pytest.raises(InputError, match=r"row 2: step.id: is empty"):
        read_steps(path)


def test_cycles_are_exact_whatever_the_clocks_origin(tmp_path):
    starts = [1_790_000_000_000_000_001 + 10_000_001 * n for n in range(2)]
    found = read_steps(steps(tmp_path, [1, 2], **{"step.ts_start_ns": starts}))
    assert found["cycle_s"].tolist() == [0.010000001]


def runs(tmp_path, *rows):
    common = {"experiment": "run", "model": "Qwen/Qwen3-8B", "hardware": "h100_sxm", "tp": 1}
    common |= {"max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    common |= {"gpu_memory_utilization": 0.9, "input_len_mean": 100, "output_len": 100}
    common |= {"prefix_caching": False, "prompt_groups": 0, "arrival": "constant", "stage": 0}
    common |= {"rate_rps": 1.0, "duration_s": 60.0, "ttft_mean": 0.02, "e2e_mean": 1.0}
    path = tmp_path / "runs.csv"
    pd.DataFrame([{**common, **row} for row in rows]).to_csv(path, index=False)
    return path


def test_stages_follow_one_another_by_their_numbers(tmp_path):
    later, whole, first = ({"stage": stage, "rate_rps": stage + 2.0} for stage in (1, -1, 0))
    rows = read_tables([runs(tmp_path, later, whole, first)]).rows
    assert [stage.rate for stage in case_of(rows, None).demanded.stages] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"arrival": "gamma"}, "burstiness: is empty; give the shape"),
        ({"burstiness": 0.5}, "burstiness: has no meaning for constant arrivals"),
        ({"async_scheduling": "maybe"}, "async_scheduling: maybe is neither true nor false"),
        ({"n_success": 0}, "n_success: is 0 of a row with times"),
        ({"e2e_mean": 0.02}, "e2e_mean: leaves no time for 100 tokens"),
        ({"tp": "1.5"}, "line 2: tp: 1.5 is not a whole number"),
    ],
)
def test_rows_that_cannot_be(tmp_path, row, complaint):
    with pytest.raises(InputError, match=complaint):
        read_tables([runs(tmp_path, row)])


@pytest.mark.parametrize("said", ["no", "off", "False", "0"])
def test_no_is_no(tmp_path, said):
    rows = read_tables([runs(tmp_path, {"async_scheduling": said})]).rows
    assert case_of(rows, None).server.policy.async_scheduling is False
    with pytest.raises(InputError, match=r"prefix_caching: .* is not True or False"):
        read_result(tmp_path, prefix_caching=said)
    with pytest.raises(InputError, match=r"async_scheduling: .* is not True or False"):
        physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", async_scheduling=said)
