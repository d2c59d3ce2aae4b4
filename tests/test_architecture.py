import copy
import json

import pytest

from physim import data
from physim.errors import InputError
from physim.models.families import read_architecture
from physim.models.lookup import load_model, shipped_models

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


# Total and active parameters in billions, as published on the models' cards.
@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("meta-llama/Llama-2-7b-hf", 6.74, 6.74),
        ("meta-llama/Llama-2-70b-hf", 68.98, 68.98),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 8.03),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.6, 70.6),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.24, 1.24),
        ("codellama/CodeLlama-34b-Instruct-hf", 33.7, 33.7),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8.03, 8.03),
        ("meta-llama/Meta-Llama-3-70B-Instruct", 70.55, 70.55),
        ("meta-llama/Llama-3.1-405B-Instruct", 405.85, 405.85),
        ("01-ai/Yi-34B", 34.4, 34.4),
        ("Qwen/Qwen1.5-7B-Chat", 7.72, 7.72),
        ("Qwen/Qwen1.5-14B-Chat", 14.17, 14.17),
        ("Qwen/Qwen1.5-72B-Chat", 72.29, 72.29),
        ("Qwen/Qwen2.5-1.5B", 1.54, 1.54),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.54, 1.54),
        ("Qwen/Qwen2.5-3B-Instruct", 3.09, 3.09),
        ("Qwen/Qwen2.5-7B", 7.62, 7.62),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62, 7.62),
        ("Qwen/Qwen2.5-14B", 14.77, 14.77),
        ("Qwen/Qwen2.5-14B-Instruct", 14.77, 14.77),
        ("Qwen/Qwen2.5-32B", 32.76, 32.76),
        ("Qwen/Qwen2.5-32B-Instruct", 32.76, 32.76),
        ("Qwen/Qwen2.5-72B", 72.71, 72.71),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.78, 1.78),
        ("Qwen/Qwen3-0.6B", 0.6, 0.6),
        ("Qwen/Qwen3-4B", 4.02, 4.02),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.02, 4.02),
        ("Qwen/Qwen3-14B", 14.8, 14.8),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 235, 22),
        ("microsoft/phi-4", 14.66, 14.66),
        ("google/gemma-2-9b-it", 9.24, 9.24),
        ("google/gemma-2-27b-it", 27.23, 27.23),
        ("google/gemma-7b", 8.54, 8.54),
        ("mistralai/Mistral-7B-Instruct-v0.1", 7.24, 7.24),
        ("mistralai/Mistral-7B-Instruct-v0.2", 7.24, 7.24),
        ("mistralai/Mistral-Small-24B-Instruct-2501", 23.57, 23.57),
        ("mistralai/Mistral-Nemo-Instruct-2407", 12.2, 12.2),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7, 12.9),
        ("mistralai/Mixtral-8x22B-v0.1", 140.6, 39),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", 141, 39),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", 109, 17),
    ],
)
def test_parameter_counts_are_the_published_ones(model, total, active):
    arch = load_model(model)
    assert arch.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert arch.active_parameters / 1e9 == pytest.approx(active, rel=0.0115)


def test_qwen3_moe_parameter_counts():
    # The card gives 3.3 B active, which rounds down; counted out, it is 3.35 B with both the
    # embedding and lm_head, 3.03 B without the embedding.
    arch = load_model("Qwen/Qwen3-30B-A3B")
    assert arch.parameters / 1e9 == pytest.approx(30.5, rel=0.01)
    assert arch.active_parameters / 1e9 == pytest.approx(3.3, rel=0.02)


@pytest.mark.parametrize(
    ("model", "total"),
    [
        # With their encoders; without the layer that drafts, which GLM's 355 B and 106 B leave out.
        ("google/gemma-3-12b-it", 12.19),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 31.07),
        ("moonshotai/Kimi-K2-Instruct-0905", 1026.5),
        ("zai-org/GLM-4.5", 355),
        ("zai-org/GLM-4.5-Air", 106),
    ],
)
def test_published_parameters_in_all(model, total):
    assert load_model(model).parameters / 1e9 == pytest.approx(total, rel=0.01)


def test_parameters_by_hand():
    arch = read_architecture(LLAMA, "config.json")
    attention = 64 * 64 * 2 + 64 * 32 * 2
    mlp = 3 * 64 * 128
    norms = 2 * 64
    assert arch.parameters == 2 * (attention + mlp + norms) + 64 + 2 * 1000 * 64
    assert arch.kv_bytes_per_token(1, 1.0) == 2 * 2 * 2 * 16


