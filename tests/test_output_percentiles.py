"""Percentiles of E2E and TPOT where answers differ in length."""

import numpy as np
import pytest

import physim
from physim.fluid.distributions import clumped

SERVER = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "fit": "none", "arrival": "poisson"}


def test_the_longest_answers_are_told_apart():
    # Of a lognormal distribution with a mean and a spread of 800 tokens, the 99th percentile is
    # exp(6.338 + 0.8326 * 2.326) = 3,924 tokens and the 95th 2,226; the mean of the longest in 64
    # is 4,772.
    lengths = physim.Lengths.parse("lognormal:800:800")
    found = physim.predict(**SERVER, rate=0.05, input_tokens=300, output_tokens=lengths)
    e2e = found.whole.latencies["e2e"]
    assert e2e["p99"] == pytest.approx(3924 * found.itl_s, rel=0.05)
    assert e2e["p95"] == pytest.approx(2226 * found.itl_s, rel=0.05)
    # Answers of one length stay so.
    fixed = physim.predict(**SERVER, rate=0.05, input_tokens=300, output_tokens=800)
    assert fixed.whole.latencies["e2e"]["p99"] == pytest.approx(fixed.e2e_s, rel=0.03)


def test_what_answers_meet_says_nothing_of_their_length():
    # Points of the lattice that pick a length must not pick what it meets, too.
    lengths = physim.Lengths.parse("normal:300:90")
    load = {"input_tokens": 2000, "output_tokens": lengths, "rate": 6.0}
    one = physim.predict(**SERVER, **load).whole.requests
    steps = (one.e2e_s - one.ttft_s) / one.tpot_s
    by_length = one.tpot_s[np.argsort(steps)]
    for low, high in ((0.0, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 0.97)):
        some = by_length[int(low * len(steps)) : int(high * len(steps))]
        assert some.mean() == pytest.approx(by_length.mean(), rel=0.015)


def test_prompts_that_follow_one_another_by_hand():
    # Prompts take half of the time: of two steps each varies 4/3 times as much as those that come
    # alone, and one half of that in both; of very many steps the sum varies four times as much.
    steps = np.array([1.0, 2.0, 1e6])
    assert clumped(0.5, steps) == pytest.approx([4 / 3, 4 / 3 * 1.5, 4.0], rel=1e-4)
    assert clumped(0.0, steps) == pytest.approx(1.0)


@pytest.mark.slow
def test_prompts_that_are_met_bring_others():
    load = {"input_tokens": 2000, "output_tokens": 300, "rate": 6.0}
    fluid, exact = (
        physim.predict(**SERVER, **load, **more).whole.requests.tpot_s
        for more in ({}, {"method": "replay", "requests": 8000})
    )
    assert fluid.std() / fluid.mean() == pytest.approx(exact.std() / exact.mean(), rel=0.2)


@pytest.mark.slow
def test_short_answers_meet_long_prompts_by_chance():
    # A prompt of 4,000 tokens is computed beside 20 tokens of one request or 400 of another.
    parse = physim.Lengths.parse
    load = {
        "input_tokens": parse("lognormal:4000:1500"),
        "output_tokens": parse("lognormal:200:150"),
        "rate": 1.8,
    }
    fluid = physim.predict(**SERVER, **load)
    exact = physim.predict(**SERVER, **load, method="replay", requests=4000)
    for name, within in (("p50", 0.05), ("p90", 0.05), ("p99", 0.1)):
        tpot, wanted = fluid.whole.latencies["tpot"][name], exact.whole.latencies["tpot"][name]
        assert tpot == pytest.approx(wanted, rel=within), name
    assert fluid.whole.latencies["tpot"]["p99"] > 1.4 * fluid.whole.latencies["tpot"]["p50"]


@pytest.mark.slow
def test_launches_bring_no_clumps_of_requests():
    # A step with prompts takes 65 ms, be they one or four, for its kernels are launched one by one:
    # the number that decodes varies as arrivals do, and answers of one length take as long.
    case = physim.Case.from_options(
        "Qwen/Qwen3-30B-A3B",
        gpu="h100_sxm",
        tp=2,
        rate=20.0,
        arrival="poisson",
        input_tokens=1000,
        output_tokens=300,
    )
    fluid, exact = (
        physim.predict_cases([case], physim.Corrections(), method=method)[0].whole.latencies["tpot"]
        for method in ("fluid", "replay")
    )
    for name in ("p90", "p99"):
        assert fluid[name] == pytest.approx(exact[name], rel=0.025)
