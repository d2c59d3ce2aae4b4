"""BLIS's kernel profile: a layer's kernels in one or two dimensions, and ten multipliers.

BLIS interpolates straight between the points and holds the edges. It multiplies what it finds by
the layers (all-reduces by their number, from which it takes the first value off; logits come once),
adds terms for layers, requests and the step, and cuts the sum to whole microseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from physim.inputs.load import Load
from physim.models.architecture import ModelArch
from physim.service.server import Server
from physim.step.batch import Batch
from physim.step.many_batches import named_seconds
from physim.step.model import StepModel
from physim.tables.build import Reach, Where, one_chunk
from physim.tables.linear_models import MICROSECOND, nonnegative

# The table that holds each part of a step; multipliers have what is in none.
PART_TABLES = {
    "qkv": "gemm",
    "attention_output": "gemm",
    "mlp": "gemm",
    "elementwise": "gemm",
    "experts": "moe_compute",
    "prefill_attention": "context_attention",
    "decode_attention": "generation_attention",
    "all_reduce": "allreduce",
    "lm_head": "logits_gemm",
    "sampling": "logits_gemm",
}

# Points of an axis for each doubling, between which time is nearly straight.
_A_DOUBLING = 4
_CONTEXTS_A_DOUBLING = 2
_MOST_PROMPTS = 32
_SAMPLE = 4000

Points = Float[np.ndarray, " _"]


@dataclass(frozen=True)
class KernelProfile:
    """Kernels of a layer, microseconds.

    Attributes:
        tokens: Tokens of a step.
        gemm: The GEMMs of a layer and what is between them, for so many tokens.
        all_reduce: One all-reduce.
        logits: lm_head and sampling for one request, once a step.
        experts: The experts of a layer that has them; None of a dense model.
        prompts: Prompts that are prefilled together.
        prompt_tokens: Tokens of each, none of them cached.
        prefill_attention: Rows by prompt tokens, columns by prompts.
        requests: Requests that decode.
        context: Tokens that each attends to.
        decode_attention: Rows by context, columns by requests.
        multipliers: The ten that BLIS takes as beta coefficients.
        cached_tokens: Tokens that each prompt has in the cache, for which the multipliers hold.
        error_pct: Mean absolute error of steps that only decode, and of others, over the reach.
    """

    tokens: Float[np.ndarray, " tokens"]
    gemm: Float[np.ndarray, " tokens"]
    all_reduce: Float[np.ndarray, " tokens"]
    logits: float
    experts: Float[np.ndarray, " tokens"] | None
    prompts: Float[np.ndarray, " prompts"]
    prompt_tokens: Float[np.ndarray, " lengths"]
    prefill_attention: Float[np.ndarray, "lengths prompts"]
    requests: Float[np.ndarray, " requests"]
    context: Float[np.ndarray, " contexts"]
    decode_attention: Float[np.ndarray, "contexts requests"]
    multipliers: tuple[float, ...]
    cached_tokens: float
    error_pct: dict[str, float]


def kernel_profile(model: StepModel, server: Server, load: Load) -> KernelProfile:
    """The profile of a step model.

    lm_head and sampling work on requests, not on all tokens: the table of logits has the time for
    one, and what more of them add is in the multipliers, as is CPU time that the GPU does not hide.
    Those are fitted to steps over the engine's reach.

    For a partly cached prompt BLIS takes the attention of the whole prompt, times the share of its
    pairs of tokens that are not in the cache. That scales down even the time that the kernel takes
    for a single token. What a prompt of the load loses so is added to the time of a layer for each
    prompt.

    Args:
        model: The step model.
        server: What is served.
        load: The load, of which the prompts are.

    Raises:
        InputError: The load is of conversations.
    """
    load.refuse_turns("kernel profile")
    arch, reach = server.model, Reach.from_server(server)
    layers, sparse = arch.layers, arch.expert_layers
    tokens = _points(reach.prefill_tokens, _A_DOUBLING)
    by_tokens = _by_table(model, model.batch(prefill_requests=np.ones_like(tokens), chunk=tokens))
    prompts = _points(min(_MOST_PROMPTS, reach.decode_requests), 1)
    lengths = _points(min(reach.prefill_tokens, reach.context), _A_DOUBLING)
    length, prompt = np.meshgrid(lengths, prompts, indexing="ij")
    prefills = model.batch(prefill_requests=prompt.ravel(), chunk=length.ravel())
    requests = _points(reach.decode_requests, _A_DOUBLING)
    contexts = _points(reach.context, _CONTEXTS_A_DOUBLING)
    context, request = np.meshgrid(contexts, requests, indexing="ij")
    decodes = model.batch(decode_requests=request.ravel(), context=context.ravel())
    # As BLIS counts all-reduces.
    units = 2 * (layers - sparse) + sparse
    multipliers, error = _multipliers(model, arch, reach, load)
    return KernelProfile(
        tokens=tokens,
        gemm=_microseconds(by_tokens["gemm"], layers),
        all_reduce=_microseconds(by_tokens["allreduce"], units),
        logits=float(_microseconds(_of_one(model)["logits_gemm"], 1)[0]),
        experts=_microseconds(by_tokens["moe_compute"], sparse) if sparse else None,
        prompts=prompts,
        prompt_tokens=lengths,
        prefill_attention=_microseconds(
            _by_table(model, prefills)["context_attention"].reshape(length.shape), layers
        ),
        requests=requests,
        context=contexts,
        decode_attention=_microseconds(
            _by_table(model, decodes)["generation_attention"].reshape(context.shape), layers
        ),
        multipliers=multipliers,
        cached_tokens=load.cached_tokens,
        error_pct=error,
    )


def _multipliers(
    model: StepModel, arch: ModelArch, reach: Reach, load: Load
) -> tuple[tuple[float, ...], dict[str, float]]:
    """The ten multipliers, and the error that they leave."""
    where = reach.draw(_SAMPLE, seed=2)
    # The fit is of whole prompts; the error, of prompts that are cached as those of the load are.
    whole, cached = where.copy(), where.copy()
    whole[:, 3] = 0.0
    cached[:, 3] = np.minimum(load.cached_tokens, reach.context - where[:, 2])
    total, inside, basis = _as_blis(model, arch, whole)
    share = np.full(len(where), 1 / len(where))
    found = nonnegative(basis, (total - inside) / MICROSECOND, share, total / MICROSECOND)
    found[0] += _missed_s(model, reach, load) / arch.layers / MICROSECOND
    total, inside, basis = _as_blis(model, arch, cached)
    error = 100 * np.abs((inside + basis @ found * MICROSECOND) / total - 1)
    prefills = where[:, 2] > 0
    rounded = tuple(float(f"{value:.6g}") for value in found)
    return (1.0, 1.0, 1.0, 0.0, 1.0, 1.0, *rounded), {
        "decode_steps": round(float(np.mean(error[~prefills])), 2),
        "mixed_steps": round(float(np.mean(error[prefills])), 2),
    }


def _as_blis(
    model: StepModel, arch: ModelArch, where: Where
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"], Float[np.ndarray, "steps 4"]]:
    """Seconds of steps, those of them that BLIS's tables hold, and what its last terms multiply."""
    steps = one_chunk(model, where)
    total = np.sum(list(named_seconds(model, steps).values()), axis=0)
    tables, one = _by_table(model, steps), _of_one(model)
    tables["context_attention"] = _attention_as_blis(model, where[:, 2], where[:, 3])
    # BLIS takes the first all-reduce off, and has the logits of one request.
    inside = np.sum([own for name, own in tables.items() if name != "logits_gemm"], axis=0)
    inside += one["logits_gemm"] - one["allreduce"]
    decode, prefills = np.asarray(steps.decode_requests), np.asarray(steps.prefill_requests)
    basis = np.stack(
        [
            arch.layers * prefills,
            decode + prefills,
            np.ones(len(where)),
            arch.layers * np.minimum(decode, 1.0),
        ],
        axis=1,
    )
    return total, inside, basis


