"""GEMMs that last run at the GPU's power limit: the formula, recorded GEMMs, and steps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import refused

import physim
from physim import data
from physim.service.hardware import load_hardware
from physim.step.power_limit import SETTLING_S, share_at_limit

RECORDED = {
    path.stem: json.loads(path.read_text())
    for path in sorted(Path(__file__).parent.glob("reports/power_limit/*.json"))
}
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
"""A model whose MLP is the recorded GEMM: 4,096 x 28,672."""


def test_share_by_hand():
    """A run of 23 ms, how soon the clock falls, is slowed by 1 - (1 - 1/e) = 0.368 of it."""
    assert float(share_at_limit(SETTLING_S)) == pytest.approx(1 / math.e, rel=1e-4)
    assert float(share_at_limit(0.1 * SETTLING_S)) == pytest.approx(0.048374, rel=1e-2)
    assert float(share_at_limit(0.0)) == pytest.approx(0.0, abs=1e-3)
    assert float(share_at_limit(100 * SETTLING_S)) == pytest.approx(0.99, rel=1e-4)


def test_share_rises_and_has_a_derivative():
    lengths = jnp.geomspace(1e-5, 10.0, 60)
    shares = jax.vmap(share_at_limit)(lengths)
    assert np.all(np.diff(shares) > -1e-4)
    for length in (0.0, 0.005, 0.1):
        assert np.isfinite(jax.grad(share_at_limit)(length))


@pytest.mark.parametrize("gpu", RECORDED)
def test_shares_of_the_peak_are_those_recorded(gpu):
    """What GEMMs of 512 to 8,192 tokens kept up for seconds, and the share in the GPU's file."""
    recorded = RECORDED[gpu]
    for row in recorded["blocks"]:
        if row["share"] < 1 or row["tokens"] < 512:
            continue
        flops = 2 * row["tokens"] * recorded["columns"] * recorded["rows_of_weight"]
        share = flops / load_hardware(gpu).peak(row["format"]) / row["sustained_s"]
        assert share == pytest.approx(load_hardware(gpu).sustained_share(row["format"]), rel=0.04)


@pytest.mark.parametrize("gpu", RECORDED)
def test_mlp_of_a_long_step_is_as_recorded(gpu):
    """The first GEMM of the MLP (two thirds of its FLOP) in a step of 8,192 tokens, 0.3 s long."""
    model = physim.step_model(MODEL, gpu=gpu)
    batch = model.batch(prefill_requests=1.0, chunk=8192.0)
    row = next(
        one
        for one in RECORDED[gpu]["blocks"]
        if one["share"] == 1 and (one["format"], one["tokens"]) == ("bfloat16", 8192)
    )
    assert float(model(batch).parts["mlp"]) * 2 / 3 / 32 == pytest.approx(
        row["sustained_s"], rel=0.05
    )


def test_limit_slows_prompts_not_decodes(tmp_path):
    """A GPU file without the shares is the same GPU in bursts."""
    content = data.read_json(data.folder("hardware") / "h200_sxm.json")
    del content["sustained_share_of_peak"]
    path = tmp_path / "h200_sxm.json"
    path.write_text(json.dumps(content))
    limited, bursts = (physim.step_model(MODEL, gpu=gpu) for gpu in ("h200_sxm", str(path)))

    def slowed(**batch: float) -> float:
        return float(limited(limited.batch(**batch)).latency) / float(
            bursts(bursts.batch(**batch)).latency
        )

    decodes = slowed(decode_requests=32.0, context=1000.0)
    prompts = [slowed(prefill_requests=1.0, chunk=tokens) for tokens in (512.0, 2048.0, 8192.0)]
    assert decodes == pytest.approx(1.0, abs=1e-3)
    assert all(1.0 <= one < 1.25 for one in prompts)
    assert prompts[1] > 1.03


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ({"bfloat16": {"value": 1.2, "source": "x"}}, "1.2 is above 1"),
        ({"fp4": {"value": 0.6, "source": "x"}}, "not by the formats of peak_flops"),
        ({"bfloat16": 0.6}, "has no number as its value"),
        ([0.6], "not by the formats of peak_flops"),
    ],
)
def test_broken_share_is_one_line(tmp_path, shares, says):
    content = data.read_json(data.folder("hardware") / "h100_sxm.json")
    content["sustained_share_of_peak"] = shares
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    line = refused("predict", MODEL, "--gpu", path, "--rate", "2")
    assert "sustained_share_of_peak" in line
    assert says in line
