"""Which layouts a model and an engine can have."""

from __future__ import annotations

from physim.engines.engine import Engine
from physim.errors import InputError
from physim.models.architecture import ModelArch
from physim.models.parallelism import Parallelism


def check_layout(model: ModelArch, layout: Parallelism, engine: Engine) -> None:
    """Refuses degrees that the model has nothing for, or that the engine does not offer.

    Args:
        model: The model.
        layout: How GPUs are to share it.
        engine: The engine.

    Raises:
        InputError: A degree does not divide what it shares, or is of no use.
    """
    _check_tp(model, layout.tp)
    experts = model.experts
    if layout.pp > model.layers:
        raise InputError(
            "pp", f"{layout.pp} stages for the {model.layers} layers of {model.name}", "use fewer"
        )
    for degree in ("dp", "ep"):
        if getattr(layout, degree) > 1 and experts is None:
            remedy = "divide the load by it, and use 1" if degree == "dp" else "use 1"
            problem = f"{getattr(layout, degree)} shares experts, and {model.name} has none"
            raise InputError(degree, problem, remedy)
    if experts and experts.count % layout.ep:
        raise InputError(
            "ep",
            f"{layout.ep} does not divide the {experts.count} experts of {model.name}",
            "use a divisor",
        )
    engine.check_layout(layout)


def _check_tp(model: ModelArch, tp: int) -> None:
    for attention in model.attention_layers:
        if attention.heads % tp:
            raise InputError(
                "tp",
                f"{tp} does not divide the {attention.heads} attention heads of {model.name}",
                "use a divisor",
            )
        if max(attention.kv_heads, tp) % min(attention.kv_heads, tp):
            raise InputError(
                "tp",
                f"{tp} neither divides nor is a multiple of the {attention.kv_heads} KV heads "
                f"of {model.name}",
                "use one that does",
            )
