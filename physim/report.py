"""One self-contained page on a deployment under a load: numbers and pictures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from physim import data, plot
from physim.cases import Case
from physim.errors import InputError
from physim.fits import DEFAULT_FIT, load_fit
from physim.inputs.deployment import Deployment
from physim.intervals import predict_with_interval
from physim.questions.elasticities import explain
from physim.results import Prediction
from physim.serving.load import Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.25rem 1rem 0.25rem 0; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
img { max-width: 100%; }
.note { color: #a50; }
""".strip()
_UNITS = {
    "ttft_s": ("TTFT", 1e3, "ms"),
    "itl_s": ("ITL", 1e3, "ms"),
    "e2e_s": ("E2E", 1.0, "s"),
    "capacity_rps": ("capacity", 1.0, "requests/s"),
}


def write_report(
    model: str | Path,
    path: Path,
    load: Load,
    *,
    gpu: str,
    fit: str | Path = DEFAULT_FIT,
    **deployment: Any,
) -> Prediction:
    """Writes a page on a model on a GPU under a load that stays.

    Args:
        model: Path of a ``config.json``, shipped name or hub id.
        path: The HTML file; it appears whole or not at all.
        load: A rate.
        gpu: Key of a GPU, or a JSON file.
        fit: Name or path of a fit, ``default`` or ``none``.
        **deployment: Fields of `physim.Deployment`, such as ``tp``.

    Returns:
        The prediction that the page is about.

    Raises:
        InputError: Some input cannot be used, the load is no rate without an end, or it is above
            the capacity.
    """
    if load.rate is None or load.requests is not None:
        raise InputError("load", "is no rate without an end", "give --rate")
    case = Case.of(model, gpu, Deployment(**deployment), load)
    prediction = predict_with_interval(case, load_fit(fit, case.gpu.key), "additive", "fluid", 0)
    found = explain(model, load, gpu=gpu, fit=fit, **deployment)
    where: dict[str, Any] = {"gpu": gpu, "fit": fit, **deployment}
    pictures: list[tuple[str, Axes | Sequence[Axes]]] = [
        ("Latency against the load", plot.draw_load(model, load, mark=load.rate, **where)),
        ("Where the time of a decode step goes", plot.draw_breakdown(model, **where)),
        ("The operations on the roofline", plot.draw_roofline(model, **where)),
        ("What latency and capacity depend on", plot.draw_elasticities(found)),
    ]
    with data.replacing(path) as temporary:
        temporary.write_text(_page(prediction, load, pictures), encoding="utf-8")
    return prediction


def _page(
    prediction: Prediction, load: Load, pictures: Sequence[tuple[str, Axes | Sequence[Axes]]]
) -> str:
    title = f"{prediction.model} on {prediction.tp} x {prediction.gpu}"
    what = (
        f"{load.describe()}, {load.mean_input:g} tokens in ({load.cached_tokens:g} cached), "
        f"{load.mean_output:g} out; fit {prediction.fit}, physim {version('physim-llm')}"
    )
    notes = [f"Beyond what was measured: {line}." for line in prediction.extrapolations]
    notes += [f"Note: {line}." for line in prediction.assumptions]
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(what)}</p>",
        _table(("", "mean", "90% from", "to", ""), _means(prediction)),
        _table(("ms", "mean", "p50", "p90", "p99"), _percentiles(prediction)),
        _table(("component of a step", "ms", "share"), _parts(prediction)),
        *(f'<p class="note">{html.escape(note)}</p>' for note in notes),
        *(f"<h2>{html.escape(name)}</h2>{_image(name, drawn)}" for name, drawn in pictures),
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    inside = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{inside}\n</body></html>\n'


def _means(prediction: Prediction) -> list[list[str]]:
    rows = []
    for name, (label, scale, unit) in _UNITS.items():
        value = getattr(prediction, name)
        if value is None:
            continue
        bounds = prediction.intervals.get(name)
        shown = ["-", "-"] if bounds is None else [f"{scale * bound:.4g}" for bound in bounds]
        rows.append([label, f"{scale * value:.4g}", *shown, unit])
    rows.append(["throughput", f"{prediction.output_tokens_per_s:.4g}", "-", "-", "tokens/s"])
    rows.append(["KV cache", f"{100 * prediction.kv_use:.3g}", "-", "-", "% of its blocks"])
    return rows


def _percentiles(prediction: Prediction) -> list[list[str]]:
    return [
        [metric.upper(), *(f"{1e3 * values[name]:.4g}" for name in ("mean", "p50", "p90", "p99"))]
        for metric, values in prediction.whole.latencies.items()
    ]


def _parts(prediction: Prediction) -> list[list[str]]:
    ranked = sorted(prediction.step_parts_s.items(), key=lambda part: -part[1])
    return [
        [name.replace("_", " "), f"{1e3 * seconds:.3f}", f"{seconds / prediction.step_s:.1%}"]
        for name, seconds in ranked
        if seconds >= 5e-4 * prediction.step_s
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(columns, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _image(name: str, drawn: Axes | Sequence[Axes]) -> str:
    axes = drawn[0] if isinstance(drawn, Sequence) else drawn
    figure = axes.get_figure(root=True)
    assert figure is not None
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    content = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{content}">'
