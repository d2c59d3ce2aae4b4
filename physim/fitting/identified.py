"""What runs told of each correction: which moved, which did not, and which cannot be told apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from physim.corrections.calibration import TWO_SIDED_90
from physim.corrections.fields import CORRECTIONS, flat
from physim.corrections.files import Fit
from physim.errors import InputError
from physim.fitting.next_runs import Candidates, candidates, chosen, spread_of
from physim.inputs.case import Case
from physim.printable import shown

if TYPE_CHECKING:
    import pandas as pd

# Of a correction's variance before any run, the share that runs took away from which on they told
# it, and up to which they told nothing.
_TOLD, _UNTOLD = 0.5, 0.1
# Two corrections cannot be told apart whose errors are correlated so far, whatever the sign.
_ALIKE = 0.7
_MOST_PAIRS = 5
# A measurement tells two apart that leaves less than so much of the variance.
_HELPS = 0.8
# What no measurement follows by so many standard deviations is no part of the case.
_MATTERS = 0.01


@dataclass(frozen=True)
class Known:
    """How well a correction is known.

    Attributes:
        name: The correction.
        factor: The factor that it stands for.
        within: The factor by which that may be off either way, 90%.
        told: Share of its variance before any run that the runs took away.
        likely: The factors between which it was expected before the runs, 90%.
    """

    name: str
    factor: float
    within: float
    told: float
    likely: tuple[float, float] = (0.0, np.inf)

    @property
    def is_unlikely(self) -> bool:
        """Whether the runs moved it out of where it was expected."""
        return not self.likely[0] <= self.factor <= self.likely[1]


@dataclass(frozen=True)
class Confusion:
    """Two corrections whose sum or difference is known far better than each.

    Attributes:
        names: The corrections.
        correlation: Of their errors: negative where one takes what the other leaves.
        apart_by: The measurement that would tell them apart best; empty where none would.
        command: The command that makes it.
    """

    names: tuple[str, str]
    correlation: float
    apart_by: str = ""
    command: str = ""


@dataclass(frozen=True)
class Identified:
    """What runs told of the corrections of one case.

    Attributes:
        known: Each correction.
        confusions: Those that cannot be told apart, the most alike first.
    """

    known: tuple[Known, ...]
    confusions: tuple[Confusion, ...]

    @property
    def told(self) -> list[Known]:
        """Corrections that the runs determine."""
        return [one for one in self.known if one.told >= _TOLD]

    @property
    def narrowed(self) -> list[Known]:
        """Corrections of which the runs say something, but do not determine them."""
        return [one for one in self.known if _UNTOLD <= one.told < _TOLD]

    @property
    def untold(self) -> list[Known]:
        """Corrections that are as uncertain as before."""
        return [one for one in self.known if one.told < _UNTOLD]

    @property
    def unlikely(self) -> list[Known]:
        """Corrections that the runs moved out of where they were expected."""
        return [one for one in self.known if one.is_unlikely]

    def describe(self) -> list[str]:
        """The answer in words, a line for each thing."""
        sure = f", with 90% intervals: {_listed(self.told)}" if self.told else " no correction"
        lines = [f"The runs determine{sure}."]
        if self.narrowed:
            lines.append(
                f"They narrow by less than half of the variance: {_listed(self.narrowed)}."
            )
        if self.untold:
            names = ", ".join(one.name for one in self.untold)
            lines.append(f"They say next to nothing of: {names}.")
        lines += [
            f"{one.name} {one.factor:.2f} is beyond what was expected ({one.likely[0]:.2f} to "
            f"{one.likely[1]:.2f}): it may stand for something else. Check how the runs were made, "
            "and measure another model or layout before you use it there."
            for one in self.unlikely
        ]
        for pair in self.confusions:
            one, other = pair.names
            line = f"They cannot tell {one} from {other} (correlation {pair.correlation:+.2f})"
            lines.append(f"{line}; {pair.apart_by} would." if pair.apart_by else f"{line}.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return {
            "determined": {one.name: one.told for one in self.told},
            "narrowed": {one.name: one.told for one in self.narrowed},
            "unknown": [one.name for one in self.untold],
            "unlikely": {one.name: list(one.likely) for one in self.unlikely},
            "alike": [
                {
                    "corrections": list(one.names),
                    "correlation": one.correlation,
                    "told_apart_by": one.apart_by,
                    "command": one.command,
                }
                for one in self.confusions
            ],
        }

    def __repr__(self) -> str:
        return shown(self, *self.describe())

    def to_frame(self) -> pd.DataFrame:
        """A row for each correction: its factor, how far that is off, and what runs told of it."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in self.known])


def _listed(known: Sequence[Known]) -> str:
    """Corrections as factors with what they may be, the best known first."""
    ranked = sorted(known, key=lambda one: -one.told)
    return ", ".join(
        f"{one.name} {one.factor:.2f} ({one.factor / one.within:.2f} to "
        f"{one.factor * one.within:.2f})"
        for one in ranked
    )


def identified(fit: Fit, case: Case, base: Fit | None = None) -> Identified:
    """What a fit's runs told of the corrections of a case, and what would tell more.

    Args:
        fit: The fit.
        case: The case, with a load like those that could be run.
        base: The fit that it started from; None for the priors.

    Raises:
        InputError: Nothing is known of how certain the fit is.
    """
    if fit.evidence is None:
        raise InputError(f"fit {fit.name}", "does not say how certain it is", "fit one to runs")
    about, spread = fit.on(case), spread_of(fit, case)
    start = Fit("priors") if base is None else base
    before = np.diag(spread_of(start, case))
    told = 1 - np.diag(spread) / before
    expected = flat(start.on(case).corrections)[: len(before)]
    values = flat(about.corrections)
    halves = TWO_SIDED_90 * np.sqrt(np.diag(spread))
    found = candidates(case, about)
    # A dense model has no experts, of which there is nothing to know.
    matters = np.any(np.abs(found.slopes) > _MATTERS, axis=(0, 1))
    likely = np.exp(expected + TWO_SIDED_90 * np.sqrt(before) * np.array([[-1.0], [1.0]]))
    known = tuple(
        Known(
            name,
            float(np.exp(values[place])),
            float(np.exp(halves[place])),
            float(told[place]),
            (float(likely[0, place]), float(likely[1, place])),
        )
        for place, name in enumerate(CORRECTIONS)
        if matters[place]
    )
    return Identified(known, tuple(_confusions(spread, found)))


def _confusions(spread: Float[np.ndarray, "n n"], found: Candidates) -> Iterator[Confusion]:
    widths, names = np.sqrt(np.diag(spread)), list(CORRECTIONS)
    correlation = spread / np.outer(widths, widths)
    pairs = [
        (int(one), int(other))
        for one, other in zip(*np.nonzero(np.triu(np.abs(correlation) > _ALIKE, 1)), strict=True)
    ]
    pairs.sort(key=lambda pair: -abs(correlation[pair]))
    for one, other in pairs[:_MOST_PAIRS]:
        # What is known badly of both: their difference where they rise together, else their sum.
        target = np.zeros((1, len(names)))
        target[0, one] = 1 / widths[one]
        target[0, other] = -np.sign(correlation[one, other]) / widths[other]
        ((place, left),) = chosen(found.slopes, target, spread, 1)
        before = 2 * (1 + abs(correlation[one, other]))
        yield Confusion(
            (names[one], names[other]),
            float(correlation[one, other]),
            *((found.names[place], found.commands[place]) if left[0] < _HELPS * before else ()),
        )
