"""Which public rows a fit may see, which judge how it is made, and which judge the result.

The rule is fixed by names alone, before anything is fitted: a hash decides, so that nobody chose.
"""

from __future__ import annotations

import hashlib

from physim.measured.schema import RunRow

PARTS = FIT, VALIDATION, TEST = "fit", "validation", "test"

# No fit sees any row of these. The model, layout and engine version are those whose hash is least
# among those of 50 rows and more; the GPUs are those of fewer than 300 rows.
_TEST_MODELS = ("zai-org/GLM-5-FP8", "nvidia/GLM-5-NVFP4")
_TEST_GPUS = ("b300_sxm", "gb200")
_TEST_VERSIONS = (("vllm", "0.16.0"),)
# Hundredths of all cells (a model on a GPU with an engine) that are fitted, and up to which they
# are validated on; the rest are tested on.
_FITTED, _VALIDATED = 60, 75


def part_of(row: RunRow) -> str:
    """The part that a row is of: ``fit``, ``validation`` or ``test``.

    Rows of a model, a GPU, a layout (experts spread over eight GPUs that share attention) and an
    engine version are of the test alone; of the others all of a model on a GPU with an engine are
    of one part, by a hash of their names.

    Args:
        row: A row in the common form.
    """
    tested = (
        row.model in _TEST_MODELS,
        row.hardware in _TEST_GPUS,
        (row.engine, row.engine_version) in _TEST_VERSIONS,
        row.tp == 8 and (row.ep or 1) > 1,
    )
    if any(tested):
        return TEST
    cell = f"{row.model} {row.hardware} {row.engine}"
    place = int(hashlib.sha256(cell.encode()).hexdigest(), 16) % 100
    return FIT if place < _FITTED else VALIDATION if place < _VALIDATED else TEST
