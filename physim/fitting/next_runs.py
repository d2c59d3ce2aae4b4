"""Which measurements tell most of a prediction: the runs to make next.

What a fit knows of a deployment's corrections is taken as normal, and what a measurement would tell
as linear in them (Chaloner and Verdinelli, Statistical Science 10, 1995, 3: Bayesian experimental
design of linear models). How uncertain a prediction is after a measurement then follows before it
is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from physim.corrections.calibration import TWO_SIDED_90, Calibration
from physim.corrections.fields import CORRECTIONS, flat
from physim.corrections.files import DEFAULT_FIT, Fit, load_fit
from physim.corrections.levels import prior_widths
from physim.engines.engine import engine_named
from physim.errors import InputError
from physim.fitting.observations import METRICS, NOISE, chunks_of
from physim.fitting.slopes import cycles_along, latencies_along
from physim.fitting.step_cycles import CLOCK_NAMES, Cycles
from physim.fitting.step_cycles import NOISE as STEP_NOISE
from physim.inputs.case import Case, CaseOptions
from physim.inputs.load import Load
from physim.options import named_options
from physim.prediction.commands import bench_command, forward_command
from physim.prediction.many import predict_cases
from physim.printable import aligned, shown
from physim.progress import told_in_notebooks
from physim.service.server import Server
from physim.step.batch import Batch
from physim.step.lowering import lower, stack_ops

if TYPE_CHECKING:
    import pandas as pd

# Loads to run: shares of the highest, and prompts and answers as multiples of the target's.
_SHARES, _LENGTHS = (0.1, 0.3, 0.5, 0.7, 0.85), ((1.0, 1.0), (0.25, 1.0), (4.0, 0.5))
# Steps to time: requests that decode with a context, and prompts behind what is cached, tokens.
_REQUESTS, _CONTEXTS = (1, 8, 32, 128, 256), (128, 1024, 4096, 16384)
_PROMPTS, _CACHED = (128, 512, 2048, 8192), (0, 8192)

# More than anybody makes before looking again.
_MOST = 100
STEPS, LOADS = KINDS = ("steps", "loads")

Slopes = Float[np.ndarray, "numbers corrections"]
Covariance = Float[np.ndarray, "corrections corrections"]


@dataclass(frozen=True)
class Measurement:
    """A measurement that could be made.

    Attributes:
        what: What it is, in words.
        batch: The step that it times, as ``vllm bench forward`` has it; empty for a load.
        command: The command that makes it.
        left: What is left of the target's uncertainty after it and those before it, by metric: half
            of a 90% interval, as a logarithm.
    """

    what: str
    batch: str
    command: str
    left: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain values, for JSON."""
        return {"what": self.what, "command": self.command, "left": dict(self.left)}

    def __repr__(self) -> str:
        return shown(self, f"{self.what}: {_percents(self.left)} are left")


