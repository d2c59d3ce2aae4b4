"""SGLang's simulator: a replay table, and a predictor that asks physim's own table.

Sources: sgl-project/sglang, tools/sglang-simulator: ``time_predictor/base.py`` (what a predictor is
asked), ``time_predictor/replay.py`` (the table, and what is done where a batch is not in it) and
``README.md`` (its configuration).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree

from physim import data
from physim.errors import InputError
from physim.exports.form_error import Steps
from physim.exports.subject import Subject
from physim.step.many_batches import total_seconds
from physim.tables.build import Reach, tabulate
from physim.tables.files import write
from physim.tables.table import Table, prefill_context

REPLAY, PREDICTOR, CONFIG, TABLE = (
    "replay_table.json",
    "physim_predictor.py",
    "simulator.json",
    "step_table",
)
# Batches that are looked up where one is not in the table: the simulator's `miss_knn_k`.
NEAREST = 3
# Knots of the table: as many batches as the simulator's search is meant for, one to three thousand.
_COUNTS, _CONTEXTS, _PROMPTS, _CHUNKS = 48, 17, 6, 96
# How far beyond the mean at 90% of saturation requests, and to which parts and multiples of the
# mean context, batches go.
_BEYOND, _LEAST_CONTEXT, _MOST_CONTEXT = 2.0, 0.5, 2.0
_LEAST_CHUNK = 16
# Below this spread over the table a feature is not divided (replay.py: a variance of 1e-12).
_NO_SPREAD = 1e-6
# Interpolation error of 99% of steps of the predictor's table.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class ReplayTable:
    """Batches with the time that they take.

    Attributes:
        batches: Of each request of a batch its new tokens and those in the cache before them.
        seconds: Times.
        cached: Tokens that prompts of the load have in the cache.
    """

    batches: Sequence[tuple[tuple[int, int], ...]]
    seconds: Float[np.ndarray, " batches"]
    cached: int = 0

    def nearest_s(self, wanted: Float[np.ndarray, "rows 3"]) -> Steps:
        """Times of batches that are not in the table, as the simulator finds them, seconds.

        The mean of the `NEAREST` that are most alike in their requests, new tokens and cached
        tokens, each in its standard deviations over the table.

        Args:
            wanted: Requests, new tokens and cached tokens of each batch.
        """
        mean, spread = self._scale
        count = min(NEAREST, len(self.batches))
        _, places = self._tree.query((wanted - mean) / spread, [*range(1, count + 1)])
        return self.seconds[places].mean(axis=1)

    def seconds_of(self, decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        """Time of steps: of prompts, and of requests that decode, each in a step of its own.

        Prompts of one length that is in the table are found in it; requests that decode have
        contexts that differ.

        Args:
            decodes: Requests that decode.
            attended: Tokens that they attend to, summed.
            prompts: Prompts.
            tokens: Their new tokens, summed.
        """
        found = np.zeros(len(decodes))
        for cells, which in (
            (np.stack([decodes, decodes, attended - decodes], axis=1), decodes > 0),
            (np.stack([prompts, tokens, self.cached * prompts], axis=1), tokens > 0),
        ):
            if which.any():
                found[which] += self.nearest_s(cells[which])
        for row in np.flatnonzero(tokens > 0).tolist():
            exact = self._prompts.get((float(prompts[row]), float(tokens[row] / prompts[row])))
            if exact is not None:
                cell = np.array([[prompts[row], tokens[row], self.cached * prompts[row]]])
                found[row] += exact - self.nearest_s(cell)[0]
        return found

    def to_dict(self) -> dict[str, float]:
        """Seconds by the batch, as the simulator writes it down."""
        keys = (json.dumps(sorted(map(list, own))) for own in self.batches)
        return dict(zip(keys, self.seconds.tolist(), strict=True))

    @functools.cached_property
    def _features(self) -> Float[np.ndarray, "batches 3"]:
        """Requests, new tokens and cached tokens."""
        sums = [(len(own), *map(sum, zip(*own, strict=True))) for own in self.batches]
        return np.array(sums, float)

    @functools.cached_property
    def _scale(self) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
        """Their means, and what they are divided by."""
        spread = self._features.std(axis=0)
        return self._features.mean(axis=0), np.where(spread > _NO_SPREAD, spread, 1.0)

    @functools.cached_property
    def _tree(self) -> cKDTree:
        mean, spread = self._scale
        return cKDTree((self._features - mean) / spread)

    @functools.cached_property
    def _prompts(self) -> dict[tuple[float, float], float]:
        """Seconds of prompts of one length, by their number and length."""
        return {
            (len(own), own[0][0]): seconds
            for own, seconds in zip(self.batches, self.seconds.tolist(), strict=True)
            if set(own) == {(own[0][0], self.cached)}
        }


def check_subject(subject: Subject) -> None:
    """Refuses a server that schedules otherwise than the simulator.

    Args:
        subject: What is exported.

    Raises:
        InputError: It computes prompts beside requests that decode.
    """
    server = subject.case.server
    if not server.policy.prompts_apart:
        name = server.profile.engine
        problem = f"{name} never computes prompts in steps of their own, as the simulator does"
        raise InputError("engine", problem, "use an --engine that does")


def replay_table(subject: Subject) -> ReplayTable:
    """Batches around what the engine goes through up to 90% of saturation, and prompts.

    Args:
        subject: What is exported.
    """
    sizes, load = subject.case.server.sizes, subject.case.demanded
    running = _BEYOND * subject.loads[-1].pools[-1].running
    most = int(np.clip(running, 2, min(sizes.max_num_seqs, sizes.max_num_batched_tokens)))
    counts = np.unique(np.rint(np.linspace(1, most, _COUNTS))).astype(int)
    mean, longest = load.mean_input + load.mean_output / 2, sizes.max_model_len - 1
    pasts = _spread(
        min(_LEAST_CONTEXT * mean, longest), min(_MOST_CONTEXT * mean, longest), _CONTEXTS
    )
    budget = sizes.max_num_batched_tokens
    least = min(_LEAST_CHUNK, budget)
    cached = round(load.cached_tokens)
    new = round(load.mean_input) - cached
    batches = [((1, past),) * count for count in counts.tolist() for past in pasts]
    decodes = len(batches)
    for count in range(1, _PROMPTS + 1):
        chunks = {*_spread(least, max(budget // count, least), _CHUNKS), new}
        # A prompt of one token reads as a request that decodes.
        kept = [chunk for chunk in sorted(chunks) if 1 < chunk <= budget // count]
        for past in sorted({0, cached}):
            batches += [((chunk, past),) * count for chunk in kept]
    decoding = np.arange(len(batches)) < decodes
    many = np.array([len(own) for own in batches], float)
    first = np.array([own[0] for own in batches], float)
    times = total_seconds(
        subject.steps,
        subject.steps.batch(
            decode_requests=np.where(decoding, many, 0.0),
            # A token attends to itself too.
            context=np.where(decoding, first[:, 1] + 1, 0.0),
            prefill_requests=np.where(decoding, 0.0, many),
            chunk=np.where(decoding, 0.0, first[:, 0]),
            cached=np.where(decoding, 0.0, first[:, 1]),
        ),
    )
    seconds = np.array([float(f"{one:.6g}") for one in times.tolist()])
    return ReplayTable(batches, seconds, cached)


def _spread(low: float, high: float, count: int) -> list[int]:
    """Whole numbers from 1 on, evenly spread in logarithm."""
    found = np.rint(np.geomspace(max(low, 1.0), max(high, 1.0), count))
    return [int(one) for one in np.unique(found)]


def step_table(subject: Subject) -> Table:
    """The table that the predictor asks.

    Args:
        subject: What is exported.
    """
    server = subject.case.server
    return tabulate(subject.steps, Reach.from_server(server), _TOLERANCE, subject.about())


def predictor_seconds(
    table: Table, cached: int, decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps
) -> Steps:
    """Time of steps as the predictor finds them, in each prompts of one length.

    Args:
        table: The table.
        cached: Tokens that each prompt has in the cache.
        decodes: Requests that decode.
        attended: Tokens that they attend to, summed.
        prompts: Prompts.
        tokens: Their new tokens, summed.
    """
    found = np.zeros(len(decodes))
    for row, (count, context, of, new) in enumerate(
        zip(*(one.tolist() for one in (decodes, attended, prompts, tokens)), strict=True)
    ):
        if count > 0:
            found[row] += table(count, context / count, 0.0, 0.0)
        if new > 0:
            before = prefill_context(new, new**2 / max(of, 1.0), new * cached)
            found[row] += table(0.0, 0.0, new, before) + table.more_prompts_s(of, of * cached)
    return found


def configuration(subject: Subject) -> dict[str, Any]:
    """The simulator's configuration, with the replay table as its predictor.

    Args:
        subject: What is exported.
    """
    server = subject.case.server
    gpu, kind = server.gpu, server.kv_cache_dtype
    return {
        "platform": {
            "accelerator": {
                "name": gpu.key,
                "vendor": "NVIDIA",
                "hbm_capacity_gb": gpu.memory_bytes / 1e9,
                "hbm_bandwidth_gb": gpu.memory_bandwidth / 1e9,
                "tflops": {},
            },
        },
        "predictor": {
            "name": "replay",
            "database_path": REPLAY,
            "miss_strategy": "knn",
            "miss_knn_k": NEAREST,
        },
        "scheduler": {
            "tp_size": server.parallelism.tp,
            "ep_size": server.parallelism.ep,
            "dp_size": 1,
            "data_type": "BF16",
            "kv_cache_data_type": {"bfloat16": "BF16"}.get(kind, kind.upper()),
            "backend_name": server.profile.engine,
        },
    }


def write_sglang(
    folder: Path, subject: Subject, replay: ReplayTable, table: Table, about: Mapping[str, Any]
) -> None:
    """Writes the replay table, the predictor with its table, and the configuration.

    Args:
        folder: A folder that is there.
        subject: What is exported.
        replay: The replay table.
        table: The table of the predictor.
        about: Where they are from.
    """
    (folder / REPLAY).write_text(json.dumps(replay.to_dict()) + "\n", encoding="utf-8")
    config = json.dumps(configuration(subject), indent=1)
    (folder / CONFIG).write_text(f"{config}\n", encoding="utf-8")
    (folder / TABLE).mkdir()
    write(table, folder / TABLE, "json")
    head = f"# {json.dumps(about)}\n"
    (folder / PREDICTOR).write_text(head + _PREDICTOR, encoding="utf-8")


def read_replay_table(path: Path) -> ReplayTable:
    """Reads a replay table of the simulator, of whatever made it.

    Args:
        path: The JSON.

    Raises:
        InputError: It is no such file.
    """
    content = data.read_json(path)
    wrong = InputError(str(path), "is no replay table of SGLang's simulator", "write it again")
    batches: list[tuple[tuple[int, int], ...]] = []
    seconds: list[float] = []
    for key, value in content.items():
        try:
            own = json.loads(key)
            batch = tuple((int(new), int(past)) for new, past in own)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise wrong from error
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not batch or not known or not 0 <= value < np.inf or min(map(min, batch)) < 0:
            raise wrong
        batches.append(batch)
        seconds.append(float(value))
    if not batches:
        raise wrong
    return ReplayTable(batches, np.array(seconds))


_PREDICTOR = '''"""physim's step times in SGLang's simulator.

