"""Random cases that can be predicted, and the laws that their predictions keep.

`benchmarks/check_laws.py` tries thousands; `test_laws.py` some tens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import physim
from physim import data
from physim.corrections.fields import CORRECTIONS, Corrections, flat, unflat
from physim.errors import InputError
from physim.fluid.steady import steady_state
from physim.prediction.arrays import CaseArrays
from physim.prediction.replayed import replay_of
from physim.replay.workload import drawn
from physim.service.service import Service
from physim.types import AnyArray

Rng = np.random.Generator

MODELS = [name.replace("--", "/") for name in data.names("model_configs", ".json")]
GPUS = data.names("hardware", ".json")
ENGINES = ("vllm", "sglang", "trtllm")
# What derivatives are of, and by.
METRICS = ("ttft", "itl", "e2e", "saturation")
LOADS = ("rate", "input_tokens", "output_tokens")
# Rounding of sums in 32 bit, by which parts may miss their sum.
_ROUNDING = 1e-5
# Slots are multiplied by so much where saturation throughputs are compared,
MORE_SLOTS = 2
# by so much arguments are moved to see what becomes of a metric, in logarithm,
_MOVED = 1e-5
# and less than this of an elasticity is as good as none.
_NOTABLE = 1e-3


def valid_case(rng: Rng, **fixed: Any) -> physim.Case:
    """Some case that can be predicted, of any engine, layout, model and GPU.

    Args:
        rng: What it is drawn from.
        **fixed: Options that are not drawn.
    """
    while True:
        given: dict[str, Any] = {
            "engine": str(rng.choice(ENGINES)),
            "gpu": str(rng.choice(GPUS)),
            "tp": int(rng.choice([1, 2, 4, 8])),
            "pp": int(rng.choice([1, 1, 2, 4])),
            "dp": int(rng.choice([1, 1, 2, 4])),
            "input_tokens": float(rng.integers(1, 6000)),
            "output_tokens": float(rng.integers(1, 800)),
        }
        given["ep"] = int(rng.choice([1, given["tp"] * given["dp"]]))
        if rng.random() < 0.3:
            given["output_tokens"] = physim.Lengths.exponential(20 + given["output_tokens"])
        if rng.random() < 0.3:
            given["concurrency"] = int(rng.integers(1, 300))
        else:
            given["rate"] = float(rng.uniform(0.01, 30))
            given["arrival"] = str(rng.choice(["constant", "poisson", "gamma"]))
        if given.get("arrival") == "gamma":
            given["burstiness"] = float(rng.choice([0.3, 0.7, 2.0]))
        with contextlib.suppress(InputError):
            return physim.Case.from_options(MODELS[rng.integers(len(MODELS))], **{**given, **fixed})


def predicted(cases: list[physim.Case]) -> list[physim.Prediction]:
    """Predictions of cases, all together, with nothing fitted."""
    return physim.predict_cases(cases, Corrections())


def described(case: physim.Case) -> str:
    """A case in one line, for messages."""
    server = case.server
    return (
        f"{case.model.name} on {case.server.gpu.key}, {server.profile.engine}, "
        f"{server.parallelism}, {case.demanded.describe()}"
    )


def check_predictions(cases: list[physim.Case]) -> None:
    """Numbers are finite, percentiles in order, parts sum to the step, and Little's law holds."""
    for case, found in zip(cases, predicted(cases), strict=True):
        where = described(case)
        for metric, values in found.whole.latencies.items():
            row = list(values.values())
            assert all(math.isfinite(value) and value > 0 for value in row), (where, metric)
            ordered = row[1:]
            assert all(a <= b * (1 + 1e-5) for a, b in itertools.pairwise(ordered)), (
                where,
                metric,
            )
        check_parts(found, where)
        load, itl = case.demanded, found.itl_s or 0.0
        decoding = found.requests_per_s * (load.mean_output - 1) * itl
        slots = case.server.parallelism.dp * case.server.sizes.max_num_seqs
        assert found.pool.batch <= found.pool.running * (1 + 1e-6) <= slots * (1 + 1e-5), where
        if found.e2e_s is None:
            continue
        assert math.isclose(found.pool.batch, min(decoding, found.pool.running), rel_tol=0.02), (
            where
        )
        if load.concurrency is not None and load.requests is None:
            inside = found.requests_per_s * found.e2e_s
            assert inside <= load.concurrency * 1.02, where


