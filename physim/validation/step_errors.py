"""Predicted times of steps held against measured ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float

from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.inputs.case import Case, ServerOptions
from physim.measured.steps import NOT_TIMED, MeasuredSteps
from physim.options import named_options
from physim.prediction.arrays import step_model_of
from physim.printable import aligned, shown
from physim.step.lowering import PARTS
from physim.step.many_batches import part_seconds

if TYPE_CHECKING:
    import pandas as pd

# What counts as right.
_BOUND = 0.1


@dataclass(frozen=True)
class StepErrors:
    """How far predictions of steps of one kind are from what was measured.

    Attributes:
        kind: One of `physim.measured.steps.KINDS`, or ``all``.
        steps: How many there are.
        measured_s: Their time, all together, seconds.
        predicted_s: What is predicted of it, seconds.
        mean_pct: Mean error of a step, its sign left out, percent.
        median_pct: Median of these, percent.
        bias_pct: Error of the time of all together, percent.
        within_10pct: Percent of the steps whose prediction is within a tenth.
    """

    kind: str
    steps: int
    measured_s: float
    predicted_s: float
    mean_pct: float
    median_pct: float
    bias_pct: float
    within_10pct: float


@dataclass(frozen=True)
class StepComparison:
    """Measured steps beside their predictions.

    Attributes:
        steps: The steps, with the contexts that were taken.
        predicted_s: The predicted time of each by the same clock, seconds.
        fit: The fit that the predictions are of.
        errors: Errors of each kind of step, and last of all of them.
        notes: What was assumed, one line each.
    """

    steps: MeasuredSteps = field(repr=False)
    predicted_s: Float[np.ndarray, " steps"] = field(repr=False)
    fit: str
    errors: tuple[StepErrors, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The errors, as JSON takes them."""
        return {
            "source": self.steps.source,
            "clock": self.steps.clock,
            "fit": self.fit,
            "errors": [asdict(one) for one in self.errors],
            "notes": [*self.steps.notes, *self.notes],
        }

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("steps", "number", "mean error %", "bias %", "within 10% %")
        ]
        for one in self.errors:
            figures = (one.mean_pct, one.bias_pct, one.within_10pct)
            rows.append((one.kind, f"{one.steps:,}", *(f"{value:.1f}" for value in figures)))
        return shown(self, f"{self.steps.source} by fit {self.fit}", *aligned(rows))

    def to_frame(self) -> pd.DataFrame:
        """A row for each kind of step, and last for all of them."""
        import pandas as pd

        return pd.DataFrame([asdict(one) for one in self.errors])


@named_options
def compare_steps(
    steps: MeasuredSteps,
    model: str | Path | Case,
    *,
    fit: str | Path = DEFAULT_FIT,
    context: float | None = None,
    **options: Unpack[ServerOptions],
) -> StepComparison:
    """Predicts the times of measured steps and says how far they are off.

    Contexts that a source does not give follow from the KV cache in use, of which the server has
    as many tokens as physim computes unless ``kv_blocks`` says it.

    Args:
        steps: The steps of one data-parallel rank, or of several with loads alike.
        model: A case; or a path of a ``config.json``, shipped name or hub id, with the rest of the
            case beside it. A load is of no account.
        fit: Name or path of a fit, ``default`` or ``none``.
        context: Mean tokens that requests have in the KV cache before a step, where nothing is
            known of them; None for none.
        **options: GPU and deployment; see `ServerOptions`.

    Raises:
        InputError: Some input cannot be used, or contexts are not known.
    """
    case = Case.from_options(model, **options)
    known = load_fit(fit).on(case)
    step_model = step_model_of(case, known.corrections)
    notes = []
    server = case.server
    if server.parallelism.dp > 1:
        step_model = step_model.of_alike_ranks(server.parallelism.dp)
        notes.append("steps are predicted as if all data-parallel ranks had the same batch")
    steps = steps.completed(server.kv.tokens, context)
    seconds = part_seconds(step_model, steps.batches(np.asarray(step_model.ops.windows)))
    seen = [name not in NOT_TIMED.get(steps.clock, ()) for name in PARTS]
    predicted = np.asarray(seconds[:, seen].sum(axis=1), float)
    return StepComparison(steps, predicted, known.name, errors_of(steps, predicted), tuple(notes))


def errors_of(
    steps: MeasuredSteps, predicted_s: Float[np.ndarray, " steps"]
) -> tuple[StepErrors, ...]:
    """Errors of each kind of step that there is, and last of all together.

    Args:
        steps: The steps.
        predicted_s: The predicted time of each, seconds.
    """
    kinds = {**steps.kinds, "all": np.ones(len(steps), bool)}
    found = []
    for kind, chosen in kinds.items():
        if not chosen.any():
            continue
        measured, predicted = steps.seconds[chosen], predicted_s[chosen]
        errors = np.abs(predicted / measured - 1)
        found.append(
            StepErrors(
                kind=kind,
                steps=int(chosen.sum()),
                measured_s=float(measured.sum()),
                predicted_s=float(predicted.sum()),
                mean_pct=float(100 * errors.mean()),
                median_pct=float(100 * np.median(errors)),
                bias_pct=float(100 * (predicted.sum() / measured.sum() - 1)),
                within_10pct=float(100 * np.mean(errors <= _BOUND)),
            )
        )
    return tuple(found)
