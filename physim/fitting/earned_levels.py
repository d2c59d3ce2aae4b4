"""Which corrections of which nodes help rows that a fit has not seen: all others stay at zero.

What a fit learns of a GPU, an engine or a family of models may be peculiar to the rows that it has
of it. So a correction of a node, what all share like any other, may move only if it predicts those
rows of the node better whose image (a campaign, a GPU and an engine's version) or whose model was
left out. Corrections are opened one by one, the one that gains most first. All of it is within the
Gauss-Newton form of the loss about the start, where a fit without a group is one linear solve, so
that thousands of fits take a minute. The level of runs is always open: what is peculiar to a
campaign has to go somewhere, and rows left out are predicted without it, as other campaigns' are.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from physim.corrections.fields import labels
from physim.corrections.levels import LEVELS, Branch
from physim.fitting.empirical_bayes import learned
from physim.fitting.objective import Deviations, Problem
from physim.fitting.observations import METRICS

# How sure a gain has to be, by Student's distribution, and how large. Both were chosen, as `_WORSE`
# was, on fits to public rows of the fit judged by those of validation: surer gains leave only the
# bare physics, and smaller ones do not hold there. With `host_step` of all, a gain of 1.6%, the
# error of ITL there goes from 7.9 to 9.1%; with `experts_compute` of all and of SGLang, 0.6 and
# 0.9%, to 9.4%.
_SURE, _LEAST_GAIN = 0.95, 0.02
# Rows are left out by image, and by model.
_KINDS = 2
# A node with fewer models, GPUs and campaigns does not tell a gain from luck.
_LEAST_UNITS = 4
# Repeats of one configuration of InferenceX's differ by 1 to 2.5% in mean TPOT: an error below that
# is the measurement's.
_FLOOR = 0.02
# By so much of its error may a campaign's rows on a GPU with an engine become worse.
_WORSE = 0.05
# E2E is ITL again, and TTFT.
_JUDGED = [METRICS.index("ttft"), METRICS.index("itl")]

Pair = tuple[int, str]
"""A node, by its place in the tree, and the name of a correction."""
Errors = Float[np.ndarray, "kinds units metrics"]


@dataclass(frozen=True)
class Earned:
    """A correction of a node that helps rows left out.

    Attributes:
        level: The level of the node.
        node: Its name.
        correction: The correction.
        gain: By how much it lowers the logarithm of the error of a model's rows left out, with
            those that were opened before it; the mean over models, GPUs and engines of the node.
        error: Standard error of that mean.
    """

    level: str
    node: str
    correction: str
    gain: float
    error: float

    def to_dict(self) -> dict[str, Any]:
        """As a fit's file holds it."""
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def earned(problem: Problem) -> tuple[Problem, list[Earned]]:
    """A problem in which only what helps rows left out may move, and what that is.

    Rows of one image tell nothing of what holds elsewhere: all levels then stay as wide as they
    are.

    Args:
        problem: The problem, with all levels as wide as their priors.
    """
    rows = LeftOut.from_problem(problem)
    if len(rows.kinds) < _KINDS:
        return problem, []
    opened, found = chosen(rows)
    return rows.closed(problem, opened), found


def chosen(rows: LeftOut) -> tuple[frozenset[Pair], list[Earned]]:
    """What is open, and what those corrections had to show for it that had to.

    One is opened if the mean gain over models on a GPU with an engine in a campaign, of those that
    the node is of, is above zero by Student's test, if they gain whether their image or their model
    is left out, and if no campaign's rows on a GPU with an engine become worse.

    Args:
        rows: The rows.
    """
    opened, found = rows.always, list[Earned]()
    bare = rows.errors(frozenset())
    now = rows.relative(rows.errors(opened), bare)
    while True:
        best: tuple[Earned, Pair, Errors] | None = None
        for pair in sorted(rows.candidates - opened):
            tried = rows.relative(rows.errors(opened | {pair}), bare)
            gain, error = rows.gain(now, tried, pair)
            if (best is None or gain > best[0].gain) and rows.helps(now, tried, pair, gain, error):
                best = Earned(*rows.nodes[pair[0]], pair[1], gain, error), pair, tried
        if best is None:
            return opened, found
        one, pair, now = best
        opened |= {pair}
        found.append(one)


