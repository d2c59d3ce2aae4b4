"""Finding models and GPUs, and what a deployment leaves of a GPU's memory."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
import typer

import physim
from physim import data
from physim.cli import app
from physim.cli.engine_options import ENGINE, RECORDED
from physim.engines.profile import load_engine, shipped_engines
from physim.errors import InputError
from physim.inputs.attempts import layout_axes
from physim.inputs.deployment import Deployment
from physim.inputs.engine_request import EngineOptions
from physim.inputs.lengths import Lengths, cached_part
from physim.inputs.load_request import LoadOptions, LoadRequest
from physim.measured.schema import ENGINE_COLUMNS
from physim.models.aliases import aliases
from physim.models.lookup import config_path, load_model, shipped_models
from physim.models.parallelism import Parallelism, layout_name, on_gpus
from physim.options import options_of
from physim.prediction.commands import bench_command, serve_command
from physim.service.hardware import load_hardware, shipped_gpus

H100 = load_hardware("h100_sxm")


def test_a_model_is_found_by_path_folder_and_name(tmp_path):
    shipped = data.folder("model_configs") / "Qwen--Qwen3-14B.json"
    shutil.copy(shipped, tmp_path / "config.json")
    by_name = load_model("Qwen/Qwen3-14B")
    for model in (tmp_path, tmp_path / "config.json", "qwen3-14b"):
        assert load_model(model).parameters == by_name.parameters


def test_quantisation_in_a_file_beside_the_configuration(tmp_path):
    shutil.copy(data.folder("model_configs") / "Qwen--Qwen3-14B.json", tmp_path / "config.json")
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = load_model(tmp_path)
    assert (model.weight_format.name, model.kv_cache_dtype) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("defaults", "sampling"),
    [
        (None, "plain"),
        ({"temperature": 0.6}, "plain"),
        ({"top_p": 0.9}, "truncated"),
        ({"top_k": 20, "top_p": 1.0}, "truncated"),
        ({"top_p": 0.8, "repetition_penalty": 1.05}, "penalised"),
    ],
)
def test_sampling_follows_the_file_beside_the_configuration(tmp_path, defaults, sampling):
    shutil.copy(data.folder("model_configs") / "Qwen--Qwen3-14B.json", tmp_path / "config.json")
    if defaults is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    model = load_model(tmp_path)
    assert Deployment().resolved(model, H100).sampling == sampling
    assert Deployment(sampling="plain").resolved(model, H100).sampling == "plain"


def test_sampling_of_shipped_models():
    # Qwen2.5's generation_config.json asks for a repetition penalty of 1.05, Yi's for nothing.
    for name, sampling in (
        ("Qwen/Qwen2.5-7B-Instruct", "penalised"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "penalised"),
        ("Qwen/Qwen2.5-Coder-7B", "plain"),
        ("meta-llama/Llama-2-7b-hf", "truncated"),
        ("01-ai/Yi-34B", "plain"),
    ):
        assert Deployment(Parallelism(1)).resolved(load_model(name), H100).sampling == sampling


@pytest.mark.parametrize(
    ("defaults", "says"),
    [
        ('{"top_p": "high"}', "top_p: 'high' is not a number"),
        ('{"top_p": false}', "top_p: 'False' is not a number"),
        ('{"top_p": NaN}', "top_p: nan is out of range"),
        ('{"top_p": 1.5}', "top_p: 1.5 is out of range"),
        ('{"top_k": [null]}', r"top_k: '\[None\]' is not a number"),
        ('{"repetition_penalty": -1}', "repetition_penalty: -1 is out of range"),
    ],
)
def test_a_broken_file_of_sampling_defaults(tmp_path, defaults, says):
    shutil.copy(data.folder("model_configs") / "Qwen--Qwen3-14B.json", tmp_path / "config.json")
    (tmp_path / "generation_config.json").write_text(defaults)
    with pytest.raises(InputError, match=f"generation_config.json: {says}"):
        load_model(tmp_path)


def test_quantisation_beside_the_configuration_that_says_nothing(tmp_path):
    shutil.copy(data.folder("model_configs") / "Qwen--Qwen3-14B.json", tmp_path / "config.json")
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"hf_quant_config.json: quantization: is missing"):
        load_model(tmp_path)


def test_sampling_that_is_unknown():
    with pytest.raises(InputError, match="sampling: 'beam' is unknown; use one of model, unknown"):
        Deployment(sampling="beam")


def test_an_edited_file_is_read_anew(tmp_path):
    path = tmp_path / "config.json"
    config = json.loads((data.folder("model_configs") / "Qwen--Qwen3-14B.json").read_text())
    path.write_text(json.dumps(config))
    before = load_model(path).layers
    path.write_text(json.dumps({**config, "num_hidden_layers": before + 1}))
    assert load_model(path).layers == before + 1


@pytest.mark.parametrize("name", aliases())
def test_an_alias_is_read_as_the_shipped_model_and_keeps_its_name(name):
    model, shipped = load_model(name), load_model(aliases()[name].config)
    assert model.name == name
    sampled = {"truncation": shipped.truncation, "penalises": shipped.penalises}
    assert replace(model, name=shipped.name, **sampled) == shipped
    assert config_path(name.lower()) == config_path(name.split("/")[1]) == config_path(shipped.name)


def test_ids_that_are_known_are_told_apart_by_their_names_alone():
    ids = (*shipped_models(), *aliases())
    assert len({one.split("/")[1].lower() for one in ids}) == len(ids) >= 150


def test_an_alias_is_predicted_under_its_own_name():
    asked = {"gpu": "h100_sxm", "rate": 1.0, "input_tokens": 100, "output_tokens": 10}
    assert physim.predict("meta-llama/Llama-3.1-8B", **asked).model == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("no-such-model", "is not a file, a folder or a shipped model"),
        ("no/such.json", "does not exist"),
        ("nobody/has-this-model", "is not shipped"),
        ("Qwen3-8", "did you mean Qwen/Qwen3-8B[?] Or pass a config.json"),
        ("qwen/qwen3_14b", "did you mean Qwen/Qwen3-14B[?]"),
        ("Mixtral-8x7B-Instruct", "did you mean mistralai/Mixtral-8x7B-Instruct-v0.1[?]"),
    ],
)
def test_unknown_models(model, complaint, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=complaint):
        load_model(model)


def test_a_folder_without_configuration(tmp_path):
    with pytest.raises(InputError, match="name a folder that holds"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "broken JSON"), ("[1]", "holds no JSON object"), ("\xff", "is not UTF-8")],
)
def test_broken_files(tmp_path, text, complaint):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=complaint):
        load_model(path)


def test_every_figure_of_a_gpu_has_a_source():
    for key in shipped_gpus():
        load_hardware(key)
        fields = json.loads((data.folder("hardware") / f"{key}.json").read_text())
        figures = [*fields["peak_flops"].values()]
        figures += fields.get("sustained_share_of_peak", {}).values()
        figures += [
            value for value in fields.values() if isinstance(value, dict) and "value" in value
        ]
        assert len(figures) >= 4
        assert all(figure["source"] for figure in figures)


def test_a_gpu_file_of_ones_own(tmp_path):
    fields = json.loads((data.folder("hardware") / "h100_sxm.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**fields, "key": "mine"}))
    assert load_hardware(str(path)).key == "mine"


def test_a_gpu_file_that_is_wrong(tmp_path):
    right = json.loads((data.folder("hardware") / "h100_sxm.json").read_text())
    for number, (field, value, says) in enumerate(
        [
            ("memory_bytes", {"value": 0}, "memory_bytes: 0 is not positive"),
            ("memory_bytes", {"value": math.nan}, "memory_bytes: nan is not positive"),
            ("memory_bytes", {"value": 1e30}, "memory_bytes: is above 1e[+]21; give it in SI"),
            ("memory_bytes", {"value": 10**400}, "memory_bytes: is above 1e[+]21"),
            ("memory_bytes", {"value": True}, "memory_bytes: has no number as its value"),
            ("node_gpus", {"value": 2.5}, "node_gpus: 2.5 is not a whole number"),
            ("link", False, "link: 'False' is not a name"),
            ("key", {}, "key: '{}' is not a name"),
            ("name", " ", "name: ' ' is not a name"),
        ]
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({**right, field: value}))
        with pytest.raises(InputError, match=says):
            load_hardware(str(path))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100", "h100_sxm"),
        ("H100-SXM", "h100_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("h200", "h200_sxm"),
        ("A100-SXM4-80GB", "a100_sxm"),
        ("B200", "b200_sxm"),
        ("L40S", "l40s"),
    ],
)
def test_common_names_of_gpus(name, key):
    assert load_hardware(name).key == key


@pytest.mark.parametrize("name", ["H100 CNX", "a100-20gb", "t4", ""])
def test_other_gpus_are_not_taken_for_shipped_ones(name):
    with pytest.raises(InputError, match="is unknown"):
        load_hardware(name)


def test_no_two_gpus_share_a_name():
    for key in shipped_gpus():
        fields = json.loads((data.folder("hardware") / f"{key}.json").read_text())
        for name in (key, fields["name"], *fields["aliases"]):
            bare = "".join(filter(str.isalnum, name)).lower()
            assert load_hardware(name).key == load_hardware(bare).key == key


def test_an_unknown_gpu_names_the_known_ones():
    with pytest.raises(InputError, match="use one of a10, a100_pcie, a100_sxm"):
        load_hardware("v100")


def test_weights_on_a_gpu_by_hand():
    llama = load_model("meta-llama/Llama-2-70b-hf")
    # Norms, and the cosines and sines of 4,096 positions, are on every GPU.
    norms = 2 * 80 * 8192 + 8192
    shared, whole = llama.parameters - norms, norms + 4096 * 128
    assert llama.weight_bytes(4) == pytest.approx(2 * (shared / 4 + whole))
    # 16 GPUs and 8 KV heads: each pair of GPUs holds the same key and value weights.
    replicated = 2 * 80 * 8192 * 8 * 128
    assert llama.weight_bytes(16) == pytest.approx(2 * ((shared + replicated) / 16 + whole))


def test_kv_blocks_are_those_that_servers_reported(ground_truth):
    import pandas as pd

    runs = pd.read_csv(ground_truth / "trainval.csv").drop_duplicates("experiment")
    assert len(runs) == 13
    for run in runs.itertuples():
        deployment = Deployment(
            Parallelism(run.tp),
            max_num_seqs=run.max_num_seqs,
            max_num_batched_tokens=run.max_num_batched_tokens,
            max_model_len=run.max_model_len,
            engine_version=run.engine_version,
        )
        blocks = deployment.resolved(load_model(run.model), H100).kv.blocks
        assert blocks == pytest.approx(run.kv_blocks, rel=0.01)


# Checkpoints of kv_capacity.csv by the shipped models that they are sized like.
SIZED_LIKE = {
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
        None,
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": ("deepseek-ai/DeepSeek-V2-Lite", ()),
    "ibm-granite/granite-3.1-8b-instruct": ("ibm-granite/granite-3.3-8b-instruct", ()),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mistralai/Mixtral-8x7B-v0.1", None),
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": (
        "meta-llama/Llama-3.3-70B-Instruct",
        {"quant_method": "fp8", "ignored_layers": ["lm_head"]},
    ),
    **{
        checkpoint: (base, "w8a8")
        for checkpoint, base in (
            ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "Llama-3.1-8B-Instruct"),
            ("redhatai/Llama-3.3-70B-Instruct-quantized.w8a8", "Llama-3.3-70B-Instruct"),
            ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8", "Qwen2.5-7B-Instruct"),
        )
    },
}
W8A8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int"},
            "input_activations": {"num_bits": 8, "type": "int"},
        }
    },
    "ignore": ["lm_head"],
}


def sized_like(checkpoint, folder):
    """The model of a checkpoint: a shipped one, or one that differs in its format."""
    base, quantization = SIZED_LIKE.get(checkpoint, (checkpoint, ()))
    if quantization == ():
        return load_model(base)
    config = json.loads(config_path(base).read_text())
    config["quantization_config"] = W8A8 if quantization == "w8a8" else quantization
    path = folder / f"{checkpoint.replace('/', '--')}.json"
    path.write_text(json.dumps(config))
    return load_model(path)


def test_memory_of_a_newer_engine_is_what_it_reported(ground_truth, tmp_path):
    import numpy as np
    import pandas as pd

    runs = pd.read_csv(ground_truth / "kv_capacity.csv")
    known = {name.lower() for name in shipped_models()} | {one.lower() for one in SIZED_LIKE}
    runs = runs[runs["model"].str.lower().isin(known)]
    runs = runs[runs["dtype"] != "float32"]
    assert len(runs) >= 30
    errors, weights = [], []
    for run in runs.itertuples():
        deployment = Deployment(
            Parallelism(run.tp, run.pp),
            engine_version=run.vllm_version,
            gpu_memory_utilization=run.gpu_mem_util,
            max_model_len=run.max_model_len,
            kv_cache_dtype="fp8" if run.kv_cache_dtype == "fp8" else "auto",
        )
        resolved = deployment.resolved(sized_like(run.model, tmp_path), H100)
        tokens = resolved.kv.reported_blocks * resolved.kv.block_size
        errors.append(tokens / run.kv_cache_tokens - 1)
        weights.append(resolved.memory.weights / 2**30 / run.weight_memory_gib - 1)
        # A cache of a few GiB takes what is wrong of the rest.
        assert abs(errors[-1]) < max(0.015, 0.16 / run.kv_cache_memory_gib), run.model
    assert np.mean(np.abs(errors)) < 0.005
    # gpt-oss-20b apart, of which a quarter of a GiB is not known; latent attention keeps copies of
    # two matrices.
    is_known = runs["model"] != "openai/gpt-oss-20b"
    assert min(np.array(weights)[~is_known]) > -0.08
    weights = np.array(weights)[is_known]
    assert np.median(np.abs(weights)) < 0.001
    assert np.quantile(np.abs(weights), 0.85) < 0.01
    assert np.max(np.abs(weights)) < 0.02


def test_kv_blocks_are_reported_as_the_version_counts_them():
    model, h200 = load_model("openai/gpt-oss-120b"), load_hardware("h200_sxm")
    # Half of the layers look back on 128 tokens. A request of 131,072 fills 8,192 blocks of the
    # others, and of these, beside the tokens of one step or of two, one block more than they take.
    one, two = math.ceil((127 + 8192) / 16) + 1, math.ceil((127 + 2 * 8192) / 16) + 1
    for version, in_sync, share in (
        ("0.19.0", None, 1 / 2),
        ("0.21.0", None, 8192 / (8192 + one)),
        ("0.33.0", None, 8192 / (8192 + two)),
        ("0.33.0", False, 8192 / (8192 + one)),
    ):
        options = {"engine_version": version, "async_scheduling": in_sync}
        kv = Deployment(**options).resolved(model, h200).kv
        assert kv.reported_blocks == pytest.approx(kv.blocks * share, abs=1)
        again = Deployment(**options, kv_blocks=kv.reported_blocks).resolved(model, h200).kv
        assert again.blocks == pytest.approx(kv.blocks, abs=2)
    # Where a step takes as much as the longest context, no window is seen.
    short = Deployment(max_model_len=8192).resolved(model, h200).kv
    assert short.reported_share == pytest.approx(1 / 2, rel=2e-3)
    # Without windows and states all say the same.
    dense = Deployment(kv_blocks=12_345).resolved(load_model("Qwen/Qwen3-14B"), h200).kv
    assert dense.blocks == dense.reported_blocks == 12_345


def test_versions_between_profiles_take_the_one_before_and_say_so():
    assert load_engine().version == load_engine("vLLM").version == "0.33"
    assert load_engine("vllm", "0.15.1").note == ""
    for same in ("v0.17.2", "0.33.1rc2"):
        assert load_engine("vllm", same).note == ""
    # A profile of one patch is not that of another.
    for engine, patch, taken in (("vllm", "0.15.0", "0.15.1"), ("sglang", "0.5.6.post2", "0.5.9")):
        note = f"{engine} {patch} has no profile of its own: {taken}'s is taken"
        assert load_engine(engine, patch).note == note
    assert load_engine("vllm", "0.15").version == "0.15.1"
    # The first release of a minor version is that without a third number.
    for told, profile in (("0.11", "0.11"), ("0.11.0", "0.11"), ("0.11.1", "0.11.1")):
        assert load_engine("vllm", told).version == profile
    assert load_engine("vllm", "0.11.2").version == "0.11.1"
    between = load_engine("vllm", "0.19.0")
    assert between.version == "0.17"
    assert between.note == "vllm 0.19.0 has no profile of its own: 0.17's is taken"
    old, new = load_engine("vllm", "0.9.1"), load_engine("vllm", "1.0")
    assert (old.version, new.version) == ("0.11", "0.33")
    assert old.note == (
        "vllm 0.9.1 is older than any that physim knows: 0.11's is taken, and intervals are wider"
    )
    assert new.note == "vllm 1.0 is newer than any that physim knows: 0.33's is taken"
    # As text 0.9 would come after 0.33.
    assert shipped_engines()["vllm"] == ("0.11", "0.11.1", "0.15.1", "0.17", "0.21", "0.33")
    with pytest.raises(InputError, match="use one of sglang, trtllm, vllm"):
        load_engine("tgi")
    with pytest.raises(InputError, match="engine_version 'newest': is no version; write one such"):
        load_engine("vllm", "newest")


def test_defaults_are_those_of_the_engine_s_version():
    model, b200 = load_model("Qwen/Qwen3-14B"), load_hardware("b200_sxm")
    old = Deployment(engine_version="0.15.1").resolved(model, b200)
    new = Deployment().resolved(model, b200)
    budgets = (old.sizes.max_num_batched_tokens, new.sizes.max_num_batched_tokens)
    assert budgets == (8192, 16384)
    assert (old.policy.whole_prompts, new.policy.whole_prompts) == (False, True)
    assert not Deployment(engine_version="0.11").resolved(model, H100).policy.async_scheduling
    a100 = Deployment().resolved(model, load_hardware("a100_sxm")).sizes
    assert (a100.max_num_batched_tokens, a100.max_num_seqs) == (2048, 256)


def test_every_figure_of_an_engine_has_a_source():
    for engine, versions in shipped_engines().items():
        for version in versions:
            path = data.folder("engines") / f"{engine}-{version}.json"
            figures = data.read_json(path)
            named = [x for x in figures if x not in ("engine", "version", "released", "caveat")]
            assert all(len(figures[name]["source"]) > 10 for name in named)


@pytest.mark.parametrize(
    ("parallelism", "model", "complaint"),
    [
        ({"tp": 3}, "Qwen/Qwen3-14B", "3 does not divide the 40 attention heads"),
        ({"tp": 1}, "meta-llama/Llama-2-70b-hf", "needs 1.* GiB a GPU"),
        ({"tp": 7}, "01-ai/Yi-34B", "neither divides nor is a multiple of the 8 KV heads"),
    ],
)
def test_deployments_that_do_not_go(parallelism, model, complaint):
    with pytest.raises(InputError, match=complaint):
        Deployment(Parallelism(**parallelism)).resolved(load_model(model), H100)


@pytest.mark.parametrize(
    ("option", "asked", "says"),
    [
        (
            "max_num_seqs",
            2**31,
            "2147483648 would take 4.25e[+]06 GiB a GPU, where 55.6 GiB are left",
        ),
        ("block_size", 2**40, "1099511627776 would take 1.51e[+]08 GiB a GPU, where"),
    ],
)
def test_an_option_that_takes_all_memory_is_named_with_the_most_that_fits(option, asked, says):
    model = load_model("Qwen/Qwen3-8B")
    with pytest.raises(InputError, match=f"^{option}: {says}") as caught:
        Deployment(**{option: asked}).resolved(model, H100)
    most = int(caught.value.remedy.removeprefix("use at most "))
    if option == "max_num_seqs":
        # They fit, but not into a step.
        with pytest.raises(InputError, match=f"^max_num_batched_tokens: .* give at least {most}"):
            Deployment(**{option: most}, max_model_len=16).resolved(model, H100)
    else:
        assert Deployment(**{option: most}, max_model_len=16).resolved(model, H100).kv.blocks > 0
    with pytest.raises(InputError, match=f"^{option}: .* use at most {most}"):
        Deployment(**{option: most + 1}).resolved(model, H100)
    with pytest.raises(InputError, match=f"^{option}: is more than any engine takes"):
        Deployment(**{option: 10**400})


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 0},
        {"max_num_seqs": -1},
        {"kv_blocks": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.2},
        {"moe_kernel": "magic"},
        {"kv_cache_dtype": "int8"},
        {"expert_load": 2.0},
        {"expert_load": -0.1},
    ],
)
def test_bad_deployment_fields(fields):
    engine = {name: value for name, value in fields.items() if name != "tp"}
    with pytest.raises(InputError, match=next(iter(fields))):
        Deployment(Parallelism(fields.get("tp", 1)), **engine)


def test_a_degree_that_is_not_whole():
    # Here types are checked before the message could be given.
    code = "import physim; physim.Deployment(physim.Parallelism(tp=1.5))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: tp: 1.5 is not a positive integer" in run.stderr


@pytest.mark.parametrize(
    ("model", "degrees", "complaint"),
    [
        ("Qwen/Qwen3-30B-A3B", {"tp": 2, "ep": 4}, "ep: 4 does not divide the 2 GPUs"),
        ("Qwen/Qwen3-30B-A3B", {"tp": 4, "ep": 2}, "ep: 2 of 4 GPUs cannot be served by vllm"),
        ("Qwen/Qwen3-30B-A3B", {"tp": 3, "dp": 1, "ep": 3}, "tp: 3 does not divide the 32 attent"),
        ("Qwen/Qwen3-30B-A3B", {"dp": 3, "ep": 3}, "ep: 3 does not divide the 128 experts"),
        ("Qwen/Qwen3-8B", {"dp": 2}, "dp: 2 shares experts, and .* has none; divide the load"),
        ("Qwen/Qwen3-8B", {"tp": 2, "ep": 2}, "ep: 2 shares experts, and .* has none; use 1"),
        ("Qwen/Qwen3-8B", {"pp": 64}, "pp: 64 stages for the 36 layers of .*; use fewer"),
    ],
)
def test_layouts_that_cannot_be_are_refused(model, degrees, complaint):
    with pytest.raises(InputError, match=complaint):
        Deployment(Parallelism(**degrees)).resolved(load_model(model), H100)


def test_weights_of_a_layout_by_hand():
    # Qwen3-30B-A3B: 48 layers of 128 experts of three matrices of 2,048 x 768.
    model = load_model("Qwen/Qwen3-30B-A3B")
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    rest = model.weight_bytes(1) - experts
    # Attention is on each of four ranks, experts are shared, whole or by their width.
    assert model.weight_bytes(1, dp=4, ep=4) == pytest.approx(rest + experts / 4)
    assert model.weight_bytes(1, dp=4) == pytest.approx(rest + experts / 4)
    assert model.weight_bytes(4, ep=4) == pytest.approx(model.weight_bytes(4))
    # Half of the layers, and the embedding or lm_head.
    table = 151936 * 2048 * 2
    whole = (model.norm_parameters + model.max_position * 128) * 2
    layers = model.weight_bytes(1) - 2 * table - whole
    assert model.weight_bytes(1, pp=2) == pytest.approx(layers / 2 + table + whole)


def test_defaults_follow_the_gpu():
    model = load_model("Qwen/Qwen3-8B")
    large = Deployment().resolved(model, H100)
    small = Deployment().resolved(model, load_hardware("a100_sxm"))
    assert (large.sizes.max_num_seqs, large.sizes.max_num_batched_tokens) == (1024, 8192)
    assert (small.sizes.max_num_seqs, small.sizes.max_num_batched_tokens) == (256, 2048)


def test_vllm_runs_no_more_requests_than_a_step_has_tokens():
    model = load_model("Qwen/Qwen3-8B")
    few = Deployment(max_num_batched_tokens=512)
    assert few.resolved(model, H100).sizes.max_num_seqs == 512
    problem = "512 tokens a step are fewer than the 600 requests that may run at once, which vllm"
    with pytest.raises(InputError, match=f"^max_num_batched_tokens: {problem} refuses"):
        replace(few, max_num_seqs=600).resolved(model, H100)
    # SGLang's budget is of prompts alone.
    other = replace(few, max_num_seqs=600, engine="sglang").resolved(model, H100)
    assert other.sizes.max_num_seqs == 600


def test_an_fp8_cache_holds_twice_the_tokens():
    model = load_model("Qwen/Qwen3-8B")
    auto, fp8 = (Deployment(kv_cache_dtype=x).resolved(model, H100) for x in ("auto", "fp8"))
    assert (auto.kv_cache_dtype, fp8.kv_cache_dtype) == ("bfloat16", "fp8")
    assert fp8.kv.blocks == pytest.approx(2 * auto.kv.blocks, abs=1)


def test_a_sliding_window_does_not_bound_the_context(tmp_path):
    config = json.loads((data.folder("model_configs") / "Qwen--Qwen3-8B.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path)
    assert (model.window, model.chunk) == (4096, None)
    windowed = Deployment().resolved(model, H100)
    full = Deployment().resolved(load_model("Qwen/Qwen3-8B"), H100)
    assert (windowed.sizes, windowed.kv) == (full.sizes, full.kv)


def test_a_chunk_bounds_the_context():
    scout = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic")
    resolved = Deployment(Parallelism(2), max_num_seqs=128).resolved(scout, H100)
    assert resolved.sizes.max_model_len == 8192
    # Of a longer context three of four layers keep a chunk.
    longer = Deployment(Parallelism(2), max_model_len=20000).resolved(scout, H100).kv
    assert longer.window_share == 3
    assert longer.window == 8192
    assert longer.fixed_blocks(20000) == 3 * (8192 + 16) // 16


def test_an_engine_that_would_not_start_says_what_fits():
    options = {"gpu": "h100_sxm", "tp": 2, "rate": 1, "input_tokens": 500, "output_tokens": 100}
    with pytest.raises(InputError, match="vllm would not start; use at most 7616") as caught:
        physim.Case.from_options("meta-llama/Llama-3.1-70B-Instruct", **options)
    assert str(caught.value).startswith("max_model_len: 131072 tokens do not fit in the KV cache")
    case = physim.Case.from_options(
        "meta-llama/Llama-3.1-70B-Instruct", max_model_len=7616, **options
    )
    assert case.server.kv.tokens == 7616


@pytest.mark.parametrize(
    ("model", "options", "fits"),
    [
        (
            "Qwen/Qwen3-32B",
            {"gpu": "h100_sxm"},
            ["tp 2", "Qwen/Qwen3-32B-FP8", "kv_cache_dtype fp8"],
        ),
        ("Qwen/Qwen3-14B", {"gpu": "l4"}, ["tp 4"]),
        ("meta-llama/Llama-3.3-70B-Instruct", {"gpu": "l40s", "tp": 4}, ["tp 8"]),
        ("deepseek-ai/DeepSeek-V3", {"gpu": "h100_sxm", "tp": 4}, ["tp 16"]),
    ],
)
def test_what_does_not_fit_says_what_would(model, options, fits):
    with pytest.raises(InputError) as caught:
        physim.Case.from_options(model, **options)
    found = str(caught.value).partition("what fits: ")[2].split(", or ")
    assert set(fits) <= set(found)
    for one in found:
        change = {"model": one}
        if " " in one:
            pairs = [part.split() for part in one.split(" and ")]
            change = {name: int(told) if told.isdigit() else told for name, told in pairs}
        physim.Case.attempted(**{"model": model, **options, **change})
    if fits[0].startswith("tp"):
        less = int(fits[0].split()[1]) // 2
        with pytest.raises(InputError):
            physim.Case.attempted(model, **{**options, "tp": less})


def test_attempts_do_not_search_what_fits():
    with pytest.raises(InputError, match=r"take a larger GPU$"):
        physim.Case.attempted("Qwen/Qwen3-14B", gpu="l4")


def test_what_memory_is_for_adds_up():
    case = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2)
    memory = case.server.memory
    taken = memory.weights + memory.graphs + memory.activations + memory.kv_cache
    assert 0 <= memory.usable - taken < memory.kv_block
    assert memory.usable == memory.share * case.server.gpu.memory_bytes
    # 40 layers, four of eight KV heads of 128, keys and values, 2 bytes, sixteen tokens.
    assert memory.kv_block == 40 * 4 * 128 * 2 * 2 * 16
    assert memory.kv_cache == memory.kv_block * case.server.kv.blocks


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"rate": 6.5}, "--num-prompts 1000 --request-rate 6.5 --burstiness 1"),
        (
            {"rate": 6.5, "arrival": "constant"},
            "--num-prompts 1000 --request-rate 6.5 --burstiness 1000",
        ),
        (
            {"rate": 6, "arrival": "gamma", "burstiness": 0.3, "requests": 40},
            "--num-prompts 40 --request-rate 6 --burstiness 0.3",
        ),
        ({"concurrency": 8}, "--num-prompts 1000 --max-concurrency 8"),
    ],
)
def test_the_commands_of_server_and_load(load, words):
    engine = {"max_num_seqs": 64, "max_model_len": 8192, "kv_cache_dtype": "fp8"}
    lengths = {"input_tokens": 500, "output_tokens": 100, "cached_tokens": 160}
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", gpu="h100_sxm", tp=2, engine_version="0.15", **engine, **lengths, **load
    )
    assert serve_command(case) == (
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-num-seqs 64 "
        "--max-num-batched-tokens 8192 --max-model-len 8192 --gpu-memory-utilization 0.9 "
        "--block-size 16 --kv-cache-dtype fp8 --async-scheduling"
    )
    assert bench_command(case) == (
        "vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --ignore-eos "
        f"--random-prefix-len 160 --random-input-len 340 --random-output-len 100 {words}"
    )


def test_the_command_of_a_load_of_prefixes():
    shared = {"cached_tokens": 160, "prefixes": 9, "popularity": "uniform"}
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", gpu="h100_sxm", rate=6.0, input_tokens=500, output_tokens=100, **shared
    )
    assert bench_command(case) == (
        "vllm bench serve --model Qwen/Qwen3-8B --dataset-name prefix_repetition --ignore-eos "
        "--prefix-repetition-prefix-len 160 --prefix-repetition-suffix-len 340 "
        "--prefix-repetition-output-len 100 --prefix-repetition-num-prefixes 9 "
        "--num-prompts 1000 --request-rate 6 --burstiness 1"
    )


@pytest.mark.parametrize(
    ("load", "complaint"),
    [
        ({"stages": [(1, 60), (2, 60)]}, "vllm bench serve knows no stages; give one rate"),
        ({"rate": 1, "output_tokens": physim.Lengths.exponential(9)}, "draws no lengths of such"),
        (
            {
                "rate": 1,
                "arrival": "trace",
                "dispersion": physim.ArrivalDispersion.from_arrivals([*range(200)]),
            },
            "knows no recorded arrivals; give constant, poisson or gamma",
        ),
        (
            {"rate": 1, "cached_tokens": 160, "prefixes": 9, "popularity": "zipf:1"},
            "draws prefixes by chance, all as often, not zipf:1; give --popularity uniform",
        ),
    ],
)
def test_loads_without_a_command(load, complaint):
    options = {"gpu": "h100_sxm", "input_tokens": 500, "output_tokens": 100, **load}
    with pytest.raises(InputError, match=complaint):
        bench_command(physim.Case.from_options("Qwen/Qwen3-8B", **options))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_model_that_does_not_fit_is_refused_with_every_engine(engine):
    with pytest.raises(InputError, match=r"meta-llama/Llama-2-70b-hf.*needs .* GiB"):
        physim.Case.from_options(
            "meta-llama/Llama-2-70b-hf", gpu="h100_sxm", engine=engine, max_num_seqs=64
        )


def test_an_option_is_declared_once():
    """Keywords, options of commands and columns of rows are those of the records."""
    declared = options_of(Deployment)
    hints = get_type_hints(EngineOptions)
    # Commands and rows take text for what keywords take as numbers, too.
    hints["draft_acceptance"] = str | None
    assert {name: option.kind for name, option in declared.items()} == hints
    assert set(ENGINE) == {*declared, "read_as", "quantization"}
    recorded = {name for name, option in declared.items() if option.column != "none"}
    assert set(ENGINE_COLUMNS) == recorded == set(RECORDED) - set(options_of(Parallelism))
    assert all(option.help.endswith(".") for option in declared.values())


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (100, "100 tokens in (0 cached), 10 out"),
        ("normal:100:20", "100 tokens in (normal, sd 20; 0 cached), 10 out"),
        ("exponential:100", "100 tokens in (exponential; 0 cached), 10 out"),
    ],
)
def test_a_load_says_how_its_lengths_vary(prompts, said):
    options = {"gpu": "h100_sxm", "rate": 1, "input_tokens": prompts, "output_tokens": 10}
    case = physim.Case.from_options("Qwen/Qwen3-8B", **options)
    assert said in case.demanded.describe_lengths()


def test_an_option_of_a_load_is_declared_once():
    """Keywords and options of commands are those of the record."""
    declared = options_of(physim.Load)
    hints = {name: hint.__forward_arg__ for name, hint in LoadOptions.__annotations__.items()}
    # A stage may be given as its two numbers.
    assert hints.pop("stages") == "Sequence[Stage | tuple[float, float]]"
    # So may lengths as text.
    for name in ("input_tokens", "output_tokens", "turns"):
        assert hints.pop(name) == "Tokens | str"
    assert {**LoadRequest.__annotations__, **hints} == LoadRequest.__annotations__
    assert [*LoadOptions.__annotations__] == [one.name for one in fields(physim.Load)]
    assert {*LoadOptions.__annotations__} - {*declared} == {"dispersion"}
    shown = {
        param.opts[0]: (param.help, param.default or None)
        for param in typer.main.get_command(app).commands["predict"].params
        if getattr(param, "rich_help_panel", None) == "Load"
        and param.name not in ("trace", "workload")
    }
    assert shown == {own.flag: (own.help, own.default or None) for own in declared.values()}


@pytest.mark.parametrize(
    ("degrees", "name", "where"),
    [
        ({}, "tp 1", "1 x h100_sxm"),
        ({"tp": 4}, "tp 4", "4 x h100_sxm"),
        ({"tp": 2, "pp": 2}, "tp 2, pp 2", "4 x h100_sxm (tp 2, pp 2)"),
        ({"dp": 2, "ep": 2}, "tp 1, dp 2, ep 2", "2 x h100_sxm (tp 1, dp 2, ep 2)"),
        ({"tp": 4, "ep": 4}, "tp 4, ep 4", "4 x h100_sxm (tp 4, ep 4)"),
    ],
)
def test_a_layout_in_words(degrees, name, where):
    layout = Parallelism(**degrees)
    assert (str(layout), layout.on("h100_sxm")) == (name, where)


def test_a_layout_that_cannot_be_has_words_too():
    degrees = {"tp": 2, "pp": 1, "dp": 1, "ep": 3, "gpu": "h100_sxm"}
    assert layout_name(degrees) == "tp 2, ep 3"
    assert on_gpus("h100_sxm", degrees) == "2 x h100_sxm (tp 2, ep 3)"


def test_a_degree_to_try_is_a_positive_integer():
    assert [*layout_axes([1, 2], [1], [1], [1])] == ["tp", "pp", "dp", "ep"]
    with pytest.raises(InputError, match=r"^dps: 0 is not a positive integer"):
        layout_axes([1], [1], [2, 0], [1])


@pytest.mark.parametrize(
    ("told", "prompt", "tokens"),
    [
        ("600", 1000.0, 600.0),
        (0.0, None, 0.0),
        ("60%", 1000.0, 600.0),
        (" 12.5 %", 800, 100.0),
        ("50%", Lengths.normal(600, 100), 300.0),
    ],
)
def test_cached_parts_are_tokens_or_hit_rates(told, prompt, tokens):
    assert cached_part(told, "--cached", prompt) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("told", "prompt", "complaint"),
    [
        ("most", 9, "'most' is neither a number of tokens nor a hit rate; write 600, or 60%"),
        ("%", 9, "neither a number"),
        ("100%", 9, "'100%' is not from 0 to below 100%"),
        ("-1%", 9, "is not from 0"),
        ("nan%", 9, "is not from 0"),
        ("60%", None, "is a share of prompts that differ; give tokens"),
    ],
)
def test_cached_parts_that_are_none(told, prompt, complaint):
    with pytest.raises(InputError, match=complaint):
        cached_part(told, "--cached", prompt)


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"kind": "normal", "mean": 248, "std": 50}, Lengths.normal(248, 50)),
        ({"kind": "exponential", "mean": 128}, Lengths.exponential(128)),
        ({"kind": "empirical", "values": [100, 300]}, Lengths.empirical((100, 300))),
    ],
)
def test_lengths_by_their_fields(fields, same):
    asked = {"gpu": "h100_sxm", "rate": 1.0, "input_tokens": 300}
    case = physim.Case.from_options("Qwen/Qwen3-8B", **asked, output_tokens=fields)
    assert case == physim.Case.from_options("Qwen/Qwen3-8B", **asked, output_tokens=same)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"mean": 3}, "output_tokens.kind: is missing; use one of fixed,"),
        ({"kind": "normal"}, "output_tokens.mean: is missing"),
        ({"kind": "normal", "mean": "x"}, "output_tokens: has a figure that is no number"),
        ({"kind": "normal", "mean": 3, "sd": 2}, "output_tokens.sd: is no field of lengths; use"),
        ({"kind": "fixed", "values": [3]}, "output_tokens.values: are those of empirical"),
        ({"kind": "empirical", "values": [3], "mean": 4}, "output_tokens.mean: is not that of"),
        ({"kind": "odd", "mean": 4}, "lengths: 'odd' is unknown"),
    ],
)
def test_fields_of_lengths_that_cannot_be(fields, complaint):
    asked = {"gpu": "h100_sxm", "rate": 1.0, "input_tokens": 300, "output_tokens": fields}
    with pytest.raises(InputError) as caught:
        physim.Case.from_options("Qwen/Qwen3-8B", **asked)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("more", "notes"),
    [
        ({"prefixes": 20}, ("prefixes change nothing: no prompt tokens are cached",)),
        ({"prefixes": 20, "cached_tokens": 100}, ()),
        (
            {"router": "random"},
            ("router random changes nothing: there is one server to choose",),
        ),
        ({"router": "random", "replicas": 2}, ()),
        ({"router": "random", "prefill": "tp=1,replicas=2", "decode": "tp=1"}, ()),
    ],
)
def test_options_that_change_nothing_are_said(more, notes):
    load = {"input_tokens": 300, "output_tokens": 100, "rate": 2.0}
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", **load, **more)
    assert case.notes == notes
    assert case.under(case.load).notes == notes
