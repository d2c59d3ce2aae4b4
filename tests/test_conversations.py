"""Conversations: turns whose prompts hold what was said before, and time to think between them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import physim
from physim.batching.contexts import Blocks, Contexts, contexts_found
from physim.batching.demand import Demand
from physim.batching.limits import Limits
from physim.cli import app
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.steady import steady_state
from physim.inputs.turns import sample_turns
from physim.prediction.arrays import step_model_of
from physim.prediction.replayed import replay_load
from physim.replay.outcome import Replayed, completed_of
from physim.replay.workload import drawn

MODEL = "Qwen/Qwen3-8B"
TALK: dict[str, Any] = {
    "gpu": "h100_sxm",
    "max_num_seqs": 128,
    "input_tokens": 700,
    "cached_tokens": 512,
    "output_tokens": 150,
    "turns": 5,
    "think_s": 10.0,
}
RATE: dict[str, Any] = {**TALK, "rate": 4.0, "arrival": "poisson"}
CLIENTS: dict[str, Any] = {**TALK, "concurrency": 64}


def case_of(**options: Any) -> physim.Case:
    return physim.Case.from_options(MODEL, **options)


def fluid_of(case: physim.Case) -> physim.Prediction:
    return physim.predict_cases([case], Corrections())[0]


def middle(case: physim.Case, requests: int = 4000) -> tuple[Replayed, float]:
    """A replay, and the hit rate without the requests while conversations begin and end."""
    case = case.under(dataclasses.replace(case.demanded, requests=requests))
    result = replay_load(case, Corrections(), 0)
    some = result.requests[requests // 5 : 4 * requests // 5]
    return result, sum(r.cached_tokens for r in some) / sum(r.input_tokens for r in some)


def means(result: Replayed) -> tuple[float, float]:
    """TTFT and E2E of the same requests, seconds."""
    frame = result.to_frame()
    frame = completed_of(frame.iloc[len(frame) // 5 : 4 * len(frame) // 5])
    return frame["ttft_s"].mean(), frame["e2e_s"].mean()


def test_two_turns_by_hand():
    """Of 100 tokens 40 are common: the second prompt is 100 + 11 and 60 new ones."""
    turns = sample_turns(2.0, 100.0, 11.0, 40.0)
    assert turns.input_tokens.tolist() == [100, 171]
    # The last token of an answer is never computed.
    assert turns.known_tokens.tolist() == [40, 110]
    assert turns.context.tolist() == [110, 181]
    # A server that only computes prompts has those of the prompt before.
    assert turns.asked_tokens.tolist() == [40, 100]
    assert turns.found_tokens(16).tolist() == [32, 96]
    assert turns.followed.tolist() == [True, False]
    assert turns.mean_turns == 2
    assert turns.mean_input == 135.5
    # On one of two ranks the second turn finds the first one's 70 tokens half of the time.
    assert turns.known_on(1) == 75
    assert turns.known_on(2) == 57.5
    # Of conversations of one turn and of three, three turns of four are of the long ones.
    uneven = sample_turns(physim.Lengths.empirical((1.0, 3.0)), 100.0, 11.0, 40.0)
    assert uneven.mean_turns == 2
    assert uneven.met_turns == 2.5


@pytest.mark.parametrize("turns", [2.5, physim.Lengths.exponential(4), physim.Lengths.normal(6, 2)])
def test_a_sample_keeps_the_means(turns):
    lengths = physim.Lengths
    found = sample_turns(turns, lengths.gamma(700, 300), lengths.exponential(100), 128.0)
    mean = turns if isinstance(turns, float) else np.maximum(np.rint(turns.fine), 1).mean()
    assert found.mean_turns == pytest.approx(mean, rel=2e-3)
    firsts = found.known_tokens == 128
    assert found.input_tokens[firsts].mean() == pytest.approx(700, rel=1e-3)
    assert found.output_tokens[firsts].mean() == pytest.approx(100, rel=1e-3)
    assert (found.input_tokens > found.known_tokens).all()


@pytest.mark.slow
def test_a_cache_of_everything_and_of_nothing():
    """Two turns of 100 and 171 tokens, of which 32 and 96 are found at most, in blocks of 16."""
    short = {**RATE, "input_tokens": 100, "cached_tokens": 40, "output_tokens": 11, "turns": 2}
    everything = case_of(**short)
    assert fluid_of(everything).pool.hit_rate == pytest.approx(128 / 271, abs=1e-4)
    replayed = replay_load(case_of(**short, requests=2000), Corrections(), 0).requests
    # Of all conversations the first alone does not find what they begin with.
    assert sum(r.cached_tokens for r in replayed) == 1000 * 128 - 32
    assert sum(r.input_tokens for r in replayed) == 1000 * 271
    # Nobody comes back before all blocks were needed many times over.
    nothing = case_of(**{**short, "think_s": 1e5}, kv_blocks=2600)
    found = fluid_of(nothing)
    assert found.pool.hit_rate == pytest.approx(64 / 271, abs=2e-3)
    assert "is evicted until the next one comes" in " ".join(found.assumptions)


def blocks_of(cache: float, **other: float) -> Blocks:
    given = {"running": 0.0, "runs": 50.0, "left": 1.0, "last": 1.0, "of_client": 0.0} | other
    return Blocks(*(jnp.asarray(value) for value in (cache, *given.values())))


def contexts_of(think_s: float, followed: float) -> Contexts:
    zeros = dict.fromkeys((field.name for field in dataclasses.fields(Contexts)), 0.0)
    return Contexts(**zeros | {"think_s": think_s, "followed": followed, "reach": np.ones(8)})


def test_contexts_that_all_come_back_are_found_as_far_as_there_is_room():
    """Ten a second, each for a hundred seconds: of 1,000,000 blocks that are waited for, a half."""
    contexts, rate = contexts_of(100.0, 1.0), jnp.asarray(1e4)
    found = contexts_found(contexts, blocks_of(5e5), rate, jnp.zeros(()))
    assert found == pytest.approx(0.5, abs=1e-3)
    assert contexts_found(contexts, blocks_of(2e6), rate, jnp.zeros(())) == pytest.approx(1.0)
    assert contexts_found(contexts, blocks_of(0.0), rate, jnp.zeros(())) < 1e-3
    # Half of the blocks are younger than 69 s; who waits for 30 s more finds less.
    waited = contexts_found(contexts, blocks_of(5e5), rate, jnp.asarray(30.0))
    assert waited == pytest.approx(1 - np.exp(0.3) / 2, abs=1e-3)


def _found(cache: Any, think_s: Any, followed: Any, rate: Any, running: Any) -> Any:
    blocks = blocks_of(cache, running=running, left=30.0, last=60.0)
    return contexts_found(contexts_of(think_s, followed), blocks, rate, jnp.asarray(0.1))


FOUND = jax.jit(jax.value_and_grad(_found, (0, 1)))


@given(
    cache=st.floats(1, 1e6),
    more=st.floats(1.01, 3),
    think_s=st.floats(0, 1e3),
    followed=st.floats(0.01, 1),
    rate=st.floats(1e-3, 1e3),
    running=st.floats(0, 100),
)
@pytest.mark.slow
def test_more_room_finds_more(cache, more, think_s, followed, rate, running):
    value, slopes = FOUND(cache, think_s, followed, rate, running)
    assert 0 <= value <= 1
    assert np.isfinite(slopes).all()
    assert FOUND(more * cache, think_s, followed, rate, running)[0] >= value - 1e-6


def test_a_turn_comes_when_the_one_before_was_answered_and_thought_about():
    case = case_of(**RATE, requests=200)
    result = replay_load(case, Corrections(), 0)
    talks: dict[int, list[Any]] = {}
    for request in sorted(result.requests, key=lambda one: one.number):
        talks.setdefault(request.conversation, []).append(request)
    thinks = []
    for talk in talks.values():
        assert talk[0].input_tokens == 700
        for before, after in itertools.pairwise(talk):
            assert after.input_tokens == before.input_tokens + 150 + 188
            thinks.append(after.arrival_s - before.finished_s)
    assert {len(talk) for talk in talks.values()} == {5}
    assert min(thinks) > 0
    assert np.mean(thinks) == pytest.approx(10, rel=0.25)


def test_a_replay_repeats_itself():
    case = case_of(**CLIENTS, requests=300)
    one, same = (replay_load(case, Corrections(), 3).to_frame() for _ in range(2))
    assert one.equals(same)
    other = replay_load(case, Corrections(), 4).to_frame()
    assert not one.equals(other)


@pytest.mark.parametrize(
    ("options", "within"),
    [
        ({**RATE, "kv_blocks": 2500}, 0.05),
        ({**CLIENTS, "kv_blocks": 5000}, 0.05),
    ],
)
@pytest.mark.slow
def test_the_fluid_finds_what_the_replay_finds(options, within):
    case = case_of(**options)
    fluid, (result, hit_rate) = fluid_of(case), middle(case)
    assert fluid.pool.hit_rate == pytest.approx(hit_rate, abs=0.02)
    ttft, e2e = means(result)
    assert fluid.ttft_s == pytest.approx(ttft, rel=within)
    assert fluid.e2e_s == pytest.approx(e2e, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kv_blocks", [2000, 20_000])
def test_ranks_find_what_they_computed_themselves(kv_blocks):
    options = {**RATE, "kv_blocks": kv_blocks, "dp": 2, "ep": 2, "rate": 6.0}
    case = physim.Case.from_options("Qwen/Qwen3-30B-A3B", **options)
    fluid, (_, hit_rate) = fluid_of(case), middle(case)
    assert fluid.pool.hit_rate == pytest.approx(hit_rate, abs=0.04)
    assert "turns go to any of 2 data-parallel ranks" in " ".join(fluid.assumptions)


@pytest.mark.slow
@pytest.mark.parametrize("host_bytes", [2e9, 2e10])
def test_turns_come_up_from_the_memory_of_the_host_as_in_the_replay(host_bytes):
    """Without it 29% of prompt tokens are found; there is hardly room for any, or for many."""
    load = {**RATE, **VARIED, "rate": 3.0, "turns": LENGTHS.normal(4, 1.5)}
    case = case_of(**load, kv_blocks=3000, kv_host_bytes=host_bytes)
    fluid, (result, hit_rate) = fluid_of(case), middle(case, 2500)
    some = result.requests[500:2000]
    loaded = sum(r.loaded_tokens for r in some) / sum(r.input_tokens for r in some)
    assert fluid.pool.hit_rate == pytest.approx(hit_rate, abs=0.04)
    assert fluid.pool.host_hit_rate == pytest.approx(loaded, abs=0.04)
    assert fluid.e2e_s == pytest.approx(means(result)[1], rel=0.06)
    assert "of prompt tokens come up from the host's memory" in " ".join(fluid.assumptions)


def test_contexts_come_back_to_one_of_two_ranks():
    """Followed two times of three: half of them come back, after one and a half turns."""
    both = contexts_of(10.0, 2 / 3).on(2.0)
    assert both.followed == pytest.approx(0.5)
    assert both.think_s == pytest.approx(15.0)


LENGTHS = physim.Lengths
VARIED = {
    "input_tokens": LENGTHS.gamma(1500, 400),
    "output_tokens": LENGTHS.exponential(200),
    "turns": LENGTHS.exponential(4),
}


@pytest.mark.slow
@pytest.mark.parametrize("kv_blocks", [6000, 15_000, 40_000])
@pytest.mark.parametrize("think_s", [3.0, 30.0])
@pytest.mark.parametrize("load", [RATE, CLIENTS])
def test_so_it_does_over_think_times_and_sizes_of_the_cache(load, think_s, kv_blocks):
    """Conversations of 1 to 30 turns; a cache has room for 15 of them, or for all."""
    case = case_of(**{**load, **VARIED, "think_s": think_s, "kv_blocks": kv_blocks})
    fluid, (result, hit_rate) = fluid_of(case), middle(case, 12_000)
    use = fluid.requests_per_s / fluid.saturation_rps
    # Nearer to the capacity all find less once a few do, and it takes long to come back from that.
    within = 0.03 if use < 0.8 else 0.06 if use < 0.95 else 0.3
    assert fluid.pool.hit_rate == pytest.approx(hit_rate, abs=within)
    if use < 0.8:
        ttft, e2e = means(result)
        # Clients whose prompts wait for one another in a cache that is too small are furthest off.
        assert fluid.ttft_s == pytest.approx(ttft, rel=0.25)
        assert fluid.e2e_s == pytest.approx(e2e, rel=0.1)


@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.slow
def test_clients_who_think_keep_to_littles_law(turns):
    """64 clients each have a request under way, or think for ten seconds."""
    found = fluid_of(case_of(**{**CLIENTS, "turns": turns}))
    assert found.e2e_s is not None
    assert found.requests_per_s * (found.e2e_s + 10) == pytest.approx(64, rel=1e-6)
    replayed = physim.predict(
        MODEL, **{**CLIENTS, "turns": turns}, requests=1500, method="replay", fit="none"
    )
    assert found.e2e_s == pytest.approx(replayed.e2e_s, rel=0.05)
    # Until the last of them is answered most clients have nothing to do.
    ending = fluid_of(case_of(**{**CLIENTS, "turns": turns, "requests": 1500}))
    within = 0.03 if turns == 1 else 0.1
    assert ending.requests_per_s == pytest.approx(replayed.requests_per_s, rel=within)


@pytest.mark.slow
def test_less_time_to_think_is_more_load():
    rates = [fluid_of(case_of(**{**CLIENTS, "think_s": s})).requests_per_s for s in (0.0, 1e-3, 3)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)
    assert rates[1] > 1.5 * rates[2]


@pytest.mark.slow
def test_loads_with_and_without_turns_are_solved_together():
    plain: dict[str, Any] = {**RATE, "turns": 1, "think_s": 0.0}
    several = {**plain, "prefixes": 300, "popularity": "uniform", "kv_blocks": 9000}
    others = (plain, several, {**CLIENTS, "turns": 1}, {**RATE, "kv_blocks": 2500})
    cases = [case_of(**options) for options in others]
    for case, found in zip(cases, physim.predict_cases(cases, Corrections()), strict=True):
        one = fluid_of(case)
        assert found.pool.hit_rate == pytest.approx(one.pool.hit_rate)
        assert found.ttft_s == pytest.approx(one.ttft_s)
        assert found.whole.latencies["ttft"]["p90"] == pytest.approx(
            one.whole.latencies["ttft"]["p90"]
        )


@pytest.mark.slow
def test_the_slope_of_the_hit_rate_in_the_size_of_the_cache():
    case = case_of(**RATE)
    server = jax.tree.map(float, Limits.from_server(case.server))
    model, demand = step_model_of(case, Corrections()), Demand.from_load(case.demanded, 16)

    def hit_rate(blocks: Any) -> Any:
        return steady_state(model, demand, dataclasses.replace(server, kv_blocks=blocks)).hit_rate

    slope = jax.jit(jax.grad(hit_rate))(2500.0)
    found = jax.jit(hit_rate)
    assert slope > 0
    assert slope == pytest.approx(float(found(2525.0) - found(2475.0)) / 50, rel=2e-2)


def test_conversations_end_where_the_model_does():
    """700 tokens and answers of 150, with 188 new ones a turn: four fit into 2,000 tokens."""
    case = case_of(**RATE, max_model_len=2000)
    assert case.demanded.turns == 4
    assert "100.00% of the conversations start afresh after 4 turns" in case.notes[0]
    requests = drawn(dataclasses.replace(case_of(**RATE).demanded, requests=50), case.server, 0)
    first = requests.requests[0]
    prompts = [first.input_tokens]
    for _ in range(4):
        first = requests.follow(first, 0.0)
        prompts.append(first.input_tokens)
    assert prompts == [700, 1038, 1376, 1714, 700]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"turns": 0.5}, "turns: 0.5 is not between 1 and 1000; correct it"),
        ({"think_s": -1.0}, "think_s: -1.0 is not between 0 and"),
        ({"think_s": float("nan")}, "think_s: nan is not between 0 and"),
        ({"turns": 1}, "think_s: has no meaning for requests that wait for no answer; give turns"),
        ({"prefixes": 9}, "turns: of conversations do not go with prefixes; leave one of the two"),
        (
            {"rate": None, "stages": [(1.0, 9.0)]},
            "turns: of conversations do not go with stages; leave one of the two",
        ),
        (
            {
                **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens")),
                "lengths": physim.RequestLengths.from_columns([9], [9]),
            },
            "turns: of conversations do not go with lengths; leave one of the two",
        ),
        ({"turns": "many"}, "turns 'many': cannot be read"),
    ],
)
def test_what_conversations_cannot_be_is_refused_in_one_line(options, line):
    with pytest.raises(InputError) as error:
        case_of(**{**RATE, **options})
    assert str(error.value).startswith(line)


@pytest.mark.slow
def test_the_command_knows_them():
    words = "predict Qwen3-8B --gpu h100 --input 700 --cached 512 --output 150 --fit none"
    load = "--rate 4 --turns 5 --think 10"
    found = CliRunner().invoke(app, [*words.split(), *load.split()])
    said = "in conversations of 5 turns 10 s apart, 1376 tokens in (512 cached)"
    assert said in " ".join(found.output.split())
    refused = CliRunner().invoke(app, [*words.split(), *load.split(), "--serve-command"])
    assert "turns: of conversations have no command of vllm bench serve" in str(
        refused.exception or refused.output
    )
