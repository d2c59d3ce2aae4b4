"""Models of today read from their configurations: published sizes, layers by hand, formats."""

import csv
import dataclasses
import json
from importlib import resources
from pathlib import Path

import pytest

from physim import data
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.mixers.attention import Attention
from physim.mixers.compressed import CompressedAttention
from physim.mixers.latent import LatentAttention
from physim.mixers.recurrent import LinearAttention, StateSpace
from physim.models.aliases import aliases
from physim.models.families import FAMILIES, read_architecture
from physim.models.formats import KV_BYTES
from physim.models.kv_layout import CacheLayout
from physim.models.lookup import load_model, shipped_models
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware

BESIDE = Path(__file__).parent
PUBLISHED = list(csv.DictReader((BESIDE / "parameters.csv").read_text().splitlines()))
GIB = 2**30


def package_configs():
    """The configurations that come with NVIDIA's package, with their quantisation."""
    pytest.importorskip("aiconfigurator_core", reason="needs NVIDIA's package (extra `grids`)")
    folder = Path(str(resources.files("aiconfigurator_core"))) / "model_configs"
    found = {}
    for path in sorted(folder.glob("*_config.json")):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        if not config.get("quantization_config") and beside.is_file():
            content = json.loads(beside.read_text(encoding="utf-8"))
            config["quantization_config"] = content.get("quantization", content)
        found[path.name.removesuffix("_config.json").replace("--", "/")] = config
    return found


@pytest.fixture(scope="module")
def models():
    return {name: read_architecture(config, name) for name, config in package_configs().items()}


@pytest.mark.slow
def test_every_configuration_of_nvidias_package_is_read(models):
    assert len(models) == 89
    assert all(model.parameters >= model.active_parameters > 0 for model in models.values())


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["model"] for row in PUBLISHED])
def test_published_parameters(models, row):
    model = models[row["model"]]
    assert model.parameters / 1e9 == pytest.approx(float(row["total_b"]), rel=0.01)
    if row["active_b"]:
        # Publishers count the embedding and lm_head, lm_head alone, or neither.
        left_out = {"all": 0, "output": 1, "layers": 2}[row["active_of"]]
        active = model.active_parameters - left_out * model.vocab_size * model.hidden_size
        published, decimals = float(row["active_b"]), len(row["active_b"].partition(".")[2])
        # Figures of one or two digits are rounded, or cut off.
        unit = 10.0**-decimals
        near = 0.99 * published <= active / 1e9 <= 1.01 * published
        assert near or published - unit / 2 <= active / 1e9 < published + unit


@pytest.mark.slow
def test_shipped_models_are_those_of_the_package(models):
    # What was left out of the shipped configurations changes nothing.
    same = {*shipped_models(), *aliases()} & set(models)
    assert len(same) >= 30
    for name in same:
        shipped = load_model(name)
        for field in ("groups", "hidden_size", "vocab_size", "kv_cache_dtype", "max_position"):
            assert getattr(shipped, field) == getattr(models[name], field), (name, field)


# --- layers by hand ---


def test_deepseek_v3_by_hand():
    model = load_model("deepseek-ai/DeepSeek-V3")
    dense, sparse = model.groups
    assert (dense.layers, sparse.layers) == (3, 58)
    assert dense.intermediate_size == 18432
    assert (sparse.experts.count, sparse.experts.per_token) == (256, 8)
    assert sparse.experts.shared_intermediate_size == 2048
    mixer = sparse.attention
    assert isinstance(mixer, LatentAttention)
    shapes = {linear.name: linear.on_gpu(8) for linear in sparse.linears}
    assert shapes["latent_down"] == (1536 + 512 + 64, 7168)
    assert shapes["latent_queries"] == (16 * 192, 1536)
    assert shapes["latent_keys_values"] == (16 * 256, 512)
    assert shapes["attention_output"] == (7168, 16 * 128)
    assert shapes["shared_gate_up"] == (2 * 256, 7168)
    assert shapes["router"] == (256, 7168)
    # 512 + 64 numbers of 16 bit a token and a layer, on every GPU.
    assert model.kv_bytes_per_token(8, 2.0) == 61 * 576 * 2


def test_sparse_latent_attention_by_hand():
    model = load_model("deepseek-ai/DeepSeek-V3.2")
    mixer = model.groups[1].attention
    assert (mixer.kind, mixer.window) == ("deepseek_sparse_attention", 2048)
    # 512 numbers of 8 bit with a 32-bit scale for each 128, 64 of 16 bit; 128 of the indexer's
    # keys with a scale.
    assert model.kv_bytes_per_token(1, 1.0) == 61 * (656 + 132)
    shared = read_architecture(
        json.loads((BESIDE.parent / "model_configs" / "zai-org--GLM-5-FP8.json").read_text())
        | {"indexer_types": ["full", "shared"] * 39},
        "glm",
    )
    assert {group.attention.indexer is None for group in shared.groups} == {True, False}


