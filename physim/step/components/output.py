"""From hidden states to tokens, once a step: lm_head, the gathering of logits, and sampling."""

from __future__ import annotations

from collections.abc import Iterator

from physim.inputs.quantization import BFLOAT16
from physim.step.component import Component, Part, Placement
from physim.step.components.elementwise import STREAM_EFFICIENCY
from physim.step.gemms import gemm_row
from physim.step.rows import Row, SizeRow

# Bytes that sampling moves for each logit. Logits are cast to 32 bit, scaled, normalised and drawn
# from: some five passes. To draw from the likeliest they are sorted with their indices (a radix
# sort of 4 + 8 bytes reads and writes them in some four rounds), normalised, summed up, masked and
# put back. Penalties count each token's occurrences in 64 bit and rescale.
_SAMPLING_BYTES = {
    "plain": 5.0 * 4.0,
    "truncated": 5.0 * 4.0 + 4 * 2 * 12.0 + 8 * 4.0,
    "penalised": 5.0 * 4.0 + 4 * 2 * 12.0 + 8 * 4.0 + 6 * 8.0,
}

# With penalties the sampler waits for the tokens of the step before, and makes a tensor of every
# request's tokens in Python, some 30 ns each. Orders of magnitude, not measurements (the slowdown
# is known: vllm-project/vllm issue 13247).
PENALTY_STEP_S = 2e-4
PENALTY_REQUEST_S = 1000 * 30e-9


def _lower(placement: Placement) -> Iterator[Row]:
    model, tp, sampling = placement.model, placement.tp, placement.deployment.sampling
    yield gemm_row(
        placement,
        "lm_head",
        "output",
        1.0,
        model.vocab_size / tp,
        model.hidden_size,
        BFLOAT16,
        size="sampled",
        correction="lm_head",
        compute_correction=None,
    )
    yield SizeRow(
        name="sampling",
        part="output",
        size="sampled",
        count=1.0,
        bytes=_SAMPLING_BYTES[sampling] * model.vocab_size,
        bandwidth=STREAM_EFFICIENCY * placement.gpu.memory_bandwidth,
        correction="sampling",
    )
    if tp > 1:
        yield SizeRow(
            name="gather_logits",
            part="output",
            size="sampled",
            count=1.0,
            bytes=2.0 * model.vocab_size * (tp - 1) / tp,
            bandwidth=placement.gpu.link_bandwidth,
            correction="all_reduce",
        )
    if sampling == "penalised":
        yield SizeRow(
            name="penalties",
            part="output",
            size="sampled",
            count=1.0,
            seconds=PENALTY_REQUEST_S,
            fixed_seconds=PENALTY_STEP_S,
            correction="penalties",
        )


COMPONENT = Component(
    name="output",
    parts=(Part("output", "lm_head and sampling", sweep="requests", blis_table="logits_gemm"),),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0; passes over the logits",
)
