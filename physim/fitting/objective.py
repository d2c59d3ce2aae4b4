"""The loss of a fit: how far predictions are off, and how far corrections are from their priors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from physim.corrections.fields import CORRECTIONS, labels
from physim.corrections.files import Fit
from physim.corrections.levels import Evidence, Spread, Tree, Widths, prior_widths
from physim.fitting.bins import COARSER
from physim.fitting.observations import METRICS, NOISE, Observed, Stages, groups
from physim.fitting.slopes import cycles_along, latencies_along, percentiles_along
from physim.fitting.step_cycles import CLOCK_NAMES, Cycles, Trace
from physim.fitting.step_cycles import NOISE as STEP_NOISE

# The network of the residual takes so many campaigns: fewer do not tell it from their own ways.
_CAMPAIGNS = 3
# Degrees of freedom of Student's distribution of deviations: a few rows are far off whatever is
# fitted, and a deviation of many standard deviations should pull less than one of two (Lange,
# Little and Taylor, JASA 84, 1989, who find four robust).
_FREEDOM = 4.0

Vector = Float[np.ndarray, " p"]
Matrix = Float[np.ndarray, "p p"]
Sizes = Float[np.ndarray, " deviations"]
Slopes = Float[np.ndarray, "deviations n"]
Offsets = Float[np.ndarray, "nodes n"]


def pulled(sizes: Sizes) -> Sizes:
    """How much deviations of so many standard deviations pull, where small ones pull by one.

    Args:
        sizes: The deviations.
    """
    found: Sizes = (_FREEDOM + 1) / (_FREEDOM + sizes**2)
    return found


@dataclass(frozen=True)
class Deviations:
    """Errors of predictions, in standard deviations, and their slopes in their own corrections.

    Attributes:
        sizes: Deviations: those of stages metric by metric, of ends of bins, then of steps.
        slopes: Their derivatives in the corrections of their branch.
        weights: How much each counts.
        branch: The branch of each, by its place in the tree.
    """

    sizes: Sizes
    slopes: Slopes
    weights: Sizes
    branch: Int[np.ndarray, " deviations"]

    def joined(self, others: Deviations) -> Deviations:
        """These, and others after them."""
        return Deviations(
            np.append(self.sizes, others.sizes),
            np.concatenate([self.slopes, others.slopes]),
            np.append(self.weights, others.weights),
            np.append(self.branch, others.branch),
        )

    @property
    def loss(self) -> float:
        """Minus the logarithm of Student's density, up to a constant."""
        logs = np.log1p(self.sizes**2 / _FREEDOM)
        return float((_FREEDOM + 1) / 2 * np.sum(self.weights * logs))

    @property
    def pull(self) -> Sizes:
        """The weight of each in a least-squares problem that has the loss's slopes here."""
        return self.weights * pulled(self.sizes)

    def told(self, branches: int) -> tuple[Float[np.ndarray, "b n n"], Float[np.ndarray, "b n"]]:
        """Curvature, after Gauss and Newton, and gradient in the corrections of each branch."""
        size = self.slopes.shape[1]
        curvature, gradient = np.zeros((branches, size, size)), np.zeros((branches, size))
        pulled = self.pull[:, None] * self.slopes
        for branch in np.unique(self.branch).tolist():
            own = self.branch == branch
            curvature[branch] = self.slopes[own].T @ pulled[own]
            gradient[branch] = pulled[own].T @ self.sizes[own]
        return curvature, gradient


@dataclass(frozen=True)
class Quadratic:
    """The loss near some parameters, to second order.

    Attributes:
        gradient: Its gradient.
        free: Parameters that rows tell something of; of the others the curvature is the prior's, 1.
        curvature: Among the free ones.
    """

    gradient: Vector
    free: Bool[np.ndarray, " p"]
    curvature: Float[np.ndarray, "f f"]

    def step(self, damping: float = 0.0) -> Vector:
        """The step to the minimum.

        Args:
            damping: Share by which curvatures are raised (Marquardt).
        """
        found = -self.gradient / (1 + damping)
        damped = self.curvature + damping * np.diag(np.diag(self.curvature))
        found[self.free] = -np.linalg.solve(damped, self.gradient[self.free])
        return found

    @functools.cached_property
    def inverse(self) -> Float[np.ndarray, "f f"]:
        """Covariance of the free parameters."""
        return np.linalg.inv(self.curvature)


