"""What would fit where a model, or a request's KV cache, does not: the least that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.models.lookup import formats_of
from physim.service.hardware import load_hardware

# GPUs of a node, where the GPU's file does not say.
_NODE_GPUS = 8
_MOST_NODES = 4


class TooLargeError(InputError):
    """A model, or the KV cache of one request, that does not fit into a GPU's memory."""


def what_fits(
    model: str | Path | ModelArch, options: Mapping[str, Any], try_case: Callable[..., Any]
) -> list[str]:
    """Changes to a case each of which makes it fit, or the least two together, in words.

    Args:
        model: The model, as `physim.models.lookup.load_model` takes it.
        options: The options of the case.
        try_case: Makes a case of a model and options, or raises `InputError`.
    """

    def fits(change: Mapping[str, Any]) -> bool:
        try:
            try_case(**{"model": model, **options, **change})
        except InputError:
            return False
        return True

    forms: list[dict[str, Any]] = [{"model": name} for name in formats_of(model)[1:]]
    if not forms and options.get("quantization") is None:
        forms = [{"quantization": "fp8"}]
    smaller: list[dict[str, Any]] = (
        [{"kv_cache_dtype": "fp8"}] if options.get("kv_cache_dtype") != "fp8" else []
    )
    found = [*_least_tp(options, fits), *(one for one in (*forms, *smaller) if fits(one))]
    if not found:
        pairs = ({**one, **tp} for one in (*forms, *smaller) for tp in _tps(options))
        found = list(filter(None, [next(filter(fits, pairs), None)]))
    if not found:
        found = _least_tp(options, fits, _MOST_NODES)
    return [" and ".join(_words(*one) for one in change.items()) for change in found]


def _tps(options: Mapping[str, Any], nodes: int = 1) -> Iterator[dict[str, Any]]:
    """Larger degrees within some nodes, the least first."""
    most = nodes * (load_hardware(options["gpu"]).node_gpus or _NODE_GPUS)
    tp = 2 * options.get("tp", 1)
    while tp * options.get("pp", 1) * options.get("dp", 1) <= most:
        yield {"tp": tp}
        tp *= 2


def _least_tp(
    options: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool], nodes: int = 1
) -> list[dict[str, Any]]:
    found = next(filter(fits, _tps(options, nodes)), None)
    return [] if found is None else [found]


def _words(name: str, value: Any) -> str:
    return str(value) if name == "model" else f"{name} {value}"
