"""How many runs on a new GPU it takes: error on its other runs against the number given.

Usage: python benchmarks/learning_curve.py silicon.csv PICTURE.png

For H200 and B200 in turn: a fit to the rows that are to be fitted (``part``) on all other GPUs,
then from that fit others with 0, 1, 2, 4, 6 and 12 of the GPU's rows, drawn at random three times,
of any engine. The errors are those on the GPU's other rows that are to be fitted, of the same
models and engines, and on its rows of validation, which are of others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from physim.corrections.files import Fit
from physim.fitting.earned_levels import earned
from physim.fitting.empirical_bayes import solve
from physim.fitting.fit import concluded
from physim.fitting.objective import Problem
from physim.fitting.observations import METRICS, Observed, observe
from physim.plot.figures import COLORS, new_figure, save
from physim.prediction.many import predict_cases

_GPUS, _COUNTS, _DRAWS = ("h200_sxm", "b200_sxm"), (0, 1, 2, 4, 6, 12), 3
_ON = (("same models", "-"), ("other models", "--"))


def main() -> None:
    table, picture = sys.argv[1], Path(sys.argv[2])
    figure = new_figure(9, 3.6)
    print(
        "| GPU | runs given | errors on | TTFT | ITL | E2E |\n| --- | --- | --- | --- | --- | --- |"
    )
    for gpu, axes in zip(_GPUS, figure.subplots(1, 2), strict=True):
        rest = f"hardware != '{gpu}' and not part in ['validation', 'test']"
        base = _fitted(observe([table], rest), Fit("none"))
        alike = observe([table], f"hardware == '{gpu}' and part == 'fit'")
        others = observe([table], f"hardware == '{gpu}' and part == 'validation'")
        errors = np.array([_errors(base, alike, others, count) for count in _COUNTS])
        for which, (words, style) in enumerate(_ON):
            for column, metric in enumerate(METRICS[:2]):
                mean = errors[:, :, which, column].mean(axis=1)
                label = f"{metric.upper()}, {words}"
                axes.plot(_COUNTS, mean, style, color=COLORS[metric], marker=".", label=label)
            for count, own in zip(_COUNTS, errors[:, :, which].mean(axis=1), strict=True):
                shown = " | ".join(f"{error:.1f}" for error in own)
                print(f"| {gpu} | {count} | {words} | {shown} |", flush=True)
        axes.set(title=gpu, xlabel="runs given", ylabel="error on its other runs, percent")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    save(figure.axes, picture)


def _errors(base: Fit, alike: Observed, others: Observed, count: int) -> list[list[list[float]]]:
    """Mean absolute errors by draw, by which rows (`_ON`) and metric, percent."""
    found = []
    for seed in range(_DRAWS):
        drawn = np.random.default_rng(seed).permutation(len(alike.rows)) < count
        fit = _fitted(alike.pick(drawn), base) if count else base
        found.append([_off(fit, alike.pick(~drawn)), _off(fit, others)])
    return found


def _off(fit: Fit, unseen: Observed) -> list[float]:
    corrections = [fit.on(case).corrections for case in unseen.cases]
    predicted = predict_cases(unseen.cases, corrections)
    times = np.array([[one.ttft_s, one.itl_s, one.e2e_s] for one in predicted], float)
    off = 100 * np.abs(times / np.exp(unseen.stages.observed) - 1)
    own: list[float] = np.nanmean(np.where(unseen.stages.known, off, np.nan), axis=0).tolist()
    return own


def _fitted(observed: Observed, base: Fit) -> Fit:
    problem = Problem.from_observed(observed, base=base)
    if base.evidence is None:
        problem, _ = earned(problem)
    solved, parameters, losses = solve(problem, base.evidence is None)
    return concluded(observed, solved, parameters, losses, "learning", {}, base).fit


if __name__ == "__main__":
    main()
