"""Fields of configurations, GPU files and options of which nothing comes, and why that is right.

A field is tried by other valid values in its place. Something comes of it if one of them is
refused, or makes another architecture or, of GPUs and options, another prediction.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fuzzing_measured
import numpy as np
from fuzzing import config_of
from odd_files import Way, exchanged, field_of, leaves

import physim
from physim import data
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.lengths import Lengths
from physim.inputs.request_lengths import RequestLengths
from physim.models.families import read_architecture

# Places of a list that are tried.
_PLACES = 4
_LOAD = {"input_tokens": 1000, "output_tokens": 200}
_DENSE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "gpu": "h100_sxm",
    "tp": 2,
    **_LOAD,
    "rate": 2.0,
    "arrival": "gamma",
    "burstiness": 0.5,
    "cached_tokens": 100,
}
_STAGES = {**_DENSE, "rate": None, "stages": [(60.0, 60.0)]}
_CLIENTS: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "gpu": "h100_sxm",
    **_LOAD,
    "concurrency": 64,
    "requests": 256,
}
_TURNS = {**_DENSE, "turns": 4.0, "think_s": 5.0, "kv_blocks": 8000}
_EXPERTS: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B",
    "gpu": "h100_sxm",
    "tp": 2,
    "dp": 2,
    "ep": 4,
    **_LOAD,
    "concurrency": 400,
}
_SCOUT = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
_FP8 = {**_EXPERTS, "model": "Qwen/Qwen3-235B-A22B-FP8", "tp": 4, "ep": 8}
_APART = {**_DENSE, "prefill": "tp=1", "decode": "tp=1"}
# Prefixes that the GPU's memory has no room for.
_TIERED = {
    **_DENSE,
    "cached_tokens": 800,
    "prefixes": 900,
    "kv_blocks": 9000,
    "kv_host_bytes": 1e11,
}
# Nor has the host's.
_DISK = {**_TIERED, "kv_host_bytes": 3e10, "kv_disk_bytes": 1e11, "kv_disk_bandwidth": 1e10}
_DRAFTED = {**_DENSE, "draft": "eagle3", "draft_tokens": 3, "draft_acceptance": 0.7}
# More GPUs than a node has.
_NODES = {**_EXPERTS, "tp": 4, "dp": 4, "ep": 16}
# Of each option of a case: a case, and another value.
OPTIONS: dict[str, tuple[Mapping[str, Any], Any]] = {
    "all2all": (_EXPERTS, "deepep_high_throughput"),
    "arrival": (_DENSE, "constant"),
    "async_scheduling": (_DENSE, False),
    "block_size": (_DENSE, 64),
    "burstiness": ({**_DENSE, "arrival": "gamma"}, 2.0),
    "cached_tokens": (_DENSE, 500),
    "concurrency": (_CLIENTS, 32),
    "dispersion": (
        {
            **_DENSE,
            "arrival": "trace",
            "dispersion": ArrivalDispersion.from_arrivals(np.arange(200.0)),
        },
        ArrivalDispersion.from_arrivals(np.repeat(np.arange(100.0), 2)),
    ),
    "dp": (_EXPERTS, 4),
    "decode": (_APART, "tp=2"),
    "draft": (_DRAFTED, "ngram"),
    "draft_acceptance": (_DRAFTED, 0.5),
    "draft_model": (
        {**_DRAFTED, "draft": "draft_model", "draft_model": "Qwen/Qwen3-4B"},
        "Qwen/Qwen3-1.7B",
    ),
    "draft_tokens": (_DRAFTED, 2),
    "engine": (_DENSE, "sglang"),
    "engine_version": (_DENSE, "0.11"),
    "ep": ({**_EXPERTS, "dp": 1, "ep": 1}, 2),
    "expert_load": (_EXPERTS, 1.2),
    "gpu": (_DENSE, "a100_sxm"),
    "gpu_memory_utilization": (_DENSE, 0.5),
    "input_tokens": (_DENSE, 900),
    "kv_blocks": (_DENSE, 5000),
    "kv_cache_dtype": (_DENSE, "fp8"),
    "kv_disk_bandwidth": (_DISK, 1e9),
    "kv_disk_bytes": (_DISK, 5e10),
    "kv_disk_latency_s": (_DISK, 0.01),
    "kv_disk_write_bandwidth": (_DISK, 1e6),
    "kv_host_bandwidth": (_TIERED, 1e9),
    "kv_host_bytes": (_TIERED, 3e10),
    "lengths": (
        {
            **_CLIENTS,
            **dict.fromkeys(_LOAD),
            "lengths": RequestLengths.from_columns([900, 1100], [200, 200]),
        },
        RequestLengths.from_columns([500, 1500], [200, 200]),
    ),
    "captured_tokens": (_DENSE, 2048),
    "max_model_len": ({**_DENSE, "output_tokens": Lengths.exponential(200)}, 1500),
    "max_num_batched_tokens": (_DENSE, 512),
    "max_num_seqs": (_CLIENTS, 32),
    "mixed": (_DENSE, "weighted-average"),
    "moe_kernel": ({**_EXPERTS, "model": _SCOUT, "dp": 1, "ep": 1, "tp": 4}, "flashinfer"),
    "moe_activations": (
        {**_DENSE, "model": "openai/gpt-oss-120b", "gpu": "b200_sxm", "tp": 1},
        "mxfp8",
    ),
    "output_tokens": (_DENSE, 100),
    "popularity": ({**_DENSE, "prefixes": 5000}, "zipf:1"),
    "pp": (_DENSE, 2),
    "prefixes": (_DENSE, 5000),
    "rate": (_DENSE, 3.0),
    "read_as": (_DENSE, "Qwen2ForCausalLM"),
    "quantization": (_DENSE, "fp8"),
    "prefill": (_APART, "replicas=3"),
    "replicas": (_DENSE, 2),
    "router": ({**_DENSE, "replicas": 2}, "random"),
    "router_age_s": ({**_DENSE, "replicas": 2, "router": "least_requests"}, 0.05),
    "transfer_bandwidth": (_APART, 1e9),
    "transfer_by_layer": ({**_APART, "transfer_bandwidth": 1e9}, True),
    "transfer_latency_s": (_APART, 0.1),
    "stream_interval": ({**_DENSE, "engine": "sglang"}, 20),
    "receive_every": ({**_DENSE, "engine": "sglang"}, 20),
    "mixed_chunk": ({**_DENSE, "engine": "sglang"}, True),
    "requests": (_CLIENTS, 512),
    "sampling": (_DENSE, "penalised"),
    "stages": (_STAGES, [(3.0, 60.0)]),
    "think_s": (_TURNS, 30.0),
    "timeout_s": (_STAGES, 5.0),
    "tp": (_DENSE, 4),
    "turns": (_TURNS, 2.0),
    "warm_up_s": (_CLIENTS, 2.0),
}

# Patterns of fields, and why nothing comes of them.
_NAMED = "is a name; the class in architectures says what the model is"
_TOKENS = "is the number of a token"
_FACTORS = "changes numbers that are computed anyway, in an element-wise kernel"
_TRAINING = "is of training"
_ANGLES = "changes the angles of rotary embeddings, which cost the same"
_LATER = "is of layers that predict more tokens, which engines leave out unless asked"
_SAID = "another field of the same configuration says it, and is read"
_SCALES = "says how scales are found, of which no traffic comes that counts"
_16_BIT = "lists modules that are in 16 bit in any case, such as lm_head and routers"
_ENCODER = "an encoder's weights do not depend on it, and its time is not predicted"
_SMALL = "is of a few numbers for each layer"
_CHOICE = "says which experts a token chooses among; how they spread is expert_load"
IGNORED: dict[str, dict[str, str]] = {
    "config": {
        "*_token_id": _TOKENS,
        "*_token_id[[]]": _TOKENS,
        "*_token_index": _TOKENS,
        "image_placeholder": _TOKENS,
        "vision_config.*": _ENCODER,
        "mm_tokens_per_image": _ENCODER,
        "multimodal_projector_bias": _ENCODER,
        "*model_type": _NAMED,
        "*architectures[[]]": _NAMED,
        "auto_map.*": _NAMED,
        "*id2label.*": _NAMED,
        "*label2id.*": _NAMED,
        "transformers_version": _NAMED,
        "quantization_config.producer.*": _NAMED,
        "*hidden_act*": _FACTORS,
        "*activation_situ*": _FACTORS,
        "*_multiplier": _FACTORS,
        "logits_scaling": _FACTORS,
        "*routed_scaling_factor": _FACTORS,
        "*query_pre_attn_scalar": _FACTORS,
        "*rms_norm_eps": _FACTORS,
        "use_gemma_norm": _FACTORS,
        "norm_topk_prob": _FACTORS,
        "scoring_func": _FACTORS,
        "*moe_router_activation_func": _FACTORS,
        "*moe_renormalize": _FACTORS,
        "*gate_lower_bound": _FACTORS,
        "*attention_dropout": _TRAINING,
        "*initializer_range": _TRAINING,
        "router_jitter_noise": _TRAINING,
        "*router_aux_loss_coef": _TRAINING,
        "*output_router_logits": _TRAINING,
        "pretraining_tp": _TRAINING,
        "ep_size": _TRAINING,
        "moe_shared_expert_overlap": _TRAINING,
        "*use_cache": "is of transformers' own way to generate",
        "*rope_*": _ANGLES,
        "*partial_rotary_factor": _ANGLES,
        "*mla_use_nope": _ANGLES,
        "*mtp*": _LATER,
        "*num_nextn_predict_layers": _LATER,
        "n_group": _CHOICE,
        "topk_group": _CHOICE,
        "topk_method": _CHOICE,
        "*num_expert_group": _CHOICE,
        "*use_grouped_topk": _CHOICE,
        "add_*_sink_bias": _SMALL,
        "attention_bias": _SMALL,
        "*latent_moe_use_norm": _SMALL,
        "sparse_attention_config.sparse_disable_index_value[[]]": _SMALL,
        "sparse_attention_config.sparse_score_type": _FACTORS,
        "*mamba_ssm*": "states are counted in 32 bit, as all of these are",
        "*dtype": "text_config's holds",
        "quantization_config*.dynamic": _SCALES,
        "*quantization_config*.dynamic": _SCALES,
        "*quantization_config*.observer": _SCALES,
        "*quantization_config*.scale_dtype": _SCALES,
        "*quantization_config*.strategy": _SCALES,
        "*quantization_config*.symmetric": _SCALES,
        "*quantization_config*.quantization_status": _SCALES,
        "quantization_config.activation_scheme": _SCALES,
        "quantization_config.fmt": _SCALES,
        "quantization_config.scale_fmt": _SCALES,
        "*quantization_config*.format": _SAID,
        "quantization_config.config_groups.*": _SAID,
        "*config_groups.*.group_size": _SAID,
        "quantization_config.group_size": _SAID,
        "quantization_config.kv_cache_scheme.type": "numbers of as many bits take as long",
        "quantization_config.exclude_modules[[]]": _16_BIT,
        "quantization_config.modules_to_not_convert[[]]": _16_BIT,
        "*tie_word_embeddings": _SAID,
        "experts_per_token": _SAID,
        "*first_k_dense_replace": _SAID,
        "*full_attention_interval": _SAID,
        "*full_attn_layers[[]]": _SAID,
        "*num_hidden_layers": _SAID,
        "n_shared_experts": _SAID,
        "moe_intermediate_size": _SAID,
        "*qk_head_dim": _SAID,
        "qk_rope_head_dim": _SAID,
        "qk_norm_type": _SAID,
        "use_qk_norm": _SAID,
        "head_dim": "latent attention has widths of its own",
        "*num_key_value_heads": "latent and linear attention have no KV heads",
        "*intermediate_size*": "is of dense layers, of which the model has none",
        "attn_type_list[[]]": "all layers attend, whatever is listed",
        "attention_chunk_size": "windowed layers have sliding_window",
        "sliding_window": "use_sliding_window is off",
        "sliding_window_size": "sliding_window is read",
        "max_window_layers": "use_sliding_window is off",
        "use_sliding_window": "sliding_window is null",
        "*attn_res_block_size": "is not modelled: how often outputs of earlier layers are read",
        "*use_bidirectional_attention": "is of images, whose time is not predicted",
        "*vocab_size_per_layer_input": "hidden_size_per_layer_input is 0",
    },
    "gpu": {
        "*source": "says where a figure is from",
        "aliases[[]]": "are other names; of a file the path is given",
        "name": "is shown",
        "key": "names its measured kernels; without any, the H100's stand in",
        "link": "is shown; link_bandwidth_bytes_per_s is what counts",
        "peak_flops.int8.value": "is of checkpoints in int8, of which none is tried",
    },
    "option": {"kv_disk_write_bandwidth": "is what a note compares what is written with"},
}


def why_ignored(kind: str, field: str) -> str:
    """Why nothing comes of a field; empty if that is not known."""
    known = IGNORED.get(kind) or fuzzing_measured.IGNORED.get(kind, {})
    found = (why for pattern, why in known.items() if fnmatch.fnmatchcase(field, pattern))
    return next(found, "")


def unread_of_config(name: str) -> set[str]:
    """Fields of a shipped model's configuration of which nothing comes."""
    content = config_of(name)
    base = _architecture(content)
    seen: dict[str, bool] = {}
    for field, other in _variants(content):
        seen[field] = seen.get(field, False) or _architecture(other) != base
    return _never(seen.items())


