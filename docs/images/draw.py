"""Draws the pictures of README and docs: ``python docs/images/draw.py`` (extra ``plot``)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import physim
from physim import plot
from physim.corrections import Corrections
from physim.fits import load_fit
from physim.plot.sheet import plain_ticks

MODEL, TP = "Qwen/Qwen3-14B", 2
WHERE = {"gpu": "h100_sxm", "tp": TP}
LOAD = {"input_tokens": 786, "output_tokens": 251, "cached_tokens": 0.0}
GPUS = {"a100_sxm": "tab:green", "h100_sxm": "tab:blue", "h200_sxm": "tab:purple"}
# Components that the physics page shows, where they matter.
COMPONENTS = {
    "mlp": (MODEL, TP),
    "decode_attention": (MODEL, TP),
    "prefill_attention": (MODEL, TP),
    "experts": ("mistralai/Mixtral-8x7B-v0.1", TP),
    "all_reduce": (MODEL, TP),
    "elementwise": (MODEL, TP),
    "output": (MODEL, TP),
    "step_overhead": (MODEL, TP),
    "host": ("Qwen/Qwen3-0.6B", 1),
}
FOLDER = Path(__file__).parent


def draw_rates(axes):
    """Time between tokens against the load, up to capacity."""
    for gpu, colour in GPUS.items():
        capacity = physim.predict(MODEL, gpu=gpu, tp=TP, rate=1, **LOAD).capacity_rps
        rates = np.linspace(0.02, 0.999, 60) * capacity
        cases = [
            physim.Case.of(MODEL, gpu, physim.Deployment(tp=TP), physim.Load(rate=rate, **LOAD))
            for rate in rates
        ]
        itl = [p.itl_s * 1e3 for p in physim.predict_cases(cases, Corrections())]
        axes.plot(rates, itl, color=colour, label=gpu)
        axes.axvline(capacity, color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="requests per second", ylabel="time between tokens (ITL), ms", yscale="log")
    axes.set_title(f"Latency against load, to capacity (dotted)\n{MODEL}, tp {TP}, 786 in, 251 out")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    plain_ticks(axes)


def draw_overview():
    """A step and a load, side by side."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot.draw_breakdown(MODEL, fit="none", axes=left, **WHERE)
    left.set_title(f"Where a step's time goes\n{MODEL} on {TP} x H100")
    draw_rates(right)
    return left


def draw_components():
    """A picture of each component."""
    for component, (model, tp) in COMPONENTS.items():
        yield component, plot.draw_component(model, component, gpu="h100_sxm", tp=tp)


def draw_course():
    """A load above capacity for a minute."""
    stages = [(8, 120), (40, 60), (8, 240)]
    busy = physim.predict(MODEL, stages=stages, arrival="poisson", **LOAD, **WHERE)
    return plot.draw_timeline(busy)


def main():
    """Draws all of them."""
    steady = physim.Load(786, 251, rate=1, arrival="poisson")
    pictures = {
        "overview": draw_overview(),
        **dict(draw_components()),
        "roofline": plot.draw_roofline(MODEL, **WHERE),
        "steady_state": plot.draw_load(MODEL, steady, **WHERE),
        "course": draw_course(),
        "corrections": plot.draw_corrections(load_fit("default")),
    }
    for name, drawn in pictures.items():
        axes = drawn[0] if isinstance(drawn, list) else drawn
        axes.get_figure(root=True).savefig(FOLDER / f"{name}.png", dpi=100)
        print(f"{name}.png")


if __name__ == "__main__":
    main()
