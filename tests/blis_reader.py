"""Reads a folder made for BLIS and computes step times as BLIS does, from the files alone.

Written after the formats' description and BLIS's source, apart from the code that writes them.
Times in microseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import yaml


@dataclass
class Batch:
    """Contexts of decoding requests; new tokens of prompts, and what each has in the cache."""

    contexts: list[int]
    prompts: list[int]
    cached: int = 0

    @property
    def requests(self):
        return len(self.contexts) + len(self.prompts)

    @property
    def tokens(self):
        return len(self.contexts) + sum(self.prompts)


def whole(value):
    return max(1, int(value))


def strict(content, keys):
    assert set(content) == set(keys), set(content) ^ set(keys)
    return content


def kernel_lookup(folder):
    """The kernel profile, checked, as a function of multipliers and batch."""
    profile = yaml.safe_load((folder / "kernel_profile.yaml").read_text())
    keys = ["gpu", "backend", "version", "model", "tp", "num_layers", "num_moe_layers"]
    keys += ["num_dense_layers", "hidden_dim", "gemm", "context_attention"]
    keys += ["generation_attention", "allreduce"]
    optional = [name for name in ("logits_gemm", "moe_compute") if name in profile]
    strict(profile, keys + optional)
    for name in ("gpu", "backend", "version", "model"):
        assert isinstance(profile[name], str), name

    def rising(values):
        array = np.array(values, float)
        assert np.all(np.diff(array) > 0), values
        return array

    def positive(values, shape):
        array = np.array(values, float)
        assert array.shape == shape
        assert np.all(np.isfinite(array) & (array > 0))
        return array

    def one(name):
        axis = rising(profile[name]["tokens"])
        values = positive(profile[name]["latency_us"], axis.shape)
        return lambda x: float(np.interp(x, axis, values))

    def two(name, first, second):
        columns, rows = rising(profile[name][first]), rising(profile[name][second])
        values = positive(profile[name]["latency_us"], (len(rows), len(columns)))

        def value_at(x, y):
            over_rows = [np.interp(y, rows, column) for column in values.T]
            return float(np.interp(x, columns, over_rows))

        return value_at

    gemm, reduce = one("gemm"), one("allreduce")
    prefill = two("context_attention", "batch_size", "isl")
    decode = two("generation_attention", "tokens", "context")
    experts = one("moe_compute") if "moe_compute" in profile else None
    logits = one("logits_gemm") if "logits_gemm" in profile else None
    layers, sparse = profile["num_layers"], profile["num_moe_layers"]
    units = 2 * profile["num_dense_layers"] + sparse

    def step(beta, batch):
        total = beta[0] * layers * gemm(batch.tokens)
        if batch.prompts:
            # Attention of whole prompts, less the share of pairs that lie in the cache.
            whole_prompts = np.array(batch.prompts) + batch.cached
            left = 1 - len(whole_prompts) * batch.cached**2 / np.sum(whole_prompts**2)
            attention = prefill(len(whole_prompts), np.mean(whole_prompts))
            total += beta[1] * layers * attention * left
        if batch.contexts:
            total += beta[2] * layers * decode(len(batch.contexts), np.mean(batch.contexts))
            total += beta[9] * layers
        total += beta[4] * units * max(reduce(batch.tokens) - reduce(1), 0)
        if logits:
            # The same whether by tokens or by requests.
            assert logits(batch.tokens) == logits(batch.requests)
            total += beta[0] * logits(batch.tokens)
        if experts:
            total += beta[5] * sparse * experts(batch.tokens)
        total += beta[6] * layers * len(batch.prompts) + beta[7] * batch.requests + beta[8]
        return whole(total)

    return step


def trained_physics(folder, gpu, tp):
    """Step time of the eleven terms, from config.json and the hardware file (dense models)."""
    config = json.loads((folder / "config.json").read_text())
    hardware = json.loads((folder / "hardware_config.json").read_text())[gpu]
    keys = ["TFlopsPeak", "BwPeakTBs", "mfuPrefill", "mfuDecode", "MemoryGiB"]
    assert set(keys) <= set(hardware) <= {*keys, "TFlopsFP8"}
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    heads, width = config["num_attention_heads"], config["intermediate_size"]
    kv = config.get("num_key_value_heads", heads) * (hidden // heads)
    flops, bandwidth = hardware["TFlopsPeak"] * 1e6, hardware["BwPeakTBs"] * 1e6

    def step(beta, batch):
        prompts, decodes = sum(batch.prompts), len(batch.contexts)
        token = layers * (2 * hidden * (2 * hidden + 2 * kv) + 6 * hidden * width) / tp
        pairs = sum(n * (n + n / 2) for n in batch.prompts)
        pair = layers * 4 * heads / tp * (hidden // heads)
        elements = layers * 2 * kv / tp
        terms = [
            (prompts * token + pair * pairs) / flops,
            (decodes * token + pair * sum(batch.contexts)) / flops,
            0.0,
            2 * layers * (prompts + decodes) * hidden * 4 * (tp - 1) / tp / bandwidth,
            layers,
            batch.requests,
            1.0,
            0.0,
            elements * 2 * prompts / bandwidth,
            elements * 2 * (sum(batch.contexts) + decodes) / bandwidth,
            0.0,
        ]
        assert beta[2] == beta[7] == beta[10] == 0
        return whole(sum(b * t for b, t in zip(beta, terms, strict=True)))

    return step


def blackbox(beta, batch):
    return whole(beta[0] + beta[1] * sum(batch.prompts) + beta[2] * len(batch.contexts))


def alone(step, before, token, inputs, outputs):
    """TTFT, ITL and E2E, milliseconds, of one request that has the server to itself."""
    first = before + step(Batch([], [inputs])) + token
    later = [step(Batch([inputs + n], [])) + token for n in range(outputs - 1)]
    return tuple(x / 1e3 for x in (first, sum(later) / len(later), first + sum(later)))
