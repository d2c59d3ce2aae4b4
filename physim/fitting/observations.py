"""What a fit compares: measured stages and steps as arrays beside the model that predicts them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from physim.corrections.fields import Corrections, unflat
from physim.corrections.levels import Branch, branch_of, population_of
from physim.errors import InputError
from physim.fitting.bins import Bins
from physim.fluid.steady import steady_state
from physim.inputs.case import Case
from physim.measured.run_cases import case_of, degrees_of, lasting, measured, stages_of
from physim.measured.runs_csv import TableRow, grouped, read_tables
from physim.measured.schema import RunRow
from physim.prediction.arrays import CaseArrays
from physim.prediction.many import predict_cases
from physim.pytree import Pytree
from physim.types import AnyArray

METRICS = ("ttft", "itl", "e2e")
# Standard deviation of the logarithm of what is measured of a stage: what repeated
# runs and the physics' own coarseness leave.
NOISE = np.array([0.06, 0.03, 0.03])
# ITL and E2E of a stage are nearly one number, so each counts half.
_SHARES = np.array([1.0, 0.5, 0.5])
# A queue, if so much of the time of a request is spent before its first token.
_QUEUE_SHARE = 0.5
_FAILED_SHARE = 0.01
# Rows that are predicted at once.
_AT_ONCE = 256
# How much the errors of a deployment's rows have in common: however many they are, they count as
# six that have nothing in common (Kish, Survey Sampling, 1965, 8.2).
_ALIKE = 1 / 6


class ObservedChunk(Pytree):
    """Stages that are predicted at once, so that thousands take no more memory than some.

    Attributes:
        places: Which of the rows they are.
        systems: Their models, loads and engines, and the last of them again up to a size that few
            chunks differ in, so that little is compiled.
    """

    places: Int[AnyArray, " own"]
    systems: CaseArrays

    def filled(self, rows: Float[np.ndarray, "all n"]) -> Float[np.ndarray, "filled n"]:
        """Of something of all rows what is this chunk's, and the last of it as often again."""
        size = len(np.asarray(self.systems.limits.max_num_seqs))
        places = np.append(self.places, np.full(size - len(self.places), self.places[-1]))
        return rows[places]


class Stages(Pytree):
    """Load stages that last, as arrays with one row each.

    Attributes:
        chunks: The models, loads and engines of all rows, those whose steps are composed alike
            together.
        observed: Logarithms of the measured TTFT, ITL and E2E, seconds.
        known: Which of them were measured.
        weight: Weight of each row.
        bins: Ends of the bins in which latencies were counted, where they were.
    """

    chunks: tuple[ObservedChunk, ...]
    observed: Float[AnyArray, "rows metrics"]
    known: Bool[AnyArray, "rows metrics"]
    weight: Float[AnyArray, " rows"]
    bins: Bins

    @property
    def weights(self) -> Float[np.ndarray, "rows metrics"]:
        """Weight of each mean.

        A mean and the ends of bins are looks at one distribution, and count as one together.
        """
        found: Float[np.ndarray, "rows metrics"] = (
            self.known * np.asarray(self.weight)[:, None] * _SHARES / (1 + self.bins.looks)
        )
        return found

    @property
    def weights_of_bins(self) -> Float[np.ndarray, " ends"]:
        """Weight of each end of a bin."""
        whole = np.asarray(self.weight)[:, None] * _SHARES / (1 + self.bins.looks)
        found: Float[np.ndarray, " ends"] = whole[self.bins.row, self.bins.metric]
        return found


