"""What public measurements leave open: the first line that fits a row counts."""

import csv
import json
from datetime import date
from pathlib import Path

import pytest

from physim import data
from physim.errors import InputError
from physim.measured import row_rules, silicon
from physim.measured.row_rules import held_out, settled, told
from physim.measured.schema import COLUMNS

OF_BLACKWELL = {"origin": "InferenceX", "engine": "sglang", "hardware": "b200_sxm"}
OF_BLACKWELL |= {"gpu_multiplies": ("fp4", "fp8"), "clients": 8, "prompt": 1024, "output": 1024}


@pytest.fixture
def written(monkeypatch, tmp_path):
    """Writes lines in the place of those that ship."""

    def write(*lines):
        table = {"form": "as it ships", "lines": lines}
        (tmp_path / "public_runs.json").write_text(json.dumps(table))

    monkeypatch.setattr(data, "folder", lambda _: tmp_path)
    row_rules._lines.cache_clear()
    yield write
    row_rules._lines.cache_clear()


def test_lines_set_columns_of_rows():
    table = data.read_json(data.folder("bench_data") / "public_runs.json")
    told = {column for line in table["lines"] for column in line["sets"]}
    assert told - {"origin", "layout", "all2all"} < set(COLUMNS)


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({}, 10),
        ({"clients": 15}, 10),
        ({"clients": 16}, 30),
        ({"gpu_multiplies": ("fp8",)}, 1),
        ({"origin": "NVIDIA"}, 1),
        ({"engine": "vllm"}, 1),
    ],
)
def test_the_first_line_that_fits_counts(change, steps):
    assert settled("receive_every", OF_BLACKWELL | change) == steps


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({}, 16384),
        # 8 + 1024 + 64 tokens are 18 steps of 64.
        ({"engine": "trtllm"}, 1152),
        ({"engine": "trtllm", "clients": 64}, 1152),
        ({"engine": "trtllm", "clients": 65}, 1216),
        ({"origin": "NVIDIA"}, 2532),
        # 1,500 more hold one further prompt whole, eleven short ones, or none.
        ({"origin": "NVIDIA", "engine": "trtllm"}, 8 + 2 * 1024),
        ({"origin": "NVIDIA", "engine": "trtllm", "prompt": 128}, 8 + 12 * 128),
        ({"origin": "NVIDIA", "engine": "trtllm", "prompt": 2048}, 8 + 2048),
    ],
)
def test_a_budget_goes_by_clients_and_prompt(change, tokens):
    assert settled("max_num_batched_tokens", OF_BLACKWELL | change) == tokens


@pytest.mark.parametrize(
    ("model", "slots"),
    [("meta-llama/Llama-3.1-8B-Instruct", 7), ("Qwen/Qwen3-32B", None)],
)
def test_one_client_waits_for_a_slot_of_llama_8b(model, slots):
    known = {"origin": "NVIDIA", "engine": "trtllm", "engine_version": "1.0.0rc3"}
    known |= {"hardware": "h100_sxm", "model_path": model, "clients": 8}
    assert told("max_num_seqs", known) == slots


@pytest.mark.parametrize(
    ("change", "warm_up_s"),
    [
        ({}, 70),
        ({"first_wave_tokens": 16384}, 3.2),
        # The same image compiled less for other formats, and other images less for this one.
        ({"precision": "fp8"}, 8),
        ({"measured": date(2025, 12, 31)}, 8),
        ({"measured": date(2025, 11, 2), "prompt": 8192}, 14),
        ({"measured": date(2026, 1, 21)}, 1.2),
    ],
)
def test_kernels_are_compiled_in_the_first_wave_of_one_image_above_all(change, warm_up_s):
    first = {"precision": "fp4", "measured": date(2025, 11, 10), "first_wave_tokens": 16385}
    assert settled("warm_up_s", OF_BLACKWELL | first | change) == warm_up_s


