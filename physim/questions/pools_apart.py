"""Whether prefill and decode in pools of their own keep to objectives on fewer GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physim.corrections.files import Fit
from physim.errors import InputError
from physim.inputs.case import Case
from physim.models.architecture import ModelArch
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.printable import shown
from physim.questions.objectives import Requirements
from physim.service.phases import DECODE, PREFILL

# GPUs that share every layer of a server, and the most servers of a pool that are tried.
_TPS, _MOST = (1, 2, 4, 8), 16
# Pools that are replayed before it is given up.
_REPLAYED = 4


@dataclass(frozen=True)
class Split:
    """Pools of servers that compute prompts and that generate, which keep to objectives.

    Attributes:
        case: The pools under the load.
        prediction: What is predicted of them.
        replayed: What a replay gives.
    """

    case: Case
    prediction: Prediction
    replayed: Prediction

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.case.service.gpus

    def describe(self) -> str:
        """The pools, such as ``2 x (tp 1) prefill : 1 x (tp 2) decode on h100_sxm``."""
        first, second = (self.case.service.pool_of(phase) for phase in (PREFILL, DECODE))
        gpu = first.server.gpu.key
        return f"{first.layout} prefill : {second.layout} decode on {gpu}"

    def to_dict(self) -> dict[str, Any]:
        """The pools as plain values, for JSON."""
        first, second = (self.case.service.pool_of(phase) for phase in (PREFILL, DECODE))
        one = self.prediction
        return {
            "gpu": first.server.gpu.key,
            "gpus": self.gpus,
            "prefill": {"replicas": first.replicas, "tp": first.server.parallelism.tp},
            "decode": {"replicas": second.replicas, "tp": second.server.parallelism.tp},
            "ttft_s": one.ttft_s,
            "itl_s": one.itl_s,
            "e2e_s": one.e2e_s,
            "saturation_rps": one.saturation_rps,
        }

    def __repr__(self) -> str:
        return shown(self, self.describe(), self.prediction.figures)


def best_split(
    model: str | Path | ModelArch,
    gpus: Sequence[str],
    most_gpus: int,
    asked: Requirements,
    known: Fit,
    options: Mapping[str, Any],
) -> Split | None:
    """The pools apart that keep to objectives with the fewest GPUs; None where there are none.

    Args:
        model: As `physim.predict` takes it.
        gpus: GPUs to choose from; both pools have the same.
        most_gpus: Most GPUs in all.
        asked: What is asked.
        known: What a fit says.
        options: The load and the engine, by name.
    """
    cases = list(_pools(model, gpus, most_gpus, options))
    corrections = [known.on(case).corrections for case in cases]
    found = predict_cases(cases, corrections, known.name)
    keep = [row for row, one in enumerate(found) if asked.missed(one) is None]
    # Of as many GPUs those that leave most of what they can do.
    keep.sort(key=lambda row: (cases[row].service.gpus, -found[row].saturation_rps))
    for row in keep[:_REPLAYED]:
        (replay,) = predict_cases([cases[row]], [corrections[row]], known.name, "replay")
        if asked.missed(replay) is None:
            return Split(cases[row], found[row], replay)
    return None


def _pools(
    model: str | Path | ModelArch,
    gpus: Sequence[str],
    most_gpus: int,
    options: Mapping[str, Any],
) -> Iterator[Case]:
    """Pools of every size and degree that fit in so many GPUs, and whose model fits in memory."""
    servers = [
        (tp, count) for tp in _TPS for count in range(1, _MOST + 1) if tp * count < most_gpus
    ]
    refused: set[tuple[str, int]] = set()
    for gpu in gpus:
        for tp, count in servers:
            for other, more in servers:
                degrees = {(gpu, tp), (gpu, other)}
                if tp * count + other * more > most_gpus or degrees & refused:
                    continue
                pools = {
                    PREFILL: {"tp": tp, "replicas": count},
                    DECODE: {"tp": other, "replicas": more},
                }
                try:
                    yield Case.attempted(model, gpu=gpu, **{**options, **pools})
                except InputError as error:
                    # What does not fit at a degree does not fit in any number.
                    phase = error.where.partition(":")[0]
                    refused.add((gpu, tp if phase == PREFILL else other))