@dataclass(frozen=True)
class Problem:
    """What is fitted, to what.

    Parameters are the offsets of nodes that may move, in units of their prior's standard
    deviation, so that all are of order one.

    Attributes:
        stages: Measured stages.
        cycles: Measured steps, if there are any.
        tree: The branches of both, and of the fit that it starts from.
        branch: The branch of each stage, by its place in the tree.
        run_branch: The branch of each run of the steps, likewise.
        models: The model of each stage,
        run_models: and of each run.
        source: The campaign and population of each stage, by number.
        widths: Prior standard deviations of offsets, by level; zero for what is held.
        noise: Standard deviations of the logarithms of what was measured, by source and metric.
        step_noise: That of a step's time, by what its clock covers.
        start: Offsets to start from, and of what is held.
        base: What the fit that it starts from was told of each branch, at ``start``.
        opened: Which corrections of which nodes may move; None for all whose levels have a width.
    """

    stages: Stages
    cycles: Cycles | None
    tree: Tree
    branch: Int[np.ndarray, " rows"]
    run_branch: Int[np.ndarray, " runs"]
    models: Sequence[str]
    run_models: Sequence[str]
    source: Int[np.ndarray, " rows"]
    widths: Widths
    noise: Float[np.ndarray, "sources metrics"]
    start: Offsets
    base: Float[np.ndarray, "b n n"]
    step_noise: Float[np.ndarray, " clocks"] = field(
        default_factory=lambda: np.full(len(CLOCK_NAMES), STEP_NOISE)
    )
    opened: Bool[np.ndarray, "nodes n"] | None = None

    @classmethod
    def from_observed(
        cls,
        observed: Observed,
        trace: Trace | None = None,
        frozen: tuple[str, ...] = (),
        prior_scale: float = 1.0,
        base: Fit | None = None,
    ) -> Problem:
        """A problem: the residual is in it where there are campaigns enough.

        Args:
            observed: Measured stages.
            trace: Measured steps.
            frozen: Corrections that stay as they are.
            prior_scale: Factor on the widths of all priors.
            base: A fit to start from.
        """
        evidence = None if base is None else base.evidence
        of_rows = observed.branches
        of_runs = [] if trace is None else list(trace.branches)
        of_base = () if evidence is None else evidence.tree.branches
        tree = Tree(tuple(dict.fromkeys((*of_rows, *of_runs, *of_base))))
        place = {branch: number for number, branch in enumerate(tree.branches)}
        names = [label.partition("[")[0] for label in labels()]
        widths = prior_widths()
        if base is not None and base.widths is not None:
            widths = np.zeros_like(widths)
            widths[:, : len(CORRECTIONS)] = base.widths
        campaigns = set(groups(observed.rows, "campaign"))
        held = frozen if len(campaigns) >= _CAMPAIGNS else (*frozen, "residual")
        widths = np.where(np.isin(names, held), 0.0, widths * prior_scale)
        start, told = (
            np.zeros((len(tree.nodes), len(names))),
            np.zeros((len(tree.branches), len(names), len(names))),
        )
        noise = NOISE
        if base is not None:
            for row, node in enumerate(tree.nodes):
                start[row] = base.offsets.get(node, 0.0)
            noise = np.array([base.noise.get(metric, NOISE[m]) for m, metric in enumerate(METRICS)])
        if evidence is not None:
            size = evidence.curvature.shape[-1]
            for branch, curvature in zip(of_base, evidence.curvature, strict=True):
                told[place[branch], :size, :size] = curvature
        sources = list(dict.fromkeys(observed.sources))
        return cls(
            observed.stages,
            None if trace is None else trace.cycles,
            tree,
            np.array([place[branch] for branch in of_rows], int),
            np.array([place[branch] for branch in of_runs], int),
            groups(observed.rows, "model"),
            [] if trace is None else trace.models,
            np.array([sources.index(name) for name in observed.sources], int),
            widths,
            np.tile(noise, (len(sources), 1)),
            start,
            told,
        )

    @functools.cached_property
    def moved(self) -> Bool[np.ndarray, "nodes n"]:
        """Which corrections of which nodes are parameters."""
        found: Bool[np.ndarray, "nodes n"] = self.widths[self.tree.level] > 0
        return found if self.opened is None else found & self.opened

    @property
    def of_bins(self) -> slice:
        """Where deviations of ends of bins are."""
        start = self.stages.observed.size
        return slice(start, start + len(self.stages.bins.row))

    @property
    def of_steps(self) -> slice:
        """Where deviations of steps are."""
        return slice(self.of_bins.stop, None)

    @property
    def noise_of_bins(self) -> Float[np.ndarray, " ends"]:
        """Standard deviation of each percentile's logarithm: the model's error, and chance."""
        bins = self.stages.bins
        coarse = COARSER * self.noise[self.source[bins.row], bins.metric]
        found: Float[np.ndarray, " ends"] = np.hypot(coarse, bins.sampling)
        return found

    @property
    def models_of_deviations(self) -> list[str]:
        """The model of each deviation."""
        found = [model for model in self.models for _ in METRICS]
        found += [self.models[row] for row in self.stages.bins.row.tolist()]
        steps = [] if self.cycles is None else np.asarray(self.cycles.run).tolist()
        return found + [self.run_models[run] for run in steps]

    @property
    def centre(self) -> Vector:
        """The parameters to start from."""
        return self.standardised(self.start)

    def standardised(self, offsets: Offsets) -> Vector:
        """The parameters that stand for offsets."""
        found: Vector = offsets[self.moved] / self.widths[self.tree.level][self.moved]
        return found

    def offsets(self, parameters: Vector) -> Offsets:
        """The offsets that parameters stand for."""
        found = self.start.copy()
        found[self.moved] = parameters * self.widths[self.tree.level][self.moved]
        return found

    def corrections(self, parameters: Vector) -> Float[np.ndarray, "b n"]:
        """The corrections of each branch."""
        return self.tree.along @ self.offsets(parameters)

    def loss(self, parameters: Vector) -> float:
        """The loss; infinite where a stage that counts is predicted to be above capacity.

        Its prior is about the offsets to start from, where the loss of what the fit that it starts
        from was told, with the prior of that, is least.
        """
        found = self._deviations(parameters, None)
        if not np.all(np.isfinite(found.sizes)):
            return np.inf
        off = self.corrections(parameters) - self.tree.along @ self.start
        before = float(np.einsum("bi,bij,bj->", off, self.base, off))
        moved = parameters - self.centre
        return found.loss + (before + float(moved @ moved)) / 2

    def about(self, found: Deviations, parameters: Vector) -> Quadratic:
        """The loss near some parameters, after Gauss and Newton.

        Args:
            found: The deviations there.
            parameters: The parameters.
        """
        curvature, gradient = found.told(len(self.tree.branches))
        off = self.corrections(parameters) - self.tree.along @ self.start
        gradient += np.einsum("bij,bj->bi", self.base, off)
        curvature += self.base
        free = self.moved & (self.tree.told(curvature) > 0)
        scale = self.widths[self.tree.level]
        some = self.tree.assembled(curvature, free) * np.outer(scale[free], scale[free])
        return Quadratic(
            (self.tree.along.T @ gradient)[self.moved] * scale[self.moved]
            + (parameters - self.centre),
            free[self.moved],
            some + np.eye(len(some)),
        )

    def deviations(self, parameters: Vector) -> Deviations:
        """Deviations and their slopes; those of rows without a prediction count for nothing."""
        found = self._deviations(parameters, self._directions)
        counts = np.isfinite(found.sizes)
        return replace(
            found,
            sizes=np.where(counts, found.sizes, 0.0),
            slopes=np.where(counts[:, None], found.slopes, 0.0),
            weights=np.where(counts, found.weights, 0.0),
        )

    def untold_as_before(self, parameters: Vector) -> Vector:
        """The parameters, but for corrections that no deviation has a slope in: these as before.

        The fit that it starts from knows corrections together, such as those of dense GEMMs and of
        experts, so that what runs of a dense model tell of the one moves the other at the minimum.

        Args:
            parameters: The parameters.
        """
        found = self.deviations(parameters)
        told = np.any(found.weights[:, None] * found.slopes != 0, axis=0)
        offsets = np.where(told, self.offsets(parameters), self.start)
        return self.standardised(offsets)

    def spread_of(self, near: Quadratic) -> Float[np.ndarray, "b n n"]:
        """Covariance of the corrections of each branch.

        Args:
            near: The loss near its minimum.
        """
        scale, free = self.widths[self.tree.level], np.zeros_like(self.moved)
        free[self.moved] = near.free
        inverse = near.inverse
        found = np.zeros((len(self.tree.branches), *[self.moved.shape[1]] * 2))
        place = np.full(free.shape, -1)
        place[free] = np.arange(len(inverse))
        for branch, own in zip(self.tree.branches, found, strict=True):
            nodes = self.tree.places(branch)
            which, columns = np.nonzero(place[nodes] >= 0)
            rows = place[nodes][which, columns]
            width = scale[nodes][which, columns]
            sums = np.zeros((self.moved.shape[1], len(rows)))
            sums[columns, np.arange(len(rows))] = width
            own[:] = sums @ inverse[np.ix_(rows, rows)] @ sums.T
            # What nothing is told of is as uncertain as its prior.
            held = self.moved[nodes] & ~free[nodes]
            own[np.diag_indices(len(own))] += np.sum(np.where(held, scale[nodes] ** 2, 0.0), axis=0)
        return found

    def evidence(self, found: Deviations) -> Evidence:
        """What the deviations and the fit that it starts from tell of each branch.

        The residual is taken as known.
        """
        curvature, _ = found.told(len(self.tree.branches))
        named = len(CORRECTIONS)
        return Evidence(self.tree, (curvature + self.base)[:, :named, :named])

    def spread(self, found: Deviations) -> Spread:
        """How well the corrections of any branch are known: as predictions with the fit have it.

        All levels are uncertain, also those that may not move.
        """
        return self.evidence(found).spread(self.widths[:, : len(CORRECTIONS)])

    def held(self, which: Bool[np.ndarray, " n"], value: float = 0.0) -> Problem:
        """The same problem, some corrections held at a value for all branches."""
        start = np.where(which, 0.0, self.start)
        start[self.tree.level == 0] += np.where(which, value, 0.0)
        return replace(self, widths=np.where(which, 0.0, self.widths), start=start)

    @functools.cached_property
    def _directions(self) -> Float[np.ndarray, "k n"]:
        """The corrections that have slopes: all, but for the residual where it is held."""
        size, named = self.widths.shape[1], len(CORRECTIONS)
        return np.eye(size)[: size if np.any(self.widths[:, named:]) else named]

    def _deviations(
        self, parameters: Vector, directions: Float[np.ndarray, "k n"] | None
    ) -> Deviations:
        """Deviations, not finite where there is no prediction or it does not count.

        Args:
            parameters: The parameters.
            directions: The corrections that slopes are wanted in; without any, slopes are zero.
        """
        corrections = self.corrections(parameters)
        stages = self.stages
        values, slopes = latencies_along(stages.chunks, corrections[self.branch], directions)
        noise = self.noise[self.source]
        weights = stages.weights
        sizes = np.where(weights > 0, (values - stages.observed) / noise, 0.0)
        slopes = np.where(weights[..., None] > 0, slopes / noise[..., None], 0.0)
        found = Deviations(
            sizes.ravel(),
            slopes.reshape(sizes.size, slopes.shape[-1]),
            weights.ravel(),
            np.repeat(self.branch, len(METRICS)),
        )
        if len(stages.bins.row):
            found = found.joined(self._of_bins(corrections, directions))
        if self.cycles is None:
            return found
        steps, of_runs = self.cycles, corrections[self.run_branch]
        logs, of_steps = cycles_along(steps, of_runs, directions)
        noise = self.step_noise[steps.clock]
        return found.joined(
            Deviations(
                (logs - steps.observed) / noise,
                of_steps / noise[:, None],
                np.asarray(steps.weight),
                self.run_branch[steps.run],
            )
        )

    def _of_bins(
        self, corrections: Float[np.ndarray, "b n"], directions: Float[np.ndarray, "k n"] | None
    ) -> Deviations:
        bins, noise = self.stages.bins, self.noise_of_bins
        counted = [one for one in self.stages.chunks if np.any(bins.looks[one.places])]
        values, slopes = percentiles_along(
            counted, bins.shares, corrections[self.branch], directions
        )
        own = bins.row, bins.metric, bins.place
        weights, counts = self.stages.weights_of_bins, self.stages.weights_of_bins > 0
        return Deviations(
            np.where(counts, (values[own] - bins.observed) / noise, 0.0),
            np.where(counts[:, None], slopes[own] / noise[:, None], 0.0),
            weights,
            self.branch[bins.row],
        )