@pytest.mark.parametrize(
    ("change", "warm_up_s"),
    [
        ({}, 0.2),
        # Several GPUs that spread the experts, and kernels that nothing compiles.
        ({"tp": 2}, 0.5),
        ({"tp": 8}, 0.5),
        ({"hardware": "b200_sxm"}, 0.1),
        ({"hardware": "b200_sxm", "tp": 8}, 0.1),
        ({"model_path": "deepseek-ai/DeepSeek-R1", "precision": "fp4"}, 0.8),
        ({"model_path": "deepseek-ai/DeepSeek-R1", "precision": "fp8"}, 1.5),
    ],
)
def test_what_tensorrt_llm_compiles_goes_by_its_kernels(change, warm_up_s):
    known = {"origin": "InferenceX", "engine": "trtllm", "hardware": "h200_sxm", "tp": 1, "dp": 1}
    known |= {"model_path": "openai/gpt-oss-120b", "measured": date(2025, 12, 15)}
    assert settled("warm_up_s", known | change) == warm_up_s


@pytest.mark.parametrize("clients", [4, 8, 16, 32, 64, 128])
def test_prompts_of_llama_wait_for_twenty_steps_from_the_first_on(clients):
    known = {"origin": "InferenceX", "engine": "trtllm", "model_path": "meta-llama/Llama-3.1-70B"}
    known |= {"prompt": 1024, "output": 1024, "tp": 2, "clients": clients}
    # The first waits for all 20 steps, those that join it for half of them.
    joined = 20 * clients / 921.6
    waited = (20 + joined * 10) / (1 + joined)
    assert settled("receive_every", known) == round(2 * waited + 1)
    assert settled("receive_every", known | {"tp": 8}) == 1


@pytest.mark.parametrize(("change", "steps"), [({}, 1), ({"dp": 4}, 50), ({"dp": 8}, 50)])
def test_ranks_of_gpt_oss_wait_for_one_another(change, steps):
    known = {"origin": "InferenceX", "engine": "trtllm", "model_path": "openai/gpt-oss-120b"}
    known |= {"hardware": "b200_sxm", "dp": 1}
    assert settled("receive_every", known | change) == steps
    assert told("moe_kernel", known | change) == "flashinfer"


def test_which_experts_of_gpt_oss_ran_on_hopper():
    known = {"origin": "InferenceX", "engine": "vllm", "model_path": "openai/gpt-oss-120b"}
    for gpu in ("h100_sxm", "h200_sxm"):
        later = known | {"hardware": gpu, "measured": date(2026, 3, 27)}
        # Rows of vLLM 0.11.0, as those that do not state a version are taken to be.
        first = known | {"hardware": gpu, "version": "unstated", "measured": date(2025, 11, 2)}
        assert told("moe_kernel", later) == told("moe_kernel", first) == "marlin"
        assert told("moe_kernel", first | {"measured": date(2025, 12, 8)}) is None
    for on_blackwell in (first, later):
        assert told("moe_kernel", on_blackwell | {"hardware": "b200_sxm"}) is None


def test_a_row_without_a_version_gets_the_kernel_of_its_day(tmp_path):
    with (Path(__file__).parent / "reports" / "silicon.csv").open(encoding="utf-8") as file:
        cells = next(csv.DictReader(file))
    cells |= {"backend_version": "", "model_path": "openai/gpt-oss-120b", "precision": "fp4"}
    cells |= {"silicon_data_source": "source_file=2026-04-06.csv; measured=2025-11-02T00:00:00Z"}
    path = tmp_path / "points.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, cells)
        writer.writeheader()
        writer.writerow(cells)
    (row,) = silicon.read(path).to_dict("records")
    assert (row["engine_version"], row["moe_kernel"]) == ("0.11.0", "marlin")


@pytest.mark.parametrize(
    ("change", "captured", "budget"),
    [
        ({"precision": "fp8", "measured": date(2026, 4, 2)}, None, 8192),
        ({"precision": "fp8", "measured": date(2026, 4, 3)}, 2048, 2048),
        # As the script of this format was added, and as it was five days later.
        ({"precision": "fp4", "measured": date(2026, 4, 3)}, None, 8192),
        ({"precision": "fp4", "measured": date(2026, 4, 8)}, 2048, 2048),
        ({"precision": "fp8", "hardware": "h200_sxm", "measured": date(2026, 4, 8)}, None, 8192),
    ],
)
def test_which_graphs_held_prompts_of_minimax(change, captured, budget):
    known = {"origin": "InferenceX", "engine": "vllm", "model_path": "MiniMaxAI/MiniMax-M2.5"}
    known |= {"hardware": "b200_sxm", "prompt": 1024, "output": 1024, "clients": 16} | change
    assert told("captured_tokens", known) == captured
    assert settled("max_num_batched_tokens", known) == budget
    assert settled("warm_up_s", known) == 0


