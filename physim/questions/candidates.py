"""Every server that can be: GPUs, layouts, limits and formats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from physim.errors import InputError
from physim.inputs.attempts import attempts, choices
from physim.inputs.case import Case
from physim.models.architecture import ModelArch
from physim.models.lookup import formats_of, load_model

# What is searched where nothing is said. Powers of two, as engines are set; small budgets keep the
# upper percentiles of ITL low.
_DEGREES = (1, 2, 4, 8)
_STAGES = (1, 2, 4)
_SEQS = (16, 32, 64, 128, 256, 512, 1024)
_BUDGETS = (512, 2048, 8192, 16384)
_DRAFT_TOKENS = (1, 2, 3, 5)
# GPUs that share layers are within a node of so many.
NODE = 8


def servers(
    model: str | Path | ModelArch,
    gpus: Sequence[str],
    max_gpus: int,
    tried: Mapping[str, Sequence[int]],
    options: Mapping[str, Any],
) -> tuple[list[Case], dict[str, int]]:
    """Every server that can be; how many cannot, by the reason.

    Args:
        model: As `load_model` takes it.
        gpus: GPUs to choose from.
        max_gpus: Most GPUs of a server.
        tried: Degrees of parallelism to try, by name; where none is named they are searched.
        options: The engine, and the load if there is one; limits that are given are not searched.

    Raises:
        InputError: There is none.
    """
    found: list[Case] = []
    errors: list[InputError] = []
    for attempt in attempts(wanted(model, gpus, max_gpus, tried, options), options):
        if attempt.case is not None:
            found.append(attempt.case)
        if attempt.refusal is not None:
            errors.append(attempt.refusal)
    refused = Counter(map(str, errors))
    if found:
        return found, dict(refused.most_common())
    # What is the same for all is wrong with the load or the engine.
    if len(refused) == 1:
        raise errors[0]
    problem = "has none of the layouts that are asked for"
    if errors:
        last = errors[-1]
        problem = f"cannot be served; of the largest layout: {last.where}: {last.what}"
    name = model.name if isinstance(model, ModelArch) else model
    raise InputError(
        f"{name} on up to {max_gpus} of {', '.join(gpus)}",
        problem,
        "allow more GPUs (--max-gpus), or others",
    )


def wanted(
    model: str | Path | ModelArch,
    gpus: Sequence[str],
    max_gpus: int,
    tried: Mapping[str, Sequence[int]],
    options: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Options of every server to try, beside those of all; see `servers`."""
    for name in formats_of(model):
        own = layouts_of(load_model(name, options.get("read_as")), max_gpus, tried)
        for gpu in gpus:
            for layout in own:
                for limits in _limits(options):
                    for drafts in _drafts(options):
                        yield {"model": name, "gpu": gpu, **layout, **limits, **drafts}


def layouts_of(
    model: ModelArch, max_gpus: int, tried: Mapping[str, Sequence[int]]
) -> list[dict[str, int]]:
    """Degrees of parallelism to try: powers of two, within a node but for stages.

    Args:
        model: The model.
        max_gpus: Most GPUs of a server.
        tried: Degrees to try instead, by name, where any are named.
    """
    named = {name: degrees for name, degrees in tried.items() if degrees}
    searched = {"tp": _DEGREES, "pp": _STAGES, "dp": _DEGREES if model.experts else (1,)}
    found = []
    for layout in choices(**{name: named.get(name, own) for name, own in searched.items()}):
        stage = layout["tp"] * layout["dp"]
        # Nothing that is searched spans nodes, unless what is named does by itself.
        most = max(NODE, math.prod(layout[name] for name in ("tp", "dp") if name in named))
        if stage > most or stage * layout["pp"] > max_gpus:
            continue
        spread = sorted({1, stage}) if model.experts else [1]
        found += [{**layout, "ep": ep} for ep in named.get("ep", spread)]
    return found


def _drafts(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How many tokens to propose, where that is not given of a draft; none among them."""
    if options.get("draft") is None or options.get("draft_tokens") is not None:
        return [{}]
    none = dict.fromkeys(name for name in options if name.startswith("draft"))
    return [none, *({"draft_tokens": tokens} for tokens in _DRAFT_TOKENS)]


def _limits(options: Mapping[str, Any]) -> list[dict[str, int]]:
    """Limits to try of those that are not given: of which a step has a token for each request."""
    searched = {"max_num_seqs": _SEQS, "max_num_batched_tokens": _BUDGETS}
    tried = list(choices(**{k: own for k, own in searched.items() if options.get(k) is None}))

    def fits(limits: Mapping[str, int]) -> bool:
        slots, budget = (limits.get(name) or options[name] for name in searched)
        return slots <= budget

    # What was asked for and never fits is refused with its reason.
    return [one for one in tried if fits(one)] or tried
