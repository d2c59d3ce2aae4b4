"""One self-contained page on a deployment under a load: numbers and pictures."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from physim import data
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.case import Case, CaseOptions
from physim.metrics import METRICS
from physim.plot.figures import write_into
from physim.plot.loads import draw_load
from physim.plot.steps import (
    draw_breakdown,
    draw_elasticities,
    draw_first_token,
    draw_roofline,
)
from physim.prediction.commands import bench_command, serve_command
from physim.prediction.html import Html, element, escaped, joined, prediction_tables
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import Prediction
from physim.questions.elasticities import explain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
.tables { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: start; }
.tables p { flex-basis: 100%; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: 0.25rem 1rem 0.25rem 0; text-align: right; border-bottom: 1px solid #8885; }
td:first-child, th:first-child { text-align: left; }
svg { background: white; width: 100%; min-width: 38rem; height: auto; }
pre { overflow-x: auto; padding: 0.75rem; background: #8882; }
dt { font-weight: 600; } dd { margin: 0 0 0.5rem 0; }
.note { color: #b60; }
""".strip()
_DEFINITIONS = {
    **{one.label: one.meaning for one in METRICS.values()},
    "90% from, to": "where nine of ten measurements of such a deployment lie",
    "saturation": "requests a second that the server completes when there are always more of them",
    "p50, p90, p95, p99": "what so many percent of the requests, or of ITL's gaps, stay below",
}


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
    case = Case.from_options(model, **options)
    rate = case.demanded.rate
    if rate is None or case.demanded.requests is not None:
        raise InputError("report", "needs an open-ended rate", "give --rate")
    prediction = predict_with_interval(case, load_fit(fit).on(case))
    found = explain(case, fit=fit)
    pictures: list[tuple[str, Axes | Sequence[Axes]]] = [
        ("Latency against the load", draw_load(case, mark=rate, fit=fit)),
        ("Where the time of a decode step goes", draw_breakdown(case, fit=fit)),
        ("The operations on the roofline", draw_roofline(case, fit=fit)),
        ("What the time to first token is spent on", draw_first_token(found)),
        ("What latency and capacity depend on", draw_elasticities(found)),
    ]
    with data.replacing(path) as temporary:
        temporary.write_text(_page(case, prediction, pictures), encoding="utf-8")
    return prediction


def _page(
    case: Case, prediction: Prediction, pictures: Sequence[tuple[str, Axes | Sequence[Axes]]]
) -> str:
    title = f"{prediction.model} on {prediction.gpus}"
    load = prediction.describe().removeprefix(f"{title}, ")
    made = f"physim {version('physim-llm')}, fit {prediction.fit}, {date.today().isoformat()}"
    body = [
        element("h1", title),
        element("p", f"Under {load}."),
        element("p", f"Predicted by {made}."),
        element("h2", "Latencies and throughput"),
        element("div", prediction_tables(prediction.to_dict()), class_="wide tables"),
        *(one for name, drawn in pictures for one in (element("h2", name), _picture(name, drawn))),
        element("h2", "The engine"),
        element("p", f"{prediction.pool.describe_engine()}."),
        element("p", f"{prediction.pool.describe_memory()}."),
        element("p", "Such a server, and this load:"),
        element("pre", joined(_commands(case))),
        element("h2", "What the words mean"),
        element(
            "dl",
            *(
                one
                for word, meaning in _DEFINITIONS.items()
                for one in (element("dt", word), element("dd", meaning))
            ),
        ),
    ]
    head = element(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    page = element("html", head, element("body", joined(body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _commands(case: Case) -> Iterator[str]:
    """The commands that there are for such a server and load."""
    for command in (serve_command, bench_command):
        with contextlib.suppress(InputError):
            yield command(case)


def _picture(name: str, drawn: Axes | Sequence[Axes]) -> Html:
    """A picture within the page, which scrolls where the screen is narrow."""
    file = io.StringIO()
    write_into(drawn, file, "svg", name)
    content = file.getvalue()
    label = f'<svg role="img" aria-label="{escaped(name)}" '
    svg = content[content.index("<svg") :].replace("<svg ", label, 1)
    return element("div", Html(svg), class_="wide")
