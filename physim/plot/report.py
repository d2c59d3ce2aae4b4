"""One self-contained page on a deployment under a load: numbers and pictures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from physim import data
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.plot.loads import draw_load
from physim.plot.steps import draw_breakdown, draw_elasticities, draw_roofline
from physim.prediction.html import prediction_tables
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import Prediction
from physim.questions.elasticities import explain

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


def write_report(
    model: str | Path | Case,
    path: Path,
    *,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> Prediction:
    """Writes a page on a model on a GPU under a load that stays.

    Args:
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it.
        path: The HTML file; it appears whole or not at all.
        fit: Name or path of a fit, ``default`` or ``none``.
        **options: GPU, deployment and load, a rate; see `CaseOptions`.

    Returns:
        The prediction that the page is about.

    Raises:
        InputError: Some input cannot be used, the load is not an open-ended rate, or it is above
            the capacity.
    """
    case = Case.of(model, **options)
    rate = case.demanded.rate
    if rate is None or case.demanded.requests is not None:
        raise InputError("report", "needs an open-ended rate", "give --rate")
    prediction = predict_with_interval(case, load_fit(fit, case.gpu.key))
    pictures: list[tuple[str, Axes | Sequence[Axes]]] = [
        ("Latency against the load", draw_load(case, mark=rate, fit=fit)),
        ("Where the time of a decode step goes", draw_breakdown(case, fit=fit)),
        ("The operations on the roofline", draw_roofline(case, fit=fit)),
        ("What latency and capacity depend on", draw_elasticities(explain(case, fit=fit))),
    ]
    with data.replacing(path) as temporary:
        temporary.write_text(_page(prediction, pictures), encoding="utf-8")
    return prediction


def _page(prediction: Prediction, pictures: Sequence[tuple[str, Axes | Sequence[Axes]]]) -> str:
    title = f"{prediction.model} on {prediction.tp} x {prediction.gpu}"
    load = prediction.describe().removeprefix(f"{title}, ")
    what = f"{load}; fit: {prediction.fit}; physim {version('physim-llm')}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(what)}</p>",
        f"<p>{html.escape(prediction.describe_engine())}</p>",
        prediction_tables(prediction.to_dict()),
        *(f"<h2>{html.escape(name)}</h2>{_image(name, drawn)}" for name, drawn in pictures),
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    inside = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{inside}\n</body></html>\n'


def _image(name: str, drawn: Axes | Sequence[Axes]) -> str:
    axes = drawn[0] if isinstance(drawn, Sequence) else drawn
    figure = axes.get_figure(root=True)
    assert figure is not None
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    content = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html.escape(name)}" src="data:image/png;base64,{content}">'
