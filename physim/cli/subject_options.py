"""Options that say what is predicted: a model, a GPU, tp and a fit, completed in the shell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from physim import data


def _starting(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


# Names are those of data files, since what loads them would keep the shell waiting.
def _models(incomplete: str) -> list[str]:
    from physim.models.aliases import aliases

    shipped = (name.replace("--", "/") for name in data.names("model_configs", ".json"))
    return _starting(sorted({*shipped, *aliases()}), incomplete)


def _gpus(incomplete: str) -> list[str]:
    return _starting(data.names("hardware", ".json"), incomplete)


def known_fits(incomplete: str) -> list[str]:
    """Names of fits that begin so."""
    return _starting(["default", "none", *data.names("fits", ".json")], incomplete)


# What is misspelt is said before JAX is loaded, which takes longer than all of this.
def _known_model(context: typer.Context, model: str | None) -> str | None:
    from physim.models.lookup import config_path

    if model is not None and not context.resilient_parsing:
        config_path(model)
    return model


def _known_gpu(context: typer.Context, gpu: str | None) -> str | None:
    from physim.service.hardware import load_hardware

    if gpu is not None and not context.resilient_parsing:
        load_hardware(gpu)
    return gpu


_model = typer.Argument(
    help="A config.json, its folder, a shipped name, or a hub id.",
    autocompletion=_models,
    callback=_known_model,
)
_gpu = typer.Option(
    help="A GPU of `physim show gpus`, or a JSON file.", autocompletion=_gpus, callback=_known_gpu
)

Model = Annotated[str, _model]
OptionalModel = Annotated[str | None, _model]
Models = Annotated[
    list[str],
    typer.Argument(
        help="Models, as for `physim predict`, by spaces or commas.", autocompletion=_models
    ),
]
Gpu = Annotated[str, _gpu]
OptionalGpu = Annotated[str | None, _gpu]
Tp = Annotated[int, typer.Option(help="GPUs that share every layer.")]
FitName = Annotated[
    str,
    typer.Option(
        help="default, a fit of `physim show fits`, a fit file, or none.",
        autocompletion=known_fits,
    ),
]
ShownFit = Annotated[
    str,
    typer.Argument(help="A fit of `physim show fits`, or a fit file.", autocompletion=known_fits),
]
