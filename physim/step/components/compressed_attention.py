"""DeepSeek-V4's attention: the last tokens, and compressed vectors of those before."""

from __future__ import annotations

from physim.models.layers import COMPRESSED_ATTENTION, CompressedAttention, Mixer
from physim.step.component import Component, Placement
from physim.step.mixer_rows import Measured, lowered, stand_in_notes

# Ratios of compression that were measured; layers that compress nothing take the coarser one's
# efficiency.
_RATIOS = (4, 128)


def _measured(placement: Placement, mixer: Mixer) -> Measured | None:
    if not isinstance(mixer, CompressedAttention):
        return None
    ratio = mixer.ratio if mixer.ratio in _RATIOS else _RATIOS[-1]
    heads = max(mixer.heads / placement.tp, 1.0)
    return f"compressed_{ratio}", {"all_heads": float(mixer.heads), "heads": heads}


COMPONENT = Component(
    name="compressed_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _measured),
    source="CSA and HCA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=(COMPRESSED_ATTENTION,),
    assumptions=lambda placement: stand_in_notes(placement, _measured),
)
