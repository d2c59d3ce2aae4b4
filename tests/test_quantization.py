import re
import time

import pytest

import physim
from physim import data
from physim.errors import InputError
from physim.models.lookup import config_path, load_model, shipped_models
from physim.models.quantization import MODULES, Quantization, _names
from physim.prediction.commands import serve_command


def quantized(**fields):
    return {"torch_dtype": "bfloat16", "quantization_config": fields}


def compressed(bits, kind, activations=None, **weights):
    group = {"weights": {"num_bits": bits, "type": kind, **weights}}
    if activations:
        group["input_activations"] = activations
    return quantized(quant_method="compressed-tensors", config_groups={"group_0": group})


@pytest.mark.parametrize(
    ("config", "name", "bytes_per_weight"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16", 2.0),
        ({"dtype": "float16"}, "bfloat16", 2.0),
        (quantized(quant_method="fp8"), "fp8", 1.0),
        (quantized(quant_method="fp8", weight_block_size=[128, 128]), "fp8_block", 1.000244140625),
        (quantized(quant_method="modelopt", quant_algo="FP8"), "fp8", 1.0),
        (quantized(quant_algo="FP8"), "fp8", 1.0),
        (quantized(quant_method="gptq", bits=4, group_size=128), "int4", 0.51953125),
        (quantized(quant_method="awq", w_bit=4, q_group_size=64), "int4", 0.5390625),
        (compressed(8, "float", {"num_bits": 8}), "fp8", 1.0),
        (compressed(4, "int", group_size=128), "int4", 0.51953125),
        (compressed(4, "int", {"num_bits": 8}, group_size=128), "int4_fp8", 0.51953125),
        (compressed(8, "int", {"num_bits": 8}), "int8", 1.0),
        (compressed(8, "int"), "int8_w8a16", 1.0),
        (compressed(4, "float", {"num_bits": 4}, group_size=16), "nvfp4", 0.5625),
        (compressed(4, "float", group_size=16), "nvfp4_w4a16", 0.5625),
        (compressed(4, "float", group_size=32), "mxfp4", 0.53125),
        (compressed(8, "float", {"num_bits": 8}, strategy="block"), "fp8_block", 1.000244140625),
        (quantized(quant_method="modelopt", quant_algo="NVFP4"), "nvfp4", 0.5625),
        (quantized(quant_method="modelopt", quant_algo="W4A8_AWQ"), "int4_fp8", 0.51953125),
        (quantized(quant_method="modelopt", quant_algo="MXFP8"), "mxfp8", 1.03125),
        (quantized(quant_method="fbgemm_fp8"), "fp8", 1.0),
        (quantized(quant_method="mxfp4"), "mxfp4", 0.53125),
        (quantized(quant_method="gptq_marlin", bits=8), "int8_w8a16", 1.0),
        ({"torch_dtype": "float32"}, "bfloat16", 2.0),
    ],
)
def test_formats(config, name, bytes_per_weight):
    form = Quantization(config, 4, "config.json").form("mlp", 0)
    assert (form.name, form.bytes_per_weight) == (name, bytes_per_weight)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (quantized(quant_method="bitsandbytes"), "'bitsandbytes' is not modelled"),
        (quantized(quant_method="gptq", bits=3), "gptq with 3 bits"),
        (quantized(quant_method="modelopt", quant_algo="FP3"), "'FP3' is not modelled"),
        (quantized(quant_method="modelopt", quant_algo="MIXED_PRECISION"), "quantized_layers"),
        (compressed(2, "int"), "2-bit int weights"),
        (quantized(quant_method="compressed-tensors", config_groups={}), "has no weight scheme"),
        (quantized(quant_method="compressed-tensors", config_groups=[1]), "has no weight scheme"),
        (
            quantized(quant_method="compressed-tensors", config_groups={"a": {"targets": []}}),
            "config_groups.a: has no weights",
        ),
        (
            quantized(quant_method="compressed-tensors", config_groups={"a": None}),
            "config_groups.a: is not a JSON object",
        ),
        (quantized(quant_method="gptq", bits=4, group_size="x"), "'x' is not a group size"),
        (quantized(quant_method="gptq", bits=4, group_size=0), "0 is not a group size"),
        (
            quantized(quant_method="fp8", ignore="lm_head"),
            "'lm_head' is not a list of module names",
        ),
        ({"torch_dtype": "bfloat16", "quantization_config": "fp8"}, "is not a JSON object"),
        # What is there is not taken as if it were not.
        ({"quantization_config": False}, "is not a JSON object"),
        ({"quantization_config": []}, "is not a JSON object"),
        ({"quantization_config": {}}, "'none' is not modelled"),
        (quantized(quant_method=["fp8"]), "quant_method: \"['fp8']\" is not a name"),
        (quantized(quant_method="modelopt", quant_algo={}), "quant_algo: '{}' is not a name"),
        (
            quantized(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers={}),
            "quantized_layers: names no layers",
        ),
        (
            quantized(quant_algo="MIXED_PRECISION", quantized_layers={"layers.0.mlp": None}),
            "quantized_layers.layers.0.mlp: is not a JSON object",
        ),
        (quantized(quant_algo="INT4_AWQ", group_size=False), "False is not a group size"),
        (compressed(8, "float"), "8-bit float weights and 16-bit activations"),
        (compressed(4, "int", group_size=0), "group_0.group_size: 0 is not a group size"),
        (compressed(4, "int", activations=[8]), "group_0.input_activations: has no num_bits"),
        (compressed(4, "int", activations={"type": "int"}), "input_activations: has no num_bits"),
        (quantized(quant_method="fp8", kv_cache_scheme={}), "kv_cache_scheme: has no num_bits"),
        (
            quantized(quant_method="fp8", kv_cache_scheme={"num_bits": 2}),
            "kv_cache_scheme: 2 bits are not modelled",
        ),
        (
            quantized(quant_algo="FP8", kv_cache_quant_algo="INT8"),
            "kv_cache_quant_algo: 'INT8' is not modelled",
        ),
    ],
)
def test_unknown_quantisation_is_refused(config, complaint):
    with pytest.raises(InputError, match=r"config\.json: quantization_config") as caught:
        Quantization(config, 4, "config.json")
    assert complaint in str(caught.value)


