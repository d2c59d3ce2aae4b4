"""Layers that propose tokens in speculative decoding, as models of their own."""

from __future__ import annotations

from dataclasses import replace

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.models.layers import LayerGroup, Linear
from physim.models.lookup import load_model

MTP, EAGLE3, DRAFT_MODEL, NGRAM = METHODS = ("mtp", "eagle3", "draft_model", "ngram")
# Hidden states of an EAGLE-3 layer's input: of a low, a middle and a high layer (arXiv 2503.01840).
_FEATURES = 3
# Tokens that published EAGLE-3 layers propose (`draft_vocab_size` of yuhuili/EAGLE3-*).
_EAGLE3_VOCABULARY = 32_000


def drafting_layers(model: ModelArch, method: str, draft_model: str | None) -> ModelArch | None:
    """The layers that propose tokens.

    Args:
        model: The model that verifies them.
        method: Of `METHODS`.
        draft_model: Configuration of a draft, as `physim.load_model` takes it.

    Returns:
        A model of these layers alone; None for n-grams, which have none.

    Raises:
        InputError: The model has no such layers, or the draft's configuration is missing, left
            over or not found.
    """
    if draft_model is not None and method not in (EAGLE3, DRAFT_MODEL):
        raise InputError("draft_model", f"is no part of {method}", "leave it out")
    if method == NGRAM:
        return None
    if method == MTP:
        if model.further is None:
            raise InputError(
                "draft", f"{model.name} has no layer that predicts further tokens", "use eagle3"
            )
        return _mtp(model, model.further)
    if draft_model is not None:
        draft = load_model(draft_model)
        if method == EAGLE3:
            return replace(draft, groups=_with_projection(draft.groups[:1], draft, _FEATURES))
        return draft
    dense = next((one for one in model.groups if one.intermediate_size), None)
    if method == EAGLE3 and dense is not None and model.experts is None:
        return _eagle3(model, dense)
    raise InputError("draft_model", "is not given", "name the draft's config.json or hub id")


def _mtp(model: ModelArch, layer: LayerGroup) -> ModelArch:
    """A layer whose input is a token's embedding beside its hidden state (DeepSeek-V3, 2.2)."""
    groups = _with_projection((replace(layer, layers=1),), model, 2)
    return replace(model, groups=groups, further=None, vision_parameters=0)


def _eagle3(model: ModelArch, layer: LayerGroup) -> ModelArch:
    """A layer like a dense model's own."""
    groups = _with_projection((replace(layer, layers=1),), model, _FEATURES)
    vocabulary = min(_EAGLE3_VOCABULARY, model.vocab_size)
    return replace(model, groups=groups, vocab_size=vocabulary, further=None, vision_parameters=0)


def _with_projection(
    layers: tuple[LayerGroup, ...], model: ModelArch, inputs: int
) -> tuple[LayerGroup, ...]:
    """Layers with a projection, which no GPU shares, of several hidden states to one."""
    first, *others = layers
    hidden = model.hidden_size
    projection = Linear("draft_input", "mlp", ((1, hidden),), (1, inputs * hidden))
    return (replace(first, linears=(projection, *first.linears)), *others)
