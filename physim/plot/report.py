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
from physim.plot.figures import new_figure, write_into
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
from physim.questions.elasticities import RATES, Elasticities, explain
from physim.questions.service_explanation import explain_service
from physim.service.phases import DECODE, PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    # What a picture shows, and its axes.
    Picture = tuple[str, Axes | Sequence[Axes]]

# The colours are those of the page with sliders.
_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1c2024; --faint: #5d6670; --line: #d5dae0; --panel: #f5f7f9;
  --note: #8f4d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e9ec; --faint: #9aa4ae; --line: #363d45; --panel: #1d2227;
    --note: #f0a860;
  }
  svg { filter: invert(0.92) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto;
  padding: 0 1rem 2rem; background: var(--paper); color: var(--ink); }
h1 { font-size: 1.4rem; margin: 1rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 0.5rem; }
p { margin: 0.5rem 0; }
.made { color: var(--faint); }
.finding { font-size: 1.1rem; background: var(--panel); border-radius: 0.5rem;
  padding: 0.6rem 0.9rem; }
.tables { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: start; }
.tables p { flex-basis: 100%; }
table { border-collapse: collapse; margin: 0.75rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: 0.25rem 1rem 0.25rem 0; text-align: right;
  border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; }
.pictures { display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
svg { display: block; background: white; width: 100%; max-width: 40rem; height: auto;
  border-radius: 0.3rem; }
pre { padding: 0.75rem; border-radius: 0.5rem; background: var(--panel); white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 0.875rem; }
dt { font-weight: 600; } dd { margin: 0 0 0.5rem 0; }
.note { color: var(--note); }
@media (max-width: 46rem) { td, th { padding-right: 0.45rem; font-size: 0.875rem; } }
""".strip()
# One picture each, against the load.
_LATENCIES = ("ttft", "itl", "e2e")
# Inches: on a phone text in a picture then is about as large as a caption.
_WIDTH = 5.2
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
    latencies = [new_figure(_WIDTH, 4.0).subplots() for _ in _LATENCIES]
    drawn = draw_load(case, metrics=_LATENCIES, mark=rate, fit=fit, axes=latencies)
    pictures: list[Picture] = [("Latency against the load", drawn)]
    found: list[str] = [_load_found(prediction)]
    if len(case.service.pools) > 1:
        pictures.append(("What a request passes", draw_way(prediction)))
        explained = explain_service(case, fit=fit)
        found.append(
            f"The servers for {' and '.join(explained.limiting.pool.phases)} saturate first."
        )
        for own in explained.pools:
            pictures += _of_server(own.server.case, own.server, own.pool.phases, fit)
    else:
        # Of replicas one under its share of the load.
        server = case.of_pool(case.service.pools[0])
        elasticities = explain(server, fit=fit)
        found.append(_hardware_found(elasticities))
        pictures += _of_server(server, elasticities, PHASES, fit)
    with data.replacing(path) as temporary:
        page = _page(case, prediction, " ".join(filter(None, found)), pictures)
        temporary.write_text(page, encoding="utf-8")
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
        (f"The operations on the roofline{what}", draw_roofline(case, fit=fit, axes=_axes(4.0))),
        (f"What the time to first token is spent on{what}", draw_first_token(found, _axes(1.9))),
        (f"What latency and capacity depend on{what}", draw_elasticities(found)),
    ]
    if DECODE in phases:
        drawn = draw_breakdown(case, fit=fit, axes=_axes(3.8))
        pictures.insert(0, (f"Where the time of a decode step goes{what}", drawn))
    return pictures


def _axes(height: float) -> Axes:
    """Axes of a picture that a phone shows whole; the height is in inches."""
    return new_figure(_WIDTH, height).subplots()


def _load_found(prediction: Prediction) -> str:
    """Latencies in a sentence, and how much of what can be served the load takes."""
    said = ", ".join(
        f"{METRICS[name].label} {METRICS[name].scale * value:.3g} {METRICS[name].unit}"
        for name in _LATENCIES
        if (value := getattr(prediction, f"{name}_s")) is not None
    )
    most = prediction.saturation_rps
    if not most:
        return f"{said}."
    share = prediction.requests_per_s / most
    return f"{said}, at {share:.0%} of the saturation throughput of {most:.3g} requests/s."


def _hardware_found(found: Elasticities) -> str:
    """Which rate of the hardware the time between tokens depends on most; empty if on none."""
    known = {
        words: found.values[name]["itl"] for name, words in RATES.items() if name in found.values
    }
    if not known:
        return ""
    words, value = min(known.items(), key=lambda one: one[1])
    if value > -0.05:
        return ""
    return f"ITL depends most on {words}: one percent more makes it {-value:.2g}% shorter."


def _page(case: Case, prediction: Prediction, found: str, pictures: Sequence[Picture]) -> str:
    title = f"{prediction.model} on {prediction.gpus}"
    load = prediction.describe().removeprefix(f"{title}, ")
    made = f"physim {version('physim-llm')}, fit {prediction.fit}, {date.today().isoformat()}"
    body = [
        element("h1", title),
        element("p", f"Under {load}."),
        element("p", found, class_="finding"),
        element("h2", "Latencies and throughput"),
        element("div", prediction_tables(prediction.to_dict()), class_="tables"),
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
        element("p", f"Predicted by {made}.", class_="made"),
    ]
    head = element(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    page = element("html", head, element("body", element("main", joined(body))), lang="en")
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
    """A picture within the page, or one for each figure of those that were drawn."""
    axes = drawn if isinstance(drawn, Sequence) else [drawn]
    figures = {one.get_figure(root=True): one for one in axes}
    pictures = []
    for number, one in enumerate(figures.values()):
        said = name if len(figures) == 1 else f"{name}, {one.get_ylabel()}"
        file = io.StringIO()
        write_into(one, file, "svg", f"{name} {number}")
        content = file.getvalue()
        label = f'<svg role="img" aria-label="{escaped(said)}" '
        pictures.append(Html(content[content.index("<svg") :].replace("<svg ", label, 1)))
    return element("div", *pictures, class_="pictures")
