"""Data-parallel ranks of vLLM as if all computed as many tokens as the fullest: errors of rows.

Usage: python benchmarks/padded_ranks.py silicon.csv

Of the rows of fit and validation (`physim data convert silicon`) under vLLM with more than one
rank, predicted with no fit as physim does and with padding in every step. Prints each row's errors
and means by version, percent, of ITL and TTFT.
"""

from __future__ import annotations

import os

# What is kept of functions is found by the source of what they call, which changes here.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pandas as pd

import physim
from physim.prediction import steady
from physim.pytree import swapped
from physim.step.batch import Batch

_WHERE = "part != 'test' and engine == 'vllm' and dp > 1"
_SUMMARISED = Batch.summarised


def _padded(ranks: Any = 1, **means: Any) -> Batch:
    """A batch of ranks that all have as many tokens as the fullest, which the batch has."""
    batch = _SUMMARISED(ranks=ranks, **means)
    return swapped(
        batch,
        elsewhere=(ranks - 1) * batch.decode_requests * batch.query_tokens,
        prompts_elsewhere=(ranks - 1) * batch.prefill_tokens,
    )


def _errors(path: Path, name: str) -> pd.DataFrame:
    rows = physim.evaluate([path], fit="none", where=_WHERE).rows
    return pd.DataFrame(
        {
            "row": row["experiment"],
            "model": row["model"].split("/")[-1],
            "version": row["engine_version"],
            "layout": row["layout"],
            "clients": row["concurrency"],
            f"ITL {name}": row["metrics"]["itl_mean"]["error_pct"],
            f"TTFT {name}": row["metrics"]["ttft_mean"]["error_pct"],
        }
        for row in rows
    ).set_index(["row", "model", "version", "layout", "clients"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    before = _errors(path, "as it is")
    jax.clear_caches()
    steady._solve.forget()
    with mock.patch.object(Batch, "summarised", _padded):
        after = _errors(path, "padded")
    both = before.join(after).reset_index().drop(columns="row")
    both = both[[*both.columns[:4], *sorted(both.columns[4:])]]
    print(both.sort_values(list(both.columns[:4])).round(1).to_string(index=False))
    means = both.iloc[:, 4:].abs().groupby([both["version"], both["layout"]]).mean()
    print(means.round(1).to_string())


if __name__ == "__main__":
    main()
