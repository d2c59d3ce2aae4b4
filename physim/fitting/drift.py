"""Whether a server is still the one that a fit was made on.

A fit says what corrections it takes a server to have and how well it knows them. If today's runs
lie further off than that and their own noise explain, the server has changed: its version, its
clocks, a neighbour on the machine.

The statistic is the score's (Rao, 1948; Cox and Hinkley, Theoretical Statistics, 1974, 9.3): with
deviations r of today's runs in standard deviations, their slopes J in the corrections, weights W
that let outliers pull less, and the fit's covariance C, the score J'Wr has the covariance
J'WWJ + F C F where nothing changed, F = J'WJ. Its square in that metric is as large as chi squared
with as many degrees of freedom as there are directions that today's runs tell more of than the
priors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import chi2

from physim.corrections.fields import CORRECTIONS, PRIOR_WIDTHS, flat
from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.corrections.levels import Branch, branch_of
from physim.errors import InputError
from physim.fitting.next_runs import spread_of
from physim.fitting.objective import pulled
from physim.fitting.observations import METRICS, NOISE, Observed, observe
from physim.fitting.slopes import cycles_along, latencies_along
from physim.fitting.step_cycles import CLOCK_NAMES, observe_served
from physim.fitting.step_cycles import NOISE as STEP_NOISE
from physim.inputs.case import Case
from physim.measured.step_files import read_step_files
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

# False alarms in so many checks.
FALSE_ALARMS = 0.01
# Rounds in which rows that are far off whatever changed come to count less.
_ROUNDS = 4
# Another correction explains a change as well if its likelihood ratio is so near the best.
_AS_WELL = 2.0

_COUNT = len(CORRECTIONS)

Matrix = Float[np.ndarray, "n n"]


@dataclass(frozen=True)
class Shift:
    """A correction that alone would explain what changed.

    Attributes:
        name: The correction.
        factor: By what the time that it multiplies has grown.
        share: Share of the statistic that it explains.
    """

    name: str
    factor: float
    share: float


@dataclass(frozen=True)
class Drift:
    """Whether runs of today are as a fit has them.

    Attributes:
        where: The GPU, engine, version and family of models.
        rows: How many runs and steps.
        p_value: The chance of runs so far off where nothing changed.
        false_alarms: The chance at which it is called a change.
        errors: Mean error of the fit today by metric, and of a ``step``, percent; positive where it
            predicts too much.
        shifts: Corrections that would explain the change, the best first, with those that explain
            it as well; empty where there is none.
    """

    where: str
    rows: int
    p_value: float
    false_alarms: float
    errors: Mapping[str, float]
    shifts: tuple[Shift, ...]

    @property
    def changed(self) -> bool:
        """Whether the server has changed."""
        return self.p_value < self.false_alarms

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "where": self.where,
            "rows": self.rows,
            "changed": self.changed,
            "p_value": self.p_value,
            "false_alarms": self.false_alarms,
            "errors_pct": dict(self.errors),
            "shifts": [
                {"correction": one.name, "factor": one.factor, "share": one.share}
                for one in self.shifts
            ],
        }

    def __repr__(self) -> str:
        errors = ", ".join(f"{name} {error:+.1f}%" for name, error in self.errors.items())
        shifts = [f"{one.name} x {one.factor:.3g} explains {one.share:.0%}" for one in self.shifts]
        return shown(
            self,
            f"{self.where}: {'changed' if self.changed else 'as it was'} (p {self.p_value:.2g}, "
            f"{self.rows} runs and steps)",
            f"mean errors of the fit: {errors or 'none'}",
            *shifts,
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each correction that would explain the change."""
        import pandas as pd

        rows = [{"correction": s.name, "factor": s.factor, "share": s.share} for s in self.shifts]
        return pd.DataFrame(rows, columns=["correction", "factor", "share"])


def drift(
    tables: Sequence[str | Path] = (),
    fit: str | Path | Fit = DEFAULT_FIT,
    where: str | None = None,
    false_alarms: float = FALSE_ALARMS,
    steps: Sequence[str | Path] = (),
    server: Case | None = None,
    context: float | None = None,
) -> list[Drift]:
    """Whether servers have changed since a fit was made, one answer for each kind of server.

    Args:
        tables: CSV files of today's runs in the common form.
        fit: The fit, its name or its path.
        where: Keeps only rows for which this expression over the columns holds.
        false_alarms: The chance of an alarm where nothing changed, over all answers together.
        steps: Files of today's steps of ``server`` (`physim.measured.step_files.read_step_files`).
        server: The server that they are of; its load is of no account.
        context: Mean tokens of context of its requests, where the steps say nothing of them.

    Raises:
        InputError: A file or an option cannot be used, no row is left, or nothing is known of how
            certain the fit is.
    """
    if not 0 < false_alarms < 1:
        raise InputError("false alarms", f"{false_alarms:g} is no chance", "use one such as 0.01")
    known = fit if isinstance(fit, Fit) else load_fit(fit)
    if known.evidence is None:
        raise InputError(f"fit {known.name}", "does not say how certain it is", "fit one to runs")
    if not tables and (not steps or server is None):
        raise InputError("data", "is missing", "give tables of runs, or steps with their server")
    found: dict[Branch, list[_Deviations]] = {}
    if tables:
        observed = observe(tables, where)
        branches = [branch_of(case, known.common[-1]) for case in observed.cases]
        for branch in dict.fromkeys(branches):
            own = observed.pick([one == branch for one in branches])
            found[branch] = [_of_runs(own, known)]
    if steps and server is not None:
        branch = branch_of(server, known.common[-1])
        found.setdefault(branch, []).append(_of_steps(steps, server, context, known))
    return [
        _of_branch(branch, parts, known, false_alarms / len(found))
        for branch, parts in found.items()
    ]


