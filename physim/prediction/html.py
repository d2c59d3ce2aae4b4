"""HTML for pages and notebooks: text in elements, and a prediction as tables.

`element` is the one place that makes HTML of text.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from physim.metrics import METRICS, STATISTICS
from physim.printable import printable

# A prediction as plain values.
Content = Mapping[str, Any]

# Of whose means there are intervals.
_MEANS = ("ttft", "itl", "e2e")


class Html(str):
    """What is HTML already, and is put into other HTML as it is."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Text, or the value of an attribute, as HTML; HTML stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(printable(text)))


def joined(pieces: Iterable[str]) -> Html:
    """Pieces of HTML or text, each on lines of its own."""
    return Html("\n".join(map(escaped, pieces)))


def element(tag: str, *content: str, **attributes: str) -> Html:
    """An element.

    Args:
        tag: Its name.
        content: Text, or HTML.
        attributes: By name; ``class_`` is ``class``.
    """
    words = [tag, *(f'{key.rstrip("_")}="{escaped(own)}"' for key, own in attributes.items())]
    return Html(f"<{' '.join(words)}>{''.join(map(escaped, content))}</{tag}>")


def prediction_tables(prediction: Content) -> Html:
    """Means with intervals, percentiles, where a step's time goes, and notes.

    Args:
        prediction: What `Prediction.to_dict` gives.
    """
    notes = []
    if prediction["saturated"] and prediction["ttft_s"] is None:
        notes.append("The load is above capacity: the queue grows without end.")
    notes += [f"Beyond what was measured: {line}." for line in prediction["extrapolations"]]
    notes += [f"Note: {line}." for line in prediction["assumptions"]]
    if prediction["scenario"]:
        notes.append(f"Assumed, as not given: {', '.join(prediction['scenario'])}.")
    return joined(
        [
            _table(("", "mean", "90% from", "to", ""), _means(prediction)),
            _table(("ms", *STATISTICS), _percentiles(prediction)),
            *(
                _table((f"component of a step{own}", "ms", "share"), _parts(pool))
                for pool in prediction["pools"]
                for own in [_of_pool(prediction, pool)]
            ),
            *(element("p", note, class_="note") for note in notes),
        ]
    )


def _of_pool(prediction: Content, pool: Content) -> str:
    """Which pool something is of, where there are several."""
    return f", {'+'.join(pool['phases'])}" if len(prediction["pools"]) > 1 else ""


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
    for pool in prediction["pools"]:
        of = _of_pool(prediction, pool)
        rows.append([f"KV cache{of}", f"{100 * pool['kv_use']:.3g}", "-", "-", "% of its blocks"])
        if pool["hit_rate"]:
            hits = f"{100 * pool['hit_rate']:.3g}"
            rows.append([f"prefix cache hits{of}", hits, "-", "-", "% of prompt tokens"])
        if pool["host_hit_rate"]:
            loaded = f"{100 * pool['host_hit_rate']:.3g}"
            rows.append([f"of them from host memory{of}", loaded, "-", "-", "% of prompt tokens"])
        if pool["disk_hit_rate"]:
            read = f"{100 * pool['disk_hit_rate']:.3g}"
            rows.append([f"of these from disk{of}", read, "-", "-", "% of prompt tokens"])
    return rows


def _percentiles(prediction: Content) -> list[list[str]]:
    return [
        [
            METRICS[metric].label,
            *(f"{1e3 * values[name]:.4g}" if name in values else "-" for name in STATISTICS),
        ]
        for metric, values in prediction["whole"]["latencies"].items()
    ]


def _parts(pool: Content) -> list[list[str]]:
    ranked = sorted(pool["step_parts_s"].items(), key=lambda part: -part[1])
    return [
        [name.replace("_", " "), f"{1e3 * seconds:.3f}", f"{seconds / pool['step_s']:.1%}"]
        for name, seconds in ranked
        if seconds >= 5e-4 * pool["step_s"]
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    def line(cells: Sequence[str], tag: str) -> Html:
        # A heading that says nothing is none.
        return element("tr", *(element(tag if cell else "td", cell) for cell in cells))

    return element("table", line(columns, "th"), *(line(row, "td") for row in rows))