def test_gpt_oss_by_hand():
    model = load_model("openai/gpt-oss-20b")
    assert {one.window: count for one, count in model.attention_layers.items()} == {
        None: 12,
        128: 12,
    }
    assert [form.name for form in model.weight_formats] == ["bfloat16", "mxfp4"]
    # vLLM 0.19 reports 3.63 GiB of weights at tp 4 (kv_capacity.csv), 0.25 more than is known.
    assert model.weight_bytes(4, multiples=(1, 64)) / GIB == pytest.approx(3.63 - 0.25, abs=0.01)
    # 24 layers of 32 experts have three matrices of 2,880 by 2,880 / 4, which is padded to 768.
    padded = model.weight_bytes(4, multiples=(256, 128)) - model.weight_bytes(4)
    numbers = 24 * 32 * 3 * (3072 * 768 - 2880 * 720)
    assert padded == pytest.approx(numbers * (0.5 + 1 / 32))


def test_windows_stop_growing():
    model = load_model("openai/gpt-oss-20b")
    layout = CacheLayout.from_layers(model.attention_layers, 1, 2.0, 8192)
    # 8 KV heads of 64: 2 KiB a token and a layer, of twelve layers each.
    assert layout.token_bytes == 12 * 2 * 8 * 64 * 2
    assert (layout.window_share, layout.window, layout.state_bytes) == (1.0, 128, 0.0)
    deployment = Deployment(max_model_len=8192).resolved(model, load_hardware("h100_sxm"))
    kv = deployment.kv
    assert kv.fixed_blocks(64) == 4
    assert kv.fixed_blocks(8192) == kv.fixed_blocks(4096) == (128 + 16) // 16


def test_states_by_hand():
    model = load_model("Qwen/Qwen3.5-27B")
    kinds = {type(one): count for one, count in model.attention_layers.items()}
    assert kinds == {LinearAttention: 48, Attention: 16}
    delta = next(one for one in model.attention_layers if isinstance(one, LinearAttention))
    # 48 matrices of 128 x 128 in 32 bit; three tokens of 2 x 16 x 128 + 48 x 128 numbers.
    assert delta.state_bytes(1) == 48 * 128 * 128 * 4 + 3 * (4096 + 6144) * 2
    nano = load_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    kinds = {type(one): count for one, count in nano.attention_layers.items()}
    assert kinds == {StateSpace: 23, Attention: 6}
    assert nano.layers == 52
    assert nano.reduced_layers == 26
    space = next(one for one in nano.attention_layers if isinstance(one, StateSpace))
    assert space.state_bytes(2) == (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2) / 2


def test_compressed_attention_by_hand():
    model = load_model("deepseek-ai/DeepSeek-V4-Flash")
    ratios = {one.ratio: count for one, count in model.attention_layers.items()}
    assert ratios == {0: 2, 4: 21, 128: 20}
    fine = next(one for one in model.attention_layers if one.ratio == 4)
    assert isinstance(fine, CompressedAttention)
    assert (fine.chosen, fine.indexer.heads, fine.indexer.ratio) == (512, 64, 4)


def test_gemma_4_has_heads_of_two_widths():
    model = load_model("google/gemma-4-26B-A4B")
    shapes = {(one.kv_heads, one.head_dim, one.window) for one in model.attention_layers}
    assert shapes == {(8, 256, 1024), (2, 512, None)}
    group = model.groups[0]
    assert group.intermediate_size == 2112
    assert group.experts.intermediate_size == 704


def test_llama_4_attends_to_all_in_every_fourth_layer():
    model = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic")
    kinds = [one.kind for one, count in model.attention_layers.items() for _ in range(count)]
    assert kinds.count("full_attention") == 12
    assert kinds.count("chunked_attention") == 36


def test_lightning_attention_by_hand():
    # MiniMax-M1's figures (arXiv 2506.13585: 456 B, 45.9 B active without the embeddings).
    config = {
        "architectures": ["MiniMaxM1ForCausalLM"],
        "hidden_size": 6144,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 9216,
        "num_local_experts": 32,
        "num_experts_per_tok": 2,
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        "vocab_size": 200064,
        "max_position_embeddings": 10240000,
    }
    model = read_architecture(config, "c")
    assert model.parameters / 1e9 == pytest.approx(456, rel=0.002)
    layers = model.active_parameters - 2 * 200064 * 6144
    assert layers / 1e9 == pytest.approx(45.9, rel=0.005)
    kinds = {one.kind: count for one, count in model.attention_layers.items()}
    assert kinds == {"lightning_attention": 70, "full_attention": 10}
    with pytest.raises(InputError, match="attn_type_list"):
        read_architecture({**config, "attn_type_list": [0, "x"] * 40}, "c")