@dataclass(frozen=True)
class Observed:
    """Measured stages: arrays for the fit, and what they are for people.

    Attributes:
        stages: The arrays.
        rows: The rows of the tables, in the same order.
        cases: What is predicted of each.
        left_out: Other rows, each with the reason.
    """

    stages: Stages
    rows: Sequence[TableRow]
    cases: Sequence[Case]
    left_out: Sequence[Mapping[str, Any]]

    @classmethod
    def nothing(cls) -> Observed:
        """No stages, where steps are all that was measured."""
        return cls(_stages([], []), [], [], [])

    def pick(self, chosen: Sequence[bool] | np.ndarray) -> Observed:
        """Some of the rows; the weights are theirs alone."""
        places = np.flatnonzero(np.asarray(chosen)).tolist()
        rows, cases = [self.rows[i] for i in places], [self.cases[i] for i in places]
        return Observed(_stages(rows, cases), rows, cases, ())

    def without(self, known: Collection[str], reason: str) -> Observed:
        """The stages but for some, which are left out.

        Args:
            known: Digests of those rows (`TableRow.digest`).
            reason: Why they are left out.
        """
        new = [one.digest not in known for one in self.rows]
        if all(new):
            return self
        out = [
            _left_out(one.row, reason) for one, kept in zip(self.rows, new, strict=True) if not kept
        ]
        return replace(self.pick(new), left_out=[*self.left_out, *out])

    @property
    def branches(self) -> list[Branch]:
        """The branch of each row, its table as the campaign."""
        own = zip(self.cases, self.rows, strict=True)
        return [branch_of(case, row.campaign) for case, row in own]

    @property
    def sources(self) -> list[str]:
        """Campaign and population of each row: what scatters alike."""
        own = zip(self.cases, self.rows, strict=True)
        return [f"{row.campaign}, {population_of(case)}" for case, row in own]

    def column(self, name: str) -> np.ndarray:
        """A column of `physim.measured.schema.RunRow`."""
        return np.array([getattr(one.row, name) for one in self.rows])


def observe(tables: Sequence[str | Path], where: str | None = None) -> Observed:
    """Reads the stages of measured runs that have a steady state.

    A row is left out if its table says so, if its server decodes speculatively, if there were
    several servers, if it is the overall row of a run with stages, if more than 1% of its requests
    failed, if more than half of the time of its requests passed before the first token, or if the
    bare physics puts its load above capacity: what it shows is a queue that grew.

    Args:
        tables: CSV files in the common form.
        where: Keeps only rows for which this expression over the columns holds.

    Raises:
        InputError: A table or the condition cannot be used, or no row is left.
    """
    # A run that several tables hold counts once.
    kept = read_tables(tables).first().where(where)
    rows: list[TableRow] = []
    cases: list[Case] = []
    left_out: list[dict[str, Any]] = []
    for run in grouped(kept, lambda one: one.run).values():
        try:
            case = case_of(run, None)
        except InputError as error:
            left_out += [_left_out(one.row, str(error)) for one in run]
            continue
        if not case.service.is_single:
            left_out += [_left_out(one.row, "was served by several servers") for one in run]
            continue
        for one in stages_of(run):
            reason = one.row.left_out or _speculative(one.row) or _overloaded(one.row)
            if reason:
                left_out.append(_left_out(one.row, reason))
                continue
            rows.append(one)
            cases.append(lasting(case, one.row))
    if rows:
        bare = predict_cases(cases, Corrections())
        above = [prediction.saturated for prediction in bare]
        reason = "the bare physics puts its load above capacity"
        left_out += [
            _left_out(one.row, reason) for one, out in zip(rows, above, strict=True) if out
        ]
        rows = [one for one, out in zip(rows, above, strict=True) if not out]
        cases = [case for case, out in zip(cases, above, strict=True) if not out]
    if not rows:
        reasons = sorted({entry["reason"] for entry in left_out})
        raise InputError(
            ", ".join(map(str, tables)), "has no row to fit", "; ".join(reasons) or "add rows"
        )
    return Observed(_stages(rows, cases), rows, cases, left_out)


