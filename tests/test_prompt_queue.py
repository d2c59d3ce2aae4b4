"""Waits of prompts at servers that only compute prompts, by hand and against a simulation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physim.fluid.prompt_queue import PromptSteps


def _steps(
    lone_s: float, full_s: float, prompts: float, ranks: float = 1.0, one_each_s: float = 0.0
) -> PromptSteps:
    counts, seconds = [1.0, ranks, prompts], [lone_s, one_each_s or lone_s, full_s]
    return PromptSteps(ranks, 1.0, jnp.array(counts), jnp.array(seconds))


def _simulated(steps: PromptSteps, rate: float, count: int = 60_000) -> float:
    """Mean wait of prompts that come by chance to one rank, beyond the time of one alone."""
    come = np.cumsum(np.random.default_rng(0).exponential(1 / rate, count))
    lone_s, _, full_s = steps.seconds.tolist()
    room = int(steps.prompts[-1])
    each_s = (full_s - lone_s) / max(room - 1.0, 1e-9)
    done, now, waits = 0, 0.0, 0.0
    while done < count:
        now = max(now, come[done])
        some = min(int(np.searchsorted(come, now, side="right")) - done, room)
        now += lone_s + (some - 1) * each_s
        waits += np.sum(now - come[done : done + some])
        done += some
    return float(waits / count - lone_s)


@pytest.mark.parametrize("prompt_cv2", [0.0, 0.5, 1.0])
def test_prompts_that_fill_a_step_each_are_a_queue_with_one_server(prompt_cv2):
    # Pollaczek and Khinchine: busy / (1 - busy) times half of a service and its variation.
    found = _steps(0.2, 0.2, 1.0).wait(3.0, 1.0, prompt_cv2).mean_s
    assert found == pytest.approx(0.6 / 0.4 * 0.2 * (1 + prompt_cv2) / 2, rel=1e-4)


def test_a_prompt_that_finds_another_waits_for_half_of_its_step():
    # At one prompt in a hundred seconds, 0.2% find one of 0.2 s under way.
    found = _steps(0.2, 1.0, 8.0).wait(0.01, 1.0, 0.0).mean_s
    assert found == pytest.approx(0.01 * 0.2 * 0.2 / 2, rel=0.01)


def test_evenly_spaced_prompts_of_one_length_wait_for_nothing():
    assert _steps(0.2, 1.0, 8.0).wait(3.0, 0.0, 0.0).mean_s == 0.0


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize(
    ("lone_s", "full_s", "prompts"), [(0.19, 0.38, 2), (0.06, 0.2, 9), (0.25, 0.5, 4)]
)
def test_waits_of_one_rank_are_those_of_its_steps(share, lone_s, full_s, prompts):
    steps = _steps(lone_s, full_s, prompts)
    rate = share * steps.most_rps
    wait_s = _simulated(steps, rate)
    found = float(steps.wait(rate, 1.0, 0.0).mean_s)
    assert found + lone_s == pytest.approx(wait_s + lone_s, rel=0.1)


@given(
    st.floats(0.01, 1.0),
    st.floats(1.0, 8.0),
    st.integers(1, 32),
    st.floats(1.0, 20.0),
    st.floats(0.05, 0.9),
)
def test_the_more_come_the_longer_they_wait(lone_s, longer, ranks, each, share):
    one_each_s = lone_s * min(longer, ranks)
    steps = _steps(lone_s, one_each_s * each, ranks * each, float(ranks), one_each_s)
    few, many = (
        float(steps.wait(x * steps.most_rps, 1.0, 0.1).mean_s) for x in (0.9 * share, share)
    )
    assert 0.0 <= few <= many * (1 + 1e-3)


def test_a_step_of_two_kinds_of_prompts_computes_the_mean_of_both():
    short, long = _steps(0.1, 1.0, 16.0), _steps(0.3, 1.0, 4.0)
    mixed = short.mixed(long, 0.75)
    # Of four prompts three take 1/16 s and one takes 1/4 s.
    assert mixed.most_rps == pytest.approx(4 / (3 / 16 + 1 / 4))
    assert mixed.seconds[0] == pytest.approx(0.15)


@pytest.mark.parametrize("ranks", [1.0, 8.0])
def test_slopes_are_differences(ranks):
    steps = _steps(0.2, 1.6, 2.0 * ranks, ranks, 0.2 if ranks == 1.0 else 0.6)

    def wait_s(rate: Any) -> Any:
        return steps.wait(rate, 1.0, 0.2).mean_s

    rate = float(0.45 * steps.most_rps)
    slope = float(jax.grad(wait_s)(rate))
    assert slope == pytest.approx(
        float(wait_s(1.01 * rate) - wait_s(0.99 * rate)) / 0.02 / rate, rel=1e-2
    )
