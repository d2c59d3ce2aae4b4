"""Attention to chosen tokens: of latent vectors (DeepSeek-V3.2, GLM-5) and of blocks (MiniMax-M3).

Small heads, the indexer, see all tokens and choose; attention sees what is chosen.
"""

from __future__ import annotations

from physim.mixers.attention import BLOCK_SPARSE_ATTENTION
from physim.mixers.latent import SPARSE_LATENT_ATTENTION
from physim.step.component import Component
from physim.step.mixer_rows import lowered, stand_in_notes

_KINDS = (SPARSE_LATENT_ATTENTION, BLOCK_SPARSE_ATTENTION)

COMPONENT = Component(
    name="sparse_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _KINDS),
    source="DSA and MSA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=_KINDS,
    assumptions=lambda placement: stand_in_notes(placement, _KINDS),
)
