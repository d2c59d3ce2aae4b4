"""Speculative decoding: acceptance, what a step costs, what requests get, and where it pays."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.acceptance import acceptance_of_family, by_position, measured_acceptance
from physim.models.families import FAMILIES
from physim.models.lookup import load_model
from physim.prediction.arrays import CaseArrays, stack, step_model_of
from physim.prediction.commands import serve_command
from physim.prediction.steady import solve_offered
from physim.questions.speculation import speculation
from physim.service.draft import Draft
from physim.tables.writer import write_table

DENSE = {"gpu": "h100_sxm", "tp": 2, "input_tokens": 1024, "output_tokens": 512, "rate": 1.0}
DRAFTED = {**DENSE, "draft": "eagle3", "draft_tokens": 3, "draft_acceptance": 0.7}


def case_of(model="Qwen/Qwen3-32B", **options):
    return physim.Case.from_options(model, **{**DENSE, **options})


def test_tokens_of_a_step_by_hand():
    """Chances 0.8, 0.6 and 0.3: 2.7 tokens, one in 20%, two in 20%, three in 30%, all in 30%."""
    draft = Draft("mtp", (0.8, 0.6, 0.3))
    assert draft.accepted_length == pytest.approx(2.7)
    assert draft.chances == pytest.approx((0.2, 0.2, 0.3, 0.3))
    # 0.2 + 0.2 x 4 + 0.3 x 9 + 0.3 x 16 = 8.5, less 2.7 squared.
    assert draft.variance == pytest.approx(8.5 - 2.7**2)
    assert Draft("mtp", (0.0,)).chances == (1.0, 0.0)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=7),
    st.integers(20, 300),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=20, deadline=None)
def test_steps_of_an_answer(chances, tokens, seed):
    draft = Draft("mtp", tuple(np.cumprod(chances).tolist()))
    rng = np.random.default_rng(seed)
    given_each = rng.choice(draft.tokens + 1, p=draft.chances, size=(2000, tokens)) + 1
    steps = 1 + np.sum(np.cumsum(given_each, axis=1) < tokens, axis=1)
    assert float(draft.steps(np.array([float(tokens)]))[0]) == pytest.approx(
        np.mean(steps), rel=0.02
    )


def test_steps_of_short_answers():
    draft = Draft("mtp", (0.9, 0.8, 0.7))
    assert draft.steps(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("acceptance", "tokens", "expected"),
    [
        (0.5, 3, (0.5, 0.25, 0.125)),
        ("0.5", 2, (0.5, 0.25)),
        (1.75, 2, (0.5, 0.25)),
        (3, 2, (1.0, 1.0)),
        ("0.8, 0.6,0.3", 3, (0.8, 0.6, 0.3)),
        ([0.8, 0.6], 2, (0.8, 0.6)),
        (0, 2, (0.0, 0.0)),
    ],
)
def test_what_acceptance_is_given_as(acceptance, tokens, expected):
    assert by_position(acceptance, tokens) == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [-0.1, 4.5, math.nan, "much", "", (), "0.5,0.6,0.7", "0.9,0.8", "1.2,0.5,0.1", True],
)
def test_what_is_no_acceptance(wrong):
    with pytest.raises(InputError, match="draft_acceptance"):
        case_of(**{**DRAFTED, "draft_acceptance": wrong})


def test_measured_acceptance_lengths_are_kept():
    for one in measured_acceptance():
        assert set(one.families) <= set(FAMILIES), one.source
        assert one.source.startswith("https://")
        for tokens, length in enumerate(one.lengths, 1):
            chances = one.by_position(tokens)
            assert 1 + sum(chances) == pytest.approx(length)
            assert all(a >= b for a, b in zip((1.0, *chances), chances, strict=False))
    found, content = acceptance_of_family("GlmMoeDsaForCausalLM", "mtp", 3)
    assert 1 + sum(found) == pytest.approx(2.99)
    assert "code" in content
    with pytest.raises(InputError, match="is not known for LlamaForCausalLM with eagle3 and 3"):
        acceptance_of_family("LlamaForCausalLM", "eagle3", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "medusa"}, "draft: 'medusa' is unknown; use one of mtp, eagle3"),
        ({"draft_tokens": None}, "draft_tokens: is not given"),
        ({"draft_tokens": 0}, "draft_tokens: 0 is not a positive integer"),
        ({"draft_tokens": 100}, "draft_tokens: 100 are more than pay; use at most 16"),
        ({"draft": None}, "draft_tokens: is given without draft; give draft: mtp"),
        ({"draft": "mtp"}, "Qwen/Qwen3-32B has no layer that predicts further tokens"),
        ({"draft": "draft_model"}, "draft_model: is not given; name the draft's config.json"),
        ({"draft_model": "Qwen/Nothing"}, "model 'Qwen/Nothing'"),
        ({"draft": "ngram", "draft_model": "Qwen/Qwen3-8B"}, "draft_model: is no part of ngram"),
        ({"tp": 1, "pp": 2}, "draft: is not predicted over a pipeline"),
        ({"draft_acceptance": None}, "draft_acceptance: is not known for Qwen3ForCausalLM"),
    ],
)
def test_drafts_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        case_of(**{**DRAFTED, **options})


def test_a_layer_that_predicts_further_tokens_has_its_own_format():
    """DeepSeek-V3.1 in nvfp4 keeps layer 61 in 16 bit (``exclude_modules``)."""
    model = load_model("nvidia/DeepSeek-V3.1-NVFP4")
    assert model.further.experts.form.name == "bfloat16"
    assert model.groups[-1].experts.form.name == "nvfp4"
    assert load_model("deepseek-ai/DeepSeek-R1").further.experts.form.name == "fp8_block"
    assert load_model("Qwen/Qwen3-8B").further is None
    assert load_model("moonshotai/Kimi-K2-Instruct").further is None


def test_memory_of_a_draft():
    """DeepSeek-R1's own: a layer of experts and a projection of two hidden states to one."""
    options = {"gpu": "h200_sxm", "tp": 8, "input_tokens": 1000, "output_tokens": 100, "rate": 1.0}
    plain = physim.Case.from_options("deepseek-ai/DeepSeek-R1", **options).server
    drafted = physim.Case.from_options(
        "deepseek-ai/DeepSeek-R1", **options, draft="mtp", draft_tokens=1, draft_acceptance=0.7
    ).server
    layer = plain.model.groups[-1]
    weights = sum(math.prod(one.on_gpu(8)) * one.form.bytes_per_weight for one in layer.linears)
    experts = layer.experts
    of_expert = 3 * 7168 * experts.intermediate_size / 8
    weights += experts.count * of_expert * experts.form.bytes_per_weight
    projection = 2 * 7168 * 7168 * 2
    added = drafted.memory.weights - plain.memory.weights
    # Norms and a table of rotary embeddings are the rest.
    assert added == pytest.approx(weights + projection, rel=0.02)
    # 62 layers' keys and values for those of 61.
    assert drafted.memory.kv_block / plain.memory.kv_block == pytest.approx(62 / 61)


