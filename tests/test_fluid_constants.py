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
_KNOTS = np.geomspace(2e-3, 1.0, 19)
_FIRST, _SECOND, _THIRD = range(3)
_NUMBER = len(_NAMES) + 1


def function(x):
    _LOCAL = 4.0
    return x[3] + 100 * _LOCAL - 0.5
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
        ("module.PUBLIC", (3.0,), ""),
        ("module._WEIGHTS", (1.0, 0.5), "Of é, the weights."),
        ("module._KNOTS", (2e-3, 19), ""),
    ]
    share, *_, weights, knots = found
    assert "_SHARE, _SHARP = (0.4), 8.0\n" in share.within(SOURCE, (0.4,))
    assert "_WEIGHTS = ((2.0), (1.0))\n" in weights.within(SOURCE, (2.0, 1.0))
    assert "geomspace((0.004), 1.0, (38))\n" in knots.within(SOURCE, (4e-3, 38))


def test_numbers_within_functions_are_found(tool):
    assert list(tool.inline("module", SOURCE)) == ["module.function: 4.0"]


def test_numbers_of_published_forms_are_nobodys_choice(tool):
    assert not list(tool.constants_of("rosenbrock", SOURCE))
    assert not list(tool.inline("rosenbrock", SOURCE))
    every = {name: path.read_text() for name, path in tool.modules().items()}
    for place in tool.FORMS:
        module, *name = place.split(".")
        assert all(one in every[module] for one in name)


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
    for name, copied in tool.modules(tmp_path).items():
        unchanged = copied.read_text() == tool.modules()[name].read_text()
        assert unchanged == (name != first.module)
    after = next(one for one in tool.constants(tmp_path))
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


def test_the_fluid_has_few_chosen_numbers_each_with_a_meaning(tool):
    every = tool.constants()
    assert [one.full_name for one in every if not one.meaning] == []
    assert sum(len(one.values) for one in every) <= 75


def test_no_chosen_number_of_the_fluid_stands_in_a_function(tool):
    texts = {name: path.read_text() for name, path in tool.modules().items()}
    assert [one for name, text in texts.items() for one in tool.inline(name, text)] == []


def test_loads_that_feel_a_module(ablation, tool):
    every = list(range(len(ablation.ROWS) + len(ablation.CLIENTS) + len(ablation.OVERLOADS)))
    assert ablation.feel("steady") == every
    assert ablation.feel("transient") == every[-3:]
    assert [ablation.ROWS[place].server for place in ablation.feel("prompt_runs")] == ["SGLang"] * 2
    assert set(ablation.FELT) <= set(tool.modules())
