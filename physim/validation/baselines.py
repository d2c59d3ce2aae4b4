"""What else one could fit to the same rows: baselines, each a function of which rows it may see.

All take logarithms of seconds and give them, for every row; rows of a model that a baseline needs
to have seen and has not are predicted from all others together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import numpy as np
from jaxtyping import Bool, Float

from physim.errors import InputError
from physim.fitting.observations import Observed

Logs = Float[np.ndarray, "rows metrics"]
Rows = Bool[np.ndarray, " rows"]

_RIDGE = 1e-3


def _loads(observed: Observed) -> Float[np.ndarray, "rows 4"]:
    """Of each row the requests that run, by Little's law on its own E2E, prefill and context.

    A blackbox knows the batch only from the measured run, so what it is given is more than it
    would have for a run that was not measured; it is beaten nevertheless or not at all.
    """
    rate = observed.column("rate_rps").astype(float)
    e2e = np.exp(observed.stages.observed[:, 2])
    batch = rate * e2e
    prompt, output = (observed.column(c).astype(float) for c in ("input_len_mean", "output_len"))
    return np.stack([np.ones_like(batch), batch, rate * prompt, batch * (prompt + output / 2)], 1)


def _ttft(itl: Float[np.ndarray, " rows"], observed: Observed, seen: Rows) -> np.ndarray:
    """TTFT as a constant and steps, fitted to the rows that were seen."""
    own = np.exp(observed.stages.observed)
    design = np.stack([np.ones(np.sum(seen)), own[seen, 1]], axis=1)
    constant, steps = np.linalg.lstsq(design / own[seen, :1], np.ones(np.sum(seen)), rcond=None)[0]
    return np.maximum(constant + steps * itl, 1e-4)


def _assembled(itl: Float[np.ndarray, " rows"], observed: Observed, seen: Rows) -> Logs:
    itl = np.maximum(itl, 1e-4)
    ttft = _ttft(itl, observed, seen)
    e2e = ttft + (observed.column("output_len").astype(float) - 1) * itl
    return np.log(np.stack([ttft, itl, e2e], axis=1))


def _relative(
    design: Float[np.ndarray, "rows n"], seconds: Float[np.ndarray, " rows"], ridge: float = 0.0
) -> Float[np.ndarray, " n"]:
    """Coefficients of least relative error."""
    scaled = design / seconds[:, None]
    # Columns of one size, so that the ridge means the same for all.
    size = np.linalg.norm(scaled, axis=0) + 1e-12
    unit = scaled / size
    matrix = unit.T @ unit + ridge * np.eye(design.shape[1])
    solution, *_ = np.linalg.lstsq(matrix, unit.T @ np.ones(len(seconds)), rcond=None)
    return np.asarray(solution / size)


def blackbox(observed: Observed, seen: Rows) -> Logs:
    """``beta0 + beta1 prefill + beta2 decode`` for each model and tp: the seed study's."""
    design = _loads(observed)[:, [0, 2, 1]]
    itl = np.exp(observed.stages.observed[:, 1])
    keys = [f"{one.row.model} {one.row.tp}" for one in observed.rows]
    predicted = design @ _relative(design[seen], itl[seen], _RIDGE)
    for key in dict.fromkeys(keys):
        own = np.array([k == key for k in keys])
        if np.sum(own & seen) >= 1:
            coefficients = _relative(design[own & seen], itl[own & seen], _RIDGE)
            predicted[own] = design[own] @ coefficients
    return _assembled(predicted, observed, seen)


def ridge(observed: Observed, seen: Rows) -> Logs:
    """Ridge regression for each regime of batch, no less than the fastest step seen.

    The features are the load's and the weights that a GPU reads; the floor stands for the
    overhead that no model escapes.
    """
    load = _loads(observed)
    weights = np.array([case.server.memory.weights for case in observed.cases])
    kv = np.array(
        [
            case.model.kv_bytes_per_token(case.server.parallelism.tp, case.server.kv_cache_bytes)
            for case in observed.cases
        ]
    )
    design = np.column_stack([load[:, 0], weights, load[:, 1], load[:, 2], load[:, 3] * kv])
    itl = np.exp(observed.stages.observed[:, 1])
    border = np.median(load[seen, 1])
    predicted = design @ _relative(design[seen], itl[seen], _RIDGE)
    for regime in (load[:, 1] <= border, load[:, 1] > border):
        if np.sum(regime & seen) > design.shape[1]:
            coefficients = _relative(design[regime & seen], itl[regime & seen], _RIDGE)
            predicted[regime] = design[regime] @ coefficients
    return _assembled(np.maximum(predicted, np.min(itl[seen])), observed, seen)


def boosted(observed: Observed, seen: Rows) -> Logs:
    """Boosted trees on the load and the model's size, for each metric."""
    from sklearn.ensemble import GradientBoostingRegressor

    weights = np.array([case.server.memory.weights for case in observed.cases])
    tp = observed.column("tp").astype(float)
    design = np.column_stack([np.log(_loads(observed)[:, 1:]), np.log(weights), tp])
    columns = []
    for column in range(3):
        trees = GradientBoostingRegressor(random_state=0)
        trees.fit(design[seen], observed.stages.observed[seen, column])
        columns.append(trees.predict(design))
    return np.stack(columns, axis=1)


BASELINES: Mapping[str, Callable[[Observed, Rows], Logs]] = {
    "blackbox": blackbox,
    "ridge": ridge,
    "boosted": boosted,
}


def require_packages(method: str) -> None:
    """Refuses a method whose package is missing, before others have done their work.

    Args:
        method: One of `BASELINES`, or any other.

    Raises:
        InputError: scikit-learn is not installed, and boosted trees are asked for.
    """
    if method == "boosted" and find_spec("sklearn") is None:
        raise InputError("method boosted", "needs scikit-learn", "pip install scikit-learn")
