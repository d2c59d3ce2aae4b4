"""From hidden states to logits, once a step: lm_head, and the gathering of logits."""

from __future__ import annotations

from collections.abc import Iterator

from physim.models.formats import BFLOAT16
from physim.step.component import Component, Part, Placement
from physim.step.gemms import gemm_row
from physim.step.host_memory import exchange_bandwidth
from physim.step.rows import Row, SizeRow


def _lower(placement: Placement) -> Iterator[Row]:
    model, tp = placement.model, placement.tp
    yield gemm_row(
        placement,
        "lm_head",
        "lm_head",
        1.0,
        model.vocab_size / tp,
        model.hidden_size,
        BFLOAT16,
        size="sampled",
        correction="lm_head",
        compute_correction=None,
    )
    if tp > 1:
        yield SizeRow(
            name="gather_logits",
            part="lm_head",
            size="sampled",
            count=1.0,
            bytes=2.0 * model.vocab_size * (tp - 1) / tp,
            bandwidth=exchange_bandwidth(placement.gpu),
            correction="all_reduce",
        )


COMPONENT = Component(
    name="lm_head",
    parts=(Part("lm_head", "lm_head"),),
    lower=_lower,
    source="GEMM tables of aiconfigurator-core 0.12.0",
)
