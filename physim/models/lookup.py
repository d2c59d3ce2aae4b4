"""Finds a model's ``config.json``: a file, a folder, a shipped name or its alias, or a hub id."""

from __future__ import annotations

import difflib
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from physim import data
from physim.errors import InputError
from physim.models.aliases import aliases
from physim.models.architecture import ModelArch
from physim.models.families import read_architecture

_SUFFIX = ".json"
_MODELOPT = "hf_quant_config.json"
# What engines make of 16-bit weights as they start.
_ON_LOAD = ("fp8",)
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_HUB_TIMEOUT_S = 10.0
# Of fields of generation_config.json: what holds where they are not there, and their range.
_SAMPLING = {"top_p": (1.0, 0, 1), "top_k": (0, -1, 1e9), "repetition_penalty": (1.0, 0, 1e9)}
# What names of checkpoints end with that are the same model in fewer bits.
_FORMATS = ("-fp8", "-nvfp4", "-fp4")


@functools.lru_cache
def shipped_models() -> tuple[str, ...]:
    """Hub ids of the models whose configuration comes with physim."""
    return tuple(name.replace("--", "/") for name in data.names("model_configs", _SUFFIX))


def load_model(
    model: str | Path | ModelArch, read_as: str | None = None, quantization: str | None = None
) -> ModelArch:
    """A model's shape.

    Args:
        model: Path of a ``config.json`` or of the folder that holds one, the name of a shipped
            model or of one that is laid out the same (with or without its organisation), or a
            HuggingFace hub id, which is fetched where the optional package ``huggingface-hub`` is
            installed and the hub is reached; or a shape, which is taken as it is.
        read_as: The architecture class whose layout it is read by, whatever it says it is.
        quantization: What the engine makes of 16-bit weights as it starts: ``fp8``; None for
            nothing.

    Raises:
        InputError: The model is not found, is quantised already, or is one that physim does not
            model.
    """
    if isinstance(model, ModelArch):
        for name, said in (("read_as", read_as), ("quantization", quantization)):
            if said is not None:
                problem = "is said of a model that has been read"
                raise InputError(name, problem, "give it where the model is read")
        return model
    path = config_path(model)
    # The file's time is part of the key, so that an edited file is read anew.
    return _load(path, data.modified_ns(path), str(model), read_as, quantization)


@functools.lru_cache(maxsize=256)
def _load(
    path: Path, _modified_ns: int, name: str, read_as: str | None, quantization: str | None
) -> ModelArch:
    config = data.read_json(path)
    # Older ModelOpt checkpoints describe their quantisation in a file beside the configuration.
    beside = path.with_name(_MODELOPT)
    if config.get("quantization_config") is None and beside.is_file():
        found = data.read_json(beside).get("quantization")
        if found is None:
            raise InputError(f"{beside}: quantization", "is missing", "add it, or remove the file")
        config["quantization_config"] = found
    if quantization is not None:
        _quantize(config, name, quantization)
    found = read_architecture(config, name, read_as)
    if quantization is not None:
        notes = (found.note, f"16-bit weights become {quantization} as the server starts")
        found = replace(found, quantized_to=quantization, note="; ".join(filter(None, notes)))
    return _with_sampling(found, _generation_path(path, name))


def _quantize(config: dict[str, Any], name: str, quantization: str) -> None:
    """Has a checkpoint of 16 bit be one that an engine quantises as it starts.

    vLLM (docs/features/quantization/fp8.md) and SGLang do so to all linear layers that a checkpoint
    in fp8 has quantised too, with a scale for each tensor, activations likewise in each step.

    Raises:
        InputError: The format is not one that physim models, or the checkpoint is quantised.
    """
    if quantization not in _ON_LOAD:
        problem = f"{quantization[:40]!r} is not modelled of weights that are 16 bit"
        raise InputError("quantization", problem, f"use {' or '.join(_ON_LOAD)}")
    inner = config.get("text_config")
    parts = [config, inner] if isinstance(inner, dict) else [config]
    if any(part.get("quantization_config") is not None for part in parts):
        raise InputError("quantization", f"{name} is quantised already", "leave it out")
    for part in parts:
        part["quantization_config"] = {"quant_method": quantization}


def _generation_path(path: Path, name: str) -> Path:
    """Where the ``generation_config.json`` of a model is, if it has one.

    Args:
        path: Its ``config.json``.
        name: How it was asked for.
    """
    alias = aliases().get(_known(name) or "")
    if alias and path.parent == data.folder("model_configs"):
        return path.parent / "generation" / _file_of(alias.generation)
    shipped = path.parent / "generation" / path.name
    return shipped if shipped.is_file() else path.with_name("generation_config.json")