With physim installed beside the simulator and this folder on PYTHONPATH, import it before a server
starts. In its configuration the predictor is then {"name": "physim"}, or with "database_path" that
of another folder that `physim table` wrote.
"""

from pathlib import Path

from physim.tables.batch_times import batch_seconds
from physim.tables.files import load
from sglang_simulator.simulation.manager import ConfigManager
from sglang_simulator.time_predictor.base import InferTimePredictor

OWN = Path(__file__).resolve().parent / "step_table"


class PhysimTimePredictor(InferTimePredictor):
    """Seconds of a batch, from a table of physim."""

    def __init__(self, model, hw, config, database_path=None, **_):
        super().__init__(model, hw, config)
        self._table = load(database_path or OWN)

    def predict_infer_time(self, batch):
        pairs = [(one.extend_length, one.past_kv_length) for one in batch.reqs]
        return batch_seconds(self._table, pairs)


_others = ConfigManager.get_inference_time_predictor.__func__


def _predictor(cls, model, hw, sched_config):
    asked = cls._get_raw_config().get("predictor", {})
    if asked.get("name") != "physim":
        return _others(cls, model, hw, sched_config)
    return PhysimTimePredictor(model, hw, sched_config, asked.get("database_path"))


ConfigManager.get_inference_time_predictor = classmethod(_predictor)
'''
