"""SGLang with prompts that share steps with requests that decode (``--enable-mixed-chunk``)."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

import physim
from physim.errors import InputError
from physim.measured.row_rules import settled
from physim.prediction.commands import serve_command, serve_commands

MODEL = "Qwen/Qwen3-8B"
OPTIONS: dict[str, Any] = {"gpu": "h100_sxm", "input_tokens": 1000, "output_tokens": 200}
SGLANG = OPTIONS | {"engine": "sglang", "concurrency": 64}


def test_what_shares_steps():
    for mixed in (False, True):
        case = physim.Case.from_options(MODEL, **SGLANG, mixed_chunk=mixed)
        assert case.server.policy.prompts_apart is not mixed
        assert ("--enable-mixed-chunk" in serve_command(case)) is mixed
    # SGLang drops the flag where steps verify drafts.
    drafted = physim.Case.from_options(
        MODEL, **SGLANG, mixed_chunk=True, draft="ngram", draft_tokens=3, draft_acceptance=0.5
    )
    assert drafted.server.policy.prompts_apart
    assert "--enable-mixed-chunk" not in serve_command(drafted)
    # A server that only decodes has no prompts to mix.
    apart = physim.Case.from_options(MODEL, **SGLANG, prefill="tp=1", decode="tp=1")
    assert not any("--enable-mixed-chunk" in words for words in serve_commands(apart).values())


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_engines_that_always_share_steps_are_not_told(engine):
    with pytest.raises(InputError, match="mixed_chunk: is for engines that give prompts steps of"):
        physim.Case.from_options(MODEL, **OPTIONS, engine=engine, rate=1.0, mixed_chunk=True)


@pytest.mark.slow
def test_clients_with_requests_of_one_length_leave_step():
    """Prompts first, all clients decode at once and come again at once; mixed, they spread."""
    apart, mixed = (
        physim.predict(MODEL, **SGLANG, mixed_chunk=flag, max_num_batched_tokens=2500, fit="none")
        for flag in (False, True)
    )
    assert mixed.ttft_s < 0.5 * apart.ttft_s
    assert mixed.itl_s > 1.1 * apart.itl_s
    assert mixed.e2e_s < apart.e2e_s


@pytest.mark.slow
@pytest.mark.parametrize("clients", [16, 64])
def test_mixed_steps_in_the_fluid_are_those_of_the_replay(clients):
    lengths = {"input_tokens": physim.Lengths.normal(2000, 200)}
    lengths["output_tokens"] = physim.Lengths.normal(300, 30)
    options = SGLANG | lengths | {"concurrency": clients, "requests": 10 * clients}
    check = physim.check(
        MODEL, **options, mixed_chunk=True, max_num_batched_tokens=3500, fit="none"
    )
    found = {(row.quantity, row.statistic): row.difference_pct for row in check.rows}
    assert abs(found["ttft", "mean"]) < 5.0
    assert abs(found["itl", "mean"]) < 1.5
    assert abs(found["e2e", "mean"]) < 1.5


def test_which_public_rows_ran_so():
    known = {"origin": "NVIDIA", "engine": "sglang", "measured": date(2026, 2, 1)}
    assert settled("mixed_chunk", known | {"engine_version": "0.5.6.post2"})
    assert not settled("mixed_chunk", known | {"engine_version": "0.5.1.post1"})
    assert not settled("mixed_chunk", known | {"origin": "InferenceX", "engine_version": "0.5.9"})