def _with_sampling(model: ModelArch, beside: Path) -> ModelArch:
    """The model with the sampling that its ``generation_config.json`` asks for.

    vLLM takes the defaults of requests from that file where a request says nothing else.
    """
    if not beside.is_file():
        return model
    defaults = data.read_json(beside)
    given = {}
    for field, (default, least, most) in _SAMPLING.items():
        value = defaults.get(field)
        given[field] = value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(
                f"{beside}: {field}", f"{str(value)[:60]!r} is not a number", "correct it"
            )
        if not least <= value <= most:
            raise InputError(
                f"{beside}: {field}", f"{str(value)[:60]} is out of range", "correct it"
            )
    kept = {"top_k": given["top_k"] > 0, "top_p": given["top_p"] < 1}
    return replace(
        model,
        truncation="_".join(name for name, is_kept in kept.items() if is_kept),
        penalises=given["repetition_penalty"] != 1,
    )


def config_path(model: str | Path) -> Path:
    """The ``config.json`` of a model, named as `load_model` takes it.

    Raises:
        InputError: The model is not found.
    """
    model = str(model)
    path = Path(model).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null in it
        is_folder = is_file = False
    if is_folder:
        path = path / "config.json"
        if not path.is_file():
            raise InputError(str(path), "does not exist", "name a folder that holds a config.json")
        return path
    if is_file:
        return path
    if model.endswith(_SUFFIX):
        raise InputError(model, "does not exist", "check the path")
    return _shipped(model) or _from_hub(model)


def is_shipped(model: str) -> bool:
    """Whether a name is that of a model that ships with physim, or of one that is laid out alike.

    Args:
        model: The name, with or without its organisation.
    """
    return _known(model) is not None


def checkpoint_of(model: str) -> tuple[str, str]:
    """What engines take for a model as `load_model` does, and what they lack; empty if nothing.

    Engines take the id of a hub or the folder of a checkpoint, not its ``config.json``.

    Args:
        model: A model, as `load_model` takes it.
    """
    path = Path(model).expanduser()
    try:
        if not path.exists():
            return model, ""
    except (OSError, ValueError):  # a name too long, or with a null in it
        return model, ""
    folder = path.parent if path.is_file() else path
    lacks = []
    if path.is_file() and path.name != "config.json":
        lacks.append(f"{path.name} under the name config.json")
    if not any(any(folder.glob(f"*{ending}")) for ending in _WEIGHTS):
        lacks.append("weights (*.safetensors)")
    if not any(folder.glob("*tokenizer*")):
        lacks.append("a tokenizer")
    told = f"{folder} lacks {' and '.join(lacks)}: add that, or name the model's hub id instead"
    return str(folder), told if lacks else ""


def formats_of(model: str | Path | ModelArch) -> list[str] | list[ModelArch]:
    """A model and, of a shipped one, the shipped checkpoints that hold it in fewer bits."""
    if isinstance(model, ModelArch):
        return [model]
    path = config_path(model)
    if path.parent != data.folder("model_configs"):
        return [str(model)]
    own = _known(str(model)) or path.name.removesuffix(_SUFFIX).replace("--", "/")
    stem = own.split("/")[1].lower()
    smaller = {stem + ending for ending in _FORMATS}
    return [own, *(name for name in shipped_models() if name.split("/")[1].lower() in smaller)]


@functools.lru_cache
def _names() -> dict[str, str]:
    """Hub ids that need no hub, by what they go by: the whole id, or its name alone, lowercase."""
    ids = (*shipped_models(), *aliases())
    return {one.split("/")[1].lower(): one for one in ids} | {one.lower(): one for one in ids}


def _known(model: str) -> str | None:
    """The hub id of a shipped model or of an alias, None of what is neither."""
    return _names().get(model.lower())


def _file_of(name: str) -> str:
    return f"{name.replace('/', '--')}{_SUFFIX}"


def _shipped(model: str) -> Path | None:
    name = _known(model)
    if name is None:
        return None
    alias = aliases().get(name)
    return data.folder("model_configs") / _file_of(alias.config if alias else name)


def _not_found(model: str, problem: str, first: str = "") -> InputError:
    """The error for a model that is not found, which asks whether the nearest known one is meant.

    Args:
        model: What was asked for.
        problem: Why it is not found.
        first: What to try before the rest.
    """
    names = _names()
    found = difflib.get_close_matches(model.lower(), names, n=1, cutoff=0.8)
    near = f"did you mean {names[found[0]]}? Or " if found else ""
    remedy = "pass a config.json, or a name from `physim show models`"
    return InputError(f"model {model!r}", problem, f"{near}{first}{remedy}")


def _from_hub(model: str) -> Path:
    if model.count("/") != 1:
        raise _not_found(model, "is not a file, a folder or a shipped model")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise _not_found(
            model,
            "is not shipped, and huggingface-hub is not installed to fetch it",
            "pip install huggingface-hub, or ",
        ) from error
    try:
        cached = hub.try_to_load_from_cache(model, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        # One request that is not retried, so that an unreachable hub is known at once.
        hub.get_hf_file_metadata(hub.hf_hub_url(model, "config.json"), timeout=_HUB_TIMEOUT_S)
        for beside in (_MODELOPT, "generation_config.json"):
            if hub.file_exists(model, beside):
                hub.hf_hub_download(model, beside)
        return Path(hub.hf_hub_download(model, "config.json"))
    except Exception as error:  # the hub client raises many unrelated types when offline
        raise _not_found(
            model, f"is not shipped and could not be fetched from the hub ({type(error).__name__})"
        ) from error
