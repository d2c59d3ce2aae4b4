"""``physim.fit``: from tables of measured runs to a fit and a report on it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.corrections.calibration import TWO_SIDED_90, Scatter
from physim.corrections.fields import CORRECTIONS, Corrections, flat, labels, unflat
from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.corrections.levels import common, population_of
from physim.corrections.passport import made_on
from physim.data import paths_of
from physim.errors import InputError
from physim.fitting.earned_levels import earned
from physim.fitting.empirical_bayes import solve
from physim.fitting.objective import Deviations, Problem, Vector
from physim.fitting.observations import METRICS, Observed, groups, observe
from physim.fitting.optimise import check_optimiser
from physim.fitting.step_cycles import CLOCK_NAMES, Trace, alike, observe_served, observe_steps
from physim.fitting.uncertainty import DISTRUST, LEAST_SCATTER, unseen
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.measured.step_files import read_step_files
from physim.prediction.intervals import quantities
from physim.prediction.many import predict_cases
from physim.printable import shown
from physim.progress import told_in_notebooks

if TYPE_CHECKING:
    import pandas as pd

# Of requests of which only steps are known, tokens of an answer.
_ANSWER = 256


@dataclass(frozen=True)
class Estimate:
    """A fitted correction, as a logarithm, of what all rows have in common.

    Attributes:
        name: Its name.
        prior: Standard deviation of its prior, whose mean is what the fit started from.
        value: What the fit found.
        low: The 5th percentile of what it may be for another case like the rows.
        high: The 95th percentile of that.
        moved_by: Experiments that determine it most, each with its share in what is known of it.
    """

    name: str
    prior: float
    value: float
    low: float
    high: float
    moved_by: Mapping[str, float]

    def __repr__(self) -> str:
        factor, low, high = (math.exp(own) for own in (self.value, self.low, self.high))
        return shown(self, f"{self.name}: factor {factor:.3g}, 90% from {low:.3g} to {high:.3g}")


@dataclass(frozen=True)
class Outcome:
    """A fit, and what there is to say of it.

    Attributes:
        fit: The fit, ready to be written.
        estimates: Its corrections, of what all rows have in common.
        rows: Each measured stage with its errors before and after, percent, in sample.
        distrusted: Rows that the fit bends away from.
        left_out: Rows that were not used, each with the reason.
        losses: The loss after each step.
        case: The busiest run of the kind of server that most runs are of.
        populations: The kinds of servers that the runs and steps are of.
    """

    fit: Fit
    estimates: Sequence[Estimate]
    rows: Sequence[Mapping[str, Any]]
    distrusted: Sequence[Mapping[str, Any]]
    left_out: Sequence[Mapping[str, Any]]
    losses: Sequence[float]
    case: Case
    populations: Sequence[str]

    def __repr__(self) -> str:
        errors = self.fit.record.get("in_sample_mape", {})
        told = ", ".join(
            f"{name.upper()} {one['before']:.1f}% to {one['after']:.1f}%"
            for name, one in errors.items()
        )
        counts = f"{len(self.rows)} rows, {len(self.left_out)} left out"
        return shown(
            self,
            f"fit {self.fit.name} to {counts}",
            f"mean errors before and after, in sample: {told or 'not known'}",
            f"{len(self.distrusted)} rows distrusted; {len(self.losses)} steps",
        )

    def to_frame(self) -> pd.DataFrame:
        """A row for each measured stage, with its errors before and after."""
        import pandas as pd

        return pd.DataFrame(self.rows)


@told_in_notebooks("fitting")
def fit(
    tables: str | Path | Sequence[str | Path] = (),
    steps: str | Path | Sequence[str | Path] | None = None,
    server: Case | None = None,
    context: float | None = None,
    where: str | None = None,
    base: str | Path = DEFAULT_FIT,
    frozen: Sequence[str] = (),
    prior_scale: float = 1.0,
    optimiser: str = "levenberg-marquardt",
    seed: int = 0,
    name: str = "fit",
    progress: Callable[[int, float], Any] = lambda *_: None,
) -> Outcome:
    """Fits the corrections to measured runs, level by level.

    What all runs share moves what is shared by all, what one GPU's have in common that GPU's
    offsets, and so on (`physim.corrections.levels`). From a fit that knows other runs, new ones
    move the corrections as far as they can tell beside those. Without one, levels of corrections
    are open that help rows left out (`physim.fitting.earned_levels`), and how wide they are is
    learned from the rows (`physim.fitting.empirical_bayes`).

    Args:
        tables: CSV files in the common form; see `physim.evaluate`. Each is a campaign. None are
            needed beside steps of a server.
        steps: Measured steps: files of one server
            (`physim.measured.step_files.read_step_files`); or, without ``server``, a trace of runs
            that are in the tables (`physim.measured.step_trace.read_steps`).
        server: The server that the steps are of; its load is of no account.
        context: Mean tokens of context of its requests, where the steps say nothing of them.
        where: Keeps only rows for which this expression over the columns holds.
        base: Name or path of the fit to start from, or ``none``.
        frozen: Corrections that stay as they are in it.
        prior_scale: Factor on the widths of all priors.
        optimiser: One of `physim.fitting.optimise.OPTIMISERS`.
        seed: Seed of parameters beside those to start from; 0 for these.
        name: Name of the fit.
        progress: Called after each step with its number and the loss.

    Raises:
        InputError: A file or an option cannot be used, or no row is left.
    """
    check_options(frozen, prior_scale)
    check_optimiser(optimiser)
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "use 0 or more")
    if not tables and (steps is None or server is None):
        raise InputError("data", "is missing", "give tables of runs, or steps with their server")
    if server is not None and steps is None:
        raise InputError("steps", "are missing", "name the files of the server's steps")
    tables, files = (paths_of(own, "files") if own else [] for own in (tables, steps))
    before = load_fit(base)
    hashes = unknown_to(before, [*tables, *files])
    observed = Observed.nothing()
    if tables:
        observed = new_to(before, observe(tables, where))
    trace = None
    if server is not None:
        tokens = server.server.kv.tokens
        measured = [read_step_files([file]).completed(tokens, context) for file in files]
        trace = observe_served(measured, server, (*tables, *files)[0].stem)
    elif files:
        if len(files) > 1:
            raise InputError("steps", f"are {len(files)} files", "name the server that they are of")
        trace = observe_steps(files[0], tables)
    problem = Problem.from_observed(observed, trace, tuple(frozen), prior_scale, before)
    record: dict[str, Any] = {}
    # Steps of one server tell nothing of how others differ from it.
    from_scratch = before.evidence is None and bool(tables)
    if from_scratch:
        problem, levels = earned(problem)
        record["earned"] = [one.to_dict() for one in levels]
    start = problem.centre
    if seed:
        start = start + 0.1 * np.random.default_rng(seed).normal(size=len(start))
    problem, parameters, losses = solve(problem, from_scratch, progress, optimiser, start)
    record |= {
        "physim_version": version("physim-llm"),
        "data": hashes,
        "row_digests": [*_digests(before), *(one.digest for one in observed.rows)],
        "from": before.name,
        "where": where,
        "frozen": list(frozen),
        "prior_scale": prior_scale,
        "optimiser": optimiser,
        "seed": seed,
    }
    return concluded(observed, problem, parameters, losses, name, record, before, trace)


def unknown_to(before: Fit, files: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by name.

    Args:
        before: A fit.
        files: Measurements that it must not know.

    Raises:
        InputError: It knows one, or one cannot be read.
    """
    hashes = {path.name: _hash(path) for path in files}
    for name, own in hashes.items():
        if own in before.record.get("data", {}).values():
            raise InputError(
                name, f"is in the fit {before.name} already", "start from another (--from none)"
            )
    return hashes


