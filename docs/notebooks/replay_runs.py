"""Writes ``replayed_runs.csv``: ``python docs/notebooks/replay_runs.py``.

Six runs of an engine that is not quite the one that physim expects, request by request. They stand
in for measured ones where there are none, and since what was changed is known, one can see whether
a fit finds it.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

import physim
from physim.corrections.fields import Corrections

# What takes longer or shorter than with nothing fitted.
HIDDEN = {"gemm_memory": 1.08, "decode_attention": 1.2, "front_end": 1.5, "handover": 1.15}
# Chance beside it, as the standard deviation of a logarithm.
NOISE = 0.01
# Model, tp, prompts, output tokens, and the rates of two stages.
RUNS = [
    ("meta-llama/Llama-2-7b-hf", 1, 600, 248, (4, 10)),
    ("Qwen/Qwen2.5-7B-Instruct", 1, 800, 248, (8, 20)),
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 1200, 400, (3, 8)),
    ("mistralai/Mistral-Nemo-Instruct-2407", 1, 600, 300, (3, 7)),
    ("Qwen/Qwen3-14B", 2, 1500, 200, (4, 12)),
    ("01-ai/Yi-34B", 2, 600, 248, (3, 8)),
]


def main():
    """Replays each run and writes its stages."""
    hidden = Corrections(**{name: math.log(factor) for name, factor in HIDDEN.items()})
    chance = np.random.default_rng(0)
    written = []
    for model, tp, prompt, output, rates in RUNS:
        server = {"tp": tp, "max_model_len": 4096, "max_num_seqs": 128}
        server |= {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9}
        case = physim.Case.from_options(
            model,
            gpu="h100_sxm",
            **server,
            input_tokens=prompt,
            output_tokens=output,
            arrival="poisson",
            stages=[(rate, 300.0) for rate in rates],
        )
        rows = [
            {
                "experiment": f"{model.split('/')[-1].lower()}-tp{tp}",
                "stage": stage,
                "model": model,
                "hardware": "h100_sxm",
                **server,
                "prefix_caching": True,
                "prompt_groups": 0,
                "arrival": "poisson",
                "rate_rps": rate,
                "duration_s": 300.0,
                "input_len_mean": prompt,
                "output_len": output,
            }
            for stage, rate in enumerate(rates)
        ]
        (replayed,) = physim.predict_cases([case], hidden, method="replay", seed=1)
        for row, part in zip(rows, replayed.stages, strict=True):
            for metric in ("ttft", "e2e"):
                seconds = part.latencies[metric]["mean"] * math.exp(NOISE * chance.normal())
                row[f"{metric}_mean"] = round(seconds, 5)
            written.append(row)
            print(row["experiment"], row["rate_rps"], row["ttft_mean"], row["e2e_mean"])
    pd.DataFrame(written).to_csv(Path(__file__).with_name("replayed_runs.csv"), index=False)


if __name__ == "__main__":
    main()
