"""Measured runs above capacity: 4 requests/s of 1,448 tokens for 20 minutes, bare physics.

Their queues grow until clients give up after 300 s, so that an error of the step time counts
tenfold in them. Nothing is fitted to them.
"""

import laws
import pytest

import physim
from physim.corrections.fields import Corrections
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import read_tables

SHORT = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "arrival": "poisson"}


def run_of(ground_truth, name):
    table = read_tables([ground_truth / "seed16.csv"])
    own = f"experiment.str.contains('reasoning') and model.str.contains('{name}') and stage == 0"
    (stage,) = table.where(own)
    p90 = table.frame.loc[table.rows.index(stage), "ttft_p90"]
    return stage.row, p90, case_of([stage], timeout_s=300.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CodeLlama", "Llama-2-70b", "Llama-2-7b"])
def test_runs_above_capacity(ground_truth, name):
    stage, _, case = run_of(ground_truth, name)
    (found,) = physim.predict_cases([case], Corrections())
    assert found.ttft_s == pytest.approx(stage.ttft_mean, rel=0.15)
    assert found.e2e_s == pytest.approx(stage.e2e_mean, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fluid", "replay"])
def test_the_serving_loop_above_capacity(ground_truth, method):
    stage, p90, case = run_of(ground_truth, "CodeLlama")
    (found,) = physim.predict_cases([case], Corrections(), method=method)
    itl = (stage.e2e_mean - stage.ttft_mean) / (stage.output_len - 1)
    assert found.itl_s == pytest.approx(itl, rel=0.1)
    assert found.whole.latencies["ttft"]["p90"] == pytest.approx(p90, rel=0.2)
    # A server 8% too slow has a queue that reaches the 300 s of its clients before the end: a
    # quarter of them give up, where four did.
    assert found.whole.completed / found.whole.arrived > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "output"),
    [(2000, 1), (4096, 1), (12000, 1), ("lognormal:3000:3000", 20)],
)
def test_short_answers_saturate_a_server_with_full_steps(prompts, output):
    # Four prompts of 2,000 tokens share a step of 8,192 with a part of a fifth, whose attention is
    # less than that of one prompt as long; near the limit none is computed alone.
    case = physim.Case.from_options(**SHORT, rate=1.0, input_tokens=prompts, output_tokens=output)
    (found,) = physim.predict_cases([case], Corrections())
    most = found.saturation_rps
    assert most == pytest.approx(laws.replayed_overload(case, 1.15 * most, 3000), rel=0.01)


@pytest.mark.slow
def test_waits_near_the_saturation_of_full_steps():
    case = physim.Case.from_options(**SHORT, rate=19.2, input_tokens=2000, output_tokens=1)
    (fluid,), (replayed,) = (
        physim.predict_cases([case], Corrections(), method=method) for method in ("fluid", "replay")
    )
    assert fluid.requests_per_s / fluid.saturation_rps == pytest.approx(0.93, abs=0.01)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.2)