@pytest.mark.slow
def test_a_draft_that_nothing_is_accepted_of_is_slower():
    plain = physim.predict(case_of(), fit="none")
    refused = physim.predict(case_of(**{**DRAFTED, "draft_acceptance": 0.0}), fit="none")
    assert refused.itl_s > 1.05 * plain.itl_s


@pytest.mark.slow
def test_a_step_that_memory_bounds_is_as_much_faster_as_it_is_accepted():
    """Speed-up is the accepted length over the cost ratio (Leviathan et al., theorem 3.8)."""
    lone = {"rate": None, "concurrency": 1}
    plain, drafted = case_of(**lone), case_of(**{**DRAFTED, **lone})
    seconds = []
    for case in (plain, drafted):
        model = step_model_of(case, Corrections())
        queries = float(case.server.query_tokens)
        batch = model.batch(decode_requests=1.0, context=1280.0, query_tokens=queries)
        seconds.append(float(model(batch).interval))
    # EAGLE-3 adds three passes of one of 64 layers, and little else.
    assert seconds[1] / seconds[0] == pytest.approx(
        1 + 3 * (1 / 64 + 0.15e-3 / seconds[0]), rel=0.1
    )
    length = 1 + 0.7 + 0.7**2 + 0.7**3
    before, after = (physim.predict(case, fit="none").itl_s for case in (plain, drafted))
    # The last step gives more tokens than are left: half a step of 202.
    assert before / after == pytest.approx(length * seconds[0] / seconds[1], rel=0.01)


