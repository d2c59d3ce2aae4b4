"""The engine's options, which several commands take alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from physim.engines.profile import DEFAULT_ENGINE

# Degrees of `physim.Parallelism` but tp, and fields of `physim.Deployment`: type, default and help.
_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "pp": (int, 1, "Stages of layers on GPUs of their own (pipeline parallelism)."),
    "dp": (int, 1, "Ranks of attention that share experts (data parallelism)."),
    "ep": (int, 1, "GPUs over which experts are spread whole: 1, or tp x dp."),
    "engine": (str, DEFAULT_ENGINE, "The engine: one of `physim show engines`."),
    "engine_version": (str | None, None, "Its version; the newest known if not given."),
    "max_num_seqs": (int | None, None, "Requests that run at once."),
    "max_num_batched_tokens": (int | None, None, "Tokens of a step."),
    "max_model_len": (int | None, None, "Longest context, tokens."),
    "gpu_memory_utilization": (float | None, None, "Share of memory the engine may use."),
    "block_size": (int, 16, "Tokens of a KV block."),
    "kv_blocks": (int | None, None, "KV blocks, instead of computing them."),
    "kv_cache_dtype": (str, "auto", "KV cache: auto (as the checkpoint says), bfloat16 or fp8."),
    "moe_kernel": (str | None, None, "Expert kernel, such as triton or flashinfer."),
    "expert_load": (
        float | None,
        None,
        "Spread over experts: 0 (even) to 1.2, a power law's exponent; the model's if not given.",
    ),
    "read_as": (
        str | None,
        None,
        "Read the model as this architecture class, such as LlamaForCausalLM.",
    ),
    "async_scheduling": (bool | None, None, "Schedule a step while one runs."),
    "all2all": (
        str,
        "allgather",
        "Ranks to experts: allgather or deepep_{high_throughput,low_latency}.",
    ),
    "receive_every": (int, 1, "Steps between looks at what has arrived."),
    "sampling": (
        str,
        "model",
        "model (its generation_config.json), greedy, plain, truncated (top-k, top-p), penalised.",
    ),
}

Command = Callable[..., None]
Engine = dict[str, Any]


def with_engine(command: Command, layout: bool = True) -> Command:
    """Gives a command the engine's options; what they are given comes as its ``engine``.

    Args:
        command: A command with a parameter ``engine``, options of a case by name.
        layout: Whether degrees of parallelism are among them.
    """
    options = {name: own for name, own in _OPTIONS.items() if layout or len(name) > 2}
    own = inspect.signature(command, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own.parameters.values()
        if parameter.name != "engine"
    ]
    for name, (kind, default, told) in options.items():
        # A flag and its opposite would leave the other options' names no room.
        panel = (
            "Scheduling"
            if name == "async_scheduling"
            else "Parallelism"
            if len(name) == 2
            else "Engine"
        )
        flags = ("--as",) if name == "read_as" else ()
        option = Annotated[kind, typer.Option(*flags, help=told, rich_help_panel=panel)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option
            )
        )

    @functools.wraps(command)
    def called(**given: Any) -> None:
        engine = {name: given.pop(name) for name in options}
        command(**given, engine=engine)

    # From these typer makes the options.
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called