def test_phi_3_5_moe():
    # 41.9 B, 6.6 B active (model card of Phi-3.5-MoE-instruct).
    config = {
        "architectures": ["PhiMoEForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 6400,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "vocab_size": 32064,
    }
    model = read_architecture(config, "c")
    assert model.parameters / 1e9 == pytest.approx(41.9, rel=0.002)
    assert model.active_parameters / 1e9 == pytest.approx(6.6, rel=0.01)


def test_norms_over_all_heads_are_known():
    model = load_model("MiniMaxAI/MiniMax-M2.5")
    assert model.attention.norm_spans_heads
    assert not load_model("Qwen/Qwen3-8B").attention.norm_spans_heads


def test_layers_without_attention():
    heads = {"n_heads_in_group": 2, "no_op": False}
    none, wide = {"no_op": True}, {"no_op": False, "ffn_mult": 1.5}
    config = {
        "architectures": ["DeciLMForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
        "block_configs": [{"attention": heads, "ffn": wide}, {"attention": none, "ffn": wide}],
    }
    first, second = read_architecture(config, "c").groups
    assert first.attention.kv_heads == 2
    assert second.attention is None
    # Two thirds of 1.5 x 256, up to a multiple of 256.
    assert first.intermediate_size == 256
    with pytest.raises(InputError, match="ffn_mult"):
        read_architecture({**config, "block_configs": [{"ffn": {}}, {}]}, "c")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank says that there is multi-head latent attention"),
        ({"ssm_state_size": 128}, "ssm_state_size says that there is a state-space layer"),
        ({"index_topk": 2048}, "index_topk says that there is sparse attention"),
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers says that there is a layer that"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input says that there is"),
    ],
)
def test_layers_that_a_family_has_none_of_are_refused(fields, complaint):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        **fields,
    }
    with pytest.raises(InputError) as caught:
        read_architecture(config, "config.json")
    assert complaint in str(caught.value).replace(": ", " ", 2).replace("config.json ", "")


def shipped_config(name):
    """The fields of a shipped model's configuration, those of its text part on top."""
    config = data.read_json(data.folder("model_configs") / f"{name.replace('/', '--')}.json")
    return {**config, **config.get("text_config", {}), "text_config": None}


GLM, V4 = "zai-org/GLM-5-FP8", "deepseek-ai/DeepSeek-V4-Flash"
NEMOTRON, KIMI_K3 = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "moonshotai/Kimi-K3"
MIMO, MINIMAX_M3 = "XiaomiMiMo/MiMo-V2-Flash", "MiniMaxAI/MiniMax-M3"
GEMMA = "google/gemma-3-27b-it"


@pytest.mark.parametrize(
    ("name", "fields", "complaint"),
    [
        (GLM, {"index_topk": None}, "index_topk: is missing"),
        (GLM, {"indexer_types": ["full", "some"] * 39}, "indexer_types: names 'some'"),
        (GLM, {"indexer_types": ["shared"] * 78}, "indexer_types: has shared first"),
        (GLM, {"mlp_layer_types": ["moe"] * 78}, "mlp_layer_types: names 'moe'; use dense, sparse"),
        (GLM, {"first_k_dense_replace": 79}, "first_k_dense_replace: 79 is more than the 78"),
        (GLM, {"n_routed_experts": None}, "num_local_experts: is missing; add it, or what"),
        (GLM, {"moe_intermediate_size": None}, "moe_intermediate_size: is missing"),
        (MIMO, {"moe_layer_freq": [2] * 48}, "moe_layer_freq: names '2'"),
        (MIMO, {"hybrid_layer_pattern": [None] * 48}, "hybrid_layer_pattern: names 'None'"),
        (MIMO, {"hybrid_layer_pattern": None}, "hybrid_layer_pattern: is missing"),
        (V4, {"compress_ratios": [8] * 43}, "compress_ratios: names '8'; use 0, 4, 128"),
        (V4, {"expert_dtype": "fp3"}, "expert_dtype: 'fp3' is not modelled"),
        (NEMOTRON, {"hybrid_override_pattern": 7}, "hybrid_override_pattern: '7' is not a name"),
        (NEMOTRON, {"hybrid_override_pattern": None}, "hybrid_override_pattern: is missing, or"),
        (NEMOTRON, {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern: is missing, or"),
        (KIMI_K3, {"linear_attn_config": {"kda_layers": []}}, "kda_layers: is not a list of lay"),
        (KIMI_K3, {"linear_attn_config": {"kda_layers": [94]}}, "which are 1 to 93"),
        (MINIMAX_M3, {"sparse_attention_config": None}, "sparse_attention_freq: is missing"),
        (
            GLM,
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64]}},
            "weight_block_size: [64] is not modelled; use [128, 128]",
        ),
        # What is there is not taken as if it were not.
        (GLM, {"mlp_layer_types": {}}, "mlp_layer_types: is not a list"),
        (GLM, {"mlp_layer_types": []}, "mlp_layer_types: names 0 layers"),
        (GLM, {"n_routed_experts": False}, "n_routed_experts: False is not an integer"),
        (GLM, {"n_shared_experts": {}}, "n_shared_experts: {} is not an integer"),
        (GLM, {"q_lora_rank": [None]}, "q_lora_rank: holds null"),
        (MINIMAX_M3, {"attention_output_gate": True}, "a gate on the output of attention"),
        (MINIMAX_M3, {"sparse_attention_config": False}, "sparse_attention_config: is not a JSON"),
        (KIMI_K3, {"vision_config": False}, "vision_config: is not a JSON object"),
        (GEMMA, {"vision_config": {}}, "vision_config: hidden_size: is missing"),
        (KIMI_K3, {"text_config": []}, "text_config: is not a JSON object"),
    ],
)
def test_what_a_configuration_says_wrongly_is_named(name, fields, complaint):
    with pytest.raises(InputError) as caught:
        read_architecture({**shipped_config(name), **fields}, "config.json")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sparse_attention_counts_first_blocks_and_can_be_switched_off():
    config = shipped_config(MINIMAX_M3)
    sparse = config["sparse_attention_config"]

    def longest_window(**changes):
        changed = {**config, "sparse_attention_config": {**sparse, **changes}}
        found = read_architecture(changed, "config.json")
        return max((one.window or 0 for one in found.attention_layers), default=0)

    assert sparse["sparse_init_block"] == 0
    more = longest_window(sparse_init_block=2) - longest_window()
    assert more == 2 * sparse["sparse_block_size"]
    assert longest_window(use_sparse_attention=False) == 0


