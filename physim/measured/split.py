"""Which public rows a fit may see, which judge how it is made, and which judge the result.

The rule is fixed by names alone, before anything is fitted: a hash decides, so that nobody chose.
"""

from __future__ import annotations

import hashlib

from physim.inputs.fleet import pool_options
from physim.measured.row_rules import held_out
from physim.measured.schema import RunRow

PARTS = FIT, VALIDATION, TEST = "fit", "validation", "test"

# Hundredths of all cells (a model on a GPU with an engine) that are fitted, and up to which they
# are validated on; the rest are tested on.
_FITTED, _VALIDATED = 60, 75


def part_of(row: RunRow) -> str:
    """The part that a row is of: ``fit``, ``validation`` or ``test``.

    Rows of a model, a GPU and an engine version (``bench_data/held_out.json``) and of a layout
    (experts spread over eight GPUs that share attention, as public rows state it) are of the test
    alone; of the others all of a model on a GPU with an engine are of one part, by a hash of
    their names. Where others decode than compute prompts, the layout of either counts.

    Args:
        row: A row in the common form.
    """
    layouts = [(row.tp, row.ep or 1)]
    for pool in (row.prefill, row.decode):
        if pool is not None:
            options = pool_options("pool", pool)
            layouts.append((options.get("tp", 1), options.get("ep", 1)))
    if held_out(row.model_dump()) or any(tp == 8 and ep > 1 for tp, ep in layouts):
        return TEST
    cell = f"{row.model} {row.hardware} {row.engine}"
    place = int(hashlib.sha256(cell.encode()).hexdigest(), 16) % 100
    return FIT if place < _FITTED else VALIDATION if place < _VALIDATED else TEST