@dataclass(frozen=True)
class _Deviations:
    """Predictions beside what was measured of one kind of server.

    Attributes:
        case: The server.
        count: How many runs or steps.
        sizes: Deviations, in standard deviations,
        slopes: their slopes in the corrections,
        weights: and how much each counts.
        errors: Mean error by what was measured, percent.
    """

    case: Case
    count: int
    sizes: Float[np.ndarray, " rows"]
    slopes: Float[np.ndarray, "rows n"]
    weights: Float[np.ndarray, " rows"]
    errors: Mapping[str, float]


def _of_runs(own: Observed, known: Fit) -> _Deviations:
    corrections = flat(known.on(own.cases[0]).corrections)
    directions = np.eye(len(corrections))[:_COUNT]
    numbers = np.tile(corrections, (len(own.rows), 1))
    logs, slopes = latencies_along(own.stages.chunks, numbers, directions)
    off = logs - own.stages.observed
    counts = np.asarray(own.stages.known) & np.isfinite(logs)
    if not counts.any():
        raise InputError("data", "holds no run that the fit predicts", "run lower loads")
    noise = np.array([known.noise.get(metric, NOISE[m]) for m, metric in enumerate(METRICS)])
    weights = np.broadcast_to(np.asarray(own.stages.weight)[:, None], counts.shape)
    errors = {
        metric: float(100 * np.mean(np.expm1(off[counts[:, column], column])))
        for column, metric in enumerate(METRICS)
        if counts[:, column].any()
    }
    return _Deviations(
        own.cases[0],
        len(own.rows),
        (off / noise)[counts],
        (slopes[..., :_COUNT] / noise[:, None])[counts],
        weights[counts],
        errors,
    )


def _of_steps(
    files: Sequence[str | Path], server: Case, context: float | None, known: Fit
) -> _Deviations:
    tokens = server.server.kv.tokens
    measured = [read_step_files([file]).completed(tokens, context) for file in files]
    cycles = observe_served(measured, server, known.common[-1]).cycles
    corrections = flat(known.on(server).corrections)
    directions = np.eye(len(corrections))[:_COUNT]
    logs, slopes = cycles_along(cycles, corrections[None], directions)
    off, clock = logs - np.asarray(cycles.observed), np.asarray(cycles.clock)
    of_clocks = known.record.get("step_noise", {})
    noise = np.array([of_clocks.get(name, STEP_NOISE) for name in CLOCK_NAMES])[clock]
    return _Deviations(
        server,
        len(off),
        off / noise,
        slopes[:, :_COUNT] / noise[:, None],
        np.asarray(cycles.weight),
        {"step": float(100 * np.mean(np.expm1(off)))},
    )


def _of_branch(branch: Branch, parts: Sequence[_Deviations], known: Fit, chance: float) -> Drift:
    p_value, shifts = changed(
        np.concatenate([one.sizes for one in parts]),
        np.concatenate([one.slopes for one in parts]),
        np.concatenate([one.weights for one in parts]),
        spread_of(known, parts[0].case),
    )
    errors = {name: error for one in parts for name, error in one.errors.items()}
    named = ", ".join(filter(None, branch[1:-1]))
    count = sum(one.count for one in parts)
    return Drift(named, count, p_value, chance, errors, shifts if p_value < chance else ())


def changed(
    sizes: Float[np.ndarray, " rows"],
    slopes: Float[np.ndarray, "rows n"],
    weights: Float[np.ndarray, " rows"],
    spread: Matrix,
) -> tuple[float, tuple[Shift, ...]]:
    """The chance of deviations so large where nothing changed, and what would explain them.

    Args:
        sizes: Deviations of predictions from what was measured, in standard deviations.
        slopes: Their slopes in the corrections.
        weights: How much each counts.
        spread: Covariance of the corrections.
    """
    width = flat(PRIOR_WIDTHS)[:_COUNT]
    scaled, own, pull = slopes * width, spread / np.outer(width, width), np.ones(len(sizes))
    for _ in range(_ROUNDS):
        curvature = scaled.T @ ((weights * pull)[:, None] * scaled)
        noise = scaled.T @ ((weights * pull**2)[:, None] * scaled)
        score = scaled.T @ (weights * pull * sizes)
        values, vectors = np.linalg.eigh(curvature)
        # Of what today's runs tell less than the priors, nothing is asked; of the best, always.
        told = vectors[:, (values > 1) | (values == values.max())]
        shift = -told @ np.linalg.solve(told.T @ curvature @ told, told.T @ score)
        pull = pulled(sizes + scaled @ shift)
    covariance = told.T @ (noise + curvature @ own @ curvature) @ told
    metric = told @ np.linalg.solve(covariance, told.T)
    statistic = float(score @ metric @ score)
    # Of a correction that alone has changed, with its prior: what no change would explain does not.
    along = curvature @ metric @ score
    precision = 1 + np.einsum("ij,jk,ki->i", curvature, metric, curvature)
    ratios, moved = along**2 / precision, -along / precision * width
    ranked = sorted(enumerate(CORRECTIONS), key=lambda one: -ratios[one[0]])
    shifts = tuple(
        Shift(name, float(np.exp(moved[place])), float(ratios[place] / max(statistic, 1e-12)))
        for place, name in ranked
        if ratios[place] > ratios.max() - _AS_WELL
    )
    return float(chi2.sf(statistic, told.shape[1])), shifts
