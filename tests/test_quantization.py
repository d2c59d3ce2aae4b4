import pytest

from physim.errors import InputError
from physim.inputs.model_lookup import load_model
from physim.inputs.quantization import read_formats


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
    ],
)
def test_formats(config, name, bytes_per_weight):
    form = read_formats(config, 4, "config.json").mlp
    assert (form.name, form.bytes_per_weight) == (name, bytes_per_weight)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (quantized(quant_method="bitsandbytes"), "'bitsandbytes' is not modelled"),
        (quantized(quant_method="gptq", bits=3), "gptq with 3 bits"),
        (quantized(quant_method="modelopt", quant_algo="NVFP4"), "(NVFP4) is not modelled"),
        (compressed(8, "int", {"num_bits": 8}), "8-bit int weights"),
        (quantized(quant_method="compressed-tensors", config_groups={}), "0 weight schemes"),
        (quantized(quant_method="compressed-tensors", config_groups=[1]), "0 weight schemes"),
        (quantized(quant_method="gptq", bits=4, group_size="x"), "'x' is not a group size"),
        (quantized(quant_method="gptq", bits=4, group_size=0), "0 is not a group size"),
        (
            quantized(quant_method="fp8", ignore="lm_head"),
            "'lm_head' is not a list of module names",
        ),
        ({"torch_dtype": "bfloat16", "quantization_config": "fp8"}, "is not a JSON object"),
    ],
)
def test_unknown_quantisation_is_refused(config, complaint):
    with pytest.raises(InputError, match=r"config\.json: quantization_config") as caught:
        read_formats(config, 4, "config.json")
    assert complaint in str(caught.value)


def test_ignored_modules_stay_16_bit():
    scout = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic").formats
    assert scout.attention.name == "bfloat16"
    assert scout.mlp.name == scout.experts.name == "fp8"
    assert scout.kv_cache_dtype == "bfloat16"


ALL = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(4)]


@pytest.mark.parametrize(
    ("field", "names", "sixteen_bit"),
    [
        ("ignored_layers", ALL, {"attention"}),
        ("modules_to_not_convert", ["lm_head", "model.layers.3.input_layernorm"], set()),
        ("modules_to_not_convert", ["self_attn"], {"attention"}),
        ("modules_to_not_convert", ["model.layers.1.mlp.gate", "mlp.gate", "q_norm"], set()),
        ("modules_to_not_convert", ["gate_proj"], {"mlp", "experts"}),
        ("ignore", [f"language_model.{name}" for name in ALL], {"attention"}),
        ("ignore", ["re:.*lm_head", "re:.*self_attn.*", "re:.*router"], {"attention"}),
        ("ignore", [r"re:model\.layers\.\d+\.mlp\.(gate|up|down)_proj"], {"mlp"}),
        ("exclude_modules", ["*self_attn*", "lm_head"], {"attention"}),
        ("exclude_modules", ["model.layers.*.mlp.experts.*"], {"experts"}),
    ],
)
def test_what_stays_in_16_bit(field, names, sixteen_bit):
    found = read_formats(quantized(quant_method="fp8", **{field: names}), 4, "c")
    kinds = ("attention", "mlp", "experts")
    assert {kind for kind in kinds if getattr(found, kind).name == "bfloat16"} == sixteen_bit


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["model.layers.2.self_attn.q_proj"], "leaves the attention of 1 of 4 layers in 16 bit"),
        (ALL[:3], "of 3 of 4 layers in 16 bit, such as layer 0"),
        (["model.layers.3.mlp"], "leaves the MLP of 1 of 4 layers in 16 bit, such as layer 3"),
        ([r"re:model\.layers\.[0-1]\.self_attn"], "leaves the attention of 1 of 4 layers"),
        (["model.layers.0*"], "leaves the attention of 1 of 4"),
        (["re:("], "'re:(' is not a regular expression"),
    ],
)
def test_layers_that_differ_are_refused(names, complaint):
    with pytest.raises(InputError, match=r"^c: quantization_config") as caught:
        read_formats(quantized(quant_method="fp8", ignore=names), 4, "c")
    assert complaint in str(caught.value)


def test_reading_leaves_the_configuration_alone():
    config = quantized(quant_method="fp8", ignore=["lm_head"], modules_to_not_convert=["router"])
    read_formats(config, 4, "c")
    assert config["quantization_config"]["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    "fields",
    [
        {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_fp8_cache(fields):
    assert read_formats(quantized(**fields), 4, "c").kv_cache_dtype == "fp8"
