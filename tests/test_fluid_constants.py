"""Constants that benchmarks/fluid_ablation.py finds, and what it changes them into."""

from pathlib import Path

import pytest

SOURCE = '''"""A module."""
import numpy as np

# Share of requests that wait,
# and how sharp that is.
_SHARE, _SHARP = 1 / 4, 8.0
_COUNT = 5  # nodes
_FLAGS = True
_NAMES = ("a", "b")
PUBLIC = 3.0
# Of é, the weights.
_WEIGHTS = (1.0, 0.5)
_GRID = np.linspace(0.0, 1.0, _COUNT)


def function():
    _LOCAL = 4.0
    return _LOCAL
'''


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import fluid_constants

    return fluid_constants


@pytest.fixture
def ablation(tool):  # noqa: ARG001
    import fluid_ablation

    return fluid_ablation


def test_constants_are_found_with_what_they_mean(tool):
    found = list(tool.constants_of("module", SOURCE))
    share = "Share of requests that wait, and how sharp that is."
    assert [(one.full_name, one.values, one.meaning) for one in found] == [
        ("module._SHARE", (0.25,), share),
        ("module._SHARP", (8.0,), share),
        ("module._COUNT", (5,), "nodes"),
        ("module._WEIGHTS", (1.0, 0.5), "Of é, the weights."),
    ]
    assert [SOURCE[one.begin : one.end] for one in found] == [one.text for one in found]
    assert found[-1].text_of((2.0, 1.0)) == "(2.0, 1.0)"


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (8.0, 16.0, 4.0),
        (5, 10, 3),
        (1, 2, 1),
        (0.0, 0.0, 0.0),
        # The odds of one fourth are one to three: two thirds and a sixth.
        (0.25, 0.4, 1 / 7),
    ],
)
def test_numbers_near_by(tool, value, up, down):
    found = tool.near(value, True), tool.near(value, False)
    assert found == pytest.approx((up, down))
    assert {type(one) for one in found} == {type(value)}


def test_a_copy_has_the_other_number_and_nothing_else(tool, tmp_path):
    (first, *_) = tool.constants()
    tool.copy_with(first, first.changed(True), tmp_path)
    for own in tool.FLUID.glob("*.py"):
        copied = (tmp_path / "physim" / "fluid" / own.name).read_text()
        assert (copied == own.read_text()) == (own.stem != first.module)
    after = next(one for one in tool.constants(tmp_path / "physim" / "fluid"))
    assert after.full_name == first.full_name
    assert after.values == pytest.approx(first.changed(True))
    assert (tmp_path / "engines").is_dir()


def test_what_a_change_does_by_hand(ablation):
    exact = [{"ttft mean": 2.0, "itl mean": 1.0, "step_s": 1.0}, {"requests/s": 4.0}]
    before = [{"ttft mean": 2.2, "itl mean": 1.0}, {"requests/s": 5.0}]
    after = [{"ttft mean": 2.6, "itl mean": 1.0}, {"requests/s": 4.4}]
    # Errors of 10, 0 and 25% become 30, 0 and 10%.
    found = ablation.effect(after, (1.0,), before, exact)
    assert (found.median, found.worst) == pytest.approx((0.0, 5.0))
    assert (found.moved, found.mean) == (2, pytest.approx((20 - 15) / 2))
    assert found.most == pytest.approx(100 * 0.4 / 2.2)
    same = ablation.effect(before, (1.0,), before, exact)
    assert (same.median, same.worst, same.moved, same.mean, same.most) == (0, 0, 0, 0, 0)
    # A latency that is no longer predicted is wrong by as much as it is.
    gone = [{"itl mean": 1.0}, {"requests/s": 5.0}]
    assert ablation.effect(gone, (1.0,), before, exact).worst == pytest.approx(75.0)
    assert ablation.effect("Error: no", (1.0,), before, exact).failed == "Error: no"