def test_kv_heads_are_replicated_when_tp_exceeds_them():
    arch = read_architecture(LLAMA, "config.json")
    assert arch.kv_bytes_per_token(4, 1.0) == arch.kv_bytes_per_token(2, 1.0)


def test_head_dim_of_its_own():
    nemo = load_model("mistralai/Mistral-Nemo-Instruct-2407")
    assert nemo.attention.head_dim == 128
    assert nemo.hidden_size // nemo.attention.heads == 160


def test_llama4_interleaves_dense_and_expert_layers():
    config = json.loads(
        (
            data.folder("model_configs")
            / "RedHatAI--Llama-4-Scout-17B-16E-Instruct-FP8-dynamic.json"
        ).read_text()
    )
    config["text_config"]["interleave_moe_layer_step"] = 2
    arch = read_architecture(config, "config.json")
    assert arch.expert_layers == arch.dense_layers == 24
    assert arch.intermediate_size == 16384
    assert arch.experts.shared_intermediate_size == 8192


def test_every_shipped_model_loads():
    assert len([load_model(model) for model in shipped_models()]) >= 50


# Figures of config.json, and weights in all as the model cards and checkpoints have them, billions.
LOOK_ALIKES = {
    # hidden, layers, heads, kv heads, head dim, MLP, vocabulary, tied
    "microsoft/phi-4": ("Phi3", 5120, 40, 40, 10, 128, 17920, 100352, False, 14.66),
    "microsoft/Phi-3-mini-4k-instruct": ("Phi3", 3072, 32, 32, 32, 96, 8192, 32064, False, 3.82),
    "ibm-granite/granite-3.1-8b-instruct": (
        *("Granite", 4096, 40, 32, 8, 128, 12800, 49155, True, 8.17),
    ),
    "allenai/OLMo-2-1124-7B": ("Olmo2", 4096, 32, 32, 32, 128, 11008, 100352, False, 7.30),
    "HuggingFaceTB/SmolLM3-3B": ("SmolLM3", 2048, 36, 16, 4, 128, 11008, 128256, None, 3.08),
    "zai-org/GLM-4-9B-0414": ("Glm4", 4096, 40, 32, 2, 128, 13696, 151552, False, 9.40),
    "ByteDance-Seed/Seed-OSS-36B": ("SeedOss", 5120, 64, 80, 8, 128, 27648, 155136, False, 36.15),
    "internlm/internlm3-8b": ("InternLM3", 4096, 48, 32, 2, 128, 10240, 128512, False, 8.80),
    "baidu/ERNIE-4.5-0.3B-PT": ("Ernie4_5", 1024, 18, 16, 2, 128, 3072, 103424, True, 0.361),
    "CohereForAI/c4ai-command-r-v01": ("Cohere", 8192, 40, 64, 64, 128, 22528, 256000, None, 34.98),
    "bigcode/starcoder2-3b": ("Starcoder2", 3072, 30, 24, 2, 128, 12288, 49152, None, 3.03),
    "nvidia/Nemotron-4-340B": ("Nemotron", 18432, 96, 96, 8, 192, 73728, 256000, False, 341.0),
    "arcee-ai/AFM-4.5B": ("Arcee", 2560, 36, 20, 4, 128, 18432, 128004, False, 4.62),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_models_that_are_laid_out_like_llama(name):
    family, hidden, layers, heads, kv_heads, dim, mlp, vocabulary, tied, billions = LOOK_ALIKES[
        name
    ]
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "torch_dtype": "bfloat16",
        **({} if tied is None else {"tie_word_embeddings": tied}),
    }
    model = read_architecture(config, name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    assert model.note == ""


def test_mistral_small_3_1_has_pixtrals_encoder():
    text = {
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 32768,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
    }
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "spatial_merge_size": 2,
    }
    model = read_architecture(config, "mistral-small")
    # 24.01 billion (model card), of which 0.44 are the encoder's and the projector's.
    assert model.parameters / 1e9 == pytest.approx(24.01, rel=2e-3)
    assert model.vision_parameters / 1e9 == pytest.approx(0.44, rel=0.01)