@dataclass(frozen=True)
class LeftOut:
    """Rows about a fit's start as a linear model in the offsets of nodes, and what to leave out.

    Attributes:
        found: The deviations at the start.
        design: Their slopes in the parameters that rows tell something of.
        pair: The node and the correction of each parameter, by its place in ``pairs``.
        pairs: These.
        nodes: Level and name of each node.
        kinds: The group of each deviation that is left out with it, by number: by image, by model.
        unit: The model, GPU, engine and campaign of each row; rows of one err alike.
        along: Whether a unit has rows of a node.
        group: The campaign, GPU and engine of each unit.
        noise: Standard deviations of the logarithms of what was measured.
        weight: How much of a unit's error is that of each row and metric; zero if not measured.
    """

    found: Deviations
    design: Float[np.ndarray, "deviations p"]
    pair: Int[np.ndarray, " p"]
    pairs: Sequence[Pair]
    nodes: Sequence[tuple[str, str]]
    kinds: Sequence[Int[np.ndarray, " deviations"]]
    unit: Int[np.ndarray, " rows"]
    along: Bool[np.ndarray, "units nodes"]
    group: Int[np.ndarray, " units"]
    noise: Float[np.ndarray, "rows metrics"]
    weight: Float[np.ndarray, "rows metrics"]

    @classmethod
    def from_problem(cls, problem: Problem) -> LeftOut:
        """The rows of a problem that count."""
        # Rows of campaigns that scatter more say less, here too.
        problem = learned(problem, problem, problem.centre, learns_widths=False)
        found, tree = problem.deviations(problem.centre), problem.tree
        names = [label.partition("[")[0] for label in labels()]
        nodes, numbers = np.nonzero(problem.moved)
        slopes = tree.along[found.branch][:, nodes] * found.slopes[:, numbers]
        told = np.any(slopes[found.weights > 0] != 0, axis=0)
        nodes, numbers, slopes = nodes[told], numbers[told], slopes[:, told]
        of_columns = [
            (node, names[number])
            for node, number in zip(nodes.tolist(), numbers.tolist(), strict=True)
        ]
        pairs = list(dict.fromkeys(of_columns))
        branches = [tree.branches[place] for place in problem.branch.tolist()]
        of_rows = [_nodes(one, "runs", "gpu", "engine") for one in branches]
        units = _numbers(list(zip(of_rows, problem.models, strict=True)))
        group = np.zeros(max(units) + 1, int)
        group[units] = _numbers(of_rows)
        along = np.zeros((len(group), len(tree.nodes)), bool)
        np.logical_or.at(along, units, tree.along[problem.branch] > 0)
        known = problem.stages.known[:, _JUDGED] & (problem.stages.weight > 0)[:, None]
        # Rows of an image have their machines in common.
        images = [_nodes(one, "runs", "gpu", "version") for one in tree.branches]
        kinds = (
            _numbers([images[place] for place in found.branch.tolist()]),
            _numbers(problem.models_of_deviations),
        )
        return cls(
            found,
            slopes * problem.widths[tree.level[nodes], numbers],
            np.array([pairs.index(one) for one in of_columns], int),
            pairs,
            tree.nodes,
            [kind for kind in kinds if len(np.unique(kind[found.weights > 0])) > 1],
            units,
            along,
            group,
            problem.noise[problem.source][:, _JUDGED],
            known * problem.stages.weight[:, None],
        )

    @functools.cached_property
    def always(self) -> frozenset[Pair]:
        """What is open whatever rows say: the level of runs."""
        return frozenset(one for one in self.pairs if self.nodes[one[0]][0] == "runs")

    @functools.cached_property
    def candidates(self) -> frozenset[Pair]:
        """What may be opened."""
        return frozenset(self.pairs) - self.always

    def closed(self, problem: Problem, opened: frozenset[Pair]) -> Problem:
        """A problem in which nothing else may move.

        Args:
            problem: The problem.
            opened: What may.
        """
        names = [label.partition("[")[0] for label in labels()]
        keeps = [
            [level == "runs" or (place, name) in opened for name in names]
            for place, (level, _) in enumerate(problem.tree.nodes)
        ]
        return replace(problem, opened=np.array(keeps))

    @functools.cached_property
    def _told(self) -> list[list[tuple[Bool[np.ndarray, " deviations"], np.ndarray, np.ndarray]]]:
        """Of each group of each kind which rows it has, and what those of others tell."""
        pulled = self.found.pull[:, None] * self.design
        curvature, gradient = self.design.T @ pulled, pulled.T @ self.found.sizes
        told = []
        for kind in self.kinds:
            groups = []
            for group in np.unique(kind[self.found.weights > 0]).tolist():
                inside = kind == group
                part = pulled[inside]
                own = part.T @ self.design[inside], part.T @ self.found.sizes[inside]
                groups.append((inside, curvature - own[0], gradient - own[1]))
            told.append(groups)
        return told

    def predicted(self, opened: frozenset[Pair]) -> Float[np.ndarray, "kinds rows metrics"]:
        """Errors of rows by a fit without their group, logarithms.

        Args:
            opened: The levels that it may move.
        """
        places = [place for place, one in enumerate(self.pairs) if one in opened]
        columns = np.flatnonzero(np.isin(self.pair, places))
        runs = [place for place in places if self.pairs[place] in self.always]
        elsewhere = ~np.isin(self.pair[columns], runs)
        found = np.tile(self.found.sizes, (len(self.kinds), 1))
        if len(columns):
            design = self.design[:, columns[elsewhere]]
            for sizes, groups in zip(found, self._told, strict=True):
                for inside, curvature, gradient in groups:
                    some = curvature[np.ix_(columns, columns)] + np.eye(len(columns))
                    step = -np.linalg.solve(some, gradient[columns])[elsewhere]
                    sizes[inside] += design[inside] @ step
        count = len(self.unit) * len(METRICS)
        stages = found[:, :count].reshape(len(found), len(self.unit), len(METRICS))
        return np.asarray(stages[..., _JUDGED] * self.noise)

    def errors(self, opened: frozenset[Pair]) -> Errors:
        """Mean absolute error of each unit's rows by a fit without their group.

        Args:
            opened: The levels that it may move.
        """
        off = np.abs(self.predicted(opened)) * self.weight
        found = np.zeros((len(off), len(self.group), off.shape[-1]))
        for kind, own in zip(found, off, strict=True):
            np.add.at(kind, self.unit, own)
        return found / np.maximum(self._weight_of_units, np.finfo(float).tiny)

    @functools.cached_property
    def _weight_of_units(self) -> Float[np.ndarray, "units metrics"]:
        found = np.zeros((len(self.group), self.weight.shape[1]))
        np.add.at(found, self.unit, self.weight)
        return found

    def relative(self, errors: Errors, bare: Errors) -> Errors:
        """Logarithm of errors over those with no level open; zero where nothing was measured."""
        ratios = np.log((errors + _FLOOR) / (bare + _FLOOR))
        found: Errors = np.where(self._weight_of_units > 0, ratios, 0.0)
        return found

    def gain(self, before: Errors, after: Errors, pair: Pair) -> tuple[float, float]:
        """Mean gain of the units of a node, and its standard error; infinite for one unit."""
        gains = np.mean(self._gains(before, after, pair), axis=(0, 2))
        if len(gains) < 2:
            return 0.0, np.inf
        return float(np.mean(gains)), float(np.std(gains, ddof=1) / np.sqrt(len(gains)))

    def helps(self, before: Errors, after: Errors, pair: Pair, gain: float, error: float) -> bool:
        """Whether a gain is sure, of whichever kind is left out, and nowhere a loss."""
        gains = self._gains(before, after, pair)
        if gains.shape[1] < _LEAST_UNITS:
            return False
        sure = stdtrit(gains.shape[1] - 1, _SURE) * error
        if not gain > max(sure, _LEAST_GAIN):
            return False
        if np.any(np.mean(gains, axis=(1, 2)) <= 0):
            return False
        return self.worst(after) < _WORSE

    def _gains(
        self, before: Errors, after: Errors, pair: Pair
    ) -> Float[np.ndarray, "kinds some metrics"]:
        """The gains of the units that are of a pair's node."""
        counted = np.any(self._weight_of_units > 0, axis=1) & self.along[:, pair[0]]
        return np.asarray((before - after)[:, counted])

    def worst(self, relative: Errors) -> float:
        """The largest mean of `relative` of a campaign, GPU and engine, by kind and metric."""
        count = np.zeros((len(self.group), self.weight.shape[1]))
        np.add.at(count, self.unit, (self.weight > 0).astype(float))
        worst = -np.inf
        for group in np.unique(self.group):
            own = self.group == group
            rows = np.sum(count[own], axis=0)
            means = np.sum(relative[:, own] * count[own], axis=1) / np.maximum(rows, 1.0)
            worst = max(worst, float(np.max(means)))
        return worst


def _nodes(branch: Branch, *levels: str) -> tuple[str, ...]:
    """The nodes of a branch on some levels."""
    return tuple(branch[LEVELS.index(level)] for level in levels)


def _numbers(values: Sequence[Hashable]) -> Int[np.ndarray, " _"]:
    """Values by the place of each among those that there are."""
    place = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([place[value] for value in values], int)
