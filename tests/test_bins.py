"""Latencies counted in bins: the end of a bin is a percentile, which fits compare."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from test_evaluation import ROW

import physim
from physim.corrections.fields import Corrections, flat
from physim.errors import InputError
from physim.fitting.fit import fit
from physim.fitting.objective import Problem
from physim.fitting.observations import METRICS, chunks_of, observe
from physim.fitting.slopes import percentiles_along
from physim.measured.histogram import Histogram, bins_in
from physim.measured.runs_csv import read_tables

TRUTH = Corrections(gemm_memory=0.1, front_end=0.4)
OPEN = {**ROW, "prompt_groups": 0, "arrival": "poisson"}
ENDS = [0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 3, 5, 8]


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 10**9)), min_size=1, max_size=20))
def test_what_is_written_is_read_back_alike(pairs):
    edges = np.append(np.unique([float(f"{end:g}") for end, _ in pairs]), np.inf)
    counts = np.array([count for _, count in pairs][:1] * len(edges), float)
    total = float(counts[1:] @ edges[:-1]) + 1.0
    found_edges, found_counts = bins_in(Histogram(edges, counts, total).to_text())
    assert found_edges.tolist() == edges.tolist()
    assert found_counts.tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "do not rise"),
        ("0.1:3", "do not rise"),
        ("0.2:3 0.1:4 inf:0", "do not rise"),
        ("0.1:-3 inf:4", "count nothing"),
        ("0.1:0 inf:0", "count nothing"),
        ("0.1:nan inf:1", "count nothing"),
        ("0.1 0.2", "no bins"),
        ("0.1:3:4 inf:0", "no bins"),
    ],
)
def test_other_text_is_refused_in_one_line(text, problem):
    with pytest.raises(InputError, match=problem):
        bins_in(text)


def test_a_table_names_the_column_at_fault(tmp_path):
    with pytest.raises(InputError, match="line 2: ttft_bins: do not rise from above 0 to inf"):
        read_tables([table_of(tmp_path, {"ttft_bins": "0.1:3 0.2:4"})])


def test_an_end_is_a_percentile_that_so_many_requests_tell(tmp_path):
    text = "0.1:0 0.2:25 0.4:50 0.8:25 inf:0"
    path = table_of(tmp_path, {"ttft_bins": text, "n_success": 100})
    bins = observe([path]).stages.bins
    assert (bins.row.tolist(), bins.metric.tolist()) == ([0, 0], [0, 0])
    assert bins.share.tolist() == [0.25, 0.75]
    assert np.exp(bins.observed) == pytest.approx([0.2, 0.4])
    # sqrt(0.25 * 0.75 / 100) of a share, of which 0.75 go over the logarithm of 0.4 / 0.1.
    assert bins.sampling == pytest.approx(0.0433 * np.log(4) / 0.75, rel=1e-3)


def test_the_mean_and_the_ends_of_bins_count_as_one(tmp_path):
    bare = observe([table_of(tmp_path, {})]).stages
    seen = observe([table_of(tmp_path, {"ttft_bins": "0.02:30 0.03:40 0.1:30 inf:0"})]).stages
    of_ttft = seen.weights[0, 0] + np.sum(seen.weights_of_bins)
    assert len(seen.weights_of_bins) == 2
    assert of_ttft == pytest.approx(bare.weights[0, 0])
    assert seen.weights[0, 1:].tolist() == bare.weights[0, 1:].tolist()


@pytest.mark.slow
def test_percentiles_are_those_of_the_prediction():
    case = case_at(6.0)
    shares = np.array([[[0.5, 0.9], [0.5, 0.9], [0.5, 0.9]]])
    numbers = flat(TRUTH)[None]
    logs, _ = percentiles_along(chunks_of([case]), shares, numbers, None)
    (prediction,) = physim.predict_cases([case], [TRUTH])
    said = [[prediction.whole.latencies[m][p] for p in ("p50", "p90")] for m in METRICS]
    assert np.exp(logs[0]) == pytest.approx(np.array(said), rel=1e-3)


@pytest.mark.slow
def test_slopes_are_finite_differences():
    chunks, shares = chunks_of([case_at(6.0)]), np.full((1, 3, 2), [0.3, 0.8])
    numbers, step = flat(TRUTH)[None], 1e-3
    _, slopes = percentiles_along(chunks, shares, numbers, np.eye(numbers.shape[1]))
    names = [one.split("[")[0] for one in physim.corrections.fields.labels()]
    for name in ("gemm_memory", "front_end"):
        there = np.eye(numbers.shape[1])[names.index(name)] * step
        above, below = (
            percentiles_along(chunks, shares, numbers + sign * there, None)[0] for sign in (1, -1)
        )
        own = slopes[..., names.index(name)]
        assert own == pytest.approx((above - below) / (2 * step), rel=0.05, abs=5e-3)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Runs of a server with known corrections, whose TTFT a stall of few requests trebled."""
    rates = (2.0, 6.0, 10.0)
    rows = []
    cases = [case_at(rate) for rate in rates]
    shares = np.tile((np.arange(1000) + 0.5) / 1000, (len(cases), 3, 1))
    numbers = np.tile(flat(TRUTH), (len(cases), 1))
    logs, _ = percentiles_along(chunks_of(cases), shares, numbers, None)
    predictions = physim.predict_cases(cases, TRUTH)
    for rate, prediction, drawn in zip(rates, predictions, np.exp(logs[:, 0]), strict=True):
        counts, _ = np.histogram(drawn, [0, *ENDS, np.inf])
        ttft = Histogram(np.append(ENDS, np.inf), counts.astype(float), 1e9)
        rows.append(
            {
                **OPEN,
                "experiment": f"run {rate:g}",
                "rate_rps": rate,
                "ttft_mean": 3 * prediction.ttft_s,
                "e2e_mean": prediction.e2e_s + 2 * prediction.ttft_s,
                "ttft_bins": ttft.to_text(),
            }
        )
    path = tmp_path_factory.mktemp("counted") / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_bins_resist_a_stall_that_moves_the_mean(counted, tmp_path):
    bare = tmp_path / "means.csv"
    pd.read_csv(counted).drop(columns="ttft_bins").to_csv(bare, index=False)
    case = case_at(6.0)
    (true,) = physim.predict_cases([case], [TRUTH])
    middle, errors = true.whole.latencies["ttft"]["p50"], []
    for table in (bare, counted):
        outcome = fit([table], base="none")
        (found,) = physim.predict_cases([case], [outcome.fit.on(case).corrections])
        errors.append(abs(found.whole.latencies["ttft"]["p50"] / middle - 1))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.15


