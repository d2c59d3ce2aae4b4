"""What the prompts of a trace find in a cache: from when blocks come again, against exact LRU."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest

import physim
from physim.errors import InputError
from physim.inputs.request_traces import BLOCK_TOKENS, read_requests
from physim.inputs.reuse import Reuse

SIZE = 16


def exact(inputs, outputs, blocks, size, cache):
    """Share of the prompt tokens that an LRU cache finds, a request at a time, block by block."""
    held, total, found = OrderedDict(), 0.0, 0.0
    for number, names in enumerate(blocks):
        leading = next(
            (place for place, name in enumerate(names) if (place, name) not in held), len(names)
        )
        found += min(leading * size, inputs[number] - 1)
        touched = [
            ((place, name), min(size, inputs[number] - place * size))
            for place, name in enumerate(names)
        ]
        rest = inputs[number] + outputs[number] - sum(tokens for _, tokens in touched)
        # The last blocks are given up first.
        for key, tokens in [(("own", number), rest), *touched[::-1]]:
            total += tokens - held.pop(key, 0.0)
            held[key] = tokens
        while total > cache:
            total -= held.popitem(last=False)[1]
    return found / np.sum(inputs)


def working_set(seed):
    """Prompts of a tree of prefixes of some popularity, and a size of the cache."""
    rng = np.random.default_rng(seed)
    count, roots = 1500, int(rng.integers(5, 300))
    popular = np.arange(1.0, roots + 1) ** -rng.uniform(0, 1.5)
    root = rng.choice(roots, count, p=popular / popular.sum())
    shared, branches = rng.integers(1, 20), rng.integers(1, 10)
    branch = rng.integers(branches, size=count)
    own = rng.integers(1, 10, count)
    blocks = []
    for number in range(count):
        trunk = [int(root[number])] * int(shared)
        twig = [int(1000 + branches * root[number] + branch[number])] * int(rng.integers(1, 8))
        blocks.append([*trunk, *twig, *[10_000 + number] * int(own[number])])
    inputs = np.array([SIZE * len(names) - 3.0 for names in blocks])
    outputs = rng.integers(1, 200, count).astype(float)
    unlike = {(place, name): 1 for names in blocks for place, name in enumerate(names)}
    cache = SIZE * len(unlike) * np.exp(rng.uniform(np.log(0.02), np.log(1.0)))
    return inputs, outputs, blocks, float(cache)


@pytest.mark.parametrize("seed", range(50))
def test_working_sets_find_what_an_exact_cache_finds(seed):
    inputs, outputs, blocks, cache = working_set(seed)
    found = Reuse.from_prompts(inputs, outputs, blocks, SIZE).hit_rate(cache)
    assert found == pytest.approx(exact(inputs, outputs, blocks, SIZE, cache), abs=0.03)


def test_reuse_by_hand():
    """Two prompts of two blocks with others between: 32 tokens each, and 8 of an answer."""
    blocks = [[1, 2], [3, 4], [1, 2], [1, 5]]
    inputs, outputs = np.full(4, 32.0), np.full(4, 8.0)
    found = Reuse.from_prompts(inputs, outputs, blocks, SIZE)
    assert found.between.tolist() == 4 * [np.inf] + [40, 40, 0, np.inf]
    # The last token of a prompt is computed in any case.
    assert found.found_tokens(1e9).tolist() == [0, 0, 31, 16]
    assert found.found_tokens(0.0).tolist() == [0, 0, 0, 0]
    # Of 160 tokens that are touched, 16 are known from 40 before and 32 from 80 before.
    assert np.interp(80.0, found.windows, found.different) == pytest.approx(40 + 40 * 0.9)
    assert found.hit_rate(1e9) == 47 / 128


@pytest.mark.parametrize(
    "cache", [3e6, *(pytest.param(one, marks=pytest.mark.slow) for one in (3e5, 1e7, 3e7))]
)
def test_mooncakes_trace_finds_what_an_exact_cache_finds(traces, cache):
    trace = read_requests(traces / "mooncake_conversation.jsonl.gz")
    found = Reuse.from_trace(trace).hit_rate(cache)
    columns = trace.input_tokens, trace.output_tokens, trace.blocks
    assert found == pytest.approx(exact(*columns, BLOCK_TOKENS, cache), abs=0.005)


def written(folder, requests=400):
    """A trace of prompts that share some blocks of 512 tokens."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(250.0, requests)).tolist()
    rows = []
    for number, time in enumerate(times):
        root = int(rng.integers(40))
        names = [root, 100 + root, 200 + root, 1000 + number]
        rows.append(
            {"timestamp": time, "input_length": 1900, "output_length": 100, "hash_ids": names}
        )
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kv_blocks", [3000, 6000, 20_000])
def test_a_trace_by_the_fluid_is_near_its_replay(tmp_path, kv_blocks):
    options = {"gpu": "h100_sxm", "fit": "none", "kv_blocks": kv_blocks}
    fluid, replayed = (
        physim.predict_trace("Qwen/Qwen3-8B", written(tmp_path), method=method, **options)
        for method in ("fluid", "replay")
    )
    assert fluid.method == "fluid"
    assert replayed.method == "replay"
    assert fluid.pool.hit_rate == pytest.approx(replayed.pool.hit_rate, abs=0.03)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.1)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=0.05)


def test_traces_that_the_fluid_does_not_know_are_refused(tmp_path):
    path = tmp_path / "talk.jsonl"
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 9, "output_length": 9},
        {"session_id": "a", "delay": 0, "input_length": 9, "output_length": 9},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="is of conversations, whose turns wait for answers; use"):
        physim.predict_trace("Qwen/Qwen3-8B", path, gpu="h100_sxm", method="fluid")
    with pytest.raises(InputError, match="max_model_len 1000"):
        physim.predict_trace(
            "Qwen/Qwen3-8B", written(tmp_path), gpu="h100_sxm", max_model_len=1000, method="fluid"
        )


@pytest.mark.slow
def test_ranks_that_share_a_trace_are_refused(tmp_path):
    options = {"gpu": "h100_sxm", "dp": 2, "ep": 2, "method": "fluid"}
    with pytest.raises(InputError, match="dp: ranks have caches of their own"):
        physim.predict_trace("Qwen/Qwen3-30B-A3B", written(tmp_path), **options)
