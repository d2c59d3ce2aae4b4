"""Reports that say more than latencies: AIPerf's and llm-d's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import physim
from physim.errors import InputError
from physim.measured import aiperf

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