def test_which_graphs_held_prompts_of_kimi():
    known = {"origin": "InferenceX", "engine": "vllm", "model_path": "moonshotai/Kimi-K2.5"}
    known |= {"precision": "fp4", "hardware": "b200_sxm", "measured": date(2026, 4, 20)}
    assert told("captured_tokens", known) == 2048
    assert told("kv_cache_dtype", known) == "fp8"
    before = known | {"measured": date(2026, 3, 27)}
    assert told("captured_tokens", before) is None
    assert told("kv_cache_dtype", before) != "fp8"


@pytest.mark.parametrize(("day", "wait_s"), [(date(2026, 1, 20), 0.35), (date(2026, 1, 21), 0)])
def test_what_vllm_compiles_on_blackwell_is_compiled_before_the_client_measures(day, wait_s):
    known = {"origin": "InferenceX", "engine": "vllm", "hardware": "b200_sxm", "measured": day}
    assert settled("warm_up_s", known) == wait_s


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "its source does not say how many clients there were"),
        ({"load": ""}, None),
        ({"origin": "InferenceX"}, None),
    ],
)
def test_rows_of_unstated_clients_are_left_out(change, reason):
    known = {"origin": "NVIDIA", "engine": "vllm", "gateway": "Dynamo", "load": "unstated"}
    assert told("left_out", known | change) == reason


def test_a_condition_on_what_is_not_known_does_not_hold():
    assert told("kv_cache_dtype", {"engine": "trtllm"}) is None
    assert not held_out({"engine": "vllm"})
    assert held_out({"engine": "vllm", "engine_version": "0.16.0"})


@pytest.mark.parametrize(
    ("condition", "known", "holds"),
    [
        ({"measured_from": "2026-03-13"}, {"measured": date(2026, 3, 13)}, True),
        ({"measured_from": "2026-03-13"}, {"measured": date(2026, 3, 12)}, False),
        ({"measured_until": "2025-11-03"}, {"measured": date(2025, 11, 3)}, True),
        ({"measured_until": "2025-11-03"}, {"measured": date(2025, 11, 4)}, False),
        ({"measured_until": "2025-11-03"}, {}, False),
        ({"clients_from": 64}, {"clients": 64}, True),
        ({"clients_from": 64}, {"clients": 63}, False),
        ({"clients_below": 64}, {"clients": 64}, False),
        ({"first_wave_tokens_from": 16385}, {"first_wave_tokens": 32 * 1024}, True),
        ({"first_wave_tokens_from": 16385}, {"first_wave_tokens": 16 * 1024}, False),
        ({"dp": [4, 8]}, {"dp": 8}, True),
        ({"dp": [4, 8]}, {"dp": 1}, False),
        ({"tp": 8, "ep": 1}, {"tp": 8, "ep": 1}, True),
    ],
)
def test_dates_and_numbers_are_bounded(written, condition, known, holds):
    written({"for": condition, "sets": {"draft_tokens": 3}, "source": "a script"})
    assert told("draft_tokens", known) == (3 if holds else None)


def test_a_date_that_is_none_is_refused(written):
    written({"for": {"measured_from": "soon"}, "sets": {"draft_tokens": 3}, "source": "a script"})
    with pytest.raises(InputError, match="measured_from: soon is not a date"):
        told("draft_tokens", {})


def test_a_row_without_a_line_says_so():
    with pytest.raises(InputError, match=r"public_runs.json: warm_up_s: has no line for origin X"):
        settled("warm_up_s", {"origin": "X", "engine": "vllm"})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"for": {"enigne": "vllm"}, "source": "a"}, "enigne: vllm is of a field that is unknown"),
        ({"for": {"engine": "vllm"}}, r"lines\[0\].source: is missing"),
        ({"for": {"clients_below": "8"}, "source": "a"}, "clients_below: '8' is not a number"),
        (
            {"for": {}, "sets": {"a": {"tokens_of": ["clients"], "more": True}}, "source": "a"},
            r"lines\[0\].sets.a",
        ),
    ],
)
def test_lines_that_cannot_be(written, line, complaint):
    written(line)
    with pytest.raises(InputError, match=complaint):
        told("engine", {})