def check_parts(found: physim.Prediction, where: str) -> None:
    """The parts of a step sum to it, and none is less than nothing or more than the step."""
    parts = found.pool.step_parts_s.values()
    assert math.isclose(sum(parts), found.pool.step_s, rel_tol=_ROUNDING), where
    assert all(-_ROUNDING <= part / found.pool.step_s <= 1 + _ROUNDING for part in parts), where


def check_monotone(cases: list[physim.Case]) -> None:
    """More requests or longer prompts take no less time.

    But in a pipeline, whose requests share out over more batches where more prompts come at once.
    """
    for field in ("rate", "input_tokens"):
        heavier = [_heavier(case, field) for case in cases]
        for case, more, one, other in zip(
            cases, heavier, predicted(cases), predicted(heavier), strict=True
        ):
            if case.server.parallelism.pp > 1 or one.e2e_s is None or other.e2e_s is None:
                continue
            assert more is case or other.e2e_s > one.e2e_s * 0.97, (field, described(case))


def _heavier(case: physim.Case, field: str) -> physim.Case:
    """A case with half as much again of something; the same where it has none of it to vary."""
    load = case.demanded
    if load.rate is None:
        return case
    # Longer prompts may be too long for the model, or cut the outputs short.
    with contextlib.suppress(InputError):
        more = dataclasses.replace(load, **{field: 1.5 * getattr(load, field)})
        heavier = case.under(more)
        return case if heavier.notes else heavier
    return case


def check_alone(cases: list[physim.Case]) -> None:
    """What is predicted of a case does not depend on the cases beside it."""
    for case, found in zip(cases, predicted(cases), strict=True):
        (alone,) = predicted([case])
        assert _close(_numbers(alone), _numbers(found)), described(case)


def _numbers(found: physim.Prediction) -> dict[str, float | None]:
    names = ("ttft_s", "itl_s", "e2e_s", "requests_per_s", "saturation_rps")
    own = {name: getattr(found, name) for name in names} | dict(found.pool.step_parts_s)
    own |= {"step_s": found.pool.step_s, "kv_use": found.pool.kv_use}
    return own | {
        f"{metric} {name}": value
        for metric, row in found.whole.latencies.items()
        for name, value in row.items()
    }


def _close(one: dict[str, float | None], other: dict[str, float | None]) -> bool:
    # In 32 bit the root-finder stops within some tens of rounding errors.
    tolerance = 1e-9 if jax.config.read("jax_enable_x64") else 1e-4
    return one.keys() == other.keys() and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=tolerance))
        for a, b in ((one[name], other[name]) for name in one)
    )


def replayed_saturation(case: physim.Case, clients: float, requests: int) -> float:
    """Requests per second that a replay completes for so many clients, in the midst of its run."""
    return _replayed_rate(case, requests, concurrency=clients)


def replayed_overload(case: physim.Case, rate: float, requests: int) -> float:
    """The same for requests that come by chance, at a rate that is more than are served.

    Clients that all begin at once send requests that begin and end together, if all are alike.
    """
    return _replayed_rate(case, requests, rate=rate, arrival="poisson")


def _replayed_rate(case: physim.Case, requests: int, **arrivals: Any) -> float:
    load = physim.Load(
        case.demanded.input_tokens,
        case.demanded.output_tokens,
        requests=requests,
        cached_tokens=case.demanded.cached_tokens,
        prefixes=case.demanded.prefixes,
        popularity=case.demanded.popularity,
        **arrivals,
    )
    result = replay_of(drawn(load, case.server, seed=0), case.under(load), Corrections())
    ends = np.sort(result.to_frame()["finished_s"])
    first, last = int(0.3 * requests), int(0.8 * requests)
    return float((last - first) / (ends[last] - ends[first]))


class Falls(NamedTuple):
    """A saturation throughput that falls where an engine has more slots.

    Attributes:
        few: The case,
        many: and with `MORE_SLOTS` times the slots.
        ratio: Its saturation throughput over that of the fewer slots.
    """

    few: physim.Case
    many: physim.Case
    ratio: float


