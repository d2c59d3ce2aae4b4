"""Saturated closed loops of the ML.ENERGY leaderboard, as measured runs.

The queue is always full, so that the engine holds a number of requests on average, which is taken
for that of its clients. Only the time between tokens was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from physim.measured.row_rules import settled
from physim.measured.schema import checked
from physim.records import Length, Positive, Record, Text, Whole, disagreement, read_rows

if TYPE_CHECKING:
    import pandas as pd

_GPUS = {"H100-SXM-80GB": "h100_sxm"}


@dataclass(frozen=True)
class _Task:
    """What is taken of a task's requests, whose lengths are not stated but for the mean answer.

    Attributes:
        prompt: Mean tokens of a prompt.
        prompt_spread: Their standard deviation over that.
        output_spread: Standard deviation of an answer's tokens over their mean.
    """

    prompt: float
    prompt_spread: float
    output_spread: float


# Chats have several turns, the ones before in the prompt, and answers of up to 4,096 tokens. Steps
# that are longer than nine, and than 99, of a hundred others are those with prompts: of dense
# models with 64 requests and more they speak for 300 to 500 tokens, a spread of 1.0 to 1.5, and of
# answers 0.7 to 1.3 (90th and 99th percentiles of the time between tokens, within 7 and 9% with
# those below). Questions of GPQA have some 250; contexts there are nearly all answer.
_TASKS = {"lm-arena-chat": _Task(400.0, 1.2, 1.0), "gpqa": _Task(250.0, 0.5, 0.7)}
_OTHER_TASKS = _Task(500.0, 1.2, 0.7)


class _Run(Record):
    model: Text
    hardware: Text
    tp: Whole
    ep: Whole
    n_gpus_total: Whole | None = None
    workload: Text
    output_len_mean: Length
    max_num_seqs: Whole
    avg_batch_size: Length
    itl_mean_ms: Positive

    @model_validator(mode="after")
    def _agrees(self) -> _Run:
        gpus = max(self.tp, self.ep)
        if self.n_gpus_total not in (None, gpus):
            raise disagreement(
                "n_gpus_total", f"{self.n_gpus_total} are not the {gpus} of tp and ep", "correct it"
            )
        return self


def read(path: Path) -> pd.DataFrame:
    """The rows in the common form.

    Where experts are spread over GPUs, so is all else: the benchmark starts vLLM with
    ``--tensor-parallel-size`` of all GPUs and ``--enable-expert-parallel``, whatever ``tp`` a row
    states. What is not stated of the engine is in ``bench_data/public_runs.json``.

    Args:
        path: CSV with a row of each run: ``model``, ``hardware``, ``tp``, ``ep``, ``workload``,
            ``output_len_mean``, ``max_num_seqs``, ``avg_batch_size`` and ``itl_mean_ms``.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that is missing, out
            of range or in contradiction with another.
    """
    import pandas as pd

    places, runs = zip(*read_rows(_Run, path), strict=True)
    rows = [_row(stage, run) for stage, run in enumerate(runs)]
    checked(rows, places.__getitem__)
    return pd.DataFrame(rows)


def _row(stage: int, run: _Run) -> dict[str, Any]:
    itl_s, clients, output = run.itl_mean_ms * 1e-3, run.avg_batch_size, run.output_len_mean
    task, tp = _TASKS.get(run.workload, _OTHER_TASKS), max(run.tp, run.ep)
    known = {
        "origin": "ML.ENERGY",
        "task": run.workload,
        "hardware": _GPUS.get(run.hardware, run.hardware),
    }
    return {
        "experiment": f"{run.model.rpartition('/')[2]} {run.workload} tp {tp}",
        "stage": stage,
        "model": run.model,
        "hardware": known["hardware"],
        "tp": tp,
        "ep": run.ep,
        "engine": settled("engine", known),
        "engine_version": settled("engine_version", known),
        "sampling": settled("sampling", known),
        "max_model_len": settled("max_model_len", known),
        "max_num_seqs": run.max_num_seqs,
        "max_num_batched_tokens": settled("max_num_batched_tokens", known),
        "gpu_memory_utilization": settled("gpu_memory_utilization", known),
        "async_scheduling": settled("async_scheduling", known),
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "rate_rps": clients / (itl_s * output),
        "duration_s": itl_s * output,
        "input_len_mean": task.prompt,
        "input_len_std": task.prompt_spread * task.prompt,
        "output_len": output,
        "output_len_std": task.output_spread * output,
        "itl_mean": itl_s,
    }