def new_to(before: Fit, observed: Observed) -> Observed:
    """The rows that a fit does not know; of a table that has grown these are the new ones.

    Args:
        before: The fit.
        observed: The rows.

    Raises:
        InputError: It knows all of them.
    """
    reason = f"is in the fit {before.name} already"
    found = observed.without(_digests(before), reason)
    if not found.rows:
        raise InputError("every row", reason, "add new ones, or start from another (--from none)")
    return found


def _digests(before: Fit) -> Sequence[str]:
    """Digests of the rows that a fit knows; none of those made before digests were kept."""
    known: Sequence[str] = before.record.get("row_digests", ())
    return known


def check_options(frozen: Sequence[str], prior_scale: float) -> None:
    """Refuses what cannot be fitted so.

    Raises:
        InputError: A correction is unknown, or the scale is not positive.
    """
    known = list(dict.fromkeys(label.partition("[")[0] for label in labels()))
    for correction in frozen:
        if correction not in known:
            raise InputError(
                f"freeze: {correction!r}", "is not a correction", f"use one of {', '.join(known)}"
            )
    if not (np.isfinite(prior_scale) and prior_scale > 0):
        raise InputError("prior scale", f"{prior_scale:g} is not positive", "correct it")


def concluded(
    observed: Observed,
    problem: Problem,
    parameters: Vector,
    losses: Sequence[float],
    name: str,
    record: Mapping[str, Any],
    base: Fit,
    trace: Trace | None = None,
) -> Outcome:
    """A solved problem as a fit with a report.

    Args:
        observed: The stages.
        problem: The problem.
        parameters: Its solution.
        losses: How it was found.
        name: Name of the fit.
        record: What else the fit's file is to say.
        base: The fit that it started from.
        trace: The steps, if any were measured.
    """
    served = [] if trace is None else [case for case in trace.cases if case.load is None]
    branches = [*observed.branches, *(trace.branches if trace else ())]
    known, noise = observed.stages.known, problem.noise[problem.source]
    found = problem.deviations(parameters)
    before, after = _errors(problem, problem.deviations(problem.centre)), _errors(problem, found)
    rows = [
        {
            "experiment": one.row.experiment,
            "stage": one.row.stage,
            "model": one.row.model,
            **{
                f"{metric}_{when}": round(float(errors[place, column]), 2)
                for column, metric in enumerate(METRICS)
                for when, errors in (("before", before), ("after", after))
                if known[place, column]
            },
        }
        for place, one in enumerate(observed.rows)
    ]
    metrics = {
        metric: {
            when: round(float(np.mean(np.abs(errors[known[:, column], column]))), 2)
            for when, errors in (("before", before), ("after", after))
        }
        for column, metric in enumerate(METRICS)
        if np.any(known[:, column])
    }
    distrusted = [
        {"experiment": one.row.experiment, "stage": one.row.stage, "metric": metric}
        | {"error_pct": round(float(after[place, column]), 1)}
        for place, one in enumerate(observed.rows)
        for column, metric in enumerate(METRICS)
        if known[place, column]
        and abs(np.log1p(after[place, column] / 100)) > DISTRUST * noise[place, column]
    ]
    sources = list(dict.fromkeys(observed.sources))
    offsets = dict(zip(problem.tree.nodes, problem.offsets(parameters), strict=True))
    result = Fit(
        name=name,
        offsets={**base.offsets, **offsets},
        widths=problem.widths[:, : len(CORRECTIONS)],
        evidence=problem.evidence(found),
        common=common(branches),
        noise=_pooled(problem),
        # What the runs do not tell is as uncertain as before them.
        scatter=merged(load_fit(DEFAULT_FIT).scatter, unseen(problem, parameters, observed)),
        ranges=_ranges(
            observed,
            trace if served else None,
            [unflat(own) for own in problem.corrections(parameters)[problem.branch]],
            base,
        ),
        made_on=made_on([*observed.cases, *served]),
        own_scatter=_scatter_of_steps(problem, found) if served else {},
        record={
            **record,
            "rows": len(observed.rows),
            "noise_of": {
                source: dict(zip(METRICS, np.round(own, 4).tolist(), strict=True))
                for source, own in zip(sources, problem.noise, strict=True)
            },
            "in_sample_mape": metrics,
            "step_noise": {} if trace is None else _noise_of_steps(problem),
            "distrusted": distrusted,
            "left_out": list(observed.left_out),
            "losses": [round(loss, 3) for loss in losses],
        },
    )
    estimates = _estimates(observed, problem, found, result)
    return Outcome(
        result,
        estimates,
        rows,
        distrusted,
        observed.left_out,
        losses,
        _typical(result, observed, trace),
        tuple(dict.fromkeys(population_of(case) for case in (*observed.cases, *served))),
    )


