"""What a real server wrote: vLLM 0.33 on an H100, read and held against predictions."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from physim.errors import InputError
from physim.fitting.fit import fit
from physim.inputs.case import Case
from physim.measured import vllm_bench
from physim.measured.metrics import read_metrics, stage_of
from physim.measured.step_files import read_step_files
from physim.validation.step_errors import compare_steps

RECORDED = Path(__file__).parent / "reports" / "vllm_0_33_h100"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LOADS = {"load30": (6.5, 260), "load60": (13.0, 520), "load80": (17.5, 788), "moe": (6.0, 210)}


def unpacked(name, folder):
    path = folder / name
    path.write_bytes(gzip.decompress((RECORDED / f"{name}.gz").read_bytes()))
    return path


@pytest.mark.parametrize(
    ("name", "count", "drafts"),
    [("forward_decode", 22, 0), ("forward_prefill", 16, 0), ("forward_verify", 4, 3)],
)
def test_forward_passes(tmp_path, name, count, drafts):
    steps = read_step_files([unpacked(f"{name}.json", tmp_path)])
    assert (len(steps), steps.clock) == (count, "forward")
    assert set(steps.drafts) == {drafts}
    cases = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    np.testing.assert_allclose(steps.seconds, [1e-6 * one["median_us"] for one in cases])
    tokens = steps.prefill_tokens + steps.decode_requests * (1 + drafts)
    np.testing.assert_array_equal(tokens, [one["ranks"][0]["num_tokens"] for one in cases])


def test_iteration_log_of_a_server_that_runs_ahead():
    steps = read_step_files([RECORDED / "serve.log.gz"])
    assert len(steps) == 12_283
    # All prompts, and those to warm up, but for the blocks that happened to be in the prefix cache.
    assert steps.prefill_tokens.sum() == 1024 * (24 + 260 + 520 + 788) - 2016
    assert any("0.2 ms" in note for note in steps.notes)
    # Fitted, they made ITL 40 to 58% too short.
    server = Case.from_options(model=LLAMA, gpu="h100_sxm")
    with pytest.raises(InputError, match="10% of its steps took less than"):
        fit(steps=RECORDED / "serve.log.gz", server=server, base="none")


def test_results_of_the_load_generator(tmp_path):
    for name, (rate, count) in LOADS.items():
        (stage,) = vllm_bench.read(unpacked(f"{name}.json", tmp_path))
        raw = json.loads((tmp_path / f"{name}.json").read_text())
        assert (stage.rate_rps, stage.n_success, stage.n_failed) == (rate, count, 0)
        assert (stage.input_len_mean, stage.output_len) == (1024, 256)
        assert stage.ttft_mean == pytest.approx(np.mean(raw["ttfts"]), rel=1e-4)
        assert stage.e2e_mean == pytest.approx(np.mean(raw["latencies"]), rel=1e-4)


@pytest.mark.parametrize("name", LOADS)
def test_counters(tmp_path, name):
    scrapes = [unpacked(f"{name}.{when}.prom", tmp_path) for when in ("before", "after")]
    result = json.loads(unpacked(f"{name}.json", tmp_path).read_text())
    row = stage_of(read_metrics(scrapes, interval_s=result["duration"]))
    assert row.rate_rps == pytest.approx(result["request_throughput"])
    assert row.n_success == LOADS[name][1]
    assert (row.input_len_mean, row.output_len) == (1024, 256)
    # The server's clock starts after the client's; the client sees the rest.
    assert 0.85 * result["mean_ttft_ms"] < 1e3 * row.ttft_mean < result["mean_ttft_ms"]
    assert 1e3 * row.e2e_mean == pytest.approx(result["mean_e2el_ms"], rel=2e-3)


def test_forward_passes_are_near_without_a_fit(tmp_path):
    case = Case.from_options(model=LLAMA, gpu="h100_sxm")
    off = {}
    for name in ("forward_decode", "forward_prefill", "forward_verify"):
        steps = read_step_files([unpacked(f"{name}.json", tmp_path)])
        steps = steps.completed(case.server.kv.tokens, None)
        off[name] = compare_steps(steps, case, fit="none").errors[-1].mean_pct
    assert off["forward_decode"] < 5
    assert off["forward_prefill"] < 9
    assert off["forward_verify"] < 3