@pytest.mark.slow
def test_tokens_of_a_step_come_at_once():
    found = physim.predict(case_of(**DRAFTED), fit="none").whole.latencies["itl"]
    # Of 2.53 tokens one has the gap of the step: p50 none, p90 all of it.
    assert found["p50"] == 0.0
    assert found["p90"] == pytest.approx(2.53 * found["mean"], rel=0.1)


@pytest.mark.slow
@given(st.floats(0.0, 0.95), st.floats(0.01, 0.05))
@settings(max_examples=8, deadline=None)
def test_tokens_come_sooner_the_more_are_accepted(chance, more):
    few, many = (
        physim.predict(case_of(**{**DRAFTED, "draft_acceptance": one}), fit="none")
        for one in (chance, chance + more)
    )
    assert many.itl_s < few.itl_s
    assert many.e2e_s < few.e2e_s
    assert many.saturation_rps > few.saturation_rps


@pytest.mark.slow
def test_servers_with_drafts_and_without_are_solved_together():
    cases = [case_of(), case_of(**DRAFTED), case_of(**{**DRAFTED, "draft_tokens": 1})]
    together, _ = solve_offered(CaseArrays.from_cases(cases), stack([Corrections()] * 3))
    for place, case in enumerate(cases):
        lone = physim.predict(case, fit="none")
        assert float(together.itl[place]) == pytest.approx(lone.itl_s, rel=1e-5)
        assert float(together.ttft[place]) == pytest.approx(lone.ttft_s, rel=1e-5)


def test_where_drafts_stop_to_pay():
    found = speculation(case_of(**{**DRAFTED, "draft_acceptance": 0.5}), Corrections())
    assert found.gain[0] > 1.5
    assert 32 < found.stops_at < 1024
    assert found.verdict == f"drafts pay up to {found.stops_at:.0f} requests that decode together"
    none = speculation(case_of(**{**DRAFTED, "draft_acceptance": 0.0}), Corrections())
    assert none.stops_at == 1
    assert "pay at no batch" in none.describe()
    with pytest.raises(InputError, match="draft: is not given"):
        speculation(case_of(), Corrections())


@pytest.mark.slow
def test_explain_says_where_drafts_pay():
    found = physim.explain(case_of(**DRAFTED), fit="none")
    assert found.speculation is not None
    assert found.to_dict()["speculation"]["draft_tokens"] == 3
    assert physim.explain(case_of(), fit="none").speculation is None


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""),
        ("sglang", "--speculative-algorithm EAGLE --speculative-num-steps 3"),
        ("trtllm", "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}"),
    ],
)
def test_commands_start_drafts(engine, flags):
    drafts = {"draft": "mtp", "draft_tokens": 3, "draft_acceptance": 2.3}
    case = physim.Case.from_options(
        "deepseek-ai/DeepSeek-R1", **{**DENSE, "gpu": "b200_sxm", "tp": 8}, engine=engine, **drafts
    )
    assert flags in serve_command(case)


def test_async_scheduling_beside_drafts_is_the_engines():
    assert case_of(**DRAFTED).server.policy.async_scheduling
    ngram = {**DRAFTED, "draft": "ngram"}
    assert not case_of(**ngram).server.policy.async_scheduling
    assert not case_of(**DRAFTED, engine_version="0.11").server.policy.async_scheduling
    assert not case_of(**DRAFTED, engine="sglang").server.policy.async_scheduling
    assert case_of(**ngram, async_scheduling=True).server.policy.async_scheduling


def test_tables_hold_no_drafts(tmp_path):
    with pytest.raises(InputError, match="draft: has no place in a table"):
        write_table(case_of(**DRAFTED), tmp_path / "table")


def test_numbers_without_drafts_have_none_of_them():
    server = case_of().server
    assert server.query_tokens == 1
    assert "draft" not in server.to_dict()
    assert dataclasses.replace(server, draft=None) == server


def test_an_acceptance_of_one_is_a_chance_or_a_length():
    with pytest.raises(InputError, match="of 1 may be a chance"):
        by_position(1.0, 3)
    assert by_position("1,1,1", 3) == (1.0, 1.0, 1.0)
    assert by_position(0.0, 3) == (0.0, 0.0, 0.0)
