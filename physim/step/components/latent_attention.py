"""Latent attention: on latent vectors where requests decode, on keys and values in prompts."""

from __future__ import annotations

from physim.models.layers import LATENT_ATTENTION, LatentAttention, Mixer
from physim.step.component import Component, Placement
from physim.step.mixer_rows import Measured, lowered, stand_in_notes


def _measured(placement: Placement, mixer: Mixer) -> Measured | None:
    if not isinstance(mixer, LatentAttention) or mixer.window is not None:
        return None
    return "latent", {"heads": max(mixer.heads / placement.tp, 1.0)}


COMPONENT = Component(
    name="latent_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _measured),
    source="MLA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=(LATENT_ATTENTION,),
    assumptions=lambda placement: stand_in_notes(placement, _measured),
)
