"""Layers that keep a state: the gated delta rule, Kimi delta and lightning attention, Mamba2."""

from __future__ import annotations

from collections.abc import Sequence

from physim.models.layers import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    MAMBA2,
    LinearAttention,
    Mixer,
    StateSpace,
)
from physim.step.component import Component, Placement
from physim.step.mixer_rows import Measured, lowered, stand_in_notes

# Kinds that were not measured.
_UNMEASURED = {MAMBA2: "Mamba2 scan", LIGHTNING: "lightning attention"}
# Numbers of a head's matrix of which the tables were measured.
_MEASURED_NUMBERS = 128 * 128


def _measured(placement: Placement, mixer: Mixer) -> Measured | None:
    heads = max(mixer.heads / placement.tp, 1.0)
    if isinstance(mixer, LinearAttention):
        return ("kimi_delta" if mixer.kind == KIMI_DELTA else "gated_delta"), {"heads": heads}
    if isinstance(mixer, StateSpace):
        # By the numbers of its states, not by its narrower heads.
        return "gated_delta", {"heads": heads * mixer.head_dim * mixer.state / _MEASURED_NUMBERS}
    return None


def _assumptions(placement: Placement) -> Sequence[str]:
    lines = stand_in_notes(placement, _measured)
    for mixer in placement.model.attention_layers:
        if mixer.kind in _UNMEASURED:
            lines.append(
                f"no measured {_UNMEASURED[mixer.kind]}: efficiencies of the gated delta rule are "
                "used"
            )
    return lines


COMPONENT = Component(
    name="recurrent",
    parts=(),
    lower=lambda placement: lowered(placement, _measured),
    source="GDN and KDA tables of aiconfigurator-core 0.12.0",
    attention_kinds=(GATED_DELTA, KIMI_DELTA, LIGHTNING, MAMBA2),
    assumptions=_assumptions,
)