def test_which_layers_have_experts():
    config = {**shipped_config(GLM), "mlp_layer_types": None, "first_k_dense_replace": 3}
    dense = [group.layers for group in read_architecture(config, "c").groups if not group.experts]
    assert dense == [3]
    # DeepSeek counts from 0: of 78 layers every second of those from 4 on.
    config["moe_layer_freq"] = 2
    assert read_architecture(config, "c").expert_layers == 37


def test_hunyuan_says_a_figure_for_each_layer():
    # Hunyuan-A13B: 80 B parameters, 13 B active (its technical report).
    config = {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "moe_intermediate_size": [3072] * 32,
        "num_experts": 64,
        "moe_topk": [8] * 32,
        "num_shared_expert": [1] * 32,
        "vocab_size": 128167,
        "tie_word_embeddings": True,
    }
    model = read_architecture(config, "c")
    assert model.parameters / 1e9 == pytest.approx(80, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(13, rel=0.03)
    with pytest.raises(InputError, match="moe_topk"):
        read_architecture({**config, "moe_topk": [8] * 31 + [4]}, "c")


def test_ernie_begins_with_a_dense_layer():
    # ERNIE-4.5-21B-A3B.
    config = {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "hidden_size": 2560,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_interval": 1,
        "vocab_size": 103424,
    }
    model = read_architecture(config, "c")
    assert model.dense_layers == 1
    assert int(model.parameters / 1e9) == 21
    assert int(model.active_parameters / 1e9) == 3


def test_compressed_vectors_are_of_8_bit():
    assert load_model(V4).kv_cache_dtype == "fp8"


def test_kv_heads_are_those_of_layers_with_a_cache():
    # Kimi-K3's first layers keep a state.
    assert load_model(KIMI_K3).attention.kind == "latent_attention"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_an_empty_configuration_gets_one_line(name):
    with pytest.raises(InputError) as caught:
        read_architecture({"architectures": [name]}, "config.json")
    assert "\n" not in str(caught.value)


# --- memory, as vLLM 0.19 reported it ---

CAPACITY = BESIDE.parents[1] / "shared" / "ground_truth" / "kv_capacity.csv"


def test_kv_dtypes_have_sizes():
    assert KV_BYTES == {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}


def test_replicas_of_latent_vectors_take_no_less():
    # What every GPU keeps whole is not shared: from tp 1 to 8 only the weights shrink.
    model, gpu = load_model("deepseek-ai/DeepSeek-V3"), load_hardware("b300_sxm")
    blocks = [
        Deployment(Parallelism(tp), max_model_len=4096).resolved(model, gpu).memory.kv_block
        for tp in (4, 8)
    ]
    assert blocks[0] == blocks[1]
    dense = dataclasses.replace(model, groups=model.groups[:1])
    assert dense.weight_bytes(8) < dense.weight_bytes(4)
