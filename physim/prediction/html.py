"""A prediction as tables of HTML, for pages and notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from physim.metrics import METRICS, STATISTICS

# A prediction as plain values.
Content = Mapping[str, Any]

# Of whose means there are intervals.
_MEANS = ("ttft", "itl", "e2e")


def prediction_tables(prediction: Content) -> str:
    """Means with intervals, percentiles, where a step's time goes, and notes.

    Args:
        prediction: What `Prediction.to_dict` gives.
    """
    notes = []
    if prediction["saturated"] and prediction["ttft_s"] is None:
        notes.append("The load is above capacity: the queue grows without end.")
    notes += [f"Beyond what was measured: {line}." for line in prediction["extrapolations"]]
    notes += [f"Note: {line}." for line in prediction["assumptions"]]
    return "\n".join(
        [
            _table(("", "mean", "90% from", "to", ""), _means(prediction)),
            _table(("ms", *STATISTICS), _percentiles(prediction)),
            _table(("component of a step", "ms", "share"), _parts(prediction)),
            *(f'<p class="note">{html.escape(note)}</p>' for note in notes),
        ]
    )


def _means(prediction: Content) -> list[list[str]]:
    rows = []
    shown_in = [
        (f"{name}_s", METRICS[name].label, METRICS[name].scale, METRICS[name].unit)
        for name in _MEANS
    ]
    shown_in.append(("saturation_rps", "saturation", 1.0, "requests/s"))
    for name, label, scale, unit in shown_in:
        value = prediction[name]
        if value is None:
            continue
        bounds = prediction["intervals"].get(name, ())
        # A bound that there is none of: the load may be above capacity.
        shown = ["any" if bound is None else f"{scale * bound:.4g}" for bound in bounds]
        rows.append([label, f"{scale * value:.4g}", *(shown or ["-", "-"]), unit])
    rows.append(["throughput", f"{prediction['output_tokens_per_s']:.4g}", "-", "-", "tokens/s"])
    rows.append(["KV cache", f"{100 * prediction['kv_use']:.3g}", "-", "-", "% of its blocks"])
    return rows


def _percentiles(prediction: Content) -> list[list[str]]:
    return [
        [
            METRICS[metric].label,
            *(f"{1e3 * values[name]:.4g}" if name in values else "-" for name in STATISTICS),
        ]
        for metric, values in prediction["whole"]["latencies"].items()
    ]


def _parts(prediction: Content) -> list[list[str]]:
    ranked = sorted(prediction["step_parts_s"].items(), key=lambda part: -part[1])
    return [
        [name.replace("_", " "), f"{1e3 * seconds:.3f}", f"{seconds / prediction['step_s']:.1%}"]
        for name, seconds in ranked
        if seconds >= 5e-4 * prediction["step_s"]
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(columns, "th") + "".join(line(row, "td") for row in rows) + "</table>"
