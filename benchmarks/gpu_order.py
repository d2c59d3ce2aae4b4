"""How often a step takes longer on a better GPU than on a lesser one, and which part of it does.

    python benchmarks/gpu_order.py [--servers 200] [--pair b300_sxm:b200_sxm ...]

Servers are drawn at random: a model, tp and an engine; so are 16 steps of each, of requests that
decode and of prompts. A server is the same on both GPUs, with as much memory as it takes, and
nothing is fitted. A step is slower if it takes a hundredth more. The part responsible is the one
that takes most more; a line of a part says how often that is, what the part takes on the better GPU
for what it takes on the lesser one, and in which server that is most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from physim.corrections.fields import Corrections
from physim.engines.profile import shipped_engines
from physim.inputs.deployment import Deployment
from physim.models.lookup import load_model, shipped_models
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.step.lowering import PART_NAMES, lower
from physim.step.many_batches import part_seconds
from physim.step.model import StepModel

PAIRS = ("b300_sxm:b200_sxm", "h100_sxm:a100_sxm", "h200_sxm:h100_sxm", "b200_sxm:h200_sxm")
_STEPS, _MOST_REQUESTS, _LONGEST = 16, 512, 16384
_MEMORY = 2e12
_SLOWER = 1.01


@dataclass(frozen=True)
class Server:
    """What is served, on any GPU."""

    model: str
    tp: int
    engine: str

    def __str__(self) -> str:
        return f"{self.model}, tp {self.tp}, {self.engine}"

    def on(self, gpu: str) -> StepModel:
        """Its step times on a GPU, with nothing fitted."""
        hardware = replace(load_hardware(gpu), memory_bytes=_MEMORY)
        model = load_model(self.model)
        deployment = Deployment(
            Parallelism(self.tp),
            engine=self.engine,
            max_model_len=_LONGEST,
            max_num_seqs=_MOST_REQUESTS,
            max_num_batched_tokens=8192,
        )
        return StepModel(lower(deployment.resolved(model, hardware)), Corrections())


def servers(count: int, random: np.random.Generator) -> list[Server]:
    """Some servers, drawn at random."""
    models, engines = shipped_models(), list(shipped_engines())
    found: list[Server] = []
    while len(found) < count:
        model, tp = models[random.integers(len(models))], int(2 ** random.integers(4))
        engine = engines[random.integers(len(engines))]
        heads = [layer.heads for layer in load_model(model).attention_layers if layer is not None]
        if all(one % tp == 0 for one in heads):
            found.append(Server(model, tp, engine))
    return found


def steps(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Means of some steps, as `StepModel.batch` takes them: four in ten have a prompt."""

    def sizes(least: float, most: float) -> np.ndarray:
        return np.exp(random.uniform(np.log(least), np.log(most), _STEPS)).round()

    return {
        "decode_requests": sizes(1, _MOST_REQUESTS),
        "context": sizes(64, _LONGEST),
        "prefill_requests": 1.0 * (random.random(_STEPS) < 0.4),
        "chunk": sizes(64, 4096),
    }


def table(names: Sequence[str], better: np.ndarray, lesser: np.ndarray) -> list[str]:
    """A line on all steps, and one for each part that makes some slower.

    Args:
        names: Of each server.
        better: Seconds of the parts of steps on the better GPU, by server, step and part.
        lesser: Those on the lesser one.
    """
    ratio = better.sum(axis=-1) / lesser.sum(axis=-1)
    slower, part = ratio > _SLOWER, np.argmax(better - lesser, axis=-1)
    lines = [f"{slower.mean():.1%} of steps are slower, {(ratio > 1.05).mean():.1%} by 5% and more"]
    found = []
    for place, name in enumerate(PART_NAMES):
        of_part = slower & (part == place)
        if of_part.any():
            longer = better[of_part, place].sum() / lesser[of_part, place].sum()
            worst = np.where(of_part, ratio, 0.0)
            server = int(np.argmax(worst.max(axis=1)))
            line = f"{of_part.mean():6.1%}  {name:18} {longer:5.2f} times; "
            found.append((of_part.mean(), f"{line}{worst.max():.2f} of a step of {names[server]}"))
    return lines + [line for _, line in sorted(found, reverse=True)]


def main() -> None:
    """Prints a table for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--pair", action="append", help="BETTER:LESSER; again for another")
    asked = parser.parse_args()
    random = np.random.default_rng(0)
    drawn = servers(asked.servers, random)
    means = [steps(random) for _ in drawn]
    seconds: dict[str, np.ndarray] = {}
    for pair in asked.pair or PAIRS:
        for gpu in pair.split(":"):
            if gpu not in seconds:
                models = [server.on(gpu) for server in drawn]
                seconds[gpu] = np.array(
                    [
                        part_seconds(model, model.batch(**mean))
                        for model, mean in zip(models, means, strict=True)
                    ]
                )
        better, lesser = pair.split(":")
        print(f"{better} beside {lesser}, {len(drawn) * _STEPS} steps of {len(drawn)} servers:")
        for line in table([str(one) for one in drawn], seconds[better], seconds[lesser]):
            print(f"  {line}")


if __name__ == "__main__":
    main()
