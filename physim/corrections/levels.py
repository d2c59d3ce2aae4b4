"""Levels of corrections: what is shared by all, and offsets by GPU, engine, version and so on.

The corrections of a case are the sum of the offsets of the nodes on its branch: one node on each
level. A node of which no runs are known has an offset of zero, as uncertain as its level is wide.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.corrections.fields import CORRECTIONS, PRIOR_WIDTHS, flat, labels
from physim.inputs.case import Case
from physim.service.phases import DECODE

# Coarse to fine. ``runs`` are those of one campaign: its machines, clients and days.
LEVELS = ("shared", "gpu", "engine", "version", "family", "runs")
# Each level's share in the variance of the prior, before runs say more.
_SHARES = {
    "shared": 0.3,
    "gpu": 0.2,
    "engine": 0.15,
    "version": 0.05,
    "family": 0.15,
    "runs": 0.15,
}

Branch = tuple[str, ...]
"""The name of a case's node on each of `LEVELS`; empty where there is none."""
Vector = Float[np.ndarray, " n"]
Matrix = Float[np.ndarray, "n n"]
Widths = Float[np.ndarray, "levels _"]


def branch_of(case: Case, runs: str = "") -> Branch:
    """The nodes that a case's corrections are the sum of.

    Args:
        case: The case.
        runs: The campaign that it is of, if any that is known.
    """
    # Pools of a service are of one engine as a rule; most of its time goes by those that generate.
    server = case.server_of(DECODE)
    profile = server.profile
    version = f"{profile.engine} {profile.version}"
    family = f"{profile.engine} {case.model.family}"
    return ("all", server.gpu.key, profile.engine, version, family, runs)


def population_of(case: Case) -> str:
    """Those that scatter alike beyond what a fit knows: an engine's dense models, or its others."""
    kind = "experts" if case.model.experts else "dense"
    return f"{case.server_of(DECODE).profile.engine} {kind}"


def prior_widths() -> Widths:
    """Standard deviations of offsets by level, before any run.

    A GPU and a family of models have their own kernels, but not their own engine around them: what
    differs there between families is who measured them. The residual is shared by all.
    """
    prior, names = flat(PRIOR_WIDTHS), labels()
    named = np.isin(names, list(CORRECTIONS))
    kernels = np.array(
        [name in CORRECTIONS and not CORRECTIONS[name].carries_over for name in names]
    )
    widths = np.array([np.sqrt(_SHARES[level]) * prior * named for level in LEVELS])
    for level in ("gpu", "family"):
        widths[LEVELS.index(level), ~kernels] = 0.0
    widths[0, ~named] = prior[~named]
    return widths


@dataclass(frozen=True)
class Tree:
    """Branches, and the nodes that they go through.

    Attributes:
        branches: The branches, each once.
    """

    branches: tuple[Branch, ...]

    @functools.cached_property
    def nodes(self) -> list[tuple[str, str]]:
        """Level and name of each node; all shared ones are one."""
        found = [
            (level, branch[place])
            for place, level in enumerate(LEVELS)
            for branch in self.branches
            if branch[place]
        ]
        return list(dict.fromkeys(found))

    @functools.cached_property
    def level(self) -> Int[np.ndarray, " nodes"]:
        """The level of each node, by its place in `LEVELS`."""
        return np.array([LEVELS.index(level) for level, _ in self.nodes])

    @functools.cached_property
    def along(self) -> Float[np.ndarray, "branches nodes"]:
        """One where a branch goes through a node."""
        found = np.zeros((len(self.branches), len(self.nodes)))
        for row, branch in enumerate(self.branches):
            found[row, self.places(branch)] = 1.0
        return found

    def places(self, branch: Branch) -> list[int]:
        """The nodes of a branch that the tree knows."""
        place_of = {node: place for place, node in enumerate(self.nodes)}
        own = zip(LEVELS, branch, strict=True)
        return [place_of[node] for node in own if node in place_of]

    def told(self, curvature: Float[np.ndarray, "branches n n"]) -> Float[np.ndarray, "nodes n"]:
        """Curvature along each correction of each node alone."""
        return self.along.T @ np.einsum("bii->bi", curvature)

    def assembled(
        self, curvature: Float[np.ndarray, "branches n n"], chosen: Bool[np.ndarray, "nodes n"]
    ) -> Float[np.ndarray, "chosen chosen"]:
        """Curvature in the offsets of nodes, from that in the corrections of each branch.

        Args:
            curvature: In the corrections of each branch.
            chosen: Which corrections of which nodes are wanted.
        """
        count = int(np.sum(chosen))
        place = np.full(chosen.shape, -1)
        place[chosen] = np.arange(count)
        found = np.zeros((count, count))
        for branch, own in zip(self.branches, curvature, strict=True):
            places = place[self.places(branch)]
            _, columns = np.nonzero(places >= 0)
            rows = places[places >= 0]
            found[np.ix_(rows, rows)] += own[np.ix_(columns, columns)]
        return found


@dataclass(frozen=True)
class Evidence:
    """What runs tell of the corrections of their branches, to second order.

    Attributes:
        tree: The branches.
        curvature: Of the loss without its prior, in the corrections of each branch.
    """

    tree: Tree
    curvature: Float[np.ndarray, "branches n n"]

    def spread(self, widths: Widths) -> Spread:
        """How well the offsets of nodes are known.

        Args:
            widths: Standard deviations of their priors, by level.
        """
        own = widths[self.tree.level]
        # What no run tells anything of is left out: it is as uncertain as it was.
        known = (own > 0) & (self.tree.told(self.curvature) > 0)
        some = self.tree.assembled(self.curvature, known)
        precision = some + np.diag(own[known] ** -2.0)
        # By Cholesky, which refuses what is no precision; SciPy's takes longer to import than this.
        root = np.linalg.inv(np.linalg.cholesky(precision))
        return Spread(self.tree, widths, known, root.T @ root)


@dataclass(frozen=True)
class Spread:
    """The distribution of nodes' offsets.

    Attributes:
        tree: The nodes.
        widths: Standard deviations of the levels.
        known: Which of their corrections runs tell something of.
        covariance: The covariance of these.
    """

    tree: Tree
    widths: Widths
    known: Bool[np.ndarray, "nodes n"]
    covariance: Float[np.ndarray, "known known"]

    def at_branch(self, branch: Branch) -> Matrix:
        """Covariance of the corrections of a branch, known or not."""
        places, size = self.tree.places(branch), self.widths.shape[1]
        own = np.zeros((len(self.tree.nodes), size, size))
        own[places] = np.eye(size)
        columns = own[self.known]
        unknown = np.sum(self.widths**2, axis=0)
        for place in places:
            level = self.tree.level[place]
            unknown -= np.where(self.known[place], self.widths[level] ** 2, 0.0)
        found: Matrix = columns.T @ self.covariance @ columns
        return found + np.diag(np.maximum(unknown, 0.0))


def joined(one: Evidence, other: Evidence) -> Evidence:
    """What both tell."""
    tree = Tree(tuple(dict.fromkeys((*one.tree.branches, *other.tree.branches))))
    curvature = np.zeros((len(tree.branches), *one.curvature.shape[1:]))
    for evidence in (one, other):
        rows = [tree.branches.index(branch) for branch in evidence.tree.branches]
        curvature[rows] += evidence.curvature
    return replace(one, tree=tree, curvature=curvature)


def common(branches: Sequence[Branch]) -> Branch:
    """The nodes that all branches go through."""
    columns = zip(*branches, strict=True)
    return tuple(names[0] if len(set(names)) == 1 else "" for names in columns)
