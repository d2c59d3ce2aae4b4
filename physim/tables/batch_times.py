"""Seconds of a batch that is told request by request, from a table: what schedulers ask for."""

from __future__ import annotations

from collections.abc import Iterable

from physim.tables.table import Table, prefill_context


def batch_seconds(table: Table, requests: Iterable[tuple[int, int]]) -> float:
    """Time of a step, seconds; 0 of one without a request.

    A request of one new token decodes, if there is something in the cache before it.

    Args:
        table: The table.
        requests: Of each request the tokens that are new, and those in the cache before them.
    """
    pairs = list(requests)
    decodes = [past + 1 for new, past in pairs if new == 1 and past > 0]
    prompts = [(new, past) for new, past in pairs if not (new == 1 and past > 0)]
    if not pairs:
        return 0.0
    tokens = sum(new for new, _ in prompts)
    squares, products = sum(new**2 for new, _ in prompts), sum(new * past for new, past in prompts)
    context = sum(decodes) / len(decodes) if decodes else 0.0
    seconds = table(len(decodes), context, tokens, prefill_context(tokens, squares, products))
    return seconds + table.more_prompts_s(len(prompts), sum(past for _, past in prompts))
