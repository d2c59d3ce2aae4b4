"""The smallest table of measured runs: what each row has to say, with two runs as an example."""

from __future__ import annotations

from physim.measured.schema import COLUMNS, REQUIRED

# In the order in which a person fills them, and as they look; times are of a client.
_EXAMPLE = {
    "experiment": ("qwen3-8b-slow", "qwen3-8b-busy"),
    "stage": ("0", "0"),
    "model": ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    "hardware": ("h100_sxm", "h100_sxm"),
    "tp": ("1", "1"),
    "arrival": ("poisson", "poisson"),
    "rate_rps": ("2", "8"),
    "duration_s": ("300", "300"),
    "input_len_mean": ("1000", "1000"),
    "output_len": ("200", "200"),
    "ttft_mean": ("0.045", "0.060"),
    "e2e_mean": ("1.70", "2.30"),
}
# What a row may say besides.
OPTIONAL = tuple(name for name in COLUMNS if name not in REQUIRED and name not in _EXAMPLE)


def template() -> str:
    """A table of runs as CSV: the columns that cannot be left out, and two rows to replace."""
    missing = set(REQUIRED) - set(_EXAMPLE)
    assert not missing, missing  # a column that must be there has an example
    rows = [",".join(_EXAMPLE), *(",".join(row) for row in zip(*_EXAMPLE.values(), strict=True))]
    return "\n".join(rows) + "\n"
