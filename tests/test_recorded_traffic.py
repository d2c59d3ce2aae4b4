"""Measured runs whose rows name the trace of their requests or arrivals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_measured import runs

import physim
from physim.errors import InputError
from physim.fitting.observations import observe
from physim.measured.run_cases import case_of
from physim.measured.runs_csv import read_tables
from physim.measured.stage_report import write_rows

REPORTS = Path(__file__).parent / "reports"

AZURE = "azure-conversation-2023"
# Its means are 1154.697 and 211.126 tokens.
OF_AZURE = {"lengths": AZURE, "input_len_mean": 1150, "output_len": 211, "max_model_len": 32768}


def trace_of(folder, name="own.csv", cached=(0, 16)):
    """Two hundred requests, of 100 and 9 tokens or of 300 and 29, one a second."""
    shape = {"input_tokens": (100, 300), "output_tokens": (9, 29), "cached_tokens": cached}
    table = pd.DataFrame({key: values * 100 for key, values in shape.items()})
    table.assign(arrival_s=np.arange(200.0)).to_csv(folder / name, index=False)
    return {"lengths": name, "input_len_mean": 202, "output_len": 19}


def load_of(tmp_path, **row):
    return case_of(read_tables([runs(tmp_path, row)]).rows, None).demanded


def test_a_row_has_the_lengths_of_a_preset(tmp_path):
    load = load_of(tmp_path, **OF_AZURE)
    assert load.lengths == physim.RequestLengths.read(AZURE)
    assert load.mean_input == pytest.approx(1154.697, rel=1e-5)
    assert load.stages == (physim.Stage(1.0, 60.0),)


def test_a_row_has_the_lengths_of_a_trace_beside_its_table(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    load = load_of(tmp_path, **trace_of(tmp_path), prefix_caching=True)
    # 100 prompts of 100 tokens and 100 of 300, of which 16 are cached.
    assert (load.mean_input, load.mean_output, load.cached_tokens) == (200, 19, 8)
    assert load.moments().new_output == (100 * 9 + 284 * 29) / 2


def test_nothing_is_found_in_a_cache_that_is_off(tmp_path):
    load = load_of(tmp_path, **trace_of(tmp_path), prefix_caching=False)
    assert load.cached_tokens == 0
    assert load.moments().new_output == (100 * 9 + 300 * 29) / 2
    preset = physim.RequestLengths.read("mooncake-conversation")
    moments = preset.uncached().moments
    assert moments.new == moments.input == preset.moments.input > preset.moments.new
    assert moments.new_output == preset.moments.input_output


def test_a_row_has_the_arrivals_of_a_trace(tmp_path):
    load = load_of(tmp_path, **trace_of(tmp_path), arrival="trace:own.csv", rate_rps=4.0)
    assert load.dispersion.at_rate(4.0).first(3).tolist() == [0.0, 0.25, 0.5]
    # One a second is even: in windows of whole seconds nothing varies.
    assert load.arrival_cv2 < 0.1


def test_stages_of_a_trace_need_not_have_its_means_to_the_token(tmp_path):
    other = {"stage": 1, "input_len_mean": 1160, "output_len": 209}
    rows = read_tables([runs(tmp_path, OF_AZURE, OF_AZURE | other)]).rows
    assert len(case_of(rows, None).demanded.stages) == 2
    means = [replace(one, row=one.row.model_copy(update={"lengths": None})) for one in rows]
    with pytest.raises(InputError, match="input_len_mean: differs between stages"):
        case_of(means, None)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            OF_AZURE | {"input_len_mean": 1000},
            r"runs.csv, line 2: input_len_mean: 1000 is not the mean of lengths "
            r"azure-conversation-2023, 1155; correct it",
        ),
        (OF_AZURE | {"output_len": 240}, "line 2: output_len: 240 is not the mean of .*, 211.1"),
        (OF_AZURE | {"prompt_groups": 2}, "prompt_groups: say what is cached, as lengths do"),
        ({"lengths": "azure"}, "line 2: lengths: lengths 'azure' is no preset and no file"),
        ({"lengths": "gone.csv"}, r"line 2: lengths: .*gone.csv"),
        ({"arrival": "trace:gone.csv"}, r"line 2: arrival: .*gone.csv"),
        ({"arrival": "trace:"}, "line 2: arrival: trace: is unknown; use one of 'constant'"),
        ({"arrival": "bursty"}, "arrival: bursty is unknown; use one of .* or trace:PATH"),
        (
            {"arrival": "trace:gone.csv", "burstiness": 2.0},
            "burstiness: has no meaning for trace:gone.csv arrivals",
        ),
    ],
)
def test_rows_that_contradict_their_traces(tmp_path, row, complaint):
    with pytest.raises(InputError, match=complaint) as raised:
        read_tables([runs(tmp_path, row)])
    assert "\n" not in str(raised.value)


def test_outputs_that_end_early_count_as_long_as_they_get(tmp_path):
    own = trace_of(tmp_path) | {"max_model_len": 310}
    # 100 + 9 tokens fit, and of 300 + 29 only 10 of the output.
    load_of(tmp_path, **own | {"output_len": 9.5})
    with pytest.raises(InputError, match=r"output_len: 19 is not the mean of .*, 9.5"):
        read_tables([runs(tmp_path, own)])


def test_fits_and_evaluations_take_a_runs_lengths(tmp_path):
    path = runs(tmp_path, OF_AZURE | {"ttft_mean": 0.1, "e2e_mean": 2.5})
    (fitted,) = observe([path]).cases
    assert fitted.demanded.lengths == physim.RequestLengths.read(AZURE)
    evaluation = physim.evaluate([path], fit="none")
    (case,) = evaluation.cases
    assert case.demanded.lengths == fitted.demanded.lengths
    (predicted,) = physim.predict_cases([case.under(evaluated_load())], [physim.Corrections()])
    (row,) = evaluation.rows
    assert row["metrics"]["ttft_mean"]["predicted"] == pytest.approx(
        predicted.whole.latencies["ttft"]["mean"], rel=0.02
    )


def evaluated_load():
    """The load of the only stage, from an idle server on."""
    lengths = physim.RequestLengths.read(AZURE)
    return physim.Load.of_requests(lengths, stages=(physim.Stage(1.0, 60.0),), arrival="constant")


def test_a_report_is_read_with_the_lengths_of_its_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lengths = pd.DataFrame({"input_tokens": [412, 612], "output_tokens": [156, 100]})
    lengths.to_csv("own.csv", index=False)
    report = REPORTS / "vllm_bench_detailed.json"  # 512 and 128 tokens, in the mean
    about = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm"}
    rows = physim.read_report("vllm-bench", report, lengths="own.csv", **about)
    (tmp_path / "elsewhere").mkdir()
    write_rows(tmp_path / "elsewhere" / "runs.csv", rows)
    rows = read_tables([tmp_path / "elsewhere" / "runs.csv"]).rows
    # Long prompts have short answers: the product of the means is 65,536.
    assert case_of(rows, None).demanded.moments().input_output == (412 * 156 + 612 * 100) / 2
    complaint = "vllm_bench_detailed.json, stage 0: input_len_mean: 512 is not the mean of lengths"
    with pytest.raises(InputError, match=complaint):
        physim.read_report("vllm-bench", report, lengths=AZURE, **about)


@pytest.mark.parametrize(
    ("apart", "said"),
    [(10_000.0, "come 1e+04 s apart"), (0.0001, "times what is served at most"), (0.5, None)],
)
def test_a_trace_in_another_unit_is_noted(tmp_path, apart, said):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{apart * place:.6f},500,50\n" for place in range(40))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    found = physim.predict_trace("Qwen/Qwen3-8B", path, gpu="h100_sxm", fit="none")
    notes = [note for note in found.assumptions if "arrival_s holds seconds" in note]
    assert [said in note for note in notes] == ([True] if said else [])