def _attention_as_blis(model: StepModel, new: Points, cached: Points) -> Points:
    """Seconds of attention that BLIS has for a prompt of new tokens and cached ones before them."""
    prompt = new + cached
    alone = model.batch(prefill_requests=np.minimum(new, 1.0), chunk=prompt)
    pairs = 1 - (cached / np.maximum(prompt, 1.0)) ** 2
    return _by_table(model, alone)["context_attention"] * pairs


def _missed_s(model: StepModel, reach: Reach, load: Load) -> float:
    """Seconds of attention that BLIS does not have of a prompt of the load."""
    cached = load.cached_tokens
    new = np.clip([load.mean_input - cached], 1.0, reach.prefill_tokens)
    prompt = model.batch(prefill_requests=np.ones(1), chunk=new, cached=cached)
    own = _by_table(model, prompt)["context_attention"]
    return max(float((own - _attention_as_blis(model, new, np.array([float(cached)])))[0]), 0.0)


def _of_one(model: StepModel) -> dict[str, Float[np.ndarray, " steps"]]:
    """Seconds of a step that decodes one token, by BLIS's tables."""
    return _by_table(model, model.batch(decode_requests=1.0, context=1.0))


def _by_table(model: StepModel, steps: Batch) -> dict[str, Float[np.ndarray, " steps"]]:
    """Seconds of steps, the parts that BLIS has in one table together."""
    tables: dict[str, Float[np.ndarray, " steps"]] = {}
    for name, seconds in named_seconds(model, steps).items():
        table = PART_TABLES.get(name)
        if table is not None:
            tables[table] = tables.get(table, 0.0) + seconds
    return tables


