"""SGLang and TensorRT-LLM: how they schedule, by hand, which kernels they run, how they start."""

import ast
import dataclasses
import io
import re
import sys
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from limits_by_hand import config_of

import physim
from physim import data
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.engines.engine import LaunchCommand, engine_named
from physim.engines.profile import load_engine, shipped_engines
from physim.errors import InputError
from physim.grids.store import load_grid, tables
from physim.inputs.case import Case
from physim.models.lookup import checkpoint_of
from physim.prediction.arrays import step_model_of
from physim.prediction.commands import bench_command, manifest_of, missing_for, serve_command
from physim.replay.cluster import replay
from physim.replay.request import Request
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload
from physim.step.lowering import assumptions, rows_of

MODEL = "Qwen/Qwen3-32B"
LOAD = {"input_tokens": 1000, "output_tokens": 100, "concurrency": 16, "max_model_len": 8192}
# A millisecond, ten microseconds for each prompt token, and one millisecond for each that decodes.
LINEAR = LinearStepTimes(1e-3, 10e-6, 1e-3)


VARIED = physim.Lengths.normal(100, 30)


def case_of(engine, model=MODEL, **options):
    return physim.Case.from_options(
        model, engine=engine, **{"gpu": "h200_sxm", "tp": 2, **LOAD, **options}
    )


def served(requests, **limits):
    own = Limits.from_server(case_of("vllm", tp=1).server)
    engine = config_of(dataclasses.replace(own, async_scheduling=False, **limits))
    found = replay(Workload(requests, longest=4000), LINEAR, engine)
    return found.to_frame().set_index("number"), found


def test_prompts_of_sglang_have_steps_of_their_own():
    def requests():
        return [Request(0, 0.0, 100, 4), Request(1, 2.5e-3, 100, 1)]

    frame, found = served(requests(), prompts_apart=True)
    # Its prompt takes 2 ms, its first token 2; while that is made the other prompt comes, which has
    # the next 2 ms alone. Two more tokens follow, 2 ms each.
    assert frame["ttft_s"].tolist() == pytest.approx([2e-3, 3.5e-3])
    assert frame["e2e_s"].tolist() == pytest.approx([10e-3, 3.5e-3])
    # The gap that the other prompt is in is 4 ms.
    assert sorted(found.gaps.gap_s.tolist()) == pytest.approx([2e-3, 2e-3, 4e-3])
    # In vLLM it decodes in the same step: 1 + 1 + 1 ms.
    mixed, _ = served(requests(), prompts_apart=False)
    assert mixed["e2e_s"].tolist() == pytest.approx([9e-3, 4.5e-3])


def test_tensorrt_llm_keeps_room_for_whole_requests():
    # Blocks of 16 tokens: a request comes to hold 12, and there are 20.
    def requests():
        return [Request(number, 0.0, 96, 97) for number in range(2)]

    frame, _ = served(requests(), kv_blocks=20, whole_requests=True)
    assert frame["preemptions"].tolist() == [0, 0]
    assert frame["scheduled_s"][1] >= frame["finished_s"][0]
    frame, _ = served(requests(), kv_blocks=20)
    assert frame["preemptions"].sum() > 0


