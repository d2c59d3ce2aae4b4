"""Families of models by their class in a configuration's ``architectures``, and their reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.models.config_fields import ConfigFields
from physim.models.families import latent, mixtures, recurrent, standard
from physim.models.families.family import Family, Reading, grouped, layer_of
from physim.models.families.likeness import PLAIN, advice, likenesses
from physim.models.families.unread import ReadFields, listed, unread
from physim.models.layers import LayerGroup
from physim.models.quantization import OneLayer, Quantization

FAMILIES: dict[str, Family] = {
    **standard.FAMILIES,
    **mixtures.FAMILIES,
    **latent.FAMILIES,
    **recurrent.FAMILIES,
}
_MOST_LAYERS, _MOST_TOKENS, _MOST_PARAMETERS = 1000, 10**9, 10**14

# Fields that change what a layer computes, and the families of which they are read.
_FIELDS = {
    "kv_lora_rank": ("multi-head latent attention (MLA)", (latent, recurrent)),
    "ssm_cfg": ("a state-space layer", ()),
    "mamba_d_state": ("a state-space layer", ()),
    "mamba_d_ssm": ("a state-space layer", ()),
    "ssm_state_size": ("a state-space layer", (recurrent,)),
    "linear_num_key_heads": ("a linear-attention layer", (recurrent,)),
    "index_topk": ("sparse attention", (latent,)),
    "num_kv_shared_layers": ("a layer that uses the keys and values of another", ()),
    "hidden_size_per_layer_input": ("an embedding for each layer", ()),
    "n_shared_experts": ("a shared expert", (mixtures, latent, recurrent)),
}
# Fields that say how many layers predict further tokens (DeepSeek and GLM, Qwen, MiniMax).
_FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# What configurations may leave out, by their type: transformers, configuration_gemma3.py.
_LEFT_OUT = {
    "gemma3_text": {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
}
# Flags that change what a layer computes, of which no family's reader knows.
_FLAGS = {
    "attention_output_gate": "a gate on the output of attention",
    "use_double_wide_mlp": "an MLP of twice the width in some layers",
}


def read_architecture(
    config: Mapping[str, Any], where: str, read_as: str | None = None
) -> ModelArch:
    """A model's shape from the fields of its ``config.json``.

    Args:
        config: The parsed file.
        where: Its path or name, for messages.
        read_as: The architecture class whose layout it is read by, whatever it says it is.

    Raises:
        InputError: A field is missing or out of range, or the architecture or its quantisation
            is not one that physim models. Nothing is approximated silently.
    """
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(
            f"{where}: architectures", "is missing", "pass the model's full config.json"
        )
    text = ConfigFields(config, where).part("text_config").fields
    inner = str(text.get("model_type", config.get("model_type")))
    merged = {**_LEFT_OUT.get(inner, {}), **config, **text}
    says = str(architectures[0])
    name = read_as or says
    if name not in FAMILIES:
        raise _unknown(says, read_as, merged, where)
    model, passed_over = _read_as(name, merged, where, says)
    notes = [f"{says} is read as {name}, as was asked for"] if name != says else []
    if passed_over:
        notes.append(f"{name} has no reader of {listed(passed_over)}, left out of the prediction")
    return replace(model, note="; ".join(notes))


def _read_as(
    name: str, config: Mapping[str, Any], where: str, says: str
) -> tuple[ModelArch, tuple[str, ...]]:
    """A model as a class reads it, and the fields that the class passes over.

    Raises:
        InputError: The class cannot read it.
    """
    given = ReadFields(dict(config))
    fields = ConfigFields(given, where)
    _check_fields(fields, name)
    model = _read(fields, name, FAMILIES[name])
    return model, unread(given, of_its_class=name == says)


def _unknown(says: str, read_as: str | None, config: Mapping[str, Any], where: str) -> InputError:
    """The error for a class that is not known, with the layouts that its fields fit."""
    if read_as:
        return InputError(f"as {read_as}", "is not modelled", _supported())
    found = likenesses(says, FAMILIES, lambda name: _read_as(name, config, where, says))
    if found:
        remedy = advice(found)
    else:
        remedy = f"no known class reads its fields ({_why_not_plain(config, where)})"
    return InputError(f"{where}: architectures", f"{says} is not modelled", remedy)


def _why_not_plain(config: Mapping[str, Any], where: str) -> str:
    """Why the commonest class does not read a configuration."""
    try:
        _read_as(PLAIN, config, where, PLAIN)
    except InputError as error:
        return f"as {PLAIN}, {error.where.removeprefix(where + ': ')} {error.what}"
    return ""


def _check_fields(config: ConfigFields, name: str) -> None:
    """Refuses what the family's reader would pass over.

    Raises:
        InputError: A field names a kind of layer that the family has none of.
    """
    there = [
        (field, meaning)
        for field, (meaning, rooms) in _FIELDS.items()
        if config.has(field) and not any(name in room.FAMILIES for room in rooms)
    ]
    there += [(field, meaning) for field, meaning in _FLAGS.items() if config.flag(field)]
    if there:
        field, meaning = there[0]
        raise InputError(
            f"{config.where}: {field}",
            f"says that there is {meaning}, of which {name} has none",
            f"correct it, or read the model as a class that has it (--as); {_supported()}",
        )


def _supported() -> str:
    return f"supported: {', '.join(sorted(FAMILIES))}"


def _read(config: ConfigFields, name: str, family: Family) -> ModelArch:
    layers = family.layers(config)
    for field, value, most in (
        ("num_hidden_layers", layers, _MOST_LAYERS),
        ("max_position_embeddings", config.count("max_position_embeddings", 4096), _MOST_TOKENS),
    ):
        if value > most:
            raise InputError(
                f"{config.where}: {field}",
                f"{value} are more than any model has",
                "correct it",
            )
    quantization = Quantization(config.fields, layers, config.where)
    reading = Reading(config, quantization, layers)
    sees = config.fields.get("vision_config") is not None
    encoder = family.vision(config, config.part("vision_config")) if sees else 0
    groups = grouped([layer_of(family, reading, layer) for layer in range(layers)])
    said = [config.at_least_zero(field, 0) for field in _FURTHER if config.has(field)]
    further = any(said) if said else family.predicts_further
    fixed = (one.attention.kv_cache_dtype for one in groups if one.attention)
    found = ModelArch(
        name=config.where,
        family=name,
        groups=groups,
        hidden_size=reading.hidden,
        vocab_size=config.count("vocab_size"),
        max_position=config.count("max_position_embeddings", 4096),
        tied_embeddings=config.flag("tie_word_embeddings", family.tied_by_default),
        qk_norm=family.qk_norm or config.flag("use_qk_norm"),
        gated_mlp=family.gated_mlp,
        vision_parameters=encoder,
        vision_is_replicated=family.vision_is_replicated,
        kv_cache_dtype=next(filter(None, fixed), quantization.kv_cache_dtype),
        further=_further_layer(family, reading, groups) if further else None,
    )
    if found.parameters > _MOST_PARAMETERS:
        numbers = {name: one for name, one in config.fields.items() if type(one) is int}
        largest = max(numbers, key=lambda name: numbers[name])
        raise InputError(
            config.where,
            f"describes {found.parameters:.3g} parameters, more than any model has",
            f"correct what is too large; {largest} is the largest figure",
        )
    return found


def _further_layer(family: Family, reading: Reading, groups: Sequence[LayerGroup]) -> LayerGroup:
    """A layer that predicts further tokens: like the last one that attends to all of the context.

    Its weights are numbered after those of all others, by which checkpoints say their format.
    """
    grow = {one.attention for one in groups if one.attention and one.attention.kept is None}
    last = next(
        (
            layer
            for layer in reversed(range(reading.layers))
            if family.attention(reading, layer).attention in grow
        ),
        reading.layers - 1,
    )
    formats = OneLayer(reading.quantization, reading.layers)
    return layer_of(family, replace(reading, quantization=formats), last)