def groups(rows: Sequence[TableRow], kind: str) -> list[str]:
    """The group that each row is of.

    Args:
        rows: The rows.
        kind: A column; ``campaign``, the table that a row is of; ``image``, that with the GPU and
            the engine's version; ``deployment``, the model, GPU, engine and layout; or
            ``workload``: rows whose prompts are as long to the hundred, since each tokeniser counts
            otherwise, and whose outputs are.
    """
    if kind == "campaign":
        return [one.campaign for one in rows]
    if kind == "image":
        return [
            f"{one.campaign}, {one.row.hardware}, {one.row.engine} {one.row.engine_version}"
            for one in rows
        ]
    if kind == "deployment":
        return [
            f"{one.row.model} {one.row.hardware} {one.row.engine} {degrees_of(one.row)}"
            for one in rows
        ]
    if kind != "workload":
        return [str(getattr(one.row, kind)) for one in rows]
    return [
        f"{round(one.row.input_len_mean, -2):.0f} in, {one.row.output_len:.0f} out" for one in rows
    ]


def _left_out(row: RunRow, reason: str) -> dict[str, Any]:
    return {"experiment": row.experiment, "stage": row.stage, "reason": reason}


def _overloaded(row: RunRow) -> str | None:
    """Why a row has no steady state, from what was measured."""
    failed, succeeded, ttft, e2e = row.n_failed, row.n_success, row.ttft_mean, row.e2e_mean
    if failed is not None and succeeded is not None and failed > _FAILED_SHARE * succeeded:
        return f"{failed / (failed + succeeded):.0%} of its requests failed"
    if ttft is not None and e2e is not None and ttft > _QUEUE_SHARE * e2e:
        return "its requests spent most of their time in a queue"
    return None


def _speculative(row: RunRow) -> str:
    """Why a row with drafts is not fitted: what is accepted is not known apart from times."""
    return "decodes speculatively" if row.draft else ""


def _stages(rows: Sequence[TableRow], cases: Sequence[Case]) -> Stages:
    seen = [measured(one.row) for one in rows]
    shape = (len(rows), len(METRICS))
    known = np.array([metric in one for one in seen for metric in METRICS], bool)
    values = np.array([one.get(metric, 1.0) for one in seen for metric in METRICS])
    return Stages(
        chunks_of(cases),
        observed=np.log(values.reshape(shape)),
        known=known.reshape(shape),
        weight=weights_of(rows),
        bins=Bins.of_rows([one.row for one in rows], METRICS),
    )


def chunks_of(cases: Sequence[Case]) -> tuple[ObservedChunk, ...]:
    """Cases as chunks that are predicted at once, those of one structure together."""
    chunks: list[ObservedChunk] = []
    for structure in dict.fromkeys(case.structure for case in cases):
        places = [i for i, case in enumerate(cases) if case.structure == structure]
        # Of few at most a quarter more: a power of two would have a fit take twice as long.
        unit = max(16, 2 ** (len(places).bit_length() - 3))
        size = min(math.ceil(len(places) / unit) * unit, _AT_ONCE)
        filled = [*places, *[places[-1]] * (-len(places) % size)]
        parts = CaseArrays.chunks([cases[i] for i in filled], size)
        chunks += [
            ObservedChunk(np.array(places[start : start + size]), systems)
            for start, systems in zip(range(0, len(filled), size), parts, strict=True)
        ]
    return tuple(chunks)


def weights_of(rows: Sequence[TableRow]) -> Float[np.ndarray, " rows"]:
    """Weight of each row: those of one deployment err alike, and so count for less."""
    members = groups(rows, "deployment")
    counts = Counter(members)
    return np.array([1 / (1 + _ALIKE * (counts[own] - 1)) for own in members])


def log_predicted(
    numbers: Float[AnyArray, " n"], system: CaseArrays
) -> Float[AnyArray, " metrics"]:
    """Logarithms of the TTFT, ITL and E2E that a load has in its steady state.

    Args:
        numbers: Its corrections, flat.
        system: Its model, load and engine.
    """
    state = steady_state(system.model(unflat(numbers)), system.demand, system.limits)
    return jnp.log(jnp.stack([state.ttft, state.itl, state.e2e]))