def test_ignored_modules_stay_16_bit():
    scout = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic")
    for group in scout.groups:
        assert group.form("qkv").name == "bfloat16"
        assert group.form("mlp").name == group.experts.form.name == "fp8"
    assert scout.kv_cache_dtype == "bfloat16"


ALL = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(4)]


@pytest.mark.parametrize(
    ("field", "names", "sixteen_bit"),
    [
        ("ignored_layers", ALL, {"qkv"}),
        ("modules_to_not_convert", ["lm_head", "model.layers.3.input_layernorm"], set()),
        ("modules_to_not_convert", ["self_attn"], {"qkv"}),
        ("modules_to_not_convert", ["model.layers.1.mlp.gate", "mlp.gate", "q_norm"], set()),
        ("modules_to_not_convert", ["gate_proj"], {"mlp", "experts"}),
        ("ignore", [f"language_model.{name}" for name in ALL], {"qkv"}),
        ("ignore", ["re:.*lm_head", "re:.*self_attn.*", "re:.*router"], {"qkv"}),
        ("ignore", [r"re:model\.layers\.\d+\.mlp\.(gate|up|down)_proj"], {"mlp"}),
        ("ignore", ["re:^(?!.*experts).*$"], {"qkv", "mlp"}),
        ("ignore", [r"re:^(?!.*\.mlp\.(gate|up)_proj)"], {"qkv", "experts"}),
        ("exclude_modules", ["*self_attn*", "lm_head"], {"qkv"}),
        ("exclude_modules", ["model.layers.*.mlp.experts.*"], {"experts"}),
    ],
)
def test_what_stays_in_16_bit(field, names, sixteen_bit):
    found = Quantization(quantized(quant_method="fp8", **{field: names}), 4, "c")
    for layer in range(4):
        forms = {kind: found.form(kind, layer).name for kind in ("qkv", "mlp", "experts")}
        assert {kind for kind, name in forms.items() if name == "bfloat16"} == sixteen_bit


@pytest.mark.parametrize(
    ("names", "role", "sixteen_bit"),
    [
        (["model.layers.2.self_attn.q_proj"], "qkv", {2}),
        (ALL[:3], "qkv", {0, 1, 2}),
        (["model.layers.3.mlp"], "mlp", {3}),
        ([r"re:model\.layers\.[0-1]\.self_attn"], "qkv", {0, 1}),
        ([r"re:.*layers\.[12]\.mlp"], "mlp", {1, 2}),
        (["model.layers.0*"], "qkv", {0}),
        (["model.layers.*.self_attn"], "attention_output", {0, 1, 2, 3}),
        (["backbone.layers.1.mixer.in_proj"], "linear_in", {1}),
        (["model.language_model.layers.1.linear_attn*"], "linear_in", {1}),
        (["language_model.model.layers.3.mlp.shared_experts*"], "shared_experts", {3}),
    ],
)
def test_layers_may_differ(names, role, sixteen_bit):
    found = Quantization(quantized(quant_method="fp8", ignore=names), 4, "c")
    plain = {layer for layer in range(4) if found.form(role, layer).name == "bfloat16"}
    assert plain == sixteen_bit


