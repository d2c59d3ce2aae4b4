"""Which fields of a configuration a family's reader passes over, of those that may matter."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from typing import Any

# Names, tokens, scalars, angles, training, the choice of experts and vectors of a head's width:
# nothing that takes time in a step.
_UNTIMED = (
    *("architectures", "model_type", "auto_map", "_name_or_path", "name_or_path", "id2label"),
    *("label2id", "transformers_version", "torch_dtype", "dtype", "text_config", "_*", "task"),
    *("*_token_id", "*_token_index", "*_token_ids", "image_placeholder", "mm_tokens_per_image"),
    *(
        "tokenizer_class",
        "chunk_size_feed_forward",
        "return_dict*",
        "is_decoder",
        "use_return_dict",
    ),
    *("is_encoder_decoder", "add_cross_attention", "output_*", "projector_*", "multimodal_*"),
    *("*hidden_act*", "hidden_activation", "activation_situ*", "*_multiplier", "logits_scaling"),
    *("logit_scale", "scale_*", "dim_model_base", "*softcapping", "routed_scaling_factor"),
    *("query_pre_attn_scalar", "*_norm_eps", "*_norm_epsilon", "norm_eps", "layer_norm_*"),
    *("rms_norm*", "use_gemma_norm", "norm_topk_prob", "scoring_func", "moe_router_*"),
    *("moe_renormalize", "clip_qkv", "*dropout*", "*_pdrop", "initializer_*", "router_*"),
    *("pretraining_tp", "ep_size", "moe_shared_expert_overlap", "use_cache", "rope_*", "*_rope_*"),
    *("*rotary*", "mla_use_nope", "no_rope_*", "*mtp*", "num_nextn_predict_layers", "aux_loss_*"),
    *("seq_aux", "n_group", "topk_group", "topk_method", "num_expert_group", "use_grouped_topk"),
    *("add_*_sink_bias", "attention_bias", "mlp_bias", "attention_in_bias", "attention_out_bias"),
    *("latent_moe_use_norm", "mamba_ssm_*", "*_init_std", "pad_vocab*", "bos_*", "eos_*"),
    *("gradient_checkpointing", "max_length", "do_sample", "temperature", "top_k", "top_p"),
    *("quantization_config", "vision_config"),
)
# What holds only for layers of which a model may have none.
_OF_SOME_LAYERS = frozenset(("intermediate_size", "num_key_value_heads", "head_dim", "qk_head_dim"))
# What other fields of a family say as well.
_SAID = frozenset(
    (
        *("attention_chunk_size", "attn_type_list", "experts_per_token", "first_k_dense_replace"),
        *("intermediate_size_mlp", "max_window_layers", "mlp_only_layers", "num_hidden_layers"),
        *("moe_intermediate_size", "qk_norm_type", "qk_rope_head_dim", "sliding_window"),
        *("sliding_window_size", "use_bidirectional_attention", "use_qk_norm"),
        *("use_sliding_window", "vocab_size_per_layer_input"),
    )
)
_MOST_NAMED = 6


class ReadFields(dict[str, Any]):
    """Fields that remember which of them were read."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def __getitem__(self, field: str) -> Any:
        self.read.add(field)
        return super().__getitem__(field)

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, which counts as read."""
        self.read.add(field)
        return super().get(field, default)

    def __contains__(self, field: object) -> bool:
        self.read.add(str(field))
        return super().__contains__(field)


def unread(fields: ReadFields, *, of_its_class: bool = False) -> tuple[str, ...]:
    """Fields that were not read although they may change the time of a step, sorted.

    Args:
        fields: The fields, after a family's reader.
        of_its_class: Whether the reader is that of the class that the configuration names, which
            knows what its fields say twice.
    """
    there = {name for name, value in fields.items() if value not in (None, False, 0, "", [], {})}
    there -= _OF_SOME_LAYERS
    if of_its_class:
        there -= _SAID
    return tuple(
        sorted(
            name
            for name in there - fields.read
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _UNTIMED)
        )
    )


def listed(names: Collection[str]) -> str:
    """Names of fields, of many the first few."""
    first = ", ".join(list(names)[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{first} and {more} more" if more > 0 else first