def _noise_of_steps(problem: Problem) -> dict[str, float]:
    """The noise of steps by the name of their clock."""
    assert problem.cycles is not None  # there are steps
    clocks = np.unique(np.asarray(problem.cycles.clock)).tolist()
    return {CLOCK_NAMES[clock]: round(float(problem.step_noise[clock]), 4) for clock in clocks}


def _scatter_of_steps(problem: Problem, found: Deviations) -> dict[str, float]:
    """What is left of steps that are alike: of each such kind the mean, weighted by time.

    It is what the physics errs by on a load's mix of them; what a single step scatters beyond that
    is gone in the mean of many.
    """
    assert problem.cycles is not None  # there are steps
    cycles = problem.cycles
    noise = problem.step_noise[np.asarray(cycles.clock)]
    own = alike(cycles.batch, cycles.clock)
    errors = found.sizes[problem.of_steps] * noise
    counts = np.bincount(own)
    means = np.bincount(own, errors) / counts
    # Of its square, the noise of a mean is no error of the physics.
    squares = np.maximum(means**2 - np.bincount(own, noise**2) / counts**2, 0.0)
    time = np.bincount(own, np.exp(np.asarray(cycles.observed)))
    error = float(np.sqrt(np.average(squares, weights=time)))
    return dict.fromkeys(METRICS, max(error, LEAST_SCATTER))