def test_a_row_left_out_has_bins_without_weight(tmp_path):
    stages = observe([table_of(tmp_path, {"ttft_bins": "0.02:30 0.03:40 0.1:30 inf:0"})]).stages
    assert np.all(stages.weights_of_bins > 0)
    assert not np.any(replace(stages, weight=np.zeros(1)).weights_of_bins)


@pytest.mark.slow
def test_a_row_left_out_tells_nothing_by_its_bins(counted):
    problem = Problem.from_observed(observe([counted]))
    weight = np.array([1.0, 0.0, 1.0])
    stages = replace(problem.stages, weight=weight)
    found = replace(problem, stages=stages).deviations(problem.centre)
    left_out = problem.stages.bins.row == 1
    assert np.any(left_out)
    assert not np.any(found.weights[problem.of_bins][left_out])
    assert np.all(found.weights[problem.of_bins][~left_out] > 0)


def case_at(rate):
    return physim.Case.from_options(
        ROW["model"],
        gpu=ROW["hardware"],
        rate=rate,
        input_tokens=575,
        output_tokens=248,
        arrival="poisson",
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        max_model_len=4096,
    )


def table_of(folder, changes):
    path = folder / "table.csv"
    pd.DataFrame([{**OPEN, **changes}]).to_csv(path, index=False)
    return path
