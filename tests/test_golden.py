"""Whether numbers moved, in seconds."""

import json

import pytest
from golden import FILE, predicted

# Processors multiply and add in other orders, which the root-finder makes the most of.
LEAST = 1e-7


def test_no_number_moved():
    expected = json.loads(FILE.read_text())
    found = predicted()
    assert len(found) == 63
    assert list(found) == list(expected)
    moved = [
        f"{name}: {what} {expected[name][what]} -> {value}"
        for name, numbers in found.items()
        for what, value in numbers.items()
        if value != (expected[name][what] and pytest.approx(expected[name][what], rel=LEAST))
    ]
    assert not moved, "\n".join([f"{len(moved)} numbers moved; `python tests/golden.py`", *moved])
