"""Predictions keep the laws, whatever the engine, layout, model and GPU.

`benchmarks/laws.py` tries many more.
"""

import dataclasses

import laws
import numpy as np
import pytest

# As many of each engine, so that batches have few sizes.
CASES = 48


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    engines = laws.ENGINES * (CASES // len(laws.ENGINES))
    return [laws.valid_case(rng, engine=engine) for engine in engines]


def test_what_is_predicted_keeps_the_laws(cases):
    laws.check_predictions(cases)
    laws.check_monotone(cases)


def test_a_broken_law_is_found(cases):
    (found,) = laws.predicted(cases[:1] * 48)[:1]
    laws.check_parts(found, "as it is")
    parts = {**found.step_parts_s, "mlp": 2 * found.step_parts_s["mlp"] + found.step_s}
    with pytest.raises(AssertionError, match="twice"):
        laws.check_parts(dataclasses.replace(found, step_parts_s=parts), "twice")
