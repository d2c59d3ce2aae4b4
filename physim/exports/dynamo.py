"""NVIDIA Dynamo: the profile of its mocker, and the folders of its planner.

Names and units are those of ai-dynamo 1.6.1: ``planner_profiler_perf_data_converter.py`` in
``dynamo/mocker/utils`` for the mocker, and the planner's own test data
(``dynamo/planner/tests/data/profiling_results/H200_TP1P_TP1D``) for the planner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from physim import data
from physim.errors import InputError
from physim.exports.form_error import Steps
from physim.exports.interpolation import cell
from physim.exports.subject import Subject
from physim.step.many_batches import total_seconds

PROFILE = "perf_data.npz"
PREFILL, DECODE = "selected_prefill_interpolation", "selected_decode_interpolation"
_RAW = "raw_data.npz"
_KEYS = (
    "prefill_isl",
    "prefill_ttft_ms",
    "decode_active_kv_tokens",
    "decode_context_length",
    "decode_itl",
)
# Provenance as JSON, an array that readers of the others do not ask for.
_ABOUT = "physim_json"
# What its own replay does, which the error of TTFT does not have (benchmarks/dynamo_replay.py).
FIRST_TOKENS = "Dynamo gives first tokens before the decodes of their step: its TTFT is shorter"
_PREFILL_KNOTS, _KV_KNOTS, _CONTEXT_KNOTS = 64, 96, 64
_PLANNER_KNOTS = 16
_LEAST_TOKENS = 16.0


@dataclass(frozen=True)
class MockerProfile:
    """The five arrays of the mocker's profile, in its own units.

    Attributes:
        prefill_isl: New prompt tokens of a step.
        prefill_ttft_ms: Time that they take, milliseconds.
        decode_active_kv_tokens: Tokens that all decoding requests attend to.
        decode_context_length: Tokens that each of them attends to, mean.
        decode_itl: Time of a step that only decodes, milliseconds.
    """

    prefill_isl: Float[np.ndarray, " prompts"]
    prefill_ttft_ms: Float[np.ndarray, " prompts"]
    decode_active_kv_tokens: Float[np.ndarray, " kv"]
    decode_context_length: Float[np.ndarray, " contexts"]
    decode_itl: Float[np.ndarray, "kv contexts"]

    def seconds(self, decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        """Time of steps as Dynamo adds it up: that of the prompts and that of the decodes.

        Both are interpolated linearly and extended beyond the ends.

        Args:
            decodes: Requests that decode.
            attended: Tokens that they attend to, summed.
            prompts: Prompts, of no account.
            tokens: Their new tokens, summed.
        """
        del prompts
        i, u = cell(self.prefill_isl, tokens)
        y = self.prefill_ttft_ms
        prefill = np.where(tokens > 0, (1 - u) * y[i] + u * y[i + 1], 0.0)
        k, v = cell(self.decode_active_kv_tokens, attended)
        c, w = cell(self.decode_context_length, attended / np.maximum(decodes, 1e-9))
        z = self.decode_itl
        low = (1 - w) * z[k, c] + w * z[k, c + 1]
        high = (1 - w) * z[k + 1, c] + w * z[k + 1, c + 1]
        decode = np.where(decodes > 0, (1 - v) * low + v * high, 0.0)
        return np.maximum(prefill + decode, 0.0) / 1e3


def mocker_profile(subject: Subject, apart: bool) -> MockerProfile:
    """The profile of a server.

    Dynamo adds the time of prompts to that of decodes in a step that has both, and so counts
    weights and the host's work twice. Together, prompts are therefore what they add to a step of
    the requests that decode at 60% of saturation; a step of prompts alone is then too short by what
    every step takes. Dynamo gives first tokens before the decodes of their step, so that its own
    TTFT is shorter by these (benchmarks/dynamo_replay.py).

    Args:
        subject: What is exported.
        apart: Whether prefill and decode run on servers of their own.
    """
    sizes, kv = subject.case.server.sizes, subject.case.server.kv.tokens
    isl = np.unique(np.rint(np.geomspace(1, sizes.max_num_batched_tokens, _PREFILL_KNOTS)))
    load = subject.case.demanded
    context = load.mean_input + load.mean_output / 2
    decodes = 0.0 if apart else max(subject.middle.pools[-1].running, 1.0)
    batches = subject.steps.batch(
        decode_requests=decodes, context=context, prefill_requests=np.ones_like(isl), chunk=isl
    )
    prefill = total_seconds(subject.steps, batches)
    if not apart:
        alone = subject.steps.batch(decode_requests=np.array([decodes]), context=context)
        prefill = prefill - total_seconds(subject.steps, alone)[0]
    contexts = np.geomspace(
        _LEAST_TOKENS, max(min(sizes.max_model_len, kv), 2 * _LEAST_TOKENS), _CONTEXT_KNOTS
    )
    active = np.geomspace(_LEAST_TOKENS, max(kv, 2 * _LEAST_TOKENS), _KV_KNOTS)
    itl = _decode_s(subject, active[:, None] / contexts, contexts)
    return MockerProfile(isl, 1e3 * np.maximum(prefill, 0.0), active, contexts, 1e3 * itl)


def planner_arrays(subject: Subject) -> dict[str, dict[str, Float[np.ndarray, " _"]]]:
    """The planner's arrays by folder: milliseconds, and tokens per second and GPU.

    TTFT is that of a prompt alone, chunk after chunk, without the front end; contexts are those of
    the prompt and half of the output.

    Args:
        subject: What is exported.
    """
    server, load = subject.case.server, subject.case.demanded
    sizes, kv = server.sizes, float(server.kv.tokens)
    most = max(min(sizes.max_model_len, kv) - 1, 2)
    isl = np.unique(np.rint(np.geomspace(min(100.0, most / 2), most, _PLANNER_KNOTS)))
    ttft = np.array([_prompt_s(subject, int(one)) for one in isl])
    output = max(load.mean_output, 1.0)
    found = []
    for prompt in isl[isl + output <= most]:
        context, fit = prompt + output / 2, kv // (prompt + output)
        largest = min(float(sizes.max_num_seqs), fit)
        if largest < 1:
            continue
        counts = np.unique(np.rint(np.linspace(1, largest, _PLANNER_KNOTS)))
        itl = _decode_s(subject, counts, np.full_like(counts, context))
        found += [(n * context / kv, context, s, n / s) for n, s in zip(counts, itl, strict=True)]
    if not found:
        raise InputError(
            "output", "leaves no room for a prompt in the model's context", "make it shorter"
        )
    use, contexts, seconds, rate = np.array(found).T
    return {
        PREFILL: {
            "prefill_isl": isl,
            "prefill_ttft": 1e3 * ttft,
            "prefill_thpt_per_gpu": isl / ttft / subject.gpus,
        },
        DECODE: {
            "x_kv_usage": use,
            "y_context_length": contexts,
            "z_itl": 1e3 * seconds,
            "z_thpt_per_gpu": rate / subject.gpus,
            "max_kv_tokens": np.array([kv]),
        },
    }


def write_dynamo(
    folder: Path,
    profile: MockerProfile,
    planner: Mapping[str, Mapping[str, np.ndarray]],
    about: Mapping[str, Any],
) -> None:
    """Writes the mocker's profile and the planner's folders.

    Args:
        folder: A folder that is there.
        profile: The profile.
        planner: The planner's arrays by folder.
        about: Where they are from.
    """
    told = np.array(json.dumps(about))
    own: dict[str, Any] = {name: getattr(profile, name) for name in _KEYS} | {_ABOUT: told}
    np.savez(folder / PROFILE, **own)
    for name, arrays in planner.items():
        (folder / name).mkdir()
        own = {**arrays, _ABOUT: told}
        np.savez(folder / name / _RAW, **own)


def read_mocker_profile(path: Path) -> MockerProfile:
    """Reads a profile of the mocker, of whatever made it.

    Args:
        path: The ``npz``.

    Raises:
        InputError: It is no such file.
    """
    with data.reading(path):
        try:
            with np.load(path) as file:
                arrays = [np.asarray(file[name], float) for name in _KEYS]
        except (KeyError, ValueError, EOFError) as error:
            raise InputError(
                str(path), "is no profile of Dynamo's mocker", "write it again"
            ) from error
    sizes = [array.shape for array in arrays]
    if sizes[0] != sizes[1] or sizes[4] != sizes[2] + sizes[3] or min(map(min, sizes)) < 2:
        raise InputError(str(path), "has arrays that do not go together", "write it again")
    return MockerProfile(*arrays)


def _decode_s(
    subject: Subject, requests: np.ndarray, contexts: np.ndarray
) -> Float[np.ndarray, "*shape"]:
    """Seconds of steps that only decode, of one request at least."""
    most = subject.case.server.sizes.max_num_seqs
    counts, each = np.broadcast_arrays(np.clip(requests, 1.0, most), contexts)
    batches = subject.steps.batch(decode_requests=counts.ravel(), context=each.ravel())
    return total_seconds(subject.steps, batches).reshape(counts.shape)


def _prompt_s(subject: Subject, tokens: int) -> float:
    """Seconds of a prompt alone, chunk after chunk."""
    budget = subject.case.server.sizes.max_num_batched_tokens
    before = np.arange(0, tokens, budget, dtype=float)
    batches = subject.steps.batch(
        prefill_requests=np.ones_like(before),
        chunk=np.minimum(tokens - before, budget),
        cached=before,
    )
    return float(np.sum(total_seconds(subject.steps, batches)))
