"""The commands from end to end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from commands import process, refused
from commands import run as physim
from test_evaluation import ROW
from typer.testing import CliRunner

from physim import data
from physim.cli import app

LOAD = ["--rate", "6", "--input", "786", "--output", "251"]
LENGTHS = ["--input", "575", "--output", "248"]
PREDICT = ["predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm", "--tp", "2", *LOAD]


def test_predict_prints_a_table():
    run = process(*PREDICT, "--cached", "770")
    assert run.returncode == 0
    for word in ("TTFT", "ITL", "E2E", "throughput", "KV use", "a step", "mlp", "█"):
        assert word in run.stdout
    assert run.stderr == ""


def test_predict_prints_json():
    run = physim(*PREDICT, "--json")
    prediction = json.loads(run.stdout)
    assert prediction["load"]["rate"] == 6
    assert prediction["ttft_s"] < prediction["e2e_s"]


def test_a_hit_rate_is_said_in_percent():
    share, tokens = (physim(*PREDICT, "--cached", one, "--json").stdout for one in ("50%", "393"))
    assert json.loads(share) == json.loads(tokens)


def test_saturation_is_no_error():
    run = physim(*PREDICT, "--rate", "100000")
    assert run.returncode == 0
    assert "above capacity" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["predict", "nothing", *PREDICT[2:]], "model 'nothing'"),
        ([*PREDICT, "--gpu", "v100"], "GPU 'v100'"),
        ([*PREDICT, "--enable-lora"], "--enable-lora: adapters (LoRA) are not modelled"),
        (
            ["capacity", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--rate=5"],
            "--rate: is not taken: capacity finds the highest rate",
        ),
        ([*PREDICT, "--tp", "3"], "tp: 3 does not divide"),
        (
            ["predict", "Qwen/Qwen3-32B", "--gpu", "h100_sxm", *LOAD],
            "what fits: tp 2, or Qwen/Qwen3-32B-FP8",
        ),
        ([*PREDICT, "--rate", "-1"], "rate: -1.0 is not positive"),
        ([*PREDICT, "--input", "0"], "--input '0': mean: 0 is below 1"),
        ([*PREDICT, "--output", "nan"], "--output 'nan': mean: nan is not finite"),
        ([*PREDICT, "--fit", "best"], "fit 'best'"),
        ([*PREDICT, "--mixed", "middle"], "mixed: 'middle'"),
        (["evaluate", "--data", "none.csv"], "none.csv: No such file"),
        pytest.param(
            ["report", *PREDICT[1:], "--rate", "9999", "--out", "never.html"],
            "above the saturation throughput",
            marks=pytest.mark.slow,
        ),
        (["grids", "show", "h100_sxm", "nothing"], "grid h100_sxm/nothing: does not exist"),
        (["grids", "show", "h100_sxm", "gemm_bfloat16", "--at", "z=1"], "names no axis"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_one(arguments, complaint):
    run = physim(*arguments)
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("physim: error: ")
    assert complaint in line


def test_a_misunderstood_command_is_exit_code_two():
    assert physim("predict").returncode == 2
    assert physim("forecast").returncode == 2


@pytest.mark.slow
def test_evaluate_writes_the_documented_json(tmp_path):
    runs, out = tmp_path / "runs.csv", tmp_path / "out.json"
    pd.DataFrame([ROW, {**ROW, "stage": 1, "rate_rps": 4}]).to_csv(runs, index=False)
    picture = tmp_path / "errors.svg"
    run = physim("evaluate", "--data", runs, "--out", out, "--plot", picture)
    assert run.returncode == 0
    assert "<svg" in picture.read_text()
    assert "within 10%" in run.stdout
    content = json.loads(out.read_text())
    assert set(content) == {"rows", "summary", "skipped", "left_out"}
    row = content["rows"][0]
    assert set(row) == {
        *("experiment", "stage", "model", "hardware", "tp", "layout"),
        *("engine", "engine_version", "concurrency", "metrics", "population", "batch"),
    }
    assert set(row["metrics"]) == {"e2e_mean", "ttft_mean", "itl_mean", "tpot_mean"}
    assert row["metrics"]["tpot_mean"] == row["metrics"]["itl_mean"]
    assert set(row["metrics"]["e2e_mean"]) == {"observed", "predicted", "error_pct"}
    assert set(content["summary"]["ttft_mean"]) == {
        "n",
        "mape",
        "median_ape",
        "max_ape",
        "bias_pct",
        "within_10pct",
    }


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        pytest.param(["evaluate", "--data", "RUNS"], "summary", marks=pytest.mark.slow),
        (["show", "models"], "models"),
        (["show", "gpus"], None),
        (["show", "fits"], None),
        (["show", "components"], None),
        (["show", "fit", "public-2026-11"], "scatter"),
        (["grids", "show", "h100_sxm"], "tables"),
        (["grids", "show", "h100_sxm", "gemm_bfloat16", "--at", "k=4096"], "efficiency"),
        pytest.param(
            ["table", *LENGTHS, "--rate", "4", "--cached", "560"],
            "coefficients",
            marks=pytest.mark.slow,
        ),
        (["table", "--models", "MODELS", "--gpus", "h100_sxm"], None),
    ],
)
def test_json_is_all_that_is_printed(tmp_path, arguments, key):
    runs, models = tmp_path / "runs.csv", tmp_path / "models.txt"
    pd.DataFrame([ROW]).to_csv(runs, index=False)
    models.write_text("Qwen/Qwen3-0.6B\nmeta-llama/Llama-2-70b-hf\n")
    given = [{"RUNS": runs, "MODELS": models}.get(word, word) for word in arguments]
    if arguments[0] == "table":
        given += ["--tolerance", "0.2", "--max-num-seqs", "64", "--max-num-batched-tokens", "512"]
        given += ["--max-model-len", "2048", "--out", tmp_path / "out"]
        given += [] if "--models" in given else ["Qwen/Qwen3-0.6B", "--gpu", "h100_sxm"]
    run = physim(*given, "--json")
    assert run.returncode == 0, run.stderr
    content = json.loads(run.stdout)
    assert content if key is None else key in content


def test_a_failed_evaluation_leaves_the_old_file(tmp_path):
    runs, out = tmp_path / "runs.csv", tmp_path / "out.json"
    out.write_text("old")
    pd.DataFrame([{**ROW, "rate_rps": -1}]).to_csv(runs, index=False)
    assert physim("evaluate", "--data", runs, "--out", out).returncode == 1
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "runs.csv"]


@pytest.mark.slow
def test_a_narrow_terminal_keeps_its_numbers(tmp_path):
    runs = tmp_path / "runs.csv"
    pd.DataFrame([{**ROW, "experiment": "a-very-long-name-of-an-experiment" * 3}]).to_csv(runs)
    run = physim("evaluate", "--data", runs, columns="80")
    assert "…" not in run.stdout
    assert run.stdout.count("%") >= 4


@pytest.mark.parametrize("arguments", [["show", "models"], ["grids", "show", "l40s", "all_reduce"]])
def test_nothing_is_cut_in_a_narrow_terminal(arguments):
    assert "…" not in physim(*arguments, columns="80").stdout


def test_piped_names_of_models_can_be_passed_on():
    assert "meta-llama/Llama-3.1-8B-Instruct" in physim("show", "models", columns="100").stdout


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("models", ["Qwen/Qwen3-14B", "14.77", "window+full", "8 of 256"]),
        ("gpus", ["mi300x", "stand-in", "measured"]),
        ("fits", ["none"]),
    ],
)
def test_show(what, words):
    run = physim("show", what)
    assert run.returncode == 0
    assert all(word in run.stdout for word in words)


def test_grids_show(tmp_path):
    assert "gemm_bfloat16" in physim("grids", "show", "h100_sxm").stdout
    picture = tmp_path / "surface.png"
    run = physim("grids", "show", "h100_sxm", "gemm_bfloat16", "--at", "k=4096", "--plot", picture)
    assert run.returncode == 0
    assert "at k 4096" in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "tokens" in physim("grids", "show", "h100_sxm", "moe_fp8_triton_balanced").stdout
    assert physim("grids", "show", "mi300x").returncode == 1
    run = physim("grids", "show", "h100_sxm", "all_reduce", "--plot", tmp_path / "x.docx")
    assert "is not a PNG or SVG file" in run.stderr


def test_version_and_help():
    assert physim("--version").stdout.startswith("physim 0.")
    assert "For example" in physim("predict", "--help").stdout
    # Square brackets in a help text would be read as a style.
    wide = CliRunner().invoke(app, ["recommend", "--help"], env={"COLUMNS": "160"}).stdout
    assert "scaled to --rate. [default: poisson]" in wide


def test_the_shell_completes_names():
    def completed(*words):
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return process(_PHYSIM_COMPLETE="complete_bash", **asked).stdout.split()

    assert completed("physim", "predict", "Qwen/Qwen3-14") == ["Qwen/Qwen3-14B"]
    assert completed("physim", "predict", "meta-llama/Meta-Llama-3-8") == [
        "meta-llama/Meta-Llama-3-8B",
        "meta-llama/Meta-Llama-3-8B-Instruct",
    ]
    assert completed("physim", "explain", "x", "--gpu", "h200") == ["h200_sxm"]
    assert completed("physim", "show", "fit", "pub") == ["public-2026-11"]


def test_commands_that_need_no_arrays_do_not_load_jax():
    rooms = "physim.cli, physim.inputs.case, physim.models.lookup, physim.roofline"
    code = f"import {rooms}, sys; sys.exit('jax' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_commands_load_no_arrays_before_they_run():
    """Options are declared where numpy is not needed: help and completion wait for the import."""
    code = "import physim.cli, sys; sys.exit('numpy' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_to_run_at_the_end_runs_though_nothing_is_taken_apart():
    told = "atexit.register(print, 'bye', file=sys.stderr)"
    code = f"import atexit, sys, physim.cli; {told}; physim.cli.script()"
    for words, status in ((["show", "gpus"], 0), (["show", "fit", "nothing"], 1)):
        run = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert run.returncode == status
        assert run.stderr.endswith("bye\n")


STAGES = ["--stage", "5:20", "--stage", "80:20", "--input", "500", "--output", "exponential:200"]


@pytest.mark.slow
def test_stages_are_predicted_and_drawn(tmp_path):
    engine = ["predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm", "--tp", "2"]
    engine += ["--max-num-seqs", "64", "--arrival", "poisson", *STAGES]
    picture = tmp_path / "load.png"
    fluid = physim(*engine, "--json", "--plot", picture)
    assert fluid.returncode == 0, fluid.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(fluid.stdout)
    replayed = json.loads(physim(*engine, "--json", "--method", "replay").stdout)
    assert [stage["rate"] for stage in content["stages"]] == [5, 80]
    # The second stage is above capacity: minutes in a queue, and both say so.
    first, second = (stage["latencies"]["ttft"]["mean"] for stage in content["stages"])
    assert second > 50 * first
    assert content["e2e_s"] == pytest.approx(replayed["e2e_s"], rel=0.1)
    printed = physim(*engine).stdout
    for word in ("p99", "5/s, 20 s", "80/s, 20 s", "all"):
        assert word in printed


@pytest.mark.slow
def test_a_trace_is_replayed(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,300,20\n0.5,200,30\n2,100,5\n")
    engine = ["predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm"]
    run = physim(*engine, "--trace", path)
    assert run.returncode == 0, run.stderr
    assert "a trace" in run.stdout
    assert "replayed" in run.stdout
    for rate in ("3", "0"):
        assert "cannot be combined with a load" in refused(*engine, "--trace", path, "--rate", rate)


def test_a_rate_of_zero_is_a_load(tmp_path):
    table = ["table", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--out", tmp_path / "table"]
    assert "--input and --output: are missing" in refused(*table, "--rate", "0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "5", "--input", "9", "--output", "9"], "stage '5': is not RATE:SECONDS"),
        (["--stage", "-5:10", "--input", "9", "--output", "9"], "stage: rate: -5.0 is not posit"),
        (
            ["--rate", "1", "--stage", "5:10", "--input", "9", "--output", "9"],
            "has rate and stages; give one",
        ),
        (["--rate", "1", "--output", "9"], "--input: is missing; give both, or --lengths"),
        (["--rate", "1", "--input", "9", "--output", "lots:9"], "--output 'lots:9': can"),
        (["--rate", "1", "--input=-5", "--output", "9"], "--input '-5': mean: -5 is below 1"),
        (["--rate", "1", "--input", "nan", "--output", "9"], "--input 'nan': mean: nan is not fin"),
        (
            ["--rate", "1", "--input", "exponential:abc", "--output", "9"],
            "--input 'exponential:abc': cannot be read; use 248, normal:248:50",
        ),
        (
            ["--rate", "1", "--input", "9", "--output", "file:/nowhere"],
            "--output 'file:/nowhere': No such file or directory; check the path",
        ),
        (["--rate", "1", "--input", "9", "--output", "9", "--method", "guess"], "'guess' is unkn"),
        (
            ["--rate", "1", "--input", "9", "--output", "9", "--plot", "a.txt"],
            "is not a PNG or SVG",
        ),
        (["--trace", "/nowhere.csv"], "No such file"),
    ],
)
def test_bad_loads_are_one_line(arguments, message):
    assert message in refused("predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm", *arguments)


def test_rows_without_e2e_are_shown(tmp_path):
    path, picture = tmp_path / "runs.csv", tmp_path / "one.svg"
    row = {**ROW, "ttft_mean": None, "e2e_mean": None, "itl_mean": 0.008}
    pd.DataFrame([row, {**row, "experiment": "two", "hardware": "tpu"}]).to_csv(path, index=False)
    run = physim("evaluate", "--data", path, "--plot", picture)
    assert run.returncode == 0, run.stderr
    assert "1 worst of 1 rows" in run.stdout
    assert "skipped two stage 0: GPU 'tpu': is unknown" in run.stdout
    assert picture.is_file()


@pytest.mark.slow
def test_runs_are_read_fitted_validated_and_used(tmp_path):
    """A first user's way, from a load generator's results to a prediction with an interval."""
    runs = tmp_path / "runs.csv"
    # A tenth longer than predicted, everywhere.
    measured = {
        "Qwen/Qwen3-8B": {4: (32.7, 7.94), 12: (36.2, 9.83)},
        "meta-llama/Llama-3.1-8B-Instruct": {4: (31.4, 7.51), 12: (34.2, 9.07)},
    }
    for model, rates in measured.items():
        for rate, (ttft, tpot) in rates.items():
            result = {
                "request_rate": rate,
                "duration": 100.0,
                "completed": 100 * rate,
                "failed": 0,
                "total_input_tokens": 57500 * rate,
                "total_output_tokens": 24800 * rate,
                "request_throughput": rate,
                "mean_ttft_ms": ttft,
                "mean_tpot_ms": tpot,
            }
            (tmp_path / "result.json").write_text(json.dumps(result))
            run = physim(
                *("data", "read", "vllm-bench", tmp_path / "result.json", "--model", model),
                *("--gpu", "h100_sxm", "--experiment", f"{model} {rate}", "--append"),
                *("--out", runs),
            )
            assert run.returncode == 0, run.stderr
    fit, picture = tmp_path / "mine.json", tmp_path / "fit.png"
    run = physim("fit", "--data", runs, "--freeze", "residual", "--out", fit, "--plot", picture)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    for word in ("4 rows", "gemm_memory", "handover", "mean of all rows", f"written to {fit}"):
        assert word in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = physim("show", "fit", fit)
    assert "scheduling delay: the wait of" in shown.stdout
    run = physim(*PREDICT, "--fit", fit)
    assert "90%:" in run.stdout
    assert "Beyond what was measured" not in run.stdout
    folds, table = tmp_path / "folds.json", tmp_path / "folds.csv"
    run = physim(
        *("crossval", "--data", runs, "--freeze", "residual", "--leave-out", "model"),
        *("--methods", "physim,zero-shot,ridge", "--out", folds, "--csv", table),
        *("--plot", tmp_path / "folds.svg"),
    )
    assert run.returncode == 0, run.stderr
    assert "zero-shot" in run.stdout
    assert len(pd.read_csv(table)) == 3 * 3 * 4
    assert json.loads(folds.read_text())["leave_out"] == "model"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fit", "--data", "none.csv", "--out", "f.json"], "none.csv: No such file"),
        (["fit", "--data", "RUNS", "--freeze", "speed", "--out", "f.json"], "is not a correction"),
        (["fit", "--data", "RUNS", "--prior-scale", "-1", "--out", "f.json"], "not positive"),
        (["crossval", "--data", "RUNS", "--leave-out", "day"], "'day' is unknown"),
        (["crossval", "--data", "RUNS", "--leave-out", "time"], "time needs measured steps"),
        (["show", "fit", "best"], "fit 'best': is unknown"),
        (
            ["data", "read", "excel", "x", "--model", "m", "--gpu", "h100", "--out", "o.csv"],
            "format: 'excel' is unknown; use one of auto",
        ),
    ],
)
def test_bad_input_to_fits_is_one_line(tmp_path, arguments, complaint):
    pd.DataFrame([ROW]).to_csv(tmp_path / "runs.csv", index=False)
    given = [str(tmp_path / "runs.csv") if word == "RUNS" else word for word in arguments]
    assert complaint in refused(*given)
    assert not (tmp_path / "f.json").exists()


@pytest.mark.slow
def test_table_from_end_to_end(tmp_path):
    small = ("--max-num-seqs", "64", "--max-num-batched-tokens", "1024", "--max-model-len", "2048")
    out = tmp_path / "qwen"
    run = physim(
        *("table", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--out", out, "--format", "json"),
        *("--rate", "4", *LENGTHS, "--cached", "560", *small, "--plot", tmp_path / "qwen.png"),
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert (tmp_path / "qwen.png").read_bytes().startswith(b"\x89PNG")
    for word in ("knots; interpolation error", "blackbox:", "trained physics:", "written to"):
        assert word in run.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        *("look_ups.json", "metadata.json", "table.json"),
    ]
    again = physim("table", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--out", out)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert "already exists and is not empty; name another, or pass --force" in again.stderr
    (tmp_path / "models.txt").write_text("# two\nQwen/Qwen3-8B\nmeta-llama/Llama-2-70b-hf\n")
    many = physim(
        *("table", "--models", tmp_path / "models.txt", "--gpus", "h100_sxm,l40s", "--tps", "1"),
        *("--out", tmp_path / "many", "--format", "csv", "--tolerance", "0.05", *small),
    )
    assert many.returncode == 0, many.stderr
    assert "2 made, 0 there already, 2 left out" in many.stdout
    assert many.stderr == ""
    assert "GiB a GPU" in many.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tolerance", "-1"], "tolerance: -1 is out of reach; use 0.001 to 0.5"),
        (["--format", "xlsx"], "format: 'xlsx' is unknown; use one of parquet, csv, json, blis"),
        (["--rate", "0", *LENGTHS], "rate: 0.0 is not positive"),
        (["--rate", "4", "--input", "-5", "--output", "9"], "--input '-5': mean: -5 is below 1"),
        (["--rate", "4"], "--input and --output: are missing; give both"),
        (LENGTHS, "load: has no rate, concurrency, stages or trace; give one"),
        (["--format", "blis"], "load: is missing: BLIS's coefficients hold for one load"),
        (["--models", "none.txt"], "cannot be combined with a model, --gpu or --tp"),
        (["--pps", "1,2"], "need --models"),
        (["--gpus", "h100_sxm"], "need --models"),
        (["--format", "blis", "--plot", "a.png"], "--plot: draws one table"),
    ],
)
def test_bad_input_to_tables_is_one_line(tmp_path, arguments, complaint):
    out = tmp_path / "out"
    table = ("table", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--out", out)
    assert complaint in refused(*table, *arguments)
    assert not out.exists()


QUESTION = ["--gpu", "h100_sxm", *LENGTHS]


@pytest.mark.slow
def test_questions_from_end_to_end(tmp_path):
    model = "Qwen/Qwen3-8B"
    picture = tmp_path / "load.png"
    run = physim(
        *("capacity", model, *QUESTION, "--slo", "itl_mean=15ms", "--slo", "ttft_p99=500ms"),
        *("--plot", picture),
    )
    assert run.returncode == 0, run.stderr
    assert "limited by itl_mean" in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    run = physim(
        *("compare", f"{model},Qwen3-14B", "--gpus", "h100_sxm,a100_sxm", *LENGTHS),
        *("--tps", "1,2", "--rate", "4", "--price", "h100_sxm=3", "--json"),
    )
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)["rows"]) == 8
    run = physim("explain", model, *QUESTION, "--rate", "4")
    assert run.returncode == 0, run.stderr
    assert "memory bandwidth" in run.stdout
    page = tmp_path / "report.html"
    run = physim("report", model, *QUESTION, "--rate", "4", "--out", page)
    assert run.returncode == 0, run.stderr
    text = page.read_text()
    assert text.count("<svg ") == 7
    assert "requests/s. ITL depends most on memory bandwidth" in text
    # Nothing is fetched.
    assert not any(word in text for word in ("<a ", "src=", "<link", "<script", "url(http"))
    words = ("TTFT", "90% from", "component of a step", "p99", "vllm serve", "vllm bench serve")
    for word in (*words, "memory of a GPU", "What the words mean", "saturation"):
        assert word in text


@pytest.mark.slow
def test_layouts_from_end_to_end(tmp_path):
    mixture, experts = "Qwen/Qwen3-30B-A3B", ["--tps", "1,2", "--pps", "2", "--eps", "1,2"]
    compared = physim("compare", mixture, "--gpus", "h100_sxm", *experts, "--rate", "2", *LENGTHS)
    assert compared.returncode == 0, compared.stderr
    for word in ("layout", "tp 1, pp 2 ", "tp 2, pp 2 ", "tp 2, pp 2, ep 2 "):
        assert word in compared.stdout
    line = f"left out {mixture} on 2 x h100_sxm (tp 1, pp 2, ep 2): ep: 2 does not divide"
    assert " ".join(compared.stdout.split()).count(line) == 1
    asked = ["--rate", "2", *LENGTHS, "--slo", "itl_mean=50ms", "--max-num-seqs", "256", "--json"]
    found = physim("recommend", mixture, "--gpus", "h100_sxm", *experts, "--dps", "1", *asked)
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert {one["pp"] for one in answer["choices"]} == {2}
    assert [*answer["refused"]] == [
        "ep: 2 does not divide the 1 GPUs of tp 1 and dp 1; use a divisor, such as all of them"
    ]
    (tmp_path / "models.txt").write_text(f"{mixture}\n")
    made = physim(
        *("table", "--models", tmp_path / "models.txt", "--gpus", "h100_sxm", *experts, "--json"),
        *("--out", tmp_path / "many", "--tolerance", "0.1", "--max-model-len", "2048"),
    )
    assert made.returncode == 0, made.stderr
    folders = sorted(path.name for path in (tmp_path / "many").iterdir())
    assert [name.partition("h100_sxm_")[2] for name in folders] == [
        *("tp1_pp2", "tp2_pp2", "tp2_pp2_ep2")
    ]


@pytest.mark.parametrize("command", ["compare", "page", "recommend"])
def test_a_list_of_degrees_is_checked(command):
    words = [command, "Qwen/Qwen3-8B", "--gpus", "h100_sxm", "--rate", "1", *LENGTHS]
    words += {"recommend": ["--slo", "itl_mean=1s"]}.get(command, [])
    if command == "page":
        words = [*words[:4], "--out", "page.html"]
    assert "--dps: 'x': is not a positive integer" in refused(*words, "--dps", "1,x")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["capacity", "Qwen/Qwen3-8B", *QUESTION, "--slo", "fast"],
            "slo 'fast': has no bound; write it like ttft_p99=500ms",
        ),
        (["explain", "Qwen/Qwen3-8B", *QUESTION], "rate"),
        (
            [
                *("compare", "Qwen/Qwen3-8B", "--gpus", "h100_sxm", *QUESTION[2:]),
                *("--rate", "4", "--price", "h100_sxm=cheap"),
            ],
            "price 'h100_sxm=cheap': is not a price",
        ),
    ],
)
def test_bad_questions_are_one_line(arguments, complaint):
    assert complaint in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*PREDICT, "--plot", "/nowhere/a.png"], "/nowhere is not a folder; make it"),
        ([*PREDICT, "--plot", "a.docx"], "a.docx: is not a PNG or SVG file"),
        (["report", *PREDICT[1:], "--out", "a.pdf"], "a.pdf: is not an HTML file"),
        (["report", *PREDICT[1:], "--out", "/nowhere/a.html"], "/nowhere is not a folder"),
        (["fit", "--data", "none.csv", "--out", "/nowhere/a.json"], "/nowhere is not a folder"),
        (
            ["evaluate", "--data", "none.csv", "--out", "/nowhere/a.json"],
            "/nowhere is not a folder",
        ),
    ],
)
def test_what_cannot_be_written_is_said_first(arguments, complaint):
    assert complaint in refused(*arguments)


def test_a_pipe_has_a_row_on_a_line():
    # Of one's own: readline, which pytest may load, sets COLUMNS where os.environ does not see it.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = Path(sys.executable).with_name("physim")
    run = subprocess.run(
        [str(command), "show", "models"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    name = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"
    assert sum(name in line for line in run.stdout.splitlines()) == 1
    assert "\x1b" not in run.stdout


@pytest.mark.slow
def test_the_state_of_a_changing_load_is_said_to_be_of_a_stage():
    run = physim("predict", "Qwen/Qwen3-14B", "--gpu", "h100_sxm", "--tp", "2", *STAGES)
    assert "the busiest stage, if it stayed:" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["predict", "a" * 300, *PREDICT[2:]], "is not a file, a folder or a shipped model"),
        ([*PREDICT[:3], "a" * 300, *LOAD], "is unknown; use one of a10, a100_pcie"),
        ([*PREDICT, "--fit", "a" * 300], "File name too long"),
        ([*PREDICT, "--requests", "9", "--method", "replay", "--seed", "-1"], "seed: -1 is neg"),
        ([*PREDICT, "--seed", "1"], "--seed: is for replays that draw their requests; add --metho"),
    ],
)
def test_odd_input_is_one_line(arguments, complaint):
    run = physim(*arguments)
    assert run.returncode == 1
    assert complaint in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.skipif(
    not Path("/dev/full").is_char_device(), reason="needs /dev/full, a disk that is always full"
)
@pytest.mark.parametrize("arguments", [["show", "gpus"], ["show", "gpus", "--json"]])
def test_a_full_disk_is_one_line(arguments):
    command = Path(sys.executable).with_name("physim")
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [str(command), *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert run.returncode == 1
    assert run.stderr == "physim: error: stdout: the disk is full; make room on it\n"


def test_a_terminal_that_knows_ascii_alone_is_written_to():
    run = process("show", "gpus", PYTHONIOENCODING="ascii")
    assert run.returncode == 0, run.stderr
    assert "h100_sxm" in run.stdout


COMMANDS = [
    *([one] for one in ("predict", "capacity", "compare", "explain", "report", "evaluate", "fit")),
    *(
        ["doctor"],
        ["crossval"],
        ["table"],
        ["data", "template"],
        ["data", "read"],
        ["data", "convert"],
        ["grids", "build"],
    ),
    *(["show", one] for one in ("models", "gpus", "engines", "components", "fit", "fits")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_example_of_the_help_is_one_line_of_80_columns(command):
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in shown.splitlines()]
    (example,) = [line for line in lines if line.startswith(f"physim {' '.join(command)}")]
    assert lines[lines.index(example) + 1] == ""


def test_a_model_that_is_named_is_said_more_of(tmp_path):
    config = json.loads((data.folder("model_configs") / "openai--gpt-oss-20b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = physim("show", "models", tmp_path).stdout
    assert "20.91 B, 4.19 B active" in shown
    assert "12 window 128, 12 full; 64 heads, 8 KV heads" in shown
    assert "48 KiB a token in bfloat16" in shown
    found = json.loads(physim("show", "models", "deepseek-ai/DeepSeek-V3", "--json").stdout)
    assert found["models"][0]["experts"] == 256
    assert physim("show", "models", "nobody/knows").returncode == 1


def test_models_that_are_laid_out_as_a_shipped_one_are_listed():
    alias, shipped = "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"
    assert re.search(rf"{alias} +{shipped}", physim("show", "models", columns="100").stdout)
    assert json.loads(physim("show", "models", "--json").stdout)["aliases"][alias] == shipped
    assert "aliases" not in json.loads(physim("show", "models", alias, "--json").stdout)


def test_a_seed_and_a_warm_up_that_change_nothing():
    data = ["evaluate", "--data", "bench_data/runs.csv", "--seed", "1"]
    assert "--seed: is for replays" in refused(*data)
    trace = ["predict", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--trace", "t.csv", "--warm-up", "3"]
    assert "trace: cannot be combined with a load" in refused(*trace)