def falls_with_slots(cases: list[physim.Case], least: float) -> list[Falls]:
    """Cases whose saturation throughput falls by a share or more with more slots.

    More slots leave less memory for the KV cache; here it is what it was.
    """
    found = []
    for share in (4, 1):
        few = [_with_slots(case, case.server.sizes.max_num_seqs // share) for case in cases]
        many = [_with_slots(case, MORE_SLOTS * case.server.sizes.max_num_seqs) for case in few]
        rates = ([one.saturation_rps for one in predicted(some)] for some in (few, many))
        for one, other, before, after in zip(few, many, *rates, strict=True):
            if after < (1 - least) * before:
                found.append(Falls(one, other, after / before))
    return found


def _with_slots(case: physim.Case, slots: int) -> physim.Case:
    """A case whose engine has so many slots, and everything else as it is."""
    server = case.server
    sizes = dataclasses.replace(server.sizes, max_num_seqs=slots)
    service = Service.single(dataclasses.replace(server, sizes=sizes))
    return dataclasses.replace(case, service=service)


class Slopes(NamedTuple):
    """Derivatives of the logarithms of `METRICS`, by what there is to be moved.

    Attributes:
        by: Names of what is moved: corrections, and `LOADS` in logarithm.
        derivatives: By differentiation,
        differences: by moving it up and down,
        up: up alone,
        down: and down alone.
    """

    by: tuple[str, ...]
    derivatives: Float[np.ndarray, "cases metrics by"]
    differences: Float[np.ndarray, "cases metrics by"]
    up: Float[np.ndarray, "cases metrics by"]
    down: Float[np.ndarray, "cases metrics by"]

    def notable(self) -> Float[np.ndarray, "cases metrics by"]:
        """Whether each is a number of some size; what is above capacity has none."""
        size = np.maximum(np.abs(self.derivatives), np.abs(self.differences))
        return np.isfinite(size) & (size > _NOTABLE)

    def off(self, share: float) -> Float[np.ndarray, "cases metrics by"]:
        """Whether a derivative is off by more than a share, apart from kinks.

        At a kink, such as a knot of a measured curve, or where another limit takes over, the
        differences up and down are two numbers, and a derivative may be either.
        """
        size = np.maximum(np.abs(self.derivatives), np.abs(self.differences))

        def far(differences: Float[np.ndarray, "cases metrics by"]) -> Any:
            return np.abs(self.derivatives - differences) > share * size

        missed = far(self.differences) & far(self.up) & far(self.down)
        return self.notable() & missed


def slopes(cases: list[physim.Case]) -> Slopes:
    """Derivatives of predictions, and the differences that they should be. Needs 64 bit.

    Args:
        cases: Cases whose mixed steps are composed alike.
    """
    by = (*CORRECTIONS, *LOADS)
    directions = np.eye(len(by))
    points = np.concatenate([_MOVED * directions, 0 * directions, -_MOVED * directions])
    along = np.concatenate([directions] * 3)
    found = _slopes(CaseArrays.from_cases(cases), points, along)
    # Of every point a row, and of every metric a column.
    values, tangents = (np.asarray(x).reshape(len(cases), 3, len(by), -1) for x in found)
    up, at, down = (np.swapaxes(values[:, i], 1, 2) for i in range(3))
    with np.errstate(invalid="ignore"):
        differences = (up - down) / (2 * _MOVED), (up - at) / _MOVED, (at - down) / _MOVED
    return Slopes(by, np.swapaxes(tangents[:, 1], 1, 2), *differences)


@jax.jit
def _slopes(
    systems: CaseArrays,
    points: Float[AnyArray, "points by"],
    along: Float[AnyArray, "points by"],
) -> tuple[AnyArray, AnyArray]:
    """Logarithms of the metrics at points, and their derivatives along directions."""

    def of_one(system: CaseArrays) -> tuple[AnyArray, AnyArray]:
        def logs(by: Float[AnyArray, " by"]) -> Float[AnyArray, " metrics"]:
            count = len(CORRECTIONS)
            none = jnp.asarray(flat(Corrections()))
            model = system.model(unflat(none.at[:count].add(by[:count])))
            rate, prompt, output = jnp.exp(by[count:])
            demand = dataclasses.replace(
                system.demand,
                rate=system.demand.rate * rate,
                input_tokens=system.demand.input_tokens * prompt,
                output_steps=1 + (system.demand.output_steps - 1) * output,
            )
            both = jax.tree.map(lambda *x: jnp.stack(x), demand, demand.unending())
            states = jax.vmap(lambda one: steady_state(model, one, system.limits))(both)
            loaded = [states.ttft[0], states.itl[0], states.e2e[0]]
            return jnp.log(jnp.stack([*loaded, states.throughput[1]]))

        return jax.vmap(lambda point, tangent: jax.jvp(logs, (point,), (tangent,)))(points, along)

    return jax.vmap(of_one)(jax.tree.map(jnp.asarray, systems))
