"""The commands that start a server and put it under a load, as vLLM takes them."""

from __future__ import annotations

import shlex

from physim.errors import InputError
from physim.inputs.case import Case
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load

# Requests of a load without end.
_PROMPTS = 1000
# From this shape on arrivals after vLLM's gamma distribution are as good as evenly spaced.
_EVEN = 1000.0


def serve_command(case: Case) -> str:
    """The ``vllm serve`` command of a case's server, every limit given.

    Raises:
        InputError: The engine is another.
    """
    known = case.deployment
    if known.profile.engine != "vllm":
        raise InputError(
            "--serve-command", f"is for vllm, not {known.profile.engine}", "leave it out"
        )
    limits = known.limits
    words = ["vllm", "serve", case.model.name]
    layout = known.parallelism
    words += ["--tensor-parallel-size", str(layout.tp)]
    for flag, degree in (("pipeline", layout.pp), ("data", layout.dp)):
        if degree > 1:
            words += [f"--{flag}-parallel-size", str(degree)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
    for flag, value in (
        ("max-num-seqs", limits.max_num_seqs),
        ("max-num-batched-tokens", limits.max_num_batched_tokens),
        ("max-model-len", limits.max_model_len),
        ("gpu-memory-utilization", f"{known.memory.share:g}"),
        ("block-size", limits.block_size),
    ):
        words += [f"--{flag}", str(value)]
    if known.kv_cache_dtype != case.model.kv_cache_dtype:
        words += ["--kv-cache-dtype", known.kv_cache_dtype]
    words.append("--async-scheduling" if limits.async_scheduling else "--no-async-scheduling")
    return shlex.join(words)


def bench_command(case: Case) -> str:
    """The ``vllm bench serve`` command of a case's load.

    Raises:
        InputError: There is no such command for the load.
    """
    load = case.demanded
    if load.stages:
        raise InputError("--serve-command", "vllm bench serve knows no stages", "give one rate")
    for tokens in (load.input_tokens, load.output_tokens):
        if isinstance(tokens, Lengths) and tokens.kind != "fixed":
            raise InputError(
                "--serve-command",
                "vllm bench serve draws no lengths of such a distribution",
                "give a number",
            )
    words = ["vllm", "bench", "serve", "--model", case.model.name]
    words += ["--dataset-name", "random", "--ignore-eos"]
    cached = round(load.cached_tokens)
    for flag, value in (
        ("random-prefix-len", cached or None),
        ("random-input-len", round(load.mean_input) - cached),
        ("random-output-len", round(load.mean_output)),
        ("num-prompts", load.requests or _PROMPTS),
        *_arrivals(load),
    ):
        words += [] if value is None else [f"--{flag}", f"{value:g}"]
    return shlex.join(words)


def _arrivals(load: Load) -> list[tuple[str, float]]:
    if load.concurrency is not None:
        return [("max-concurrency", load.concurrency)]
    assert load.rate is not None
    shape = {"constant": _EVEN, "poisson": 1.0, "gamma": load.burstiness}[load.arrival]
    return [("request-rate", load.rate), ("burstiness", shape)]
