"""What a replayed engine would have logged and counted, read again and predicted."""

import numpy as np
import pytest

import physim
from physim.corrections.fields import Corrections
from physim.measured.metrics import read_metrics
from physim.measured.stage_report import write_rows
from physim.prediction.replayed import replay_load

MODEL = "Qwen/Qwen3-8B"
INPUT, OUTPUT = 700, 150
# Upper ends of vLLM's bins of times, of vllm/v1/metrics/loggers.py.
FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10)
WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
LABELS = f'engine="0",model_name="{MODEL}"'


@pytest.fixture(scope="module")
def case():
    return physim.Case.from_options(
        MODEL,
        gpu="h100_sxm",
        rate=12,
        input_tokens=INPUT,
        output_tokens=OUTPUT,
        requests=600,
        arrival="poisson",
    )


@pytest.fixture(scope="module")
def replay(case):
    return replay_load(case, Corrections(), 3)


def test_a_log_of_replayed_steps_is_predicted(case, replay, tmp_path):
    work, samples = replay.work, replay.samples
    used = np.interp(work.began_s, samples.time_s, samples.kv_blocks) / replay.kv_blocks
    lines = [
        f"INFO 11-25 11:17:17 [loggers.py:199] Engine 000: Iteration({place}): {prompts:.0f} "
        f"context requests, {tokens:.0f} context tokens, {decoding:.0f} generation requests, "
        f"{decoding:.0f} generation tokens, iteration elapsed time: {1e3 * seconds:.2f} ms, "
        f"GPU KV cache usage: {100 * share:.1f}%\n"
        for place, (prompts, tokens, decoding, seconds, share) in enumerate(
            zip(work.prompts, work.tokens, work.decoding, work.step_s, used, strict=True)
        )
    ]
    path = tmp_path / "server.log"
    path.write_text("".join(lines))
    steps = physim.read_step_files([path])
    assert len(steps) == len(lines) > 500
    compared = physim.compare_steps(steps, case, fit="none")
    errors = {one.kind: one for one in compared.errors}
    # Milliseconds have two digits in the log, and the use of the KV cache one.
    assert max(one.mean_pct for one in compared.errors) < 0.3
    assert abs(errors["all"].bias_pct) < 0.2


def histogram(name, edges, values):
    lines = [
        f'vllm:{name}_bucket{{{LABELS},le="{edge}"}} {(values <= end).sum()}'
        for edge, end in (*((f"{edge}", edge) for edge in edges), ("+Inf", np.inf))
    ]
    return [*lines, f"vllm:{name}_sum{{{LABELS}}} {values.sum()}"]


def scrape(path, replay, time_s):
    ended = [one for one in replay.requests if (one.finished_s or np.inf) <= time_s]
    begun = [one for one in replay.requests if (one.first_token_s or np.inf) <= time_s]
    first = np.array([one.first_token_s - one.arrival_s for one in begun])
    whole = np.array([one.finished_s - one.arrival_s for one in ended])
    counted = {
        "prompt_tokens_total": sum(one.input_tokens for one in begun),
        "generation_tokens_total": sum(one.output_tokens for one in ended),
        "prefix_cache_queries_total": sum(one.input_tokens for one in begun),
        "prefix_cache_hits_total": sum(one.cached_tokens for one in begun),
    }
    lines = [
        f'vllm:request_success_total{{{LABELS},finished_reason="length"}} {len(ended)}',
        *(f"vllm:{name}{{{LABELS}}} {value}" for name, value in counted.items()),
        *histogram("time_to_first_token_seconds", FIRST, first),
        *histogram("e2e_request_latency_seconds", WHOLE, whole),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_scrapes_of_a_replayed_engine_are_predicted(replay, tmp_path):
    # Requests come for 50 s; the engine has filled up after some.
    begin, end = 10.0, 45.0
    paths = [scrape(tmp_path / f"{time}.txt", replay, time) for time in (begin, end)]
    counted = read_metrics(paths, end - begin)
    assert counted.rate == pytest.approx(12, rel=0.15)
    assert (counted.mean_output, counted.hit_rate) == (OUTPUT, 0)
    frame = physim.read_report(
        "metrics", paths, model=MODEL, gpu="h100_sxm", interval_s=end - begin
    )
    write_rows(tmp_path / "runs.csv", frame)
    (row,) = physim.evaluate([tmp_path / "runs.csv"], fit="none").rows
    errors = {name: one["error_pct"] for name, one in row["metrics"].items()}
    assert abs(errors["itl_mean"]) < 2
    assert abs(errors["e2e_mean"]) < 2
    assert abs(errors["ttft_mean"]) < 5
    # Bins bound the exact percentiles.
    exact = [
        one.first_token_s - one.arrival_s
        for one in replay.requests
        if begin < (one.first_token_s or np.inf) <= end
    ]
    edges = np.array([0, *FIRST])
    place = np.searchsorted(edges, np.percentile(exact, 90))
    assert edges[place - 1] <= counted.times["ttft"].percentile(90) <= edges[place]
