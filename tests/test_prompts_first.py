"""Engines that compute all prompts before they decode again, under prompts that fill steps."""

import pytest

import physim
from physim.inputs.stages import Stage

ENGINE = {"engine": "sglang", "max_model_len": 32_768}
# A third of the prompts are as long as a step has tokens, or longer.
LONG = {
    "input_tokens": physim.Lengths.parse("lognormal:6000:6000"),
    "output_tokens": physim.Lengths.parse("lognormal:120:80"),
}


def predicted(rate, **more):
    options = ENGINE | LONG | {"fit": "none", "gpu": "h100_sxm", "rate": rate} | more
    return physim.predict("Qwen/Qwen3-8B", **options)


@pytest.mark.slow
def test_a_chunk_that_fills_a_step_has_it_to_itself():
    # From a chunk of any prompt to several last ones, of which a step has room for more, each
    # seemed to take less time: 5.24 requests a second for 4.82.
    overload = predicted(8.0, method="replay", requests=3000)
    served = overload.requests_per_s
    assert predicted(1.0).saturation_rps == pytest.approx(served, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [3.0, 3.8])
def test_who_decodes_waits_for_the_prompts_behind_its_own(rate):
    fluid, replay = (
        predicted(rate, **more) for more in ({}, {"method": "replay", "requests": 8000})
    )
    assert fluid.itl_s == pytest.approx(replay.itl_s, rel=0.12)
    assert fluid.e2e_s == pytest.approx(replay.e2e_s, rel=0.12)
    # One gap of a hundred is the wait, and few of them are much longer than a step.
    which = fluid.whole.latencies["itl"], replay.whole.latencies["itl"]
    assert which[0]["p50"] == pytest.approx(which[1]["p50"], rel=0.15)
    assert which[0]["p99"] == pytest.approx(which[1]["p99"], rel=0.5)


def test_answers_of_one_token_have_no_gap_to_wait_in():
    lengths = physim.RequestLengths.from_columns([6000.0, 6000.0, 300.0], [1.0, 120.0, 1.0])
    for shape in ({"rate": 6.0}, {"stages": (Stage(6.0, 60.0),)}):
        load = physim.Load.of_requests(lengths, **shape)
        case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", **ENGINE).under(load)
        (found,) = physim.predict_cases([case], physim.Corrections())
        # Of a wait over gaps of which there are none, TPOT had a 99th percentile of minutes.
        assert found.whole.latencies["tpot"]["p99"] < 0.5 * found.whole.latencies["e2e"]["p99"]
