"""Which layers of a model look back on a window, and how far."""

from __future__ import annotations

from collections.abc import Callable

from physim.errors import InputError
from physim.mixers.attention import CHUNKED_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION
from physim.models.config_fields import ConfigFields
from physim.models.families.family import Reading

Window = Callable[[ConfigFields], int | None]


def unlimited(_: ConfigFields) -> int | None:
    """No window."""
    return None


def sliding_window(config: ConfigFields) -> int | None:
    """The window of ``sliding_window``, None where that is null or 0."""
    return config.at_least_zero("sliding_window", 0) or None


def qwen_window(config: ConfigFields) -> int | None:
    """The window of a Qwen model, which has one only where ``use_sliding_window`` says so."""
    return sliding_window(config) if config.flag("use_sliding_window") else None


def attention_chunk(config: ConfigFields) -> int | None:
    """The chunk within which layers of Llama 4 attend."""
    return config.at_least_zero("attention_chunk_size", 0) or None


def reach_of(
    reading: Reading, layer: int, window: Window, unlimited_every: int
) -> tuple[str, int | None]:
    """The kind of attention of a layer, and the tokens that it looks back.

    Args:
        reading: The configuration.
        layer: The layer's number from 0.
        window: Tokens that windowed layers look back.
        unlimited_every: Where the configuration does not say which layers are windowed, one of so
            many is not; 0 where all are.

    Raises:
        InputError: ``layer_types`` does not fit the model.
    """
    config, reach = reading.config, window(reading.config)
    kind = _kind(reading, layer, reach, unlimited_every)
    if kind in (SLIDING_ATTENTION, CHUNKED_ATTENTION) and reach is None:
        raise InputError(
            f"{config.where}: layer_types",
            f"names {kind}, for which the configuration has no window in use",
            "add sliding_window or attention_chunk_size, for Qwen set use_sliding_window, "
            "or correct layer_types",
        )
    return kind, None if kind == FULL_ATTENTION else reach


def _kind(reading: Reading, layer: int, window: int | None, unlimited_every: int) -> str:
    """The kind of attention of a layer; where the configuration lists none, as is usual."""
    config, layers = reading.config, reading.layers
    listed = config.entries("layer_types")
    if config.has("layer_types") and len(listed) != layers:
        raise InputError(
            f"{config.where}: layer_types",
            f"names {len(listed)} layers, and num_hidden_layers is {layers}",
            "correct one of them",
        )
    if listed:
        return str(listed[layer])
    limited = CHUNKED_ATTENTION if config.has("attention_chunk_size") else SLIDING_ATTENTION
    # As lists of layers are made where there is none (transformers, configuration_cohere2.py).
    every = config.at_least_zero("sliding_window_pattern", unlimited_every)
    if window and every:
        return limited if (layer + 1) % every else FULL_ATTENTION
    # Of Qwen the first layers look back without a limit (transformers, configuration_qwen2.py).
    without = min(config.at_least_zero("max_window_layers", 0), layers) if window else layers
    return FULL_ATTENTION if layer < without else limited
