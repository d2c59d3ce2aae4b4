"""What a model is, in a few words and figures."""

from __future__ import annotations

from dataclasses import dataclass

from physim.models.architecture import ModelArch
from physim.models.formats import KV_BYTES


@dataclass(frozen=True)
class ModelSummary:
    """What a model is.

    Attributes:
        model: Its name.
        parameters: All weights.
        active_parameters: Weights that one token visits.
        layers: Decoder layers.
        attention: The kinds of attention and how many layers have each.
        heads: Query heads of the first layers with attention.
        kv_heads: KV heads of the same layers.
        experts: Routed experts of a layer; 0 if none.
        experts_per_token: Routed experts that a token visits.
        shared_experts_width: Hidden width of what every token visits beside them.
        weights: Formats of the weights, that of most of them first.
        kv_cache_dtype: Format of the KV cache.
        kv_bytes_per_token: Bytes of the KV cache for each token of a short context on one GPU.
        state_bytes: Bytes that a request holds whatever its length.
        max_position: Longest context, tokens.
    """

    model: str
    parameters: int
    active_parameters: int
    layers: int
    attention: str
    heads: int
    kv_heads: int
    experts: int
    experts_per_token: int
    shared_experts_width: int
    weights: tuple[str, ...]
    kv_cache_dtype: str
    kv_bytes_per_token: float
    state_bytes: float
    max_position: int

    @property
    def kinds(self) -> str:
        """The kinds of attention, such as ``window+full``."""
        kinds = (part.strip().lstrip("0123456789 ") for part in self.attention.split(","))
        return "+".join(dict.fromkeys(kind.rstrip("0123456789: ") for kind in kinds))

    def lines(self) -> dict[str, str]:
        """What it is, by label."""
        experts = "none"
        if self.experts:
            experts = f"{self.experts_per_token} of {self.experts} for each token"
            if self.shared_experts_width:
                experts += f", one of width {self.shared_experts_width:,} for all"
        cache = f"{self.kv_bytes_per_token / 1024:.4g} KiB a token in {self.kv_cache_dtype}"
        if self.state_bytes:
            cache += f", {self.state_bytes / 2**20:.4g} MiB a request"
        return {
            "parameters": f"{self.parameters / 1e9:.2f} B, {self.active_parameters / 1e9:.2f} B "
            "active",
            "layers": str(self.layers),
            "attention": f"{self.attention}; {self.heads} heads, {self.kv_heads} KV heads",
            "experts": experts,
            "weights": ", ".join(self.weights),
            "KV cache": f"{cache}, all layers on one GPU",
            "longest context": f"{self.max_position:,} tokens",
        }


def summary_of(name: str, model: ModelArch) -> ModelSummary:
    """What a model is.

    Args:
        name: What it is called.
        model: The model.
    """
    kv_bytes, experts = KV_BYTES[model.kv_cache_dtype], model.experts
    kinds = model.attention_layers.items()
    most = model.weight_format
    formats = (most, *(form for form in model.weight_formats if form != most))
    return ModelSummary(
        model=name,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        layers=model.layers,
        attention=_attention(model),
        heads=model.attention.heads,
        kv_heads=model.attention.kv_heads,
        experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        shared_experts_width=experts.shared_intermediate_size if experts else 0,
        weights=tuple(dict.fromkeys(form.name for form in formats)),
        kv_cache_dtype=model.kv_cache_dtype,
        kv_bytes_per_token=sum(count * one.token_bytes(1, kv_bytes) for one, count in kinds),
        state_bytes=sum(count * one.state_bytes(1) for one, count in kinds),
        max_position=model.max_position,
    )


def _attention(model: ModelArch) -> str:
    """The kinds of attention, such as ``12 window 128, 12 full``."""
    layers: dict[str, int] = {}
    for mixer, count in model.attention_layers.items():
        layers[mixer.words] = layers.get(mixer.words, 0) + count
    if len(layers) == 1:
        return next(iter(layers))
    return ", ".join(f"{count} {words}" for words, count in layers.items())
