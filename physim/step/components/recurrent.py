"""Layers that keep a state: the gated delta rule, Kimi delta and lightning attention, Mamba2."""

from __future__ import annotations

from collections.abc import Sequence

from physim.mixers.recurrent import GATED_DELTA, KIMI_DELTA, LIGHTNING, MAMBA2
from physim.step.component import Component, Placement
from physim.step.mixer_rows import lowered, stand_in_notes

_KINDS = (GATED_DELTA, KIMI_DELTA, LIGHTNING, MAMBA2)
# Kinds that were not measured.
_UNMEASURED = {MAMBA2: "Mamba2 scan", LIGHTNING: "lightning attention"}


def _assumptions(placement: Placement) -> Sequence[str]:
    lines = stand_in_notes(placement, _KINDS)
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
    lower=lambda placement: lowered(placement, _KINDS),
    source="GDN and KDA tables of aiconfigurator-core 0.12.0",
    attention_kinds=_KINDS,
    assumptions=_assumptions,
)
