"""Saturated closed loops of the ML.ENERGY leaderboard, as measured runs.

The queue is always full, so that the engine holds a number of requests on average, which is taken
for that of its clients. Only the time between tokens was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from physim.measured.row_rules import settled
from physim.measured.schema import checked
from physim.records import Length, Positive, Record, Text, Whole, disagreement, read_rows

if TYPE_CHECKING:
    import pandas as pd

# Prompt lengths are not stated. Chat prompts are of the order of 100 to 300 tokens, and questions
# of GPQA have some 250: a guess, of little weight beside the contexts that decoding builds up.
_PROMPT_TOKENS = {"lm-arena-chat": 200.0, "gpqa": 250.0}
_OTHER_PROMPT_TOKENS = 500.0
_GPUS = {"H100-SXM-80GB": "h100_sxm"}
# Nor is the spread of output lengths: chats and chains of thought vary widely.
_OUTPUT_SPREAD = 0.7
_ORIGIN = {"origin": "ML.ENERGY"}


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

    Rows whose experts are spread over GPUs keep their ``ep``. What is not stated of the engine is
    in ``bench_data/public_runs.json``.

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
    return {
        "experiment": f"{run.model.rpartition('/')[2]} {run.workload} tp {run.tp}",
        "stage": stage,
        "model": run.model,
        "hardware": _GPUS.get(run.hardware, run.hardware),
        "tp": run.tp,
        "ep": run.ep,
        "engine": settled("engine", _ORIGIN),
        "engine_version": settled("engine_version", _ORIGIN),
        "sampling": settled("sampling", _ORIGIN),
        "max_model_len": settled("max_model_len", _ORIGIN),
        "max_num_seqs": run.max_num_seqs,
        "max_num_batched_tokens": settled("max_num_batched_tokens", _ORIGIN),
        "gpu_memory_utilization": settled("gpu_memory_utilization", _ORIGIN),
        "prefix_caching": False,
        "prompt_groups": 0,
        "arrival": "constant",
        "concurrency": clients,
        "rate_rps": clients / (itl_s * output),
        "duration_s": itl_s * output,
        "input_len_mean": _PROMPT_TOKENS.get(run.workload, _OTHER_PROMPT_TOKENS),
        "output_len": output,
        "output_len_std": _OUTPUT_SPREAD * output,
        "itl_mean": itl_s,
    }