def unread_of_gpu(key: str, folder: Path) -> set[str]:
    """Fields of a shipped GPU's file of which nothing comes."""
    content = data.read_json(data.folder("hardware") / f"{key}.json")
    fields, given = [], []
    for place, (field, other) in enumerate([("", content), *_variants(content)]):
        path = folder / f"{place}.json"
        path.write_text(json.dumps(other))
        fields.append(field)
        given += [{**server, "gpu": str(path)} for server in (_FP8, _NODES)]
    made = _predicted(given)
    pairs = list(zip(made[::2], made[1::2], strict=True))
    return _never(
        (field, one != pairs[0]) for field, one in zip(fields, pairs, strict=True) if field
    )


def unread_options() -> set[str]:
    """Options of a case of which nothing comes."""
    made = _predicted(
        [
            {**base, option: value}
            for option, (base, other) in OPTIONS.items()
            for value in (base.get(option), other)
        ]
    )
    moved = (one != other for one, other in zip(made[::2], made[1::2], strict=True))
    return _never(zip(OPTIONS, moved, strict=True))


def _never(found: Iterable[tuple[str, bool]]) -> set[str]:
    """Names of which no entry is true."""
    seen: dict[str, bool] = {}
    for name, one in found:
        seen[name] = seen.get(name, False) or one
    return {name for name, once in seen.items() if not once}


