"""A table as the step times of a replay."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from physim.replay.step_times import DecodeRuns
from physim.tables.table import Table, prefill_context


class TableStepTimes:
    """A table as the step times of a replay (`physim.replay.step_times.StepTimes`).

    Args:
        table: The table.
        max_context: Longest context, tokens.
    """

    def __init__(self, table: Table, max_context: int) -> None:
        self._table = table
        self._decodes = DecodeRuns(self._seconds, max_context)

    def step(
        self,
        *,
        decode_requests: int,
        decode_context: int,
        prefill_requests: int,
        prefill_tokens: int,
        prefill_squares: int,
        cached_tokens: int,
        cached_products: int,
        elsewhere: int = 0,  # noqa: ARG002
    ) -> float:
        """Seconds of a step; other ranks are as alike as the table has them."""
        context = decode_context / decode_requests if decode_requests else 0.0
        before = prefill_context(prefill_tokens, prefill_squares, cached_products)
        more = self._table.more_prompts_s(prefill_requests, cached_tokens)
        return self._table(decode_requests, context, prefill_tokens, before) + more

    def decode(
        self,
        requests: int,
        context: int,
        steps: int,
        until_s: float,
        elsewhere: int = 0,  # noqa: ARG002
    ) -> tuple[int, float, float]:
        """A run of decode-only steps."""
        return self._decodes.run(requests, context, steps, until_s)

    def _seconds(self, requests: int, contexts: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        where = np.zeros((len(contexts), 4))
        where[:, 0], where[:, 1] = requests, contexts
        return self._table.many(where)
