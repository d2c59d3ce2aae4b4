"""Draws the picture of the README: ``python docs/images/draw.py`` (needs the extra ``plot``)."""

from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import physim
from physim.corrections import Corrections
from physim.step.model import PART_NAMES

MODEL, TP = "Qwen/Qwen3-14B", 2
LOAD = {"input_tokens": 786, "output_tokens": 251, "cached_tokens": 0.0}
GPUS = {"a100_sxm": "tab:green", "h100_sxm": "tab:blue", "h200_sxm": "tab:purple"}
OUT = Path(__file__).with_name("overview.png")


def draw_step(axes):
    """Where a decode step's time goes, against the batch."""
    step = physim.step_model(MODEL, gpu="h100_sxm", tp=TP)
    batches = np.geomspace(1, 512, 60)
    seconds = jax.vmap(lambda n: step(physim.Batch.summarised(n, 912.0)).seconds)(batches)
    shown = np.argsort(-np.asarray(seconds).sum(axis=0))[:7]
    rest = np.asarray(seconds).sum(axis=1) - np.asarray(seconds)[:, shown].sum(axis=1)
    names = [PART_NAMES[part].replace("_", " ") for part in shown] + ["other"]
    axes.stackplot(batches, *(np.c_[seconds[:, shown], rest] * 1e3).T, labels=names)
    axes.set(xscale="log", xlabel="requests in the batch", ylabel="time of a decode step, ms")
    axes.set_title(f"Where a step's time goes\n{MODEL} on {TP} x H100")
    axes.set_xlim(1, 512)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", frameon=False)


def draw_load(axes):
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
    axes.grid(alpha=0.3, which="both")


def main():
    """Draws both panels."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_step(left)
    draw_load(right)
    figure.savefig(OUT, dpi=110)
    print(OUT.name)


if __name__ == "__main__":
    main()
