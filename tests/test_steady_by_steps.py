"""The steady state against a server that is walked step by step.

The walk forms batches as vLLM V1 does (decode first, chunked prefill within the token budget, first
come first served) and takes the same step times, so that what differs is the mean-field balance.
"""

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import physim

SEATS, TOKENS = 128, 2048
FRONT_END_S = 5e-3


@dataclass
class Request:
    arrived_s: float
    to_prefill: int
    context: int
    generated: int = 0
    first_token_s: float = 0.0


def walk(model, load, seconds, tp, seed=0):
    """Mean TTFT and ITL of the requests in the middle of a run."""
    step_model = physim.step_model(
        model, gpu="h100_sxm", tp=tp, max_num_seqs=SEATS, max_num_batched_tokens=TOKENS
    )
    seconds_of = jax.jit(lambda batch: step_model(batch).total)
    known = {}

    def step_s(decoding, chunks):
        # Contexts are rounded to eight tokens a request, so that step times are few.
        context = sum(request.context + 1 for request in decoding)
        key = len(decoding), round(context / 8), tuple((c, r.context) for r, c in chunks)
        if key not in known:
            q = np.array([c for _, c in chunks], float)
            cached = np.array([r.context for r, _ in chunks], float)
            sums = (len(decoding), context, len(q), q.sum(), (q**2).sum(), cached.sum(), q @ cached)
            known[key] = float(seconds_of(physim.Batch(*map(float, sums))))
        return known[key]

    count = int(load.rate * seconds)
    even = np.full(count, 1 / load.rate)
    gaps = np.random.default_rng(seed).exponential(even) if load.arrival == "poisson" else even
    arrivals = deque(np.cumsum(gaps))
    now, waiting, running, done = 0.0, deque(), [], []
    while len(done) < count:
        while arrivals and arrivals[0] + FRONT_END_S <= now:
            new = int(load.input_tokens - load.cached_tokens)
            waiting.append(Request(arrivals.popleft(), new, int(load.cached_tokens)))
        if not running and not waiting:
            now = arrivals[0] + FRONT_END_S
            continue
        decoding = [request for request in running if not request.to_prefill]
        left, chunks = TOKENS - len(decoding), []
        for request in [request for request in running if request.to_prefill]:
            chunks.append((request, min(request.to_prefill, left)))
            left -= chunks[-1][1]
        while waiting and left > 0 and len(running) < SEATS:
            running.append(waiting.popleft())
            chunks.append((running[-1], min(running[-1].to_prefill, left)))
            left -= chunks[-1][1]
        now += step_s(decoding, [(r, c) for r, c in chunks if c])
        for request in decoding:
            request.context += 1
            request.generated += 1
        for request, chunk in chunks:
            request.to_prefill -= chunk
            request.context += chunk
            if chunk and not request.to_prefill:
                request.generated, request.first_token_s = 1, now
        for request in [r for r in running if r.generated >= load.output_tokens]:
            running.remove(request)
            ttft = request.first_token_s - request.arrived_s
            itl = (now - request.first_token_s) / (load.output_tokens - 1)
            done.append((request.arrived_s, ttft, itl))
    middle = [row[1:] for row in done if 0.4 * seconds < row[0] < 0.85 * seconds]
    return np.mean(middle, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tp", "load", "ttft_tolerance", "itl_tolerance"),
    [
        ("Qwen/Qwen3-14B", 2, physim.Load(786, 251, rate=6, cached_tokens=770), 0.02, 0.01),
        ("meta-llama/Llama-3.1-8B-Instruct", 1, physim.Load(2000, 200, rate=5), 0.03, 0.01),
        ("mistralai/Mixtral-8x7B-v0.1", 2, physim.Load(575, 248, rate=10), 0.03, 0.01),
        # Chance arrivals also wait for each other's prompts, which is not modelled yet.
        (
            "Qwen/Qwen3-14B",
            2,
            physim.Load(786, 251, rate=6, cached_tokens=770, arrival="poisson"),
            0.05,
            0.02,
        ),
    ],
)
def test_the_balance_agrees_with_the_walk(model, tp, load, ttft_tolerance, itl_tolerance):
    ttft, itl = walk(model, load, 80.0, tp)
    prediction = physim.predict(
        model,
        gpu="h100_sxm",
        tp=tp,
        rate=load.rate,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        cached_tokens=load.cached_tokens,
        arrival=load.arrival,
        max_num_seqs=SEATS,
        max_num_batched_tokens=TOKENS,
        async_scheduling=False,
    )
    assert prediction.ttft_s == pytest.approx(ttft, rel=ttft_tolerance)
    assert prediction.itl_s == pytest.approx(itl, rel=itl_tolerance)