def test_layers_without_a_window_among_those_with_one():
    config = {
        "architectures": ["Cohere2ForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 256000,
        "sliding_window": 4096,
    }
    model = read_architecture(config, "command-r7b")
    assert {one.window: layers for one, layers in model.attention_layers.items()} == {
        4096: 24,
        None: 8,
    }
    # 8.03 billion (model card).
    assert model.parameters / 1e9 == pytest.approx(8.03, rel=3e-3)
    every = read_architecture({**config, "sliding_window_pattern": 8}, "every eighth")
    assert every.attention_layers[every.groups[1].attention] == 4


def test_another_class_is_read_as_one_that_is_asked_for():
    config = dict(LLAMA) | {"architectures": ["FooForCausalLM"]}
    with pytest.raises(InputError, match="fit the layouts of LlamaForCausalLM") as caught:
        read_architecture(config, "foo")
    assert "pass --as LlamaForCausalLM" in str(caught.value)
    model = read_architecture(config, "foo", "LlamaForCausalLM")
    plain = read_architecture(dict(LLAMA) | {"architectures": ["LlamaForCausalLM"]}, "foo")
    assert model.parameters == plain.parameters
    assert model.note == "FooForCausalLM is read as LlamaForCausalLM, as was asked for"
    with pytest.raises(InputError, match="as BarForCausalLM: is not modelled; supported: Apertus"):
        read_architecture(config, "foo", "BarForCausalLM")
    with pytest.raises(InputError, match="num_experts: names experts, of which this architecture"):
        read_architecture(config | {"num_experts": 8}, "foo", "LlamaForCausalLM")
    with pytest.raises(InputError, match="multi-head latent attention"):
        read_architecture(config | {"kv_lora_rank": 8}, "foo", "LlamaForCausalLM")


PLAIN_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
MIXED = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024}


@pytest.mark.parametrize(
    ("says", "more", "first", "others"),
    [
        ("AfooForCausalLM", {}, "LlamaForCausalLM", "ArceeForCausalLM .*no gate in its MLP"),
        ("Qwen9ForCausalLM", {}, "Qwen3ForCausalLM", "Qwen2ForCausalLM .*a bias of queries"),
        (
            "AfooForCausalLM",
            {"sliding_window": 512},
            "MistralForCausalLM",
            "norms of queries and keys",
        ),
        ("AfooForCausalLM", MIXED, "Glm4MoeForCausalLM", "norms of queries and keys"),
        ("Qwen9ForCausalLM", MIXED, "Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM"),
        ("AfooForCausalLM", {"foo_rank": 4}, "LlamaForCausalLM", "no class reads foo_rank"),
    ],
)
def test_an_unknown_class_is_likened_by_its_fields(says, more, first, others):
    config = PLAIN_8B | more | {"architectures": [says]}
    with pytest.raises(InputError, match=others) as caught:
        read_architecture(config, "foo")
    line = str(caught.value)
    assert f"fit the layouts of {first}" in line
    assert f"pass --as {first}" in line
    assert len(line) < 1000


def test_fields_without_a_reader_are_named():
    config = PLAIN_8B | {"architectures": ["LlamaForCausalLM"]}
    assert read_architecture(config, "foo").note == ""
    plain = config | {"rope_theta": 1e4, "hidden_act": "silu", "foo_rank": 0}
    assert read_architecture(plain, "foo").note == ""
    odd = config | {"foo_rank": 4, "gate_mix": True}
    assert "no reader of foo_rank, gate_mix, left out" in read_architecture(odd, "foo").note
    windowed = config | {"architectures": ["FooForCausalLM"], "sliding_window": 512}
    assert (
        "no reader of sliding_window" in read_architecture(windowed, "foo", "LlamaForCausalLM").note
    )
    none = windowed | {"num_attention_heads": None}
    with pytest.raises(InputError, match="as LlamaForCausalLM, num_attention_heads is missing"):
        read_architecture(none, "foo")


