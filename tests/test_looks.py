"""Prompts that come together because an engine looks at arrivals once in so many steps."""

import math
from dataclasses import replace

import numpy as np
import pytest

import physim
from physim.batching.limits import Limits
from physim.batching.looks import beside_decode, looks_at

LIMITS = Limits(kv_blocks=1000, max_num_seqs=64, max_num_batched_tokens=2000, max_model_len=4096)


def test_a_look_at_every_step_changes_nothing():
    for apart in (False, True):
        found = looks_at(0.7, replace(LIMITS, prompts_apart=apart))
        assert found.share == pytest.approx(1 - math.exp(-0.7), rel=1e-6)
        assert (found.joined, found.waited) == pytest.approx((1, 0), abs=1e-6)


def test_looks_by_hand():
    # One prompt in a step and four steps between looks: 2.718 steps in a row with prompts, then
    # 4 / (1 - exp(-4)) = 4.075 without. Of a turn's 6.793 prompts, 4.075 are seen in its first
    # look, as 16.30 pairs, and 2.718 in others, as so many.
    found = beside_decode(1.0, 4.0)
    assert found.share == pytest.approx(2.7183 / 6.7929, rel=1e-4)
    assert found.joined == pytest.approx((16.2985 + 2.7183) / 6.7929, rel=1e-4)
    # Who comes in the steps without prompts waits for one and a half of them in the mean.
    assert found.waited == pytest.approx(1.5 * 4.0746 / 6.7929, rel=1e-4)
    # Apart, formed ahead: in 98.17% of the looks there are prompts, and then those of the last step
    # and, with 63.21%, of the one before come too late for it: of 0.9817 x 3/4 x 1.6321 steps.
    apart = looks_at(1.0, replace(LIMITS, prompts_apart=True, receive_every=4))
    late = 0.98168 * 0.75 * 1.63212
    assert apart.share == pytest.approx((0.98168 + 0.63212 * late) / 4, rel=1e-4)
    assert apart.joined == pytest.approx(((4 - late) ** 2 + late) / 4, rel=1e-4)
    assert apart.waited == pytest.approx(1.5 - late, rel=1e-4)


def test_looks_as_they_happen():
    # Where a step with prompts is followed by a look, and one that finds none by eight steps.
    draw, every, coming = np.random.default_rng(1), 8, 0.3
    counts, rest, seen, waits = [], 0, 0, []
    for _ in range(200_000):
        new = draw.poisson(coming)
        if rest:
            rest -= 1
            seen += new
            waits += [rest] * new
            counts.append(0)
        else:
            counts.append(seen)
            waits += [0] * new if seen else [every - 1] * new
            rest, seen = (0, new) if seen else (every - 1, new)
    count = np.array(counts)
    found = beside_decode(coming, float(every))
    assert found.share == pytest.approx(np.mean(count > 0), rel=0.02)
    together = np.sum(count * (count - 1.0)) / np.sum(count)
    assert coming * found.joined == pytest.approx(together, rel=0.02)
    assert found.waited == pytest.approx(np.mean(waits), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
@pytest.mark.parametrize(
    # Clients come back after whole steps, and so after looks that the fluid does not tell apart.
    ("every", "tolerance"),
    [(1, 0.08), (10, 0.1), (60, 0.13)],
)
def test_fluid_and_replay_agree_on_what_looks_do(engine, every, tolerance):
    cases = [
        physim.Case.from_options(
            "nvidia/Llama-3.1-70B-Instruct-FP8",
            gpu="b200_sxm",
            tp=4,
            engine=engine,
            receive_every=every,
            input_tokens=physim.Lengths.normal(922, 59),
            output_tokens=physim.Lengths.normal(922, 59),
            concurrency=clients,
            requests=10 * clients,
            max_num_batched_tokens=16384,
        )
        for clients in (4, 16, 64, 256, 512)
    ]
    fluid, exact = (
        physim.predict_cases(cases, physim.Corrections(), method=method)
        for method in ("fluid", "replay")
    )
    for one, other in zip(fluid, exact, strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s, rel=tolerance)
        assert one.itl_s == pytest.approx(other.itl_s, rel=0.035)
