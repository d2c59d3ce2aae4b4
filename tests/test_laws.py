"""Predictions keep the laws, whatever the engine, layout, model and GPU.

`benchmarks/laws.py` tries many more.
"""

import numpy as np
import pytest
from laws import (
    check_monotone,
    check_parts,
    check_predictions,
    described,
    predicted,
    valid_case,
)


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    return [valid_case(rng) for _ in range(64)]


def test_what_is_predicted_keeps_the_laws(cases):
    check_predictions(cases)
    check_monotone(cases)


def test_parts_sum_to_the_step_of_every_engine(cases):
    for case, found in zip(cases, predicted(cases), strict=True):
        check_parts(found, described(case))