LLAMA4 = {"num_local_experts": 4, "num_experts_per_tok": 1}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not modelled"),
        ({"architectures": []}, "architectures: is missing"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": -4}, "hidden_size: -4 is not an integer of at least 1"),
        ({"hidden_size": "64"}, "hidden_size: '64' is not an integer"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers: 2.5 is not an integer"),
        ({"num_key_value_heads": 3}, "3 does not divide num_attention_heads 4"),
        ({"hidden_size": 66}, "4 does not divide hidden_size 66"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"torch_dtype": "int4"}, "'int4' is not modelled"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers: 2147483648 are more than any model has"),
        ({"max_position_embeddings": 10**10}, "max_position_embeddings: 10000000000 are more"),
        ({"vocab_size": 10**400}, "vocab_size: is more than any model has of anything"),
        ({"use_double_wide_mlp": True}, "an MLP of twice the width in some layers, of which Llama"),
        ({"intermediate_size": 2**50}, "parameters, more than any model has; correct what is too "),
        ({"vocab_size": 2**50}, "vocab_size is the largest figure"),
        ({"layer_types": ["full_attention"]}, "layer_types: names 1 layers, and num_hidden_layers"),
        ({"layer_types": "full_attention"}, "layer_types: is not a list"),
        ({"layer_types": []}, "layer_types: names 0 layers, and num_hidden_layers"),
        ({"layer_types": False}, "layer_types: is not a list"),
        ({"head_dim": [None]}, "head_dim: holds null"),
        ({"head_dim": False}, "head_dim: False is not an integer"),
        ({"kv_lora_rank": False}, "MLA"),
        ({"num_kv_shared_layers": {}}, "a layer that uses the keys and values of another"),
        ({"dtype": False}, "torch_dtype: 'False' is not modelled"),
        ({"text_config": "x"}, "text_config: is not a JSON object"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: 'false' is not true or false"),
        ({"attention_bias": 1}, "attention_bias: 1 is not true or false"),
        (
            {"architectures": ["Llama4ForCausalLM"], **LLAMA4, "moe_layers": [0, 1, 2]},
            "moe_layers: names 2, and the model has layers 0 to 1",
        ),
        (
            {"architectures": ["Llama4ForCausalLM"], **LLAMA4, "moe_layers": ["1"]},
            "moe_layers: names '1', and",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types: names sliding_attention, for which the configuration has no window",
        ),
    ],
)
def test_bad_configurations_are_named(change, complaint):
    config = {**copy.deepcopy(LLAMA), **change}
    with pytest.raises(InputError, match=r"config\.json") as caught:
        read_architecture(config, "config.json")
    assert complaint in str(caught.value)


def test_sliding_window_counts_only_where_it_is_used():
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096}
    assert read_architecture(mistral, "c").window == 4096
    assert read_architecture(qwen, "c").window is None
    assert read_architecture({**qwen, "use_sliding_window": True}, "c").window == 4096


def test_the_first_layers_of_qwen_look_back_without_a_limit():
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4}
    qwen |= {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 3}
    full, sliding = read_architecture(qwen, "c").groups
    assert (full.layers, full.attention.window) == (3, None)
    assert (sliding.layers, sliding.attention.window) == (1, 128)


def test_full_and_sliding_layers_are_two_groups():
    config = {
        **LLAMA,
        "architectures": ["MistralForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "sliding_window": 128,
    }
    arch = read_architecture(config, "c")
    full, sliding = arch.groups
    assert (full.layers, sliding.layers, arch.layers) == (2, 2, 4)
    assert (full.attention.kind, full.attention.window) == ("full_attention", None)
    assert (sliding.attention.kind, sliding.attention.window) == ("sliding_attention", 128)
    assert arch.attention_layers == {full.attention: 2, sliding.attention: 2}
    assert (arch.attention, arch.window) == (full.attention, 128)
    # Only what they look back sets them apart.
    alike = read_architecture({**LLAMA, "num_hidden_layers": 4}, "c")
    assert arch.parameters == alike.parameters
    assert arch.kv_bytes_per_token(2, 1.0) == alike.kv_bytes_per_token(2, 1.0)


def test_a_sliding_window_that_is_missing_or_switched_off():
    mixed = {**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}
    for change in (
        {"architectures": ["MistralForCausalLM"]},
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 128},
    ):
        with pytest.raises(InputError, match=r"^c: layer_types: names sliding_attention"):
            read_architecture({**mixed, **change}, "c")


@pytest.mark.parametrize("model", shipped_models())
def test_layers_are_counted_once(model):
    arch = load_model(model)
    assert sum(group.layers for group in arch.groups) == arch.layers
    assert arch.layers == arch.dense_layers + arch.expert_layers
    assert len(set(arch.groups)) == len(arch.groups)
    assert 0 < sum(arch.attention_layers.values()) <= arch.layers


def test_dense_layers_of_qwen3_moe():
    config = {
        **LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 2,
    }
    # Layers 1 and 3 are even when counted from one; layer 0 is dense in any case.
    assert read_architecture(config, "c").expert_layers == 2
    with pytest.raises(InputError, match="9 is more than the 8 experts"):
        read_architecture({**config, "num_experts_per_tok": 9}, "c")