@dataclass(frozen=True)
class NextRuns:
    """Measurements in the order in which they tell most of a target.

    Attributes:
        target: What is to be predicted.
        before: How uncertain it is, as `Measurement.left` says.
        runs: The measurements.
        commands: What makes all of them: one command for all steps, and one for each load.
    """

    target: Case
    before: dict[str, float]
    runs: tuple[Measurement, ...]
    commands: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "target": self.target.demanded.to_dict(),
            "before": dict(self.before),
            "runs": [run.to_dict() for run in self.runs],
            "commands": list(self.commands),
        }

    def __repr__(self) -> str:
        rows = [("measure", *self.before), ("(before)", *map(_half, self.before.values()))]
        rows += [(run.what, *map(_half, run.left.values())) for run in self.runs]
        return shown(self, f"{self.target.what}, how far off 90% are at most after", *aligned(rows))

    def to_frame(self) -> pd.DataFrame:
        """A row for each measurement, with what of each metric's uncertainty is left after it."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "what": run.what,
                    **{f"left_{n}": v for n, v in run.left.items()},
                    "command": run.command,
                }
                for run in self.runs
            ]
        )


def _half(logarithm: float) -> str:
    """Half of an interval, as percent of what it is of."""
    return f"{100 * math.expm1(logarithm):.1f}%"


def _percents(left: dict[str, float]) -> str:
    return ", ".join(f"{name} {_half(own)}" for name, own in left.items())


@dataclass(frozen=True)
class Candidates:
    """Measurements that could be made of a deployment, and what each would tell.

    Attributes:
        names: What each is, in words.
        batches: The step that each times; empty for a load.
        commands: The command of each.
        slopes: Of the numbers that each gives in the corrections, in standard deviations.
    """

    names: Sequence[str]
    batches: Sequence[str]
    commands: Sequence[str]
    slopes: Float[np.ndarray, "candidates metrics corrections"]


@told_in_notebooks("ranking measurements")
@named_options
def next_runs(
    model: str | Path | Case,
    *,
    fit: str | Path | Fit = DEFAULT_FIT,
    count: int = 5,
    kinds: Sequence[str] = KINDS,
    **options: Unpack[CaseOptions],
) -> NextRuns:
    """The measurements that would make a prediction most certain.

    Candidates are steps to time, where the engine comes with a benchmark of them, and loads to run,
    on the same deployment. One after the other is chosen by what the variances of the target's
    TTFT, ITL and E2E fall by. What a fit does not know of corrections, such as how far models that
    it has not seen are off, measurements of one deployment do not tell.

    Args:
        model: The target: a case; or a path of a ``config.json``, shipped name or hub id, with the
            rest of the case beside it.
        fit: What is known today: a fit, its name or its path, ``default`` or ``none``.
        count: How many measurements.
        kinds: Which: ``steps``, ``loads`` or both.
        **options: GPU, deployment and a load that stays; see `CaseOptions`.

    Raises:
        InputError: Some input cannot be used, the load ends, or it is above capacity.
    """
    if not 1 <= count <= _MOST:
        raise InputError("next", f"{count} is out of range", f"use 1 to {_MOST}")
    if not kinds or not set(kinds) <= set(KINDS):
        problem = f"{', '.join(map(str, kinds)) or 'none'} are no kinds of measurements"
        raise InputError("next kinds", problem, f"use {' or '.join(KINDS)}, or both")
    case = Case.from_options(model, **options)
    known = fit if isinstance(fit, Fit) else load_fit(fit)
    engine = case.server.profile.engine
    if LOADS not in kinds and not engine_named(engine).times_batches:
        problem = f"{engine} has no benchmark of steps that physim knows"
        raise InputError("next kinds", problem, f"use {LOADS}")
    if not case.demanded.endless:
        raise InputError("next", "the target's load ends or changes", "give one that stays")
    about, spread = known.on(case), spread_of(known, case)
    corrections = flat(about.corrections)
    _, slopes = _latencies([case], corrections)
    target = slopes[0]
    if not np.all(np.isfinite(target)):
        raise InputError("next", "the target's load is above capacity", "give a lower rate")
    found = candidates(case, about, kinds)
    runs: list[Measurement] = []
    for place, left in chosen(found.slopes, target, spread, count):
        name, batch, command = found.names[place], found.batches[place], found.commands[place]
        runs.append(Measurement(name, batch, command, _halves(left)))
    return NextRuns(case, _halves(_variances(target, spread)), tuple(runs), _commands(case, runs))


def spread_of(fit: Fit, case: Case) -> Covariance:
    """Covariance of a case's corrections, by a fit or, where it knows none, by their priors."""
    about = fit.on(case)
    count = len(CORRECTIONS)
    if about.covariance is not None:
        return about.covariance[:count, :count]
    return np.diag(np.sum(prior_widths()[:, :count] ** 2, axis=0))


