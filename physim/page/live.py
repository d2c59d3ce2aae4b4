# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The live form of the page, with the full model: a marimo notebook that ``physim app`` runs."""

import marimo

app = marimo.App(width="full", app_title="physim")

with app.setup:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import marimo as mo
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    import physim
    from physim.engines.profile import DEFAULT_ENGINE, shipped_engines
    from physim.errors import InputError
    from physim.grids.store import measured_gpus
    from physim.inputs.attempts import attempts
    from physim.inputs.case import Case
    from physim.inputs.lengths import Lengths, lengths
    from physim.inputs.request_lengths import RequestLengths, presets
    from physim.models.lookup import load_model
    from physim.models.parallelism import Parallelism
    from physim.options import options_of
    from physim.plot import draw_breakdown, draw_elasticities, draw_load
    from physim.plot.pareto import draw_tradeoff
    from physim.prediction.html import Html, element
    from physim.questions.candidates import NODE, layouts_of
    from physim.questions.objectives import NOTHING
    from physim.questions.pareto import tradeoff
    from physim.questions.prices import hourly_price, hourly_prices, per_million_tokens
    from physim.questions.servers import Servers

    DEGREES = (1, 2, 4, 8)
    DEGREES_IN_WORDS = {
        "tp": "GPUs that share every layer",
        "pp": "pipeline stages",
        "dp": "ranks of attention",
        "ep": "GPUs that spread experts",
    }
    # Answers stand beside the form, and below it where the screen is narrow.
    SIDES = "display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start"
    FORM = "flex: 1 1 18rem; min-width: 0"
    ANSWERS = "flex: 3 1 min(100%, 34rem); min-width: 0; overflow-x: auto"


