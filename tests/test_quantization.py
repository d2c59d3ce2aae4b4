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
    form = read_formats(config, "config.json").mlp
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
        read_formats(config, "config.json")
    assert complaint in str(caught.value)


def test_ignored_modules_stay_16_bit():
    scout = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic").formats
    assert scout.attention.name == "bfloat16"
    assert scout.mlp.name == scout.experts.name == "fp8"
    assert scout.kv_cache_dtype == "bfloat16"


def test_reading_leaves_the_configuration_alone():
    config = quantized(quant_method="fp8", ignore=["lm_head"], modules_to_not_convert=["router"])
    read_formats(config, "c")
    assert config["quantization_config"]["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    "fields",
    [
        {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_fp8_cache(fields):
    assert read_formats(quantized(**fields), "c").kv_cache_dtype == "fp8"
