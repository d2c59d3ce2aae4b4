"""Saturated closed loops of the ML.ENERGY leaderboard, as measured runs.

The queue is always full, so that the engine holds a number of requests on average, which is taken
for that of its clients. Only the time between tokens was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from physim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Prompt lengths are not stated. Chat prompts are of the order of 100 to 300 tokens, and questions
# of GPQA have some 250: a guess, of little weight beside the contexts that decoding builds up.
_PROMPT_TOKENS = {"lm-arena-chat": 200.0, "gpqa": 250.0}
_GPUS = {"H100-SXM-80GB": "h100_sxm"}
# Nor is the spread of output lengths: chats and chains of thought vary widely.
_OUTPUT_SPREAD = 0.7
_MAX_MODEL_LEN = 32768


def read(path: Path) -> pd.DataFrame:
    """The rows in the common form.

    Rows whose experts are spread over GPUs keep their ``ep``; the engine is vLLM of late 2025,
    whose version is not stated.

    Args:
        path: CSV with a row of each run: ``model``, ``hardware``, ``tp``, ``ep``, ``workload``,
            ``output_len_mean``, ``max_num_seqs``, ``avg_batch_size`` and ``itl_mean_ms``.

    Raises:
        InputError: The file cannot be read, or has not these columns.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
        itl = frame["itl_mean_ms"] * 1e-3
        clients, output = frame["avg_batch_size"], frame["output_len_mean"]
        return pd.DataFrame(
            {
                "experiment": [
                    f"{name.rpartition('/')[2]} {load} tp {tp}"
                    for name, load, tp in zip(
                        frame["model"], frame["workload"], frame["tp"], strict=True
                    )
                ],
                "stage": range(len(frame)),
                "model": frame["model"],
                "hardware": frame["hardware"].map(_GPUS).fillna(frame["hardware"]),
                "tp": frame["tp"],
                "ep": frame["ep"],
                "engine": "vllm",
                "engine_version": "0.11.0",
                "sampling": "unknown",
                "max_model_len": _MAX_MODEL_LEN,
                "max_num_seqs": frame["max_num_seqs"],
                "max_num_batched_tokens": 8192,
                "gpu_memory_utilization": 0.9,
                "prefix_caching": False,
                "prompt_groups": 0,
                "arrival": "constant",
                "concurrency": clients,
                "rate_rps": clients / (itl * output),
                "duration_s": itl * output,
                "input_len_mean": frame["workload"].map(_PROMPT_TOKENS).fillna(500.0),
                "output_len": output,
                "output_len_std": _OUTPUT_SPREAD * output,
                "itl_mean": itl,
                "note": "",
            }
        )
    except OSError as error:
        raise InputError(str(path), error.strerror or "cannot be read", "check the path") from error
    except (KeyError, ValueError) as error:
        raise InputError(
            str(path), f"is no table of ML.ENERGY runs ({error})", "pass one"
        ) from error
