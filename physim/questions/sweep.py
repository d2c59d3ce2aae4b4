"""Predictions of a whole grid of cases, on many processes or machines, in parts that survive.

What is written is a folder with a Parquet file for each part of the grid, whole or not at all, and
``_grid.json``, which says what of. A sweep that was interrupted goes on with the parts that are
missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from physim import data
from physim.corrections.files import DEFAULT_FIT, load_fit
from physim.errors import InputError
from physim.inputs.arrivals import arrivals_named
from physim.inputs.attempts import attempts
from physim.inputs.case import Case, check_names, option_names
from physim.inputs.fleet import pool_text
from physim.inputs.fleet_request import FleetRequest
from physim.inputs.lengths import Lengths, cached_part
from physim.inputs.request_lengths import RequestLengths
from physim.prediction.many import predict_cases
from physim.prediction.results import Prediction
from physim.printable import shown
from physim.progress import told_in_notebooks
from physim.service.phases import PHASES, PREFILL

if TYPE_CHECKING:
    import pandas as pd

# Parts of each worker that Ray is given at a time.
_ROUND = 8
_EXTRA = "pip install 'physim-llm[sweep]'"
# Cases of a part.
_SIZE = 256
_LENGTHS = ("input_tokens", "output_tokens")
# Beside the options of a case.
_OWN = ("model", "fit")

# More cases than a cluster predicts in a month, and more values than an option needs.
_MOST_CASES, _MOST_STEPS = 10**9, 10**5
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Value = str | float | int | bool
# Numbers that a column can hold, and text that a file can.
_Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]
_VALUES: TypeAdapter[list[Value]] = TypeAdapter(
    Annotated[list[bool | _Number | float | _Text], Field(min_length=1)], config=_STRICT
)
Row = dict[str, Any]


@dataclass(frozen=True)
class CaseGrid:
    """Every combination of some values of options.

    Attributes:
        axes: The values of each option; those of the last one change first.
    """

    axes: Mapping[str, Sequence[Value]]

    @classmethod
    def read(cls, path: str | Path) -> CaseGrid:
        """A grid from a YAML file: for each option a value, a list, or a range.

        Options are ``model``, ``fit`` and those of `physim.predict`, by these names or the command
        line's (``input`` for ``input_tokens``). A range is ``{from: 1, to: 20,
        steps: 5}``, evenly spaced, or with ``scale: log`` in equal ratios. What pools apart have of
        their own (``prefill``, ``decode``) is text such as ``tp=2,replicas=4``, or ``{tp: 2}``.

        Raises:
            InputError: The file cannot be read, an option is unknown, or it has no values.
        """
        path = Path(path)
        content = data.read_yaml(path)
        if not content:
            raise InputError(str(path), "holds no options", "write lines such as `tp: [1, 2]`")
        names = option_names(map(str, content))
        content = {names[str(name)]: value for name, value in content.items()}
        check_names(name for name in content if name not in _OWN)
        if "model" not in content:
            raise InputError(f"{path}: model", "is missing", "name one, or a list")
        if "stages" in content:
            raise InputError(f"{path}: stages", "cannot be swept", "give rates")
        content = {str(k): _as_text(v) if k in PHASES else v for k, v in content.items()}
        axes = {k: _values(f"{path}: {k}", value) for k, value in content.items()}
        cases = math.prod(len(values) for values in axes.values())
        if cases > _MOST_CASES:
            raise InputError(str(path), f"has {cases:.3g} cases", "give fewer values")
        return cls(axes)

    def __post_init__(self) -> None:
        """Refuses an option that has one value and no list of them.

        Raises:
            InputError: An option has none.
        """
        for name, values in self.axes.items():
            if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
                raise InputError(name, f"{values!r} is no list of values", f"write [{values!r}]")

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def options(self, place: int) -> dict[str, Value]:
        """The options of one case.

        Args:
            place: Its place in the grid.
        """
        found: dict[str, Value] = {}
        for name, values in reversed(list(self.axes.items())):
            place, own = divmod(place, len(values))
            found[name] = values[own]
        return {name: found[name] for name in self.axes}

    def __repr__(self) -> str:
        axes = ", ".join(
            f"{name} {values[0] if len(values) == 1 else f'({len(values)} values)'}"
            for name, values in self.axes.items()
        )
        return shown(self, f"{len(self):,} cases", axes)

    def to_frame(self) -> pd.DataFrame:
        """A row for each case, with its options."""
        import pandas as pd

        return pd.DataFrame([self.options(place) for place in range(len(self))])


class _Range(BaseModel):
    """Numbers between two ends, evenly spaced or in equal ratios."""

    model_config = _STRICT

    first: float = Field(alias="from")
    last: float = Field(alias="to")
    steps: int = Field(ge=1, le=_MOST_STEPS)
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _has_ratios(self) -> _Range:
        if self.scale == "log" and not (self.first > 0 and self.last > 0):
            raise PydanticCustomError("ratios", "equal ratios need ends above zero")
        return self

    def values(self) -> list[Value]:
        spaced = np.geomspace if self.scale == "log" else np.linspace
        return [float(one) for one in spaced(self.first, self.last, self.steps)]


def _as_text(pools: Any) -> Any:
    """What pools have of their own, one or a list, as text where it is a mapping."""
    if isinstance(pools, list):
        return [_as_text(one) for one in pools]
    return pool_text(pools) if isinstance(pools, dict) else pools


def _values(where: str, value: Any) -> list[Value]:
    try:
        if isinstance(value, dict):
            return _Range.model_validate(value).values()
        return _VALUES.validate_python(value if isinstance(value, list) else [value])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f".{part}" for part in first["loc"] if isinstance(part, str))
        said = first["msg"][:1].lower() + first["msg"][1:]
        if isinstance(value, dict):
            raise InputError(
                where + place,
                f"is no range: {said}",
                "write {from: 1, to: 20, steps: 5, scale: log}",
            ) from None
        raise InputError(where, "is no value, list or range", "correct it") from None


@told_in_notebooks("predicting a grid")
def sweep(
    grid: CaseGrid | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    backend: str = "loky",
    jobs: int | None = None,
    address: str | None = None,
    size: int = _SIZE,
    progress: Callable[[int, int], Any] = lambda *_: None,
) -> int:
    """Predicts every case of a grid and writes a folder of Parquet files.

    A row has the case's options, its mean latencies and their 99th percentiles in seconds,
    throughputs and the batch; or under ``problem`` why there is no prediction. Of services of
    several servers it has the number of GPUs, and the state of a server; where prefill and decode
    are apart, of one that generates, beside what each pool saturates at and one that prefills.

    Args:
        grid: The grid, or the YAML file that holds it; see `CaseGrid.read`.
        out: The folder. ``pandas.read_parquet`` reads it as one table.
        resume: Go on with what is there, of the same grid.
        backend: ``loky`` for processes on this machine, ``dask`` or ``ray`` for a cluster; workers
            need physim, and no files in common with this machine.
        jobs: Parts that are predicted at once; None for as many as there are cores.
        address: Of the cluster's scheduler.
        size: Cases of a part.
        progress: Called after each part with how many are there, and of how many.

    Returns:
        The number of cases.

    Raises:
        InputError: The grid cannot be used, or the folder is there and is not to be gone on with,
            or is of another grid.
    """
    grid = grid if isinstance(grid, CaseGrid) else CaseGrid.read(grid)
    out, count = Path(out), math.ceil(len(grid) / size)
    _check_backend(backend, address)
    _begin(grid, out, size, resume)
    missing = [place for place in range(count) if not _file(out, place).is_file()]
    done = count - len(missing)
    progress(done, count)
    for place, rows in _parts(grid, missing, size, backend, jobs, address):
        with data.replacing(_file(out, place)) as temporary:
            _frame(grid, rows).to_parquet(temporary, index=False)
        done += 1
        progress(done, count)
    return len(grid)


def _file(out: Path, place: int) -> Path:
    return out / f"part-{place:07d}.parquet"


def _check_backend(backend: str, address: str | None) -> None:
    """Refuses what cannot run, before there is a folder.

    Raises:
        InputError: The backend is unknown, is not installed, or has no use for an address.
    """
    if backend not in _CLUSTERS:
        known = ", ".join(_CLUSTERS)
        raise InputError("backend", f"{backend!r} is unknown", f"use one of {known}")
    if address is not None and backend == "loky":
        raise InputError("address", f"is of no use to {backend}", "pick dask or ray")
    for module in ("pyarrow", "joblib", *_MODULES[backend]):
        if importlib.util.find_spec(module) is None:
            raise InputError(f"backend {backend}", f"needs {module}", _EXTRA)


def _begin(grid: CaseGrid, out: Path, size: int, resume: bool) -> None:
    """Makes the folder, or refuses one that is there."""
    about = out / "_grid.json"
    content = {"physim_version": version("physim-llm"), "size": size, "axes": dict(grid.axes)}
    if about.is_file():
        if not resume:
            raise InputError(str(out), "holds a sweep", "name another folder, or pass --resume")
        if data.read_json(about) != json.loads(json.dumps(content)):
            raise InputError(
                str(out), "is of another grid, size or version of physim", "name another folder"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(str(out), "already exists and holds no sweep", "name another folder")
    out.mkdir(parents=True, exist_ok=True)
    data.write_json(about, content)


def _parts(
    grid: CaseGrid,
    places: Iterable[int],
    size: int,
    backend: str,
    jobs: int | None,
    address: str | None,
) -> Iterator[tuple[int, list[Row]]]:
    """Parts as they are done, in any order."""
    import joblib

    with (
        _CLUSTERS[backend](address) as options,
        joblib.parallel_config(backend, n_jobs=jobs or -1, **options),
    ):
        tasks = [joblib.delayed(_part)(grid, place, size) for place in places]
        if backend != "ray":
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(tasks)
            return
        # Ray's backend gives results when all are there: some at a time, so that they are written.
        some = _ROUND * joblib.effective_n_jobs()
        for start in range(0, len(tasks), some):
            yield from joblib.Parallel(batch_size=1)(tasks[start : start + some])


def _here(_: str | None) -> contextlib.AbstractContextManager[dict[str, Any]]:
    return contextlib.nullcontext({})


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[dict[str, Any]]:
    from distributed import Client

    with Client(address) as client:
        yield {"client": client}


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[dict[str, Any]]:
    import ray
    from ray.util.joblib import register_ray

    ray.init(address=address)
    register_ray()
    try:
        yield {}
    finally:
        ray.shutdown()


# What each backend needs beside joblib.
_MODULES = {"loky": (), "dask": ("distributed",), "ray": ("ray",)}
# What joblib is to be told of each backend, while its cluster is there.
_CLUSTERS: Mapping[
    str, Callable[[str | None], contextlib.AbstractContextManager[dict[str, Any]]]
] = {"loky": _here, "dask": _dask, "ray": _ray}


def _part(grid: CaseGrid, place: int, size: int) -> tuple[int, list[Row]]:
    """The rows of one part, with its place."""
    rows, cases, fits = [], [], []
    numbers = range(place * size, min((place + 1) * size, len(grid)))
    wanted = (grid.options(number) for number in numbers)
    for number, attempt in zip(numbers, attempts(wanted, {}, _typed), strict=True):
        row: Row = {"case": number, **attempt.choice, "problem": ""}
        rows.append(row)
        try:
            if attempt.case is None:
                row["problem"] = str(attempt.refusal)
                continue
            _ = attempt.case.demanded
            known = load_fit(str(attempt.choice.get("fit", DEFAULT_FIT)))
            fits.append(known.on(attempt.case).corrections)
            cases.append((row, attempt.case))
        except InputError as error:
            row["problem"] = str(error)
    for (row, _), one in zip(cases, _predictions([c for _, c in cases], fits), strict=True):
        row |= {"problem": one} if isinstance(one, str) else _columns(grid, one)
    return place, rows


def _typed(options: Mapping[str, Value]) -> dict[str, Any]:
    """Options of a case of what a file says, with its model and without its fit."""
    own: dict[str, Any] = {**options, "model": str(options["model"])}
    own.pop("fit", None)
    for name in _LENGTHS:
        if isinstance(own.get(name), str):
            own[name] = Lengths.parse(own[name], name)
    if isinstance(own.get("cached_tokens"), str):
        prompt = own.get("input_tokens")
        own["cached_tokens"] = cached_part(own["cached_tokens"], "cached_tokens", prompt)
    if isinstance(own.get("lengths"), str):
        own["lengths"] = RequestLengths.read(own["lengths"])
    if isinstance(own.get("arrival"), str):
        own |= arrivals_named(own["arrival"])
    return own


def _predictions(cases: Sequence[Case], corrections: Sequence[Any]) -> list[Prediction | str]:
    """Predictions of all, or if one has none, of each alone."""
    if not cases:
        return []
    try:
        return list(predict_cases(cases, corrections))
    except InputError as error:
        if len(cases) == 1:
            return [str(error)]
    pairs = zip(cases, corrections, strict=True)
    return list(itertools.chain.from_iterable(_predictions([c], [own]) for c, own in pairs))


_LATENCIES = {
    f"{metric}_{which}_s": (metric, which)
    for metric in ("ttft", "itl", "e2e")
    for which in ("mean", "p99")
}
_RATES = ("requests_per_s", "output_tokens_per_s", "saturation_rps")
_OF_A_POOL = ("batch", "kv_use", "step_s")
_OTHERS = (*_RATES, *_OF_A_POOL)


def _of_fleets(grid: CaseGrid) -> list[str]:
    """Columns of a grid whose services may have several servers."""
    if not grid.axes.keys() & FleetRequest.__dataclass_fields__.keys():
        return []
    pools = [f"{phase}_saturation_rps" for phase in PHASES]
    first = [f"{PREFILL}_{name}" for name in _OF_A_POOL]
    return ["gpus", *(pools + first if PREFILL in grid.axes else [])]


def _columns(grid: CaseGrid, one: Prediction) -> Row:
    latencies = {
        name: one.whole.latencies.get(metric, {}).get(which)
        for name, (metric, which) in _LATENCIES.items()
    }
    rates = {name: getattr(one, name) for name in _RATES}
    # Requests have most of their tokens of the last.
    state = {name: getattr(one.pools[-1], name) for name in _OF_A_POOL}
    found = latencies | rates | state | {"gpus": sum(pool.pool.gpus for pool in one.pools)}
    for pool in one.pools:
        for name in ("saturation_rps", *_OF_A_POOL):
            found |= {f"{phase}_{name}": getattr(pool, name) for phase in pool.phases}
    wanted = (*_LATENCIES, *_OTHERS, *_of_fleets(grid))
    return {name: found[name] for name in wanted}


def _kind(types: set[type]) -> str:
    """What a column of values of some types is."""
    if len(types) == 1 and types <= {bool, int}:
        return {bool: "bool", int: "int64"}[types.pop()]
    return "float64" if types <= {int, float} else "string"


def _frame(grid: CaseGrid, rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table whose columns have one type in every part."""
    import pandas as pd

    kinds: dict[str, str] = {"case": "int64"}
    for name, values in grid.axes.items():
        kinds[name] = _kind({type(value) for value in values})
    numbers = (*_LATENCIES, *_OTHERS, *_of_fleets(grid))
    kinds |= dict.fromkeys(numbers, "float64") | {"problem": "string"}
    columns = {name: [row.get(name) for row in rows] for name in kinds}
    for name, kind in kinds.items():
        if kind == "string":
            columns[name] = [str(value) for value in columns[name]]
    return pd.DataFrame(columns).astype(kinds)