def _typical(fit: Fit, observed: Observed, trace: Trace | None) -> Case:
    """The busiest run of the kind of server that most runs are of; else what its steps say."""
    own = [case for case in observed.cases if fit.made_on[0].is_of(case)]
    if own:
        return max(own, key=lambda case: case.demanded.rate or case.demanded.concurrency or 0.0)
    assert trace is not None  # there are runs, or steps
    case, batch = trace.cases[0], trace.cycles.batch
    decoding = np.asarray(batch.decode_requests)
    context = np.sum(np.asarray(batch.attended)[:, -1]) / max(float(np.sum(decoding)), 1.0)
    clients = max(round(float(np.mean(decoding[decoding > 0]))), 1) if np.any(decoding) else 1
    most = case.server.sizes.max_model_len - _ANSWER
    prompt = min(max(round(float(context)), 1), most)
    return case.under(Load(concurrency=clients, input_tokens=prompt, output_tokens=_ANSWER))


def _errors(problem: Problem, found: Deviations) -> Float[np.ndarray, "rows metrics"]:
    """Errors of the stages, percent."""
    shape = problem.stages.observed.shape
    sizes = found.sizes[: problem.stages.observed.size].reshape(shape)
    return np.asarray(100 * np.expm1(sizes * problem.noise[problem.source]))


def _pooled(problem: Problem) -> dict[str, float]:
    """The noise to expect of other runs: the geometric mean of these."""
    known = problem.stages.known
    found = {}
    for column, metric in enumerate(METRICS):
        sources = np.unique(problem.source[known[:, column]])
        if len(sources):
            found[metric] = float(np.exp(np.mean(np.log(problem.noise[sources, column]))))
    return found


def merged(before: Mapping[str, Scatter], now: Mapping[str, Scatter]) -> dict[str, Scatter]:
    """Scatter by population and metric: what is known now in the place of what was before."""
    return {name: {**before.get(name, {}), **now.get(name, {})} for name in {**before, **now}}


def _ranges(
    observed: Observed, trace: Trace | None, corrections: Sequence[Corrections], base: Fit
) -> dict[str, tuple[float, float]]:
    """Least and largest of what stages and steps covered, and those of the fit before."""
    predictions = predict_cases(observed.cases, corrections)
    found = [
        quantities(case, prediction)
        for case, prediction in zip(observed.cases, predictions, strict=True)
    ]
    found += [] if trace is None else trace.covered
    names = dict.fromkeys(name for one in (*found, base.ranges) for name in one)
    ranges = {}
    for name in names:
        values = [*(one[name] for one in found if name in one), *base.ranges.get(name, ())]
        ranges[name] = (min(values), max(values))
    return ranges


def _estimates(
    observed: Observed, problem: Problem, found: Deviations, result: Fit
) -> list[Estimate]:
    """Corrections with intervals, and the experiments that determine each.

    An experiment's share is that of the curvature along the correction which its rows make up.
    """
    count = problem.of_steps.start
    of_rows = np.array(groups(observed.rows, "experiment"))
    experiments = np.append(np.repeat(of_rows, len(METRICS)), of_rows[problem.stages.bins.row])
    known = result.at_branch(result.common)
    assert known.covariance is not None  # rows tell how well
    values, spreads = flat(known.corrections), np.sqrt(np.diag(known.covariance))
    squares = found.pull[:, None] * found.slopes**2
    estimates = []
    for place, label in enumerate(CORRECTIONS):
        shares = {
            str(experiment): float(np.sum(squares[:count][experiments == experiment, place]))
            for experiment in dict.fromkeys(experiments)
        }
        shares["steps"] = float(np.sum(squares[count:, place]))
        prior = float(result.prior[place])
        before = prior**-2 if prior else np.inf
        whole = sum(shares.values()) + before
        ranked = sorted(shares.items(), key=lambda item: -item[1])[:3]
        half = TWO_SIDED_90 * spreads[place]
        estimates.append(
            Estimate(
                name=label,
                prior=prior,
                value=float(values[place]),
                low=float(values[place] - half),
                high=float(values[place] + half),
                moved_by={n: share / whole for n, share in ranked if share > 0.05 * whole},
            )
        )
    return estimates


def _hash(path: Path) -> str:
    with data.reading(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
