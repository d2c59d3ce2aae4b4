"""Weights of the encoders of images in front of a language model."""

from __future__ import annotations

from physim.models.config_fields import ConfigFields


def llama4_vision(config: ConfigFields, vision: ConfigFields) -> int:
    """A vision transformer, a pixel-shuffle MLP and a projector to the text model's width.

    Transformers, modeling_llama4.py: Llama4VisionModel, Llama4MultiModalProjector.
    """
    width, out = vision.count("hidden_size"), vision.count("projector_output_dim")
    layer = 4 * width**2 + 2 * width * vision.count("intermediate_size")
    mlp = vision.count("intermediate_size") * vision.count("projector_input_dim")
    return (
        vision.count("num_hidden_layers") * layer
        + mlp
        + vision.count("projector_input_dim") * out
        + out * config.count("hidden_size")
    )


def pixtral_vision(config: ConfigFields, vision: ConfigFields) -> int:
    """A transformer with gated MLPs, a merger of patches and a projector to the text's width.

    Transformers, modeling_pixtral.py and modeling_mistral3.py.
    """
    width, out = vision.count("hidden_size"), config.count("hidden_size")
    layer = 4 * width**2 + 3 * width * vision.count("intermediate_size")
    merged = config.count("spatial_merge_size", 2) ** 2
    return vision.count("num_hidden_layers") * layer + merged * width**2 + width * out + out**2


def qwen2_vision(_: ConfigFields, vision: ConfigFields) -> int:
    """A transformer and a merger of patches, as of Qwen2-VL and Qwen2.5-VL, whose MLPs have a gate.

    Transformers, modeling_qwen2_vl.py and modeling_qwen2_5_vl.py.
    """
    gated = "intermediate_size" in vision.fields
    width = vision.count("hidden_size" if gated else "embed_dim", 1280)
    out = vision.count("out_hidden_size" if gated else "hidden_size")
    mlp = (
        3 * vision.count("intermediate_size") if gated else 2 * vision.count("mlp_ratio", 4) * width
    )
    merged = width * vision.count("spatial_merge_size", 2) ** 2
    return vision.count("depth", 32) * width * (4 * width + mlp) + merged * (merged + out)


def qwen_vision(_: ConfigFields, vision: ConfigFields) -> int:
    """A transformer, and a merger of patches for its end and each layer that feeds the text's.

    Transformers, modeling_qwen3_vl.py: Qwen3VLVisionModel, Qwen3VLVisionPatchMerger.
    """
    width = vision.count("hidden_size")
    layer = 4 * width**2 + 2 * width * vision.count("intermediate_size")
    merged = width * vision.count("spatial_merge_size", 2) ** 2
    merger = merged**2 + merged * vision.count("out_hidden_size")
    mergers = 1 + len(vision.entries("deepstack_visual_indexes"))
    embedded = vision.at_least_zero("num_position_embeddings", 0) * width
    return vision.count("depth") * layer + mergers * merger + embedded


def siglip_vision(config: ConfigFields, vision: ConfigFields) -> int:
    """A transformer and a projector to the text's width, as of Gemma 3 and 4.

    Gemma 4's MLPs have a gate (transformers, modeling_gemma3.py, modeling_gemma4.py).
    """
    width = vision.count("hidden_size")
    matrices = 3 if str(vision.fields.get("model_type")) == "gemma4_vision" else 2
    layer = 4 * width**2 + matrices * width * vision.count("intermediate_size")
    projected = width * config.count("hidden_size")
    return vision.count("num_hidden_layers") * layer + projected


def clip_vision(config: ConfigFields, vision: ConfigFields) -> int:
    """A transformer, and a merger of patches into the text's width, as of MiniMax-M3."""
    width, out = vision.count("hidden_size"), config.count("hidden_size")
    layer = 4 * width**2 + 2 * width * vision.count("intermediate_size")
    return vision.count("num_hidden_layers") * layer + width * out + 4 * out**2


def moonvit(config: ConfigFields, vision: ConfigFields) -> int:
    """MoonViT and its projector, as of Kimi-VL, K2.5 and K3."""
    short = "vt_hidden_size" if "vt_hidden_size" in vision.fields else "hidden_size"
    prefix = short.removesuffix("hidden_size")
    width = vision.count(short)
    inner = vision.count("qkv_hidden_size", width)
    layer = 4 * width * inner + 2 * width * vision.count(f"{prefix}intermediate_size")
    merged = 4 * width
    projected = merged**2 + merged * config.count("hidden_size")
    return vision.count(f"{prefix}num_hidden_layers", 27) * layer + projected
