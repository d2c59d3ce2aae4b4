"""Attention to chosen tokens: of latent vectors (DeepSeek-V3.2, GLM-5) and of blocks (MiniMax-M3).

Small heads, the indexer, see all tokens and choose; attention sees what is chosen.
"""

from __future__ import annotations

from physim.models.layers import (
    BLOCK_SPARSE_ATTENTION,
    SPARSE_LATENT_ATTENTION,
    Attention,
    LatentAttention,
    Mixer,
)
from physim.step.component import Component, Placement
from physim.step.mixer_rows import Measured, lowered, stand_in_notes


def _measured(placement: Placement, mixer: Mixer) -> Measured | None:
    heads = max(mixer.heads / placement.tp, 1.0)
    if isinstance(mixer, LatentAttention) and mixer.window is not None:
        if mixer.indexer is None:
            # It takes the choice of a layer before it; the tables of sparse layers hold choosing.
            return "latent", {"heads": heads}
        return "sparse_latent", {"index_heads": float(mixer.indexer.heads), "heads": heads}
    if isinstance(mixer, Attention) and mixer.kind == BLOCK_SPARSE_ATTENTION:
        return "block_sparse", {"heads": heads}
    return None


COMPONENT = Component(
    name="sparse_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _measured),
    source="DSA and MSA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=(SPARSE_LATENT_ATTENTION, BLOCK_SPARSE_ATTENTION),
    assumptions=lambda placement: stand_in_notes(placement, _measured),
)
