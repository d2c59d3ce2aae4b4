"""Intervals near the capacity, where a queue makes more of what is not known."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.calibration import Calibration
from physim.corrections.fields import PRIOR_WIDTHS, Corrections, flat
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.prediction.intervals import _width, least_s, predict_with_intervals

KNOWN = Calibration(
    "mine",
    Corrections(),
    np.diag((0.2 * flat(PRIOR_WIDTHS)) ** 2),
    {"ttft": 0.25, "itl": 0.12, "e2e": 0.12},
)


def under(tokens, **load):
    options = {"input_tokens": tokens, "output_tokens": 100, "gpu": "h100_sxm", "max_num_seqs": 64}
    return physim.Case.from_options("Qwen/Qwen3-8B", **options, **load)


def test_requests_that_come_faster_come_in_less_time():
    staged = Load(100, 50, stages=(Stage(2.0, 60.0), Stage(4.0, 30.0)), timeout_s=10.0)
    assert staged.faster(2.0) == dataclasses.replace(
        staged, stages=(Stage(4.0, 30.0), Stage(8.0, 15.0)), timeout_s=5.0
    )
    assert Load(100, 50, rate=2.0, requests=60).faster(1.5).schedule() == (Stage(3.0, 20.0),)
    clients = Load(100, 50, concurrency=8)
    assert clients.faster(2.0) is clients
    # Not beyond what a rate may be.
    assert Load(100, 50, rate=1e9).faster(2.0).rate == 1e9


def test_each_side_of_an_interval_has_its_own_draws():
    ratios = [0.5, 0.9, *[1.0] * 25, 1.2, 1.25, 9.0]
    # Of thirty draws the second from either end.
    assert _width(ratios, 0.0) == pytest.approx((0.9, 1.25))
    # 1.645 x 0.1 beside logarithms of 0.1054 and 0.2231.
    low, high = _width(ratios, 0.1)
    assert -math.log(low) == pytest.approx(math.hypot(0.1645, 0.10536), rel=1e-4)
    assert math.log(high) == pytest.approx(math.hypot(0.1645, 0.22314), rel=1e-4)
    # Open where two of thirty are above capacity.
    assert _width([*ratios[:-1], math.inf], 0.1)[1] < math.inf
    assert _width([*ratios[:-2], math.inf, math.inf], 0.1)[1] == math.inf
    # Without draws it is the scatter's alone.
    assert _width([], 0.1) == pytest.approx((math.exp(-0.1645), math.exp(0.1645)))


@pytest.mark.slow
def test_ttft_has_no_upper_end_where_the_steps_may_be_too_slow_for_the_load():
    most = physim.predict_cases([under(500, rate=1.0)], Corrections())[0].saturation_rps
    known = dataclasses.replace(KNOWN, scatter={"ttft": 0.25, "itl": 0.01, "e2e": 0.01})
    case = under(500, rate=0.97 * most)
    unsure, certain = predict_with_intervals([case] * 2, [KNOWN, known])
    # Steps may well be 12% slower, and there is room for 3%.
    assert unsure.intervals["saturation_rps"][0] < 0.97 * most
    assert unsure.intervals["ttft_s"][1] == math.inf
    assert unsure.intervals["ttft_s"][0] <= certain.intervals["ttft_s"][0]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(tokens=st.integers(64, 6000), share=st.floats(0.3, 0.995))
def test_lower_ends_rise_with_the_load_and_have_the_computing(tokens, share):
    most = physim.predict_cases([under(tokens, rate=1.0)], Corrections())[0].saturation_rps
    cases = [under(tokens, rate=part * most, arrival="poisson") for part in (0.02, share)]
    idle, busy = predict_with_intervals(cases, [KNOWN] * 2)
    for name in ("ttft_s", "itl_s", "e2e_s"):
        low, high = busy.intervals[name]
        assert least_s(cases[1])[name] <= low <= getattr(busy, name) <= high
        # What queues takes no less than what does not.
        assert low >= 0.99 * idle.intervals[name][0]
