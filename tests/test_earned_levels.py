"""Levels of corrections that have to help rows left out, in hand-computed numbers."""

import numpy as np
import pytest

from physim.fitting.earned_levels import LeftOut, chosen
from physim.fitting.objective import Deviations

NODES = [("shared", "all"), ("gpu", "h100_sxm"), ("runs", "mine")]
SHARED, GPU, RUNS = (0, "front_end"), (1, "gemm_memory"), (2, "front_end")


def rows(ttft, columns, images, group=None):
    """Rows of which TTFT was measured, each a unit of its own with a model of its own.

    Args:
        ttft: The deviation of each at the start.
        columns: For each parameter its node and correction, and the slope of each row in it.
        images: The image of each row.
        group: The campaign, GPU and engine of each row; all of one if not given.
    """
    count = len(ttft)
    first = 3 * np.arange(count)
    sizes, weights = np.zeros(3 * count), np.zeros(3 * count)
    sizes[first], weights[first] = ttft, 1.0
    design = np.zeros((3 * count, len(columns)))
    along = np.ones((count, len(NODES)), bool)
    for place, ((node, _), slopes) in enumerate(columns):
        design[first, place] = slopes
        along[:, node] = np.broadcast_to(slopes, count) > 0
    pairs = list(dict.fromkeys(pair for pair, _ in columns))
    return LeftOut(
        Deviations(sizes, design, weights, np.zeros(3 * count, int)),
        design,
        np.array([pairs.index(pair) for pair, _ in columns]),
        pairs,
        NODES,
        (np.repeat(images, 3), np.repeat(np.arange(count), 3)),
        np.arange(count),
        along,
        np.zeros(count, int) if group is None else np.array(group),
        np.full((count, 2), 0.1),
        np.tile([1.0, 0.0], (count, 1)),
    )


def test_a_row_left_out_is_predicted_by_the_others():
    both = rows([2.0, 2.0], [(SHARED, 1.0), (RUNS, 1.0)], [0, 1])
    # The other row pulls with 5 / (4 + 2^2), against a prior of curvature 1.
    step = 0.625 * 2.0 / (0.625 + 1.0)
    found = both.predicted(frozenset({SHARED}))
    assert found[:, :, 0] == pytest.approx(0.1 * (2.0 - step))
    # What is peculiar to a campaign does nothing for another.
    assert both.predicted(frozenset({RUNS}))[:, :, 0] == pytest.approx(0.2)
    # With both open each takes half of what there is.
    step = 0.625 * 2.0 / (2 * 0.625 + 1.0)
    assert both.predicted(frozenset({SHARED, RUNS}))[:, :, 0] == pytest.approx(0.1 * (2.0 - step))


def test_gains_are_of_logarithms_of_errors_with_a_floor():
    both = rows([2.0, 1.0], [(SHARED, 1.0)], [0, 1])
    bare = both.errors(frozenset())
    assert bare[0, :, 0].tolist() == pytest.approx([0.2, 0.1])
    relative = both.relative(np.array([[[0.1, 0.0], [0.1, 0.0]]] * 2), bare)
    # Half of 20% and 2%, of TTFT alone: the mean over two metrics is half of it.
    assert relative[0, 0, 0] == pytest.approx(np.log(0.12 / 0.22))
    gain, error = both.gain(np.zeros_like(relative), relative, SHARED)
    assert gain == pytest.approx(np.log(0.22 / 0.12) / 2 / 2)
    assert error == pytest.approx(np.log(0.22 / 0.12) / 2 / 2)


def test_what_all_rows_share_is_earned():
    opened, found = chosen(rows([2.0, 2.2, 1.8, 2.1], [(SHARED, 1.0), (RUNS, 1.0)], [0, 0, 1, 1]))
    assert opened == {SHARED, RUNS}
    assert [(one.level, one.node, one.correction) for one in found] == [
        ("shared", "all", "front_end")
    ]
    assert found[0].gain > 2 * found[0].error > 0


def test_what_half_of_the_rows_contradict_is_not_earned():
    opened, found = chosen(rows([2.0, 2.2, -1.8, -2.1], [(SHARED, 1.0)], [0, 0, 1, 1]))
    assert not opened
    assert not found


def test_a_level_of_one_image_is_not_earned():
    # Rows of the GPU help each other when a model is left out, but all are of one image.
    own = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    opened, _ = chosen(rows([2.0, 2.2, 1.8, 2.0, 2.1], [(GPU, own)], [0, 0, 0, 0, 1]))
    assert not opened
    opened, _ = chosen(rows([2.0, 2.2, 1.8, 2.0, 2.1], [(GPU, own)], [0, 1, 2, 3, 4]))
    assert opened == {GPU}


def test_three_models_do_not_tell_a_gain_from_luck():
    assert not chosen(rows([2.0, 2.2, 1.8], [(SHARED, 1.0)], [0, 1, 2]))[0]


def test_only_rows_of_a_node_are_asked():
    # Four rows of a GPU gain; twenty of others, which are right, do not count against it.
    own = np.array([1.0] * 4 + [0.0] * 20)
    opened, found = chosen(rows([2.0, 2.2, 1.8, 2.1] + [0.0] * 20, [(GPU, own)], range(24)))
    assert opened == {GPU}
    assert found[0].node == "h100_sxm"


def test_what_makes_a_campaign_worse_is_not_earned():
    ttft = [2.0] * 9 + [-0.5]
    own = rows(ttft, [(SHARED, 1.0)], range(10), [0] * 9 + [1])
    assert own.gain(np.zeros((2, 10, 2)), own.relative(*_errors(own)), SHARED)[0] > 0
    assert not chosen(own)[0]
    assert chosen(rows(ttft, [(SHARED, 1.0)], range(10)))[0] == {SHARED}


def _errors(own):
    return own.errors(frozenset({SHARED})), own.errors(frozenset())