@app.function
def options_chosen(deployment: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """What is chosen, as options of a case."""
    demand = dict(load)
    requests = demand.pop("requests")
    names = ("input_tokens", "output_tokens")
    typed: dict[str, Any] = {name: Lengths.parse(demand.pop(name), name) for name in names}
    if requests:
        means = (lengths(tokens).mean for tokens in typed.values())
        typed = {"lengths": RequestLengths.read(requests).with_means(*means)}
    return {**deployment, **demand, **typed}


@app.function
def elsewhere(model: str, gpus: Sequence[str], options: Mapping[str, Any]) -> list[Case]:
    """The same on every GPU in every layout of a node in which it fits."""
    layouts = layouts_of(load_model(model), NODE, {})
    wanted = ({"model": model, "gpu": gpu, **layout} for gpu in gpus for layout in layouts)
    return [one.case for one in attempts(wanted, options) if one.case is not None]


@app.function
def said_cost(case: Case, prediction: physim.Prediction, price: float) -> str:
    """The price of a million generated tokens, at this load and at saturation.

    Args:
        case: What is predicted.
        prediction: Of the case.
        price: Of one GPU for an hour, in any currency.

    Raises:
        InputError: The price is not positive.
    """
    hour = hourly_price(hourly_prices({case.server.gpu.key: price}), case.service)
    most = prediction.saturation_rps * case.demanded.mean_output
    here, least = (
        per_million_tokens(hour, tokens) for tokens in (prediction.output_tokens_per_s, most)
    )
    return f"Cost of a million generated tokens: {here:.3g}; {least:.3g} at saturation"


@app.function
def figure_of(axes: Axes | Sequence[Axes]) -> FigureBase:
    """The figure that something is drawn in."""
    return (axes if isinstance(axes, Axes) else axes[0]).figure


@app.cell
def _():
    given = mo.cli_args()
    model = str(given.get("model", "Qwen/Qwen3-8B"))
    fit = str(given.get("fit", "default"))
    gpus = str(given.get("gpus", "")).split(",") if given.get("gpus") else [*measured_gpus()]
    return fit, gpus, model


@app.cell
def _(gpus):
    degrees = {str(degree): degree for degree in DEGREES}
    deployment = mo.ui.dictionary(
        {
            "gpu": mo.ui.dropdown(gpus, value=gpus[0], label="GPU"),
            **{
                name: mo.ui.dropdown(degrees, "1", label=f"{name}, {DEGREES_IN_WORDS[name]}")
                for name in options_of(Parallelism)
            },
            "engine": mo.ui.dropdown([*shipped_engines()], DEFAULT_ENGINE, label="engine"),
            "max_num_seqs": mo.ui.slider(
                steps=[16, 32, 64, 128, 256, 512, 1024],
                value=256,
                label="requests at once",
                show_value=True,
            ),
            "max_num_batched_tokens": mo.ui.slider(
                steps=[1024, 2048, 4096, 8192, 16384],
                value=8192,
                label="tokens of a step",
                show_value=True,
            ),
        }
    )
    rates = [round(0.1 * 1.1**step, 3) for step in range(80)]
    load = mo.ui.dictionary(
        {
            "rate": mo.ui.slider(
                steps=rates, value=rates[30], label="requests per second", show_value=True
            ),
            "input_tokens": mo.ui.text("1000", label="prompt tokens", full_width=True),
            "output_tokens": mo.ui.text("200", label="generated tokens", full_width=True),
            "requests": mo.ui.dropdown(
                {
                    "as typed above": "",
                    **{f"as in {name}": name for name in presets()},
                },
                "as typed above",
                label="lengths, of these means",
                full_width=True,
            ),
            "cached_tokens": mo.ui.number(
                0, 1_000_000, value=0, label="cached prompt tokens", full_width=True
            ),
            "arrival": mo.ui.dropdown(["poisson", "constant"], "poisson", label="arrivals"),
        }
    )
    return deployment, load


@app.cell
def _():
    price = mo.ui.number(label="price of a GPU for an hour", full_width=True)
    return (price,)


@app.cell
def _(deployment, fit, load, model):
    try:
        options = options_chosen(deployment.value, load.value)
        case, problem = Case.from_options(model, **options), ""
        prediction = physim.predict(case, fit=fit)
    except InputError as error:
        case, options, problem, prediction = None, {}, str(error), None
    return case, options, prediction, problem


@app.cell
def _(case, fit, gpus, model, options, prediction):
    def drawn_load():
        mark = None if prediction.saturated else case.demanded.rate
        return draw_load(case, mark=mark, fit=fit)

    def drawn_pareto():
        cases = elsewhere(model, gpus, options)
        servers = Servers(cases, physim.load_fit(fit))
        return draw_tradeoff(tradeoff(servers, NOTHING), servers.cases)

    drawings = {
        "Load": drawn_load,
        "Step": lambda: draw_breakdown(case, fit=fit),
        "What it depends on": lambda: draw_elasticities(physim.explain(case, fit=fit)),
        "Pareto": drawn_pareto,
    }
    return (drawings,)


@app.cell
def _(case, prediction, price):
    try:
        cost = said_cost(case, prediction, price.value) if prediction and price.value else ""
    except InputError as error:
        cost = str(error)
    return (cost,)


@app.cell
def _(cost, deployment, drawings, load, model, prediction, price, problem):
    controls = [
        mo.Html(str(element("h1", model))),
        *deployment.elements.values(),
        *load.elements.values(),
        price,
    ]
    if prediction is None:
        results: list[Any] = [mo.callout(mo.Html(str(element("p", problem))), kind="danger")]
    else:
        warnings = [f"Beyond what was measured: {line}." for line in prediction.extrapolations]
        if prediction.saturated:
            warnings.append("Above capacity: the queue grows without end.")
        tabs = {
            name: mo.lazy(lambda draw=draw: figure_of(draw())) for name, draw in drawings.items()
        }
        results = [
            *(mo.Html(str(element("p", line))) for line in [cost] if line),
            mo.Html(prediction._repr_html_()),
            *(mo.callout(mo.Html(str(element("p", line))), kind="warn") for line in warnings),
            mo.ui.tabs(tabs),
        ]
    sides = [
        element("section", Html(mo.vstack(part).text), style=style)
        for part, style in ((controls, FORM), (results, ANSWERS))
    ]
    mo.Html(str(element("div", *sides, style=SIDES)))


if __name__ == "__main__":
    app.run()