def test_a_pattern_that_is_none_is_refused():
    found = Quantization(quantized(quant_method="fp8", ignore=["re:("]), 4, "c")
    with pytest.raises(InputError, match=r"'re:\(' is not a regular expression that RE2 takes"):
        found.form("mlp", 0)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(.*)*x$", "(a|a|.)*x$", "(.+)+(.+)+x$", ".*.*.*.*.*.*.*.*.*.*.*.*x$"),
        *("^(?!(.*)*x).*", r"(\w*\.?)*:", "(|.)" * 200 + "x$"),
    ],
)
def test_no_pattern_takes_long(pattern):
    found = Quantization(quantized(quant_method="fp8", ignore=[f"re:{pattern}"]), 80, "c")
    begun = time.process_time()
    for layer in range(80):
        found.form("mlp", layer)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "pattern", [r"(.*)\1", "a{99999}", "((a{1000}){1000}){1000}", "(" * 9999, "\ud800", "a(?<!b)c"]
)
def test_patterns_that_no_linear_matcher_takes_are_refused(pattern):
    found = Quantization(quantized(quant_method="fp8", ignore=[f"re:{pattern}"]), 4, "c")
    with pytest.raises(InputError, match="is not a regular expression that RE2 takes"):
        found.form("mlp", 0)


@pytest.mark.parametrize("name", shipped_models())
def test_patterns_of_shipped_models_match_as_they_do_in_engines(name):
    # vLLM matches them by backtracking, from the start of a module's name.
    config = data.read_json(config_path(name)).get("quantization_config") or {}
    ignored = [one for one in config.get("ignore") or () if one.startswith("re:")]
    modules = [f"model.layers.7.{one}" for some in MODULES.values() for one in some]
    for pattern in ignored:
        found = [one for one in modules if _names(pattern, [one.removeprefix("model.")], name)]
        assert found == [one for one in modules if re.match(pattern[3:], one)]


def test_formats_by_name_of_layer():
    config = quantized(
        quant_method="modelopt",
        quant_algo="MIXED_PRECISION",
        quantized_layers={
            "model.language_model.layers.0.mlp.gate_proj": {"quant_algo": "FP8"},
            "model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
        },
    )
    found = Quantization(config, 2, "c")
    assert found.form("mlp", 0).name == "fp8"
    assert found.form("mlp", 1).name == "bfloat16"
    assert found.form("experts", 1).name == "nvfp4"


def test_groups_by_their_targets():
    scheme = {
        "weights": {"num_bits": 8, "type": "float"},
        "targets": ["re:.*self_attn.*"],
        "input_activations": {"num_bits": 8},
    }
    rest = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}, "targets": ["Linear"]}
    config = quantized(quant_method="compressed-tensors", config_groups={"a": scheme, "b": rest})
    found = Quantization(config, 2, "c")
    assert found.form("qkv", 1).name == "fp8"
    assert found.form("experts", 1).name == "int4"


def test_reading_leaves_the_configuration_alone():
    config = quantized(quant_method="fp8", ignore=["lm_head"], modules_to_not_convert=["router"])
    Quantization(config, 4, "c").form("mlp", 0)
    assert config["quantization_config"]["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    "fields",
    [
        {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"},
    ],
)
def test_fp8_cache(fields):
    assert Quantization(quantized(**fields), 4, "c").kv_cache_dtype == "fp8"


@pytest.mark.slow
def test_weights_that_become_fp8_as_the_server_starts():
    plain, small = load_model("Qwen/Qwen3-8B"), load_model("Qwen/Qwen3-8B", quantization="fp8")
    assert (plain.quantized_to, plain.note) == ("", "")
    assert small.note == "16-bit weights become fp8 as the server starts"
    # All but embeddings, head and norms take half.
    halved = plain.weight_bytes(1, 1, 1, 1) - small.weight_bytes(1, 1, 1, 1)
    linear = sum(
        group.layers * linear.parameters for group in plain.groups for linear in group.linears
    )
    assert halved == pytest.approx(linear, rel=0.01)
    case = {"gpu": "h100_sxm", "rate": 2.0, "input_tokens": 500, "output_tokens": 200}
    slow, fast = (
        physim.predict("Qwen/Qwen3-8B", **case, quantization=form) for form in (None, "fp8")
    )
    assert fast.itl_s < 0.8 * slow.itl_s
    assert small.note in fast.assumptions
    for engine in ("vllm", "sglang"):
        made = physim.Case.from_options(
            "Qwen/Qwen3-8B", gpu="h100_sxm", engine=engine, quantization="fp8"
        )
        assert " --quantization fp8" in serve_command(made)


@pytest.mark.parametrize(
    ("model", "options", "complaint"),
    [
        ("Qwen/Qwen3-8B", {"quantization": "int4"}, "'int4' is not modelled of weights that are"),
        ("Qwen/Qwen3-32B-FP8", {"quantization": "fp8"}, "is quantised already; leave it out"),
        ("Qwen/Qwen3-8B", {"quantization": "fp8", "engine": "trtllm"}, "trtllm does not quantise"),
    ],
)
def test_weights_that_cannot_become_fp8(model, options, complaint):
    with pytest.raises(InputError, match=complaint):
        physim.Case.from_options(model, gpu="h100_sxm", **options)
