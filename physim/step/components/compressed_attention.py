"""DeepSeek-V4's attention: the last tokens, and compressed vectors of those before."""

from __future__ import annotations

from physim.mixers.compressed import COMPRESSED_ATTENTION
from physim.step.component import Component
from physim.step.mixer_rows import lowered, stand_in_notes

_KINDS = (COMPRESSED_ATTENTION,)

COMPONENT = Component(
    name="compressed_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _KINDS),
    source="CSA and HCA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=_KINDS,
    assumptions=lambda placement: stand_in_notes(placement, _KINDS),
)
