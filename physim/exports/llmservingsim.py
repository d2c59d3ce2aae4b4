"""LLMServingSim 2: its profile of a model's layers.

Source: casys-kaist/LLMServingSim, ``docs/docs/profiler/output-bundle.md`` (what is in the folder)
and ``serving/core/trace_generator.py`` (how it is looked up, and which layers a step has).
Attention has the columns of earlier releases, which later ones relabel as they read them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError
from physim.exports.form_error import Form, Steps
from physim.exports.interpolation import between
from physim.exports.subject import Subject
from physim.mixers.attention import Attention
from physim.service.server import Server
from physim.step.lowering import rows_of
from physim.step.many_batches import named_seconds
from physim.step.rows import SizeRow

DENSE, PER_SEQUENCE, ATTENTION, META = (
    "dense.csv",
    "per_sequence.csv",
    "attention.csv",
    "meta.yaml",
)
_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
# How often a step runs each dense layer (profiler/models/*.yaml): once in each decoder layer, but
# for norms, which are there twice, and for what comes once a step.
_TWICE, _ONCE = ("layernorm",), ("embedding", "final_layernorm")
# What stands in another layer, whose time the simulator takes to be a nanosecond at least.
_ELSEWHERE = ("qk_norm", "rotary_emb", "act_fn", "final_layernorm")
# Knots: sixteen single tokens, then so many for each doubling; and the least of attention's.
_SINGLE, _A_DOUBLING, _LEAST = 16, 6, 16
_US = 1e6
# What the simulator calls formats of weights and of the KV cache.
_FORMATS = {"bfloat16": "bf16"}


@dataclass(frozen=True)
class LayerProfile:
    """Times of a model's layers on one GPU of a server, seconds.

    Attributes:
        layers: Decoder layers.
        tokens: Tokens of a step.
        dense: Seconds of each dense layer for so many.
        sequences: Requests that get a token from a step.
        per_sequence: Seconds of ``lm_head`` and ``sampler`` for so many.
        axes: Knots of attention: new prompt tokens, tokens cached before them, requests that
            decode, and tokens that each attends to.
        attention: Seconds of the attention of a layer.
    """

    layers: int
    tokens: Float[np.ndarray, " tokens"]
    dense: Mapping[str, Float[np.ndarray, " tokens"]]
    sequences: Float[np.ndarray, " sequences"]
    per_sequence: Mapping[str, Float[np.ndarray, " sequences"]]
    axes: tuple[Float[np.ndarray, " _"], ...]
    attention: Float[np.ndarray, "chunks cached decodes contexts"]

    def seconds(self, decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        """Time of steps as the simulator adds up their layers, without all-reduces.

        Args:
            decodes: Requests that decode.
            attended: Tokens that they attend to, summed.
            prompts: Prompts.
            tokens: Their new tokens, summed; nothing is cached before them.
        """
        found = np.zeros(len(decodes))
        for name, seconds in self.dense.items():
            times = 1 if name in _ONCE else self.layers * (2 if name in _TWICE else 1)
            found += times * between([self.tokens], seconds, [decodes + tokens])
        for seconds in self.per_sequence.values():
            found += between([self.sequences], seconds, [decodes + prompts])
        context = attended / np.maximum(decodes, 1e-9)
        where = [tokens, np.zeros_like(tokens), decodes, np.where(decodes > 0, context, 0.0)]
        found += self.layers * between(list(self.axes), self.attention, where)
        return np.where(decodes + tokens > 0, found, 0.0)


def check_subject(subject: Subject) -> None:
    """Refuses a model or engine that the files have no place for.

    Args:
        subject: What is exported.

    Raises:
        InputError: Its layers are not alike, have experts or other attention, or the engine has
            steps of prompts alone.
    """
    server = subject.case.server
    groups, name = server.model.groups, server.model.name
    if server.policy.prompts_apart:
        problem = (
            f"{server.profile.engine} computes prompts in steps of their own; the simulator cannot"
        )
        raise InputError("engine", problem, "use an --engine that computes them beside decodes")
    if len(groups) > 1:
        raise InputError(
            name, "has layers that differ, and the simulator's are all alike", "use another"
        )
    if groups[0].experts is not None:
        problem = "has experts, for which physim writes no profile"
        raise InputError(name, problem, "use a model with dense MLPs")
    attention = groups[0].attention
    if not isinstance(attention, Attention) or attention.window is not None:
        problem = "has attention other than full attention on KV heads"
        raise InputError(name, problem, "use another")


def layer_profile(subject: Subject) -> LayerProfile:
    """The profile of a server.

    Element-wise kernels, and the gaps between kernels of a layer, stand as its norms; what a step
    takes once beside its layers, and CPU time that the GPU does not hide, as the embedding. A step
    of fewer tokens than the mean prompt is one that decodes.

    Args:
        subject: What is exported.
    """
    case, steps = subject.case, subject.steps
    server, load = case.server, case.demanded
    sizes, layers = server.sizes, server.model.layers
    tokens = _tokens(sizes.max_num_batched_tokens)
    least = min(load.mean_input - load.cached_tokens, sizes.max_num_seqs)
    decoding = tokens < least
    parts = named_seconds(
        steps,
        steps.batch(
            decode_requests=np.where(decoding, tokens, 0.0),
            context=np.where(decoding, load.mean_input + load.mean_output / 2, 0.0),
            prefill_requests=np.where(decoding, 0.0, 1.0),
            chunk=np.where(decoding, 0.0, tokens),
        ),
    )
    up = _gate_up_share(server)
    dense = {
        "embedding": parts["step_overhead"] + parts["host"],
        "layernorm": parts["elementwise"] / (2 * layers),
        "qkv_proj": parts["qkv"] / layers,
        "o_proj": parts["attention_output"] / layers,
        "gate_up_proj": up * parts["mlp"] / layers,
        "down_proj": (1 - up) * parts["mlp"] / layers,
        **{name: np.zeros_like(tokens) for name in _ELSEWHERE},
    }
    sequences = _tokens(min(sizes.max_num_seqs, sizes.max_num_batched_tokens))
    of_requests = named_seconds(
        steps, steps.batch(decode_requests=sequences, context=np.ones_like(sequences))
    )
    per_sequence = {"lm_head": of_requests["lm_head"], "sampler": of_requests["sampling"]}
    longest = min(sizes.max_model_len, server.kv.tokens)
    axes = (
        np.append(0.0, _doubling(_LEAST, sizes.max_num_batched_tokens)),
        np.append(0.0, _doubling(_LEAST, longest)),
        np.append(0.0, _doubling(1, sequences[-1])),
        np.append(0.0, _doubling(_LEAST, longest)),
    )
    return LayerProfile(
        layers, tokens, dense, sequences, per_sequence, axes, _attention_s(subject, axes) / layers
    )


def _attention_s(
    subject: Subject, axes: tuple[Float[np.ndarray, " _"], ...]
) -> Float[np.ndarray, "chunks cached decodes contexts"]:
    """Seconds of attention of all layers: that of prompts and that of decodes add up."""
    steps, (chunks, cached, decodes, contexts) = subject.steps, axes
    new, before = (one.ravel() for one in np.meshgrid(chunks, cached, indexing="ij"))
    prompts = steps.batch(prefill_requests=np.minimum(new, 1.0), chunk=new, cached=before)
    count, each = (one.ravel() for one in np.meshgrid(decodes, contexts, indexing="ij"))
    requests = steps.batch(decode_requests=np.where(each > 0, count, 0.0), context=each)
    prefill = named_seconds(steps, prompts)["prefill_attention"]
    decode = named_seconds(steps, requests)["decode_attention"]
    prefill = np.where(new > 0, prefill, 0.0).reshape(len(chunks), len(cached), 1, 1)
    return prefill + np.where(count * each > 0, decode, 0.0).reshape(len(decodes), len(contexts))


def with_all_reduces(subject: Subject, profile: LayerProfile) -> Form:
    """Seconds of steps as the simulator adds up their layers, with physim's all-reduces.

    The simulator has its own, of its network.

    Args:
        subject: What is exported.
        profile: The profile.
    """
    chunk = profile.tokens
    batches = subject.steps.batch(prefill_requests=np.ones_like(chunk), chunk=chunk)
    reduced = named_seconds(subject.steps, batches)["all_reduce"]

    def seconds(decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        layers = profile.seconds(decodes, attended, prompts, tokens)
        return layers + between([chunk], reduced, [decodes + tokens])

    return seconds


def folder_of(server: Server) -> Path:
    """Where the simulator looks for the profile of a server, below its ``profiler/perf``.

    Args:
        server: The server.
    """
    form = server.model.weight_format.name
    variant = _FORMATS.get(form, form)
    if server.kv_cache_dtype != server.model.kv_cache_dtype:
        variant += f"-kv{_FORMATS.get(server.kv_cache_dtype, server.kv_cache_dtype)}"
    # A model's name may be a path; the simulator's are an organisation's and a model's.
    words = [one for one in server.model.name.split("/") if one not in ("", ".", "..")]
    return Path(server.gpu.key.upper(), *words[-2:], variant)


def write_profile(
    folder: Path, subject: Subject, profile: LayerProfile, about: Mapping[str, Any]
) -> None:
    """Writes the tables of a profile and its ``meta.yaml``.

    Args:
        folder: The folder of a model, below which that of the degree of tensor parallelism is made.
        subject: What is exported.
        profile: The profile.
        about: Where it is from.
    """
    server = subject.case.server
    place = folder / f"tp{server.parallelism.tp}"
    place.mkdir(parents=True)
    for name, knots, key, tables in (
        (DENSE, profile.tokens, "tokens", profile.dense),
        (PER_SEQUENCE, profile.sequences, "sequences", profile.per_sequence),
    ):
        rows = [
            (layer, f"{at:.0f}", f"{_US * own:.6g}")
            for layer, seconds in sorted(tables.items())
            for at, own in zip(knots.tolist(), seconds.tolist(), strict=True)
        ]
        _write_rows(place / name, ("layer", key, "time_us"), rows)
    where = np.stack([one.ravel() for one in np.meshgrid(*profile.axes, indexing="ij")], axis=1)
    # A part that is not there has one point.
    kept = (where[:, [0, 2]].sum(axis=1) > 0) & ((where[:, 2] > 0) == (where[:, 3] > 0))
    kept &= (where[:, 0] > 0) | (where[:, 1] == 0)
    times = profile.attention.ravel()[kept]
    points = [
        [*(f"{one:.0f}" for one in row), f"{_US * own:.6g}"]
        for row, own in zip(where[kept].tolist(), times.tolist(), strict=True)
    ]
    _write_rows(place / ATTENTION, (*_AXES, "time_us"), points)
    sizes = server.sizes
    # Whatever is JSON is YAML.
    content = {
        "profiler_version": "1.0.0",
        "gpu": server.gpu.name,
        "hardware": server.gpu.key.upper(),
        "model": server.model.name,
        "variant": folder.name,
        "tp_degrees": [server.parallelism.tp],
        "engine_effective": {
            "max_num_batched_tokens": sizes.max_num_batched_tokens,
            "max_num_seqs": sizes.max_num_seqs,
            "block_size": server.kv.block_size,
        },
        "skew_fit": {"enabled": False},
        "physim": dict(about),
    }
    text = "".join(f"{name}: {json.dumps(own)}\n" for name, own in content.items())
    (folder / META).write_text(text, encoding="utf-8")


def read_profile(folder: Path, layers: int) -> LayerProfile:
    """Reads the tables of a profile, of whatever made it.

    Args:
        folder: The folder of a degree of tensor parallelism.
        layers: Decoder layers of the model.

    Raises:
        InputError: A table cannot be read, or has no such columns, or attention is no grid.
    """
    tables = []
    for name, key in ((DENSE, "tokens"), (PER_SEQUENCE, "sequences")):
        rows = _rows(folder / name, ("layer", key, "time_us"))
        own: dict[str, dict[float, float]] = {}
        for layer, at, time in rows:
            own.setdefault(layer, {})[float(at)] = float(time) / _US
        knots = sorted(next(iter(own.values())))
        if len(knots) < 2 or any(sorted(one) != knots for one in own.values()):
            raise InputError(str(folder / name), "has layers of different knots", "write it again")
        values = {layer: np.array([one[knot] for knot in knots]) for layer, one in own.items()}
        tables.append((np.array(knots), values))
    path = folder / ATTENTION
    table = np.array(_rows(path, (*_AXES, "time_us")), float)
    axes = tuple(np.unique(np.append(table[:, place], 0.0)) for place in range(len(_AXES)))
    shape = tuple(map(len, axes))
    if min(shape) < 2:
        raise InputError(str(path), "has an axis of one knot", "write it again")
    grid = np.full(shape, np.nan)
    places = (np.searchsorted(one, table[:, place]) for place, one in enumerate(axes))
    grid[tuple(places)] = table[:, -1] / _US
    grid[0, :, 0, :] = 0.0
    # What is not there takes nothing, and so does not depend on its other axis.
    grid[:, :, 0, :] = grid[:, :, 0, :1]
    grid[:, :, :, 0] = grid[:, :, :1, 0]
    grid[0] = grid[0, :1]
    if np.isnan(grid).any():
        raise InputError(str(path), "is no grid of its four columns", "write it again")
    (tokens, dense), (sequences, per_sequence) = tables
    return LayerProfile(layers, tokens, dense, sequences, per_sequence, axes, grid)


def _gate_up_share(server: Server) -> float:
    """Share of the gate and up projections of the weights of an MLP."""
    rows = [row for row in rows_of(server) if isinstance(row, SizeRow) and row.part == "mlp"]
    sizes = {row.name: float(np.prod(row.gemm)) for row in rows if row.gemm is not None}
    return 1.0 - sizes.get("down", 0.0) / sum(sizes.values())


def _tokens(most: float) -> Float[np.ndarray, " _"]:
    """Numbers of tokens: some single ones, then evenly spread in logarithm."""
    most = max(most, 2.0)
    single = np.arange(1.0, min(_SINGLE, most) + 1)
    count = 1 + int(np.ceil(_A_DOUBLING * np.log2(max(most / _SINGLE, 1.0))))
    return np.unique(np.append(single, np.rint(np.geomspace(single[-1], most, count))))


def _doubling(least: float, most: float) -> Float[np.ndarray, " _"]:
    """Twice as many again and again, and the last."""
    most = max(most, least)
    count = int(np.floor(np.log2(most / least))) + 1
    return np.unique(np.append(least * 2.0 ** np.arange(count), float(int(most))))


def _write_rows(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])


def _rows(path: Path, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The columns of some names, all of them numbers but for a layer's.

    Raises:
        InputError: The table cannot be read, is empty, or has no such columns or numbers.
    """
    wrong = InputError(str(path), f"is no table of {', '.join(names)}", "write it again")
    with data.reading(path), path.open(encoding="utf-8", newline="") as file:
        try:
            found = [tuple(row[name] for name in names) for row in csv.DictReader(file)]
            for row in found:
                numbers = [float(own) for own in row[names[0] == "layer" :]]
                if not all(0 <= own < np.inf for own in numbers):
                    raise wrong
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise wrong from error
    if not found:
        raise wrong
    return found
