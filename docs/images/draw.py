"""Draws the pictures of README and docs: ``python docs/images/draw.py`` (extra ``plot``)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import physim
from physim import plot
from physim.corrections.fields import Corrections
from physim.plot.figures import plain_ticks
from physim.step.lowering import PARTS
from physim.step.many_batches import named_seconds

MODEL, TP = "Qwen/Qwen3-14B", 2
WHERE = {"gpu": "h100_sxm", "tp": TP}
LOAD = {"input_tokens": 786, "output_tokens": 251, "cached_tokens": 0.0}
GPUS = {"a100_sxm": "tab:green", "h100_sxm": "tab:blue", "h200_sxm": "tab:purple"}
# Parts of a step that are drawn of another model, since this one has little or none of them.
ELSEWHERE = {
    "experts": ("mistralai/Mixtral-8x7B-v0.1", {"tp": TP}),
    "draft": (
        "Qwen/Qwen3-32B",
        {"tp": 2, "draft": "eagle3", "draft_tokens": 3, "draft_acceptance": 0.7},
    ),
    "host": ("Qwen/Qwen3-0.6B", {"tp": 1}),
    "expert_exchange": ("Qwen/Qwen3-235B-A22B-FP8", {"dp": 8, "ep": 8}),
    "pipeline": ("meta-llama/Llama-3.1-70B-Instruct", {"tp": 2, "pp": 4}),
}
# A model of each kind of attention; the time is a mean over its layers.
ATTENTION_KINDS = {
    "full (Llama-3.1-70B)": "meta-llama/Llama-3.1-70B-Instruct",
    "half windowed (gpt-oss-120b)": "openai/gpt-oss-120b",
    "latent (DeepSeek-V3)": "deepseek-ai/DeepSeek-V3",
    "sparse latent (DeepSeek-V3.2)": "deepseek-ai/DeepSeek-V3.2",
    "compressed (DeepSeek-V4-Flash)": "deepseek-ai/DeepSeek-V4-Flash",
    "block-sparse (MiniMax-M3)": "MiniMaxAI/MiniMax-M3",
    "3 of 4 gated delta (Qwen3.5-397B)": "Qwen/Qwen3.5-397B-A17B",
}
FOLDER = Path(__file__).parent


def draw_rates(axes):
    """Time between tokens against the load, up to the saturation throughput."""
    for gpu, colour in GPUS.items():
        most = physim.predict(MODEL, gpu=gpu, tp=TP, rate=1, **LOAD).saturation_rps
        rates = np.linspace(0.02, 0.999, 60) * most
        cases = [
            physim.Case.from_options(MODEL, gpu=gpu, tp=TP, rate=rate, **LOAD) for rate in rates
        ]
        itl = [p.itl_s * 1e3 for p in physim.predict_cases(cases, Corrections())]
        axes.plot(rates, itl, color=colour, label=gpu)
        axes.axvline(most, color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="requests per second", ylabel="time between tokens (ITL), ms", yscale="log")
    axes.set_title(
        f"Latency against load, to saturation (dotted)\n{MODEL}, tp {TP}, 786 in, 251 out"
    )
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
    for part in PARTS:
        model, layout = ELSEWHERE.get(part, (MODEL, {"tp": TP}))
        yield part, plot.draw_component(model, part, gpu="h100_sxm", **layout)


def draw_attention_kinds():
    """Decode attention of a layer against the context, of each kind."""
    contexts = np.geomspace(200, 120_000, 60)
    axes = Figure(figsize=(7, 4.4), layout="constrained").subplots()
    for label, model in ATTENTION_KINDS.items():
        case = physim.Case.from_options(model, gpu="b200_sxm", tp=8, max_model_len=131_072)
        step = physim.step_model(case, fit="none")
        batch = step.batch(decode_requests=np.full_like(contexts, 32.0), context=contexts)
        layers = sum(case.model.attention_layers.values())
        axes.plot(
            contexts, named_seconds(step, batch)["decode_attention"] / layers * 1e6, label=label
        )
    axes.set(
        xlabel="context, tokens",
        ylabel="decode attention of a layer, us",
        xscale="log",
        yscale="log",
        ylim=(3, 3000),
    )
    axes.set_title("32 requests on eight B200", fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.3)
    plain_ticks(axes)
    return axes


def draw_over_time():
    """A load above the saturation throughput for a minute."""
    stages = [(8, 120), (40, 60), (8, 240)]
    busy = physim.predict(MODEL, stages=stages, **LOAD, **WHERE)
    return plot.draw_timeline(busy)


def main():
    """Draws all of them."""
    pictures = {
        "overview": draw_overview(),
        **dict(draw_components()),
        "roofline": plot.draw_roofline(MODEL, **WHERE),
        "steady_state": plot.draw_load(MODEL, rate=1, **LOAD, **WHERE),
        "over_time": draw_over_time(),
        "attention_kinds": draw_attention_kinds(),
    }
    for name, drawn in pictures.items():
        axes = drawn[0] if isinstance(drawn, list) else drawn
        axes.get_figure(root=True).savefig(FOLDER / f"{name}.png", dpi=100)
        print(f"{name}.png")


if __name__ == "__main__":
    main()
