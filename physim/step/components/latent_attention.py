"""Latent attention: on latent vectors where requests decode, on keys and values in prompts."""

from __future__ import annotations

from physim.mixers.latent import LATENT_ATTENTION
from physim.step.component import Component
from physim.step.mixer_rows import lowered, stand_in_notes

_KINDS = (LATENT_ATTENTION,)

COMPONENT = Component(
    name="latent_attention",
    parts=(),
    lower=lambda placement: lowered(placement, _KINDS),
    source="MLA module tables of aiconfigurator-core 0.12.0, without their projections",
    attention_kinds=_KINDS,
    assumptions=lambda placement: stand_in_notes(placement, _KINDS),
)
