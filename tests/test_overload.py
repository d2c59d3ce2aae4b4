"""A measured run above capacity: CodeLlama-34B under 4 requests/s of 1,448 tokens, 20 minutes.

Its queue grows until clients give up after 300 s. Nothing is fitted to it. How long the queue gets
hangs on the step time's error tenfold, so the serving loop is judged apart from it too: with all
components scaled by one number to the run's own time between tokens.
"""

import math

import pandas as pd
import pytest

import physim
from physim.corrections.fields import Corrections
from physim.measured.runs_csv import case_of

STEP = (
    "gemm_memory",
    "gemm_compute",
    "prefill_attention",
    "decode_attention",
    "elementwise",
    "all_reduce",
    "lm_head",
    "sampling",
)


@pytest.fixture(scope="module")
def run(ground_truth):
    frame = pd.read_csv(ground_truth / "seed16.csv")
    rows = frame[frame["experiment"].str.contains("codellama-34b-tp2-reasoning")]
    (stage,) = rows[rows["stage"] == 0].to_dict("records")
    return stage, case_of([stage], timeout_s=300.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fluid", "replay"])
def test_the_serving_loop_above_capacity(run, method):
    stage, case = run
    itl = (stage["e2e_mean"] - stage["ttft_mean"]) / (stage["output_len"] - 1)
    (bare,) = physim.predict_cases([case], Corrections(), method=method)
    # Zero-shot the step is a tenth too fast, and with it the throughput.
    assert bare.itl_s == pytest.approx(itl, rel=0.10)
    assert bare.requests_per_s == pytest.approx(stage["achieved_rps"], rel=0.15)
    # The host and the overhead between steps are too small to matter here.
    scale = math.log(itl / bare.itl_s)
    corrections = Corrections(**dict.fromkeys((*STEP, "step_overhead", "host_step"), scale))
    (scaled,) = physim.predict_cases([case], corrections, method=method)
    assert scaled.itl_s == pytest.approx(itl, rel=0.01)
    assert scaled.requests_per_s == pytest.approx(stage["achieved_rps"], rel=0.06)
    assert scaled.ttft_s == pytest.approx(stage["ttft_mean"], rel=0.15)
    assert scaled.e2e_s == pytest.approx(stage["e2e_mean"], rel=0.15)
    assert scaled.whole.latencies["ttft"]["p90"] == pytest.approx(stage["ttft_p90"], rel=0.15)
    assert scaled.whole.latencies["ttft"]["p99"] == pytest.approx(stage["ttft_p99"], rel=0.15)
    lost = scaled.whole.arrived - scaled.whole.completed
    assert lost <= 20  # four were