def candidates(case: Case, about: Calibration, kinds: Sequence[str] = KINDS) -> Candidates:
    """What could be measured of a case's deployment.

    Args:
        case: The case, with a load that is like those to run.
        about: What is known of its corrections, which candidates are predicted with.
        kinds: Which, of `KINDS`: loads, or steps that the engine has a benchmark of, at least.
    """
    corrections = flat(about.corrections)
    names, commands, batches, told = [], [], [], []
    if LOADS in kinds:
        loads = list(_loads(case, about))
        _, slopes = _latencies(loads, corrections)
        names += [f"load: {_words(load.demanded)}" for load in loads]
        commands += [bench_command(load) for load in loads]
        batches += [""] * len(loads)
        told.append(slopes / NOISE[None, :, None])
    if STEPS in kinds and engine_named(case.server.profile.engine).times_batches:
        steps = list(_steps(case.server))
        told.append(_of_steps(case, steps, corrections))
        names += [f"step: {step.what}" for step in steps]
        batches += [step.text for step in steps]
        commands += [forward_command(case.server, {"step": step.text}) for step in steps]
    every = np.concatenate(told)
    # Above capacity there is nothing to measure.
    keeps = np.all(np.isfinite(every), axis=(1, 2))
    places = np.flatnonzero(keeps).tolist()
    return Candidates(
        [names[place] for place in places],
        [batches[place] for place in places],
        [commands[place] for place in places],
        every[keeps],
    )


def chosen(
    slopes: Float[np.ndarray, "candidates metrics corrections"],
    target: Slopes,
    spread: Covariance,
    count: int,
) -> Iterator[tuple[int, Float[np.ndarray, " metrics"]]]:
    """Measurements one after the other, each with the target's variances after it.

    The sum of the logarithms of the variances falls most with each: a metric that is known to 1%
    and one that is known to 30% count alike. No measurement is made twice, since the physics errs
    alike in both.

    Args:
        slopes: Of the numbers that each candidate gives, in standard deviations.
        target: Slopes of the target's metrics.
        spread: Covariance of the corrections.
        count: How many measurements.
    """
    free = np.ones(len(slopes), bool)
    for _ in range(min(count, len(slopes))):
        # Of one measurement: covariance with the target, and of its own numbers with their noise.
        across = np.einsum("mi,ij,ckj->cmk", target, spread, slopes)
        own = np.einsum("cki,ij,clj->ckl", slopes, spread, slopes) + np.eye(slopes.shape[1])
        gains = np.einsum("cmk,ckm->cm", across, np.linalg.solve(own, np.swapaxes(across, 1, 2)))
        before = _variances(target, spread)
        left = np.maximum(before - gains, 1e-12 * before)
        place = int(np.argmin(np.where(free, np.sum(np.log(left), axis=1), np.inf)))
        free[place] = False
        yield place, left[place]
        rows = slopes[place] @ spread
        spread = spread - rows.T @ np.linalg.solve(own[place], rows)


def _words(load: Load) -> str:
    return f"{load.rate:g} req/s of {load.mean_input:,.0f} + {load.mean_output:,.0f} tokens"


def _variances(target: Slopes, spread: Covariance) -> Float[np.ndarray, " metrics"]:
    found: Float[np.ndarray, " metrics"] = np.einsum("mi,ij,mj->m", target, spread, target)
    return found


def _halves(variances: Float[np.ndarray, " metrics"]) -> dict[str, float]:
    halves = TWO_SIDED_90 * np.sqrt(np.maximum(variances, 0.0))
    return dict(zip(METRICS, halves.tolist(), strict=True))


def _latencies(
    cases: Sequence[Case], corrections: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "cases metrics"], Float[np.ndarray, "cases metrics corrections"]]:
    """Logarithms of the latencies of cases, and their slopes in the named corrections."""
    count = len(CORRECTIONS)
    directions = np.eye(len(corrections))[:count]
    numbers = np.tile(corrections, (len(cases), 1))
    logs, slopes = latencies_along(chunks_of(cases), numbers, directions)
    finite = np.isfinite(logs)[..., None]
    return logs, np.where(finite, slopes[..., :count], np.nan)