def as_yaml(
    profile: KernelProfile, arch: ModelArch, gpu: str, tp: int, backend: str, version: str
) -> str:
    """The profile in BLIS's form."""
    sparse = arch.expert_layers
    lines = [
        f"gpu: {json.dumps(gpu)}",
        f"backend: {backend}",
        f'version: "{version}"',
        f"model: {json.dumps(arch.name)}",
        f"tp: {tp}",
        f"num_layers: {arch.layers}",
        f"num_moe_layers: {sparse}",
        f"num_dense_layers: {arch.layers - sparse}",
        f"hidden_dim: {arch.hidden_size}",
        *_one_axis("gemm", profile.tokens, profile.gemm),
        *_two_axes(
            "context_attention",
            ("batch_size", profile.prompts),
            ("isl", profile.prompt_tokens),
            profile.prefill_attention,
        ),
        *_two_axes(
            "generation_attention",
            ("tokens", profile.requests),
            ("context", profile.context),
            profile.decode_attention,
        ),
        *_one_axis("allreduce", profile.tokens, profile.all_reduce),
    ]
    ends = profile.tokens[[0, -1]]
    lines += _one_axis("logits_gemm", ends, np.full(2, profile.logits))
    if profile.experts is not None:
        lines += _one_axis("moe_compute", profile.tokens, profile.experts)
    return "\n".join(lines) + "\n"


def _one_axis(name: str, tokens: Points, values: Points) -> list[str]:
    return [f"{name}:", f"  tokens: {_list(tokens)}", f"  latency_us: {_list(values)}"]


def _two_axes(
    name: str, columns: tuple[str, Points], rows: tuple[str, Points], values: np.ndarray
) -> list[str]:
    lines = [f"{name}:", f"  {columns[0]}: {_list(columns[1])}", f"  {rows[0]}: {_list(rows[1])}"]
    return [*lines, "  latency_us:", *(f"    - {_list(row)}" for row in values)]


def _list(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"


def _microseconds(seconds: np.ndarray, each: int) -> np.ndarray:
    """Microseconds of one of so many; BLIS wants them positive."""
    return np.maximum(np.asarray(seconds) / each / MICROSECOND, 1e-6)


def _points(largest: int, a_doubling: int) -> Points:
    """Whole numbers from one to the largest, so many for each doubling."""
    count = int(np.ceil(np.log2(max(largest, 2)) * a_doubling)) + 1
    return np.unique(np.rint(np.geomspace(1, max(largest, 2), count)))