def _predicted(given: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What is predicted of times and memory, or why nothing is."""
    found: list[Any] = []
    for options in given:
        try:
            found.append(physim.Case.from_options(**options))
        except InputError as error:
            found.append(str(error))
    cases = [one for one in found if isinstance(one, physim.Case)]
    numbers = map(_numbers, physim.predict_cases(cases, Corrections()))
    return [next(numbers) if isinstance(one, physim.Case) else one for one in found]


def _numbers(one: physim.Prediction) -> Any:
    fields = ("saturation_rps", "batch", "running", "kv_use", "kv_blocks")
    whole = [(part.latencies, part.completed) for part in (one.whole, *one.stages)]
    pools = [([getattr(pool, field) for field in fields], pool.step_parts_s) for pool in one.pools]
    return pools, one.requests_per_s, whole


def _variants(content: Any) -> Iterator[tuple[str, Any]]:
    """Contents with one value exchanged for another of its kind, and the name of its field."""
    places: dict[str, list[tuple[Way, Any]]] = {}
    for way, value in leaves(content):
        places.setdefault(field_of(way), []).append((way, value))
    for field, own in places.items():
        for way, value in own[:: max(len(own) // _PLACES, 1)]:
            for other in _others(value):
                yield field, exchanged(content, way, other)


def _others(value: Any) -> Sequence[Any]:
    """Other values of its kind; in the place of null, a number, a name or an object."""
    if value is None:
        return 2, "x", {"a": 1}
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, str):
        return f"x{value}", "x"
    return (2 * value, value + 1, value - 1) if isinstance(value, int) else (value * 1.3,)


def _architecture(content: Mapping[str, Any]) -> str:
    """What is made of a configuration, as text; or why nothing is."""
    try:
        return repr(dataclasses.replace(read_architecture(content, "config"), name=""))
    except InputError as error:
        return str(error)