def _loads(case: Case, about: Calibration) -> Iterator[Case]:
    """Loads at some shares of the highest, of requests like the case's and of others."""
    load = case.demanded
    most = case.server.sizes.max_model_len
    shapes: list[Case] = []
    for of_input, of_output in _LENGTHS:
        prompt, answer = round(load.mean_input * of_input), round(load.mean_output * of_output)
        if prompt >= 1 and answer >= 2 and prompt + answer <= most:
            own = Load(rate=1e-3, input_tokens=prompt, output_tokens=answer)
            shapes.append(replace(case, load=own))
    predictions = predict_cases(shapes, [about.corrections] * len(shapes))
    for shape, prediction in zip(shapes, predictions, strict=True):
        for share in _SHARES:
            rate = float(f"{share * prediction.saturation_rps:.2g}")
            yield replace(shape, load=replace(shape.demanded, rate=rate))


@dataclass(frozen=True)
class _Step:
    """A step to time: so many requests that compute tokens behind those that are cached."""

    requests: int
    tokens: int
    cached: int

    @property
    def text(self) -> str:
        # What is behind the @ counts the tokens of the step too.
        return f"{self.requests}*{self.tokens}@{self.cached + self.tokens}"

    @property
    def what(self) -> str:
        if self.tokens == 1:
            return f"{self.requests} requests decode at {self.cached:,} tokens"
        behind = f" behind {self.cached:,}" if self.cached else ""
        return f"a prompt of {self.tokens:,} tokens{behind}"


def _steps(server: Server) -> Iterator[_Step]:
    sizes, kept = server.sizes, server.kv.tokens
    for requests in _REQUESTS:
        for context in _CONTEXTS:
            fits = requests * (context + 1) <= kept and requests <= sizes.max_num_seqs
            if fits and context < sizes.max_model_len:
                yield _Step(requests, 1, context)
    for prompt in _PROMPTS:
        for cached in _CACHED:
            whole = prompt + cached
            if prompt <= sizes.max_num_batched_tokens and whole <= min(sizes.max_model_len, kept):
                yield _Step(1, prompt, cached)


def _of_steps(
    case: Case, steps: Sequence[_Step], corrections: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "steps metrics corrections"]:
    """Slopes of steps' times, in standard deviations; each gives one number."""
    ops = lower(case.server)
    requests, tokens, cached = (
        np.array([getattr(step, name) for step in steps], float)
        for name in ("requests", "tokens", "cached")
    )
    decodes = tokens == 1
    batch = Batch.summarised(
        decode_requests=np.where(decodes, requests, 0.0),
        context=np.where(decodes, cached + 1, 0.0),
        prefill_requests=np.where(decodes, 0.0, requests),
        chunk=np.where(decodes, 0.0, tokens),
        cached=np.where(decodes, 0.0, cached),
        query_tokens=np.ones(len(steps)),
        windows=np.asarray(ops.windows),
    )
    cycles = Cycles(
        ops=stack_ops([ops]),
        run=np.zeros(len(steps), int),
        batch=batch,
        observed=np.zeros(len(steps)),
        weight=np.ones(len(steps)),
        clock=np.full(len(steps), CLOCK_NAMES.index("forward")),
    )
    count = len(CORRECTIONS)
    directions = np.eye(len(corrections))[:count]
    _, slopes = cycles_along(cycles, jnp.asarray(corrections)[None], directions)
    found = np.zeros((len(steps), len(METRICS), count))
    found[:, 0] = slopes[:, :count] / STEP_NOISE
    return found


def _commands(case: Case, runs: Sequence[Measurement]) -> tuple[str, ...]:
    steps = {f"step{place}": run.batch for place, run in enumerate(runs, 1) if run.batch}
    found = [forward_command(case.server, steps)] if steps else []
    return (*found, *dict.fromkeys(run.command for run in runs if not run.batch))
