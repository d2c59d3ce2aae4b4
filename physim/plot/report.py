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
from physim.options import named_options
from physim.plot.figures import write_into
from physim.plot.loads import draw_load
from physim.plot.steps import (
    draw_breakdown,
    draw_elasticities,
    draw_first_token,
    draw_roofline,
)
from physim.plot.way import draw_way
from physim.prediction.commands import bench_command, serve_commands
from physim.prediction.html import Html, element, escaped, joined, prediction_tables
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import PoolPrediction, Prediction
from physim.progress import told_in_notebooks
from physim.questions.elasticities import Elasticities, explain
from physim.questions.service_explanation import explain_service
from physim.service.phases import DECODE, PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    # What a picture shows, and its axes.
    Picture = tuple[str, Axes | Sequence[Axes]]

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


@told_in_notebooks("predicting and drawing")
@named_options
def write_report(
    model: str | Path | Case,
    path: Path,
    *,
    fit: str | Path = DEFAULT_FIT,
    **options: Unpack[CaseOptions],
) -> Prediction:
    """Writes a page on a model on a GPU, or on several servers, under a load that stays.

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
    pictures: list[Picture] = [("Latency against the load", draw_load(case, mark=rate, fit=fit))]
    if len(case.service.pools) > 1:
        pictures.append(("What a request passes", draw_way(prediction)))
        for own in explain_service(case, fit=fit).pools:
            pictures += _of_server(own.server.case, own.server, own.pool.phases, fit)
    else:
        # Of replicas one under its share of the load.
        server = case.of_pool(case.service.pools[0])
        pictures += _of_server(server, explain(server, fit=fit), PHASES, fit)
    with data.replacing(path) as temporary:
        temporary.write_text(_page(case, prediction, pictures), encoding="utf-8")
    return prediction


def _of_server(
    case: Case, found: Elasticities, phases: Sequence[str], fit: str | Path
) -> list[Picture]:
    """Pictures of one server.

    Args:
        case: The server under its load.
        found: What it depends on.
        phases: What requests do there.
        fit: A fit.
    """
    what = "" if len(phases) > 1 else f", {phases[0]}"
    pictures: list[Picture] = [
        (f"The operations on the roofline{what}", draw_roofline(case, fit=fit)),
        (f"What the time to first token is spent on{what}", draw_first_token(found)),
        (f"What latency and capacity depend on{what}", draw_elasticities(found)),
    ]
    if DECODE in phases:
        drawn = draw_breakdown(case, fit=fit)
        pictures.insert(0, (f"Where the time of a decode step goes{what}", drawn))
    return pictures


def _page(case: Case, prediction: Prediction, pictures: Sequence[Picture]) -> str:
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
        *(one for pool in prediction.pools for one in _engine(pool, len(prediction.pools) > 1)),
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


def _engine(pool: PoolPrediction, is_one_of_several: bool) -> Iterator[Html]:
    """What there is to say of the servers of a pool."""
    if is_one_of_several:
        yield element("p", f"{pool.pool.where}: {' and '.join(pool.phases)}.")
    yield element("p", f"{pool.describe_engine()}.")
    yield element("p", f"{pool.describe_memory()}.")


def _commands(case: Case) -> Iterator[str]:
    """The commands that there are for such servers and load, one below the other."""
    with contextlib.suppress(InputError):
        yield from serve_commands(case).values()
    with contextlib.suppress(InputError):
        yield bench_command(case)


def _picture(name: str, drawn: Axes | Sequence[Axes]) -> Html:
    """A picture within the page, which scrolls where the screen is narrow."""
    file = io.StringIO()
    write_into(drawn, file, "svg", name)
    content = file.getvalue()
    label = f'<svg role="img" aria-label="{escaped(name)}" '
    svg = content[content.index("<svg") :].replace("<svg ", label, 1)
    return element("div", Html(svg), class_="wide")
