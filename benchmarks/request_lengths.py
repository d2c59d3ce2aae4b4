"""Makes the presets of `physim.RequestLengths` anew: facts of public traces, not the traces.

`python benchmarks/request_lengths.py TRACES` reads ``azure_conversation_2023.csv.gz`` (Azure public
dataset, AzureLLMInferenceTrace_conv.csv) and ``mooncake_conversation.jsonl.gz`` (Mooncake,
FAST'25 release, conversation_trace.jsonl) from the folder TRACES, and writes
``bench_data/request_lengths``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from physim import data
from physim.inputs.request_lengths import CONDENSED, RequestLengths
from physim.inputs.request_points import RequestPoints

FORM = (
    f"moments: means over all requests, tokens or tokens squared; points: {CONDENSED**2} requests "
    f"of equal weight, of {CONDENSED} groups by prompt and {CONDENSED} means within each "
    "(joint_points in physim/inputs/request_points.py)"
)
TRACES: dict[str, tuple[str, dict[str, str]]] = {
    "azure-conversation-2023": (
        "azure_conversation_2023.csv.gz",
        {
            "source": "Azure public dataset, LLM inference trace 2023, conversation service: "
            "https://github.com/Azure/AzurePublicDataset",
            "licence": "CC-BY 4.0",
            "assumed": "nothing is cached: the trace says nothing of prefixes",
        },
    ),
    "mooncake-conversation": (
        "mooncake_conversation.jsonl.gz",
        {
            "source": "Mooncake, FAST'25 release, conversation trace: "
            "https://github.com/kvcache-ai/Mooncake",
            "licence": "Apache-2.0",
            "assumed": "cached is what a prefix cache without limit finds, in blocks of 512 tokens",
        },
    ),
}
SHAREGPT = {
    "source": "means of prompts and outputs of ShareGPT: Kwon et al., Efficient Memory Management "
    "for Large Language Model Serving with PagedAttention, SOSP 2023, figure 11",
    "licence": "two published figures",
    "assumed": "log-normal shapes, standard deviations of 1.5 means for prompts and 1 mean for "
    "outputs, no relation between the two, and nothing cached: the paper has the means alone",
    "independent": {"input": "lognormal:161.31:242", "output": "lognormal:337.99:338"},
}


def preset(trace: Path, about: dict[str, str]) -> dict[str, Any]:
    """The facts of a trace."""
    found = RequestLengths.read(trace)
    fewer = found.condensed()
    return {
        **about,
        "form": FORM,
        "requests": len(found.input_tokens),
        "moments": {name: round(value, 3) for name, value in found.moments._asdict().items()},
        "points": {
            name: [round(value, 2) for value in values.tolist()]
            for name, values in zip(RequestPoints._fields, fewer.arrays, strict=True)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="the folder of the traces")
    parser.add_argument("--out", type=Path, default=data.folder("bench_data") / "request_lengths")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    for name, (file, about) in TRACES.items():
        data.write_json(options.out / f"{name}.json", preset(options.traces / file, about))
    data.write_json(options.out / "sharegpt.json", SHAREGPT)


if __name__ == "__main__":
    main()
