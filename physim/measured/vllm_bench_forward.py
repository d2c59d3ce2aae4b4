"""Steps from the JSON result of ``vllm bench forward`` (``--output-json``).

Each case is an exact batch whose forward pass was timed as one CUDA graph, without logits, sampling
and the host's work (vllm/benchmarks/forward of 0.33).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from physim import data
from physim.errors import InputError
from physim.measured.steps import MeasuredSteps
from physim.records import Count, Document, Positive, Spread, Text, Whole, checked, disagreement

# Spread of the samples' medians above which the tool itself calls a timing unstable, percent.
_UNSTABLE_PCT = 0.5


class _Request(Document):
    query_len: Whole
    kv_len: Whole
    num_draft_tokens: Count = 0

    @model_validator(mode="after")
    def _agrees(self) -> _Request:
        if self.kv_len < self.query_len:
            raise disagreement(
                "kv_len", f"{self.kv_len} is less than query_len, {self.query_len}", "correct it"
            )
        return self

    @property
    def before(self) -> int:
        """Tokens in the KV cache before the step: ``kv_len`` counts those of the query."""
        return self.kv_len - self.query_len

    @property
    def decodes(self) -> bool:
        """Whether it decodes, or verifies drafts; otherwise it is a prompt."""
        return self.before > 0 and self.query_len == 1 + self.num_draft_tokens


class _Latency(Document):
    sample_spread_pct: Spread = 0.0


class _Rank(Document):
    latency_us: _Latency


class _Case(Document):
    case: Text
    requests: Annotated[list[_Request], Field(min_length=1)]
    median_us: Positive
    ranks: tuple[_Rank, ...] = Field((), strict=False)


def read(path: Path) -> MeasuredSteps:
    """The cases of a result, a step each.

    Args:
        path: The result.

    Raises:
        InputError: The file cannot be read, or a case is not as the tool writes it.
    """
    content = data.read_json_list(path)
    rows = []
    unstable = []
    for number, entry in enumerate(content):
        place = f"{path}: [{number}]"
        if not isinstance(entry, dict):
            raise InputError(place, "is not an object", "pass the result as it was written")
        case = checked(_Case, entry, place, "the result as it was written")
        rows.append(_row(case))
        if any(one.latency_us.sample_spread_pct > _UNSTABLE_PCT for one in case.ranks):
            unstable.append(case.case)
    if not rows:
        raise InputError(str(path), "holds no case", "time some")
    notes = [f"the timing of {name} was unstable" for name in unstable]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return MeasuredSteps.from_columns(columns, "forward", str(path), notes=tuple(notes))


def _row(case: _Case) -> dict[str, float]:
    decodes = [one for one in case.requests if one.decodes]
    prompts = [one for one in case.requests if not one.decodes]
    contexts = np.array([one.before for one in decodes], float)
    chunks, cached = (
        np.array([getattr(one, name) for one in prompts], float) for name in ("query_len", "before")
    )
    return {
        "decode_requests": len(decodes),
        "drafts": float(np.mean([one.num_draft_tokens for one in decodes])) if decodes else 0.0,
        "context_tokens": contexts.sum(),
        "context_variance": contexts.var() if decodes else 0.0,
        "prefill_requests": len(prompts),
        "prefill_tokens": chunks.sum(),
        "prefill_variance": chunks.var() if prompts else 0.0,
        "cached_tokens": cached.sum(),
        "cached_products": chunks @ cached,
        "seconds": case.median_us / 1e6,
    }