def test_arrivals_are_seen_every_so_many_steps():
    def requests():
        return [Request(0, 0.0, 100, 50), Request(1, 2.1e-3, 100, 1)]

    frame, _ = served(requests(), prompts_apart=True, receive_every=10)
    # After the first prompt, 2 ms, ten steps of 2 ms pass before the next look.
    assert frame["scheduled_s"][1] == pytest.approx(22e-3)
    frame, _ = served(requests(), prompts_apart=True)
    assert frame["scheduled_s"][1] == pytest.approx(4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
@pytest.mark.parametrize("load", [{"requests": 160}, {"concurrency": None, "rate": 4.0}])
def test_fluid_and_replay_agree(engine, load):
    fluid, exact = (
        physim.predict(case_of(engine, **load), fit="none", method=method)
        for method in ("fluid", "replay")
    )
    assert fluid.itl_s == pytest.approx(exact.itl_s, rel=0.03)
    assert fluid.ttft_s == pytest.approx(exact.ttft_s, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_prompts_that_come_first_starve_who_decodes(arrival):
    # Of short outputs many prompts come: at a fifth of what could be served a token waits for two
    # steps for prompts already, and soon for more than a step with both would have taken.
    load = {"input_tokens": 166, "output_tokens": 29, "concurrency": None, "arrival": arrival}
    served = {"model": "mistralai/Mixtral-8x7B-v0.1", "gpu": "h100_sxm", "tp": 4, **load}
    rate = 0.2 if arrival == "constant" else 0.4
    most = physim.predict(case_of("sglang", **served, rate=1.0), fit="none").saturation_rps
    fluid, exact = (
        physim.predict(case_of("sglang", **served, rate=rate * most), fit="none", method=method)
        for method in ("fluid", "replay")
    )
    assert fluid.itl_s == pytest.approx(exact.itl_s, rel=0.12)
    assert fluid.ttft_s == pytest.approx(exact.ttft_s, rel=0.1)


@pytest.mark.slow
def test_looks_at_arrivals_make_first_tokens_late():
    rare, often = (
        physim.predict(
            case_of("sglang", receive_every=every, requests=160, output_tokens=VARIED), fit="none"
        )
        for every in (30, 1)
    )
    assert rare.ttft_s > 1.1 * often.ttft_s
    open_loop = {"concurrency": None, "rate": 4.0, "arrival": "constant"}
    rare, often = (
        physim.predict(case_of("sglang", receive_every=every, **open_loop), fit="none")
        for every in (30, 1)
    )
    # Half of 29 steps.
    assert rare.ttft_s - often.ttft_s == pytest.approx(14.5 * often.itl_s, rel=0.25)
    with pytest.raises(InputError, match="receive_every: 30 is for sglang and trtllm, not vllm"):
        case_of("vllm", receive_every=30)


def test_each_engine_has_kernels_of_its_own():
    vllm, sglang = (set(tables(grids)) for grids in ("h200_sxm", "h200_sxm/sglang"))
    assert "moe_fp8_block_triton_balanced" in sglang - vllm
    # Experts' kernels are an engine's own; what was not measured apart is as with vLLM.
    assert "moe_fp8_triton_balanced" not in sglang
    assert "sparse_latent_decode" in sglang & vllm
    own, other = (load_grid(grids, "all_reduce") for grids in ("h200_sxm/sglang", "h200_sxm"))
    assert not np.array_equal(own.log_efficiency, other.log_efficiency)
    shared = load_grid("h200_sxm/sglang", "gemm_bfloat16")
    assert shared is not None
    case = case_of("trtllm", gpu="l40s", model="Qwen/Qwen3-8B")
    notes = assumptions(case.server)
    assert "no kernels of trtllm measured on l40s: vllm's are taken" in notes
    assert any("less validated" in note for note in notes)


def test_tensorrt_llm_casts_what_is_beside_mxfp4_on_blackwell():
    peaks = []
    for engine in ("vllm", "trtllm"):
        case = case_of(engine, model="openai/gpt-oss-120b", gpu="b200_sxm", tp=1)
        (row,) = [r for r in rows_of(case.server) if r.name == "experts"]
        peaks.append(row.peak_flops)
    assert peaks == [case.server.gpu.peak("bfloat16"), case.server.gpu.peak("fp8")]


def test_a_share_of_what_is_left_is_for_the_kv_cache():
    memory = case_of("trtllm").server.memory
    left = memory.usable - memory.weights - memory.activations - memory.graphs
    assert memory.usable == case_of("trtllm").server.gpu.memory_bytes
    assert memory.kv_cache == pytest.approx(0.9 * left, rel=1e-3)


def test_commands():
    layout = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "b200_sxm", "tp": 1, "dp": 8, "ep": 8}
    words = serve_command(case_of("sglang", **layout, receive_every=30))
    for option in (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8",
        "--dp-size 8 --enable-dp-attention --ep-size 8",
        "--scheduler-recv-interval 30",
    ):
        assert option in words
    words = serve_command(case_of("trtllm", **layout))
    assert words.startswith("trtllm-serve deepseek-ai/DeepSeek-V3 --tp_size 8 --ep_size 8 ")
    graphs = "cuda_graph_config: {enable_padding: true, max_batch_size: 2048}"
    file = f"<(printf '{graphs}\\nenable_attention_dp: true\\n')"
    assert words.endswith(f"--extra_llm_api_options {file}")


def test_what_tensorrt_llm_cannot_do_is_refused():
    with pytest.raises(InputError, match="dp: 2 with tp 2 cannot be served by trtllm"):
        case_of("trtllm", model="Qwen/Qwen3-30B-A3B", dp=2, ep=4)
    # Experts may be shared and spread at once, as in vLLM they may not.
    case = case_of("trtllm", model="Qwen/Qwen3-30B-A3B", tp=4, ep=2)
    assert case.server.parallelism.expert_tp == 2


@pytest.mark.slow
def test_an_engine_that_is_less_known_has_wider_intervals():
    widths = []
    for engine in ("vllm", "sglang"):
        low, high = physim.predict(case_of(engine)).intervals["itl_s"]
        widths.append(np.log(high / low))
    assert widths[1] > 1.2 * widths[0]


@pytest.mark.slow
def test_an_engine_that_is_older_than_any_profile_has_wider_intervals():
    def log_width(version):
        found = physim.predict(case_of("vllm", engine_version=version))
        low, high = found.intervals["itl_s"]
        return np.log(high / low), found

    (known, same), (older, found) = log_width("0.11"), log_width("0.10.2")
    assert found.itl_s == same.itl_s
    # A fifth beside the rest, in quadrature, on both sides of 90%.
    assert older == pytest.approx(np.hypot(known, 2 * 1.645 * 0.2), rel=2e-3)
    assert sum("is older than any that physim knows" in note for note in found.assumptions) == 1
    assert not load_engine("vllm", "0.12").is_older


def test_steps_apart_take_both():
    case = case_of("sglang")
    model = step_model_of(case, Corrections())
    both = model(
        model.batch(decode_requests=8.0, context=1000.0, prefill_requests=1.0, chunk=500.0)
    )
    decode = model(model.batch(decode_requests=8.0, context=1000.0))
    prompt = model(model.batch(prefill_requests=1.0, chunk=500.0))
    assert float(both.latency) == pytest.approx(float(prompt.latency))
    assert float(both.interval) == pytest.approx(float(prompt.latency + decode.latency))


# Names that hold an engine's and are others': a load generator's, and a field of BLIS's files.
OTHERS = re.compile(
    r"vllm[ _-]bench|vllm_version|sglang[-_]simulator|write_sglang|SGLang's (?:simulator|scheduler)"
)
ENGINES = re.compile("|".join(shipped_engines()), re.IGNORECASE)


def code_of(path: Path) -> Iterator[tuple[int, str]]:
    """Names and texts of a module with their lines, without comments and docstrings."""
    text = path.read_text()
    docstrings = {
        (first.lineno, first.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(first := node.body[0], ast.Expr)
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        place = (token.start[0], token.end[0])
        if token.type in (tokenize.NAME, tokenize.STRING) and place not in docstrings:
            yield token.start[0], token.string


def test_no_other_room_knows_an_engines_name():
    package = Path(physim.__file__).parent
    found = [
        f"{path.relative_to(package)}:{line}: {text}"
        for path in sorted(package.rglob("*.py"))
        if path.parent.name != "engines"
        for line, text in code_of(path)
        if ENGINES.search(OTHERS.sub("", text))
    ]
    assert found == []


@pytest.fixture
def added(monkeypatch, tmp_path):
    """A new engine's profile, as a file of the kind that ships."""
    folder = data.folder("engines")
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "newest-1.0.json").write_text((folder / "vllm-0.33.json").read_text())
    real = data.folder
    monkeypatch.setattr(data, "folder", lambda name: tmp_path if name == "engines" else real(name))
    kept = (shipped_engines, load_engine, engine_named)
    for function in kept:
        function.cache_clear()
    yield "newest"
    monkeypatch.undo()
    for function in kept:
        function.cache_clear()


def test_an_engine_without_a_file_is_refused_before_anything_is_predicted(added):
    with pytest.raises(InputError, match=r"engine newest: .* add physim/engines/newest.py"):
        case_of(added)


@pytest.fixture
def newest(added, monkeypatch):
    """The new engine with a file of its own, and a load to ask it about."""
    module = types.ModuleType(f"physim.engines.{added}")
    module.ENGINE = dataclasses.replace(
        engine_named("vllm"),
        name=added,
        launch=lambda server: LaunchCommand([added, server.model]),
        image="newest/newest:{}",
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    load = {"engine": added, "input_tokens": 500, "output_tokens": 100, "rate": 1.0}
    return load | {"max_num_seqs": 64, "max_num_batched_tokens": 8192}


def test_an_engine_that_is_added_predicts_and_launches(newest):
    """One profile and one file are all that a new engine takes."""
    case = Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", **newest)
    assert 0 < physim.predict(case).ttft_s < 1
    assert serve_command(case) == "newest Qwen/Qwen3-8B"
    assert "newest/newest:1.0.0" in manifest_of(case, 1)


@pytest.mark.slow
def test_an_engine_that_is_added_is_recommended(newest):
    where = {"gpus": ["h100_sxm"], "max_gpus": 1, "count": 1}
    found = physim.recommend("Qwen/Qwen3-8B", slo=["ttft_mean=1s"], **where, **newest)
    assert found.to_dict()["choices"][0]["command"] == "newest Qwen/Qwen3-8B"
    assert "newest/newest:1.0.0" in manifest_of(found.choices[0].case, 1)


@pytest.mark.parametrize(
    ("gpu", "engine", "image"),
    [
        ("h100_sxm", "vllm", "vllm/vllm-openai:v"),
        ("mi300x", "vllm", "vllm/vllm-openai-rocm:v"),
        ("mi325x", "sglang", "lmsysorg/sglang:v0.5.14-rocm700-mi30x"),
        ("mi355x", "sglang", "lmsysorg/sglang:v0.5.14-rocm700-mi35x"),
    ],
)
def test_manifests_ask_for_the_makers_gpus_and_image(gpu, engine, image):
    case = Case.from_options("Qwen/Qwen3-8B", gpu=gpu, engine=engine, tp=2)
    server, _ = yaml.safe_load_all(manifest_of(case, 1))
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(image)
    maker = "amd" if gpu.startswith("mi") else "nvidia"
    assert container["resources"]["limits"] == {f"{maker}.com/gpu": 2}


def test_an_engine_that_does_not_run_on_a_gpu_is_refused():
    with pytest.raises(InputError) as caught:
        Case.from_options("Qwen/Qwen3-8B", gpu="mi300x", engine="trtllm")
    told = "engine: trtllm does not run on AMD's GPUs, of which mi300x is one; use sglang or vllm"
    assert str(caught.value) == told


def test_the_command_of_a_config_file_is_its_folders(tmp_path):
    config = data.folder("model_configs") / "Qwen--Qwen3-8B.json"
    path = tmp_path / "config.json"
    path.write_text(config.read_text())
    case = Case.from_options(str(path), gpu="h100_sxm", rate=1.0, input_tokens=9, output_tokens=9)
    assert serve_command(case).startswith(f"vllm serve {tmp_path} ")
    assert f"--model {tmp_path} " in bench_command(case)
    told = f"{tmp_path} lacks weights (*.safetensors) and a tokenizer: add that, or name the"
    assert missing_for(case).startswith(told)
    other = path.rename(tmp_path / "mine.json")
    assert "lacks mine.json under the name config.json and" in checkpoint_of(str(other))[1]
    path.write_text(config.read_text())
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    for name in (path, tmp_path):
        assert checkpoint_of(str(name)) == (str(tmp_path), "")
    for name in ("Qwen/Qwen3-8B", "x" * 999, "\0"):
        assert checkpoint_of(name) == (name, "")


def test_the_largest_cuda_graph_is_a_choice():
    for engine, told in (
        ("vllm", "--max-cudagraph-capture-size 1024"),
        ("sglang", "--cuda-graph-max-bs 1024"),
        ("trtllm", "max_batch_size: 1024"),
    ):
        assert told in serve_command(case_of(engine, captured_tokens=1024))
    # vLLM's graphs are for prompts too; TensorRT-LLM has none for them.
    assert case_of("vllm", captured_tokens=1024).server.captured == (1024, 1024)
    assert case_of("trtllm", captured_tokens=1024).server.captured == (1024, 0)
    assert case_of("vllm").server.captured == (512, 512)
    assert "cudagraph" not in serve_command(case_of("vllm"))


def test_a_version_takes_the_profile_of_the_next_patch_release():
    # SGLang launches prompts' kernels one by one up to 0.5.9, and has graphs of them from then on.
    for version, captured in (("0.5.4", 0), ("0.5.9", 0), ("0.5.10", 8192), ("0.5.20", 8192)):
        assert load_engine("sglang", version).captured_prompt_tokens == captured


def test_messages_of_several_tokens_leave_less_to_hand_out():
    # 51 us a request and step of the one process, for 512 requests: 26 ms, or 2.6 with ten tokens
    # to a message.
    every, tenth = (
        step_model_of(
            case_of("sglang", engine_version="0.5.9", stream_interval=n), Corrections()
        ).ops.host
        for n in (1, 10)
    )
    corrections = Corrections()
    assert every.handing_out(corrections, 512.0) == pytest.approx(26.1e-3, rel=0.01)
    assert tenth.handing_out(corrections, 512.0) == pytest.approx(2.61e-3, rel=0.01)
    assert "--stream-interval 10" in serve_command(case_of("sglang", stream_interval=10))
    assert "--stream-interval 20" in serve_command(case_of("vllm", stream_interval=20))
    assert "--stream-interval" not in serve_command(case_of("vllm"))
    with pytest.raises(InputError, match="stream_interval: 0 is not a positive integer"):
        case_of("vllm", stream_interval=0)


def test_sglang_is_told_how_ranks_reach_experts():
    spread = {"model": "deepseek-ai/DeepSeek-V3", "tp": 1, "dp": 8, "ep": 8}
    words = serve_command(case_of("sglang", **spread, all2all="deepep_low_latency"))
    assert "--moe-a2a-backend deepep --deepep-mode low_latency" in words
    assert "--moe-a2a-backend" not in serve_command(case_of("sglang", **spread))
    words = serve_command(case_of("vllm", **spread, all2all="nvlink_one_sided"))
    assert "--all2all-backend flashinfer_nvlink_one_sided" in words
