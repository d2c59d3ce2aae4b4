"""Fits: runs made with known corrections are recovered, bad rows resisted, files kept in order."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_evaluation import ROW

import physim
from physim import roofline
from physim.corrections.calibration import Calibration
from physim.corrections.fields import (
    CORRECTIONS,
    PRIOR_WIDTHS,
    Corrections,
    flat,
    labels,
    unflat,
)
from physim.corrections.files import Fit, load_fit
from physim.corrections.levels import Evidence, Tree, prior_widths
from physim.errors import InputError
from physim.fitting import objective
from physim.fitting.empirical_bayes import solve
from physim.fitting.fit import fit
from physim.fitting.objective import Deviations, Problem
from physim.fitting.observations import NOISE, groups, observe, weights_of
from physim.fitting.optimise import OPTIMISERS, minimise
from physim.fitting.step_cycles import log_cycles, observe_steps
from physim.fitting.uncertainty import scatter
from physim.inputs.deployment import Deployment
from physim.inputs.load import Load
from physim.prediction.intervals import least_s
from physim.step.lowering import rows_of
from physim.step.many_batches import named_seconds
from physim.step.rows import SizeRow
from physim.validation.crossval import crossval
from physim.validation.temporal_holdout import crossval_in_time

TRUTH = Corrections(gemm_memory=0.08, decode_attention=-0.1, front_end=0.3)
MODELS = ("Qwen/Qwen3-8B", "meta-llama/Llama-2-7b-hf", "mistralai/Mistral-7B-Instruct-v0.3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Twelve stages of three models, as physim with known corrections predicts them."""
    rows, cases = [], []
    for model in MODELS:
        for rate, output in ((2.0, 248), (6.0, 248), (12.0, 128), (1.0, 900)):
            row = {
                **ROW,
                "experiment": f"{model} {rate}",
                "model": model,
                "rate_rps": rate,
                "output_len": output,
            }
            shape = {"cached_tokens": 560, "prefixes": 9, "arrival": "constant"}
            load = Load(575, output, rate=rate, **shape)
            deployment = Deployment(
                max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096
            )
            cases.append(physim.Case.from_parts(model, "h100_sxm", deployment, load))
            rows.append(row)
    for row, prediction in zip(rows, physim.predict_cases(cases, TRUTH), strict=True):
        row |= {"ttft_mean": prediction.ttft_s, "e2e_mean": prediction.e2e_s}
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def with_residual(problem: Problem) -> Problem:
    """The problem as if its rows were of campaigns enough for the residual."""
    return replace(problem, widths=prior_widths())


@pytest.fixture(scope="module")
def outcome(runs):
    return fit([runs], base="none")


@pytest.mark.slow
def test_known_corrections_are_recovered(outcome):
    assert max(abs(row["itl_after"]) for row in outcome.rows) < 1.5
    assert max(abs(row["ttft_after"]) for row in outcome.rows) < 3
    # Each within its interval; what the runs say nothing of stays at its prior.
    for one in outcome.estimates:
        assert one.low - 0.02 <= getattr(TRUTH, one.name, 0.0) <= one.high + 0.02, one
    by_name = {one.name: one for one in outcome.estimates}
    assert by_name["experts"].value == pytest.approx(0, abs=1e-3)
    assert by_name["experts"].moved_by == {}
    assert by_name["decode_attention"].high - by_name["decode_attention"].low < 0.4
    assert outcome.distrusted == []


@pytest.mark.slow
def test_a_fit_is_reproducible_and_starts_anywhere(runs, outcome):
    again, elsewhere = fit([runs], base="none"), fit([runs], base="none", seed=3)
    assert again.fit.offsets["shared", "all"] == pytest.approx(outcome.fit.offsets["shared", "all"])
    assert elsewhere.losses[-1] == pytest.approx(outcome.losses[-1], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [name for name in OPTIMISERS if name[0] != "l"] + ["lbfgs"])
def test_every_optimiser_comes_to_the_same_loss(runs, optimiser):
    problem = Problem.from_observed(observe([runs]))
    _, losses = minimise(problem)
    _, others = minimise(problem, optimiser=optimiser)
    assert losses[0] == others[0]
    assert min(others) - losses[-1] < 0.03 * (losses[0] - losses[-1])


@pytest.mark.slow
def test_a_bad_row_is_distrusted_and_does_little(runs, tmp_path):
    frame = pd.read_csv(runs)
    frame.loc[0, ["ttft_mean", "e2e_mean"]] *= 1.6
    path = tmp_path / "bad.csv"
    frame.to_csv(path, index=False)
    found = fit([path], base="none")
    assert {(row["experiment"], row["metric"]) for row in found.distrusted} == {
        (frame.loc[0, "experiment"], metric) for metric in ("ttft", "itl", "e2e")
    }
    others = [abs(row["itl_after"]) for row in found.rows[1:]]
    assert np.mean(others) < 2.0


@pytest.mark.slow
def test_a_broken_row_of_a_few_does_not_say_how_far_others_are_off(runs, outcome, tmp_path):
    frame = pd.read_csv(runs)
    frame.loc[0, ["ttft_mean", "e2e_mean"]] *= 20
    path = tmp_path / "bad.csv"
    frame.to_csv(path, index=False)
    found = fit([path], base="none").fit.scatter["vllm dense"]
    for metric, value in outcome.fit.scatter["vllm dense"].items():
        assert found[metric] < value + 0.05


def test_overloaded_rows_are_left_out_with_the_reason(runs, tmp_path):
    frame = pd.read_csv(runs)
    frame["n_success"], frame["n_failed"] = 1000, 0
    frame.loc[0, "n_failed"] = 300
    frame.loc[1, "ttft_mean"] = 0.9 * frame.loc[1, "e2e_mean"]
    frame.loc[2, "rate_rps"] = 500.0
    path = tmp_path / "runs.csv"
    frame.to_csv(path, index=False)
    observed = observe([path])
    assert len(observed.rows) == len(frame) - 3
    assert [row["reason"] for row in observed.left_out] == [
        "23% of its requests failed",
        "its requests spent most of their time in a queue",
        "the bare physics puts its load above capacity",
    ]


def test_rows_of_one_deployment_count_as_few(runs):
    rows = observe([runs]).rows
    # Errors that have a sixth in common: four rows count as 4 / (1 + 3 / 6).
    assert weights_of(rows[:5]) == pytest.approx([1 / 1.5] * 4 + [1.0])
    assert groups(rows, "workload")[0] == "600 in, 248 out"
    assert len(set(groups(rows, "deployment"))) == len(MODELS)


@pytest.mark.slow
def test_slopes_agree_with_differences(runs):
    problem = with_residual(Problem.from_observed(observe([runs])))
    shared = problem.tree.nodes.index(("shared", "all"))
    slopes = problem.deviations(problem.centre).slopes
    for name in ("gemm_memory", "handover", "residual[24]"):
        place, step = labels().index(name), 0.02
        moved = np.zeros((2, *problem.moved.shape))
        moved[:, shared, place] = step, -step
        up, down = (problem.deviations(problem.standardised(one)).sizes for one in moved)
        differences = (up - down) / (2 * step)
        scale = np.abs(differences).max()
        assert slopes[:, place] == pytest.approx(differences, rel=0.03, abs=0.01 * scale + 1e-4)


@pytest.mark.slow
def test_the_losses_slopes_are_those_of_its_parts(runs):
    problem = Problem.from_observed(observe([runs]))
    parameters = 0.1 * np.random.default_rng(0).normal(size=len(problem.centre))
    near = problem.about(problem.deviations(parameters), parameters)
    gradient = near.gradient
    assert np.allclose(near.curvature, near.curvature.T)
    assert np.all(np.linalg.eigvalsh(near.curvature) > 0.999)
    for place in np.argsort(-np.abs(gradient))[:3]:
        step = 1e-3 * np.eye(len(parameters))[place]
        difference = problem.loss(parameters + step) - problem.loss(parameters - step)
        assert gradient[place] == pytest.approx(difference / 2e-3, rel=0.01)


def test_far_deviations_pull_less():
    sizes = np.array([0.0, 0.1, 2.0, 50.0])
    found = Deviations(sizes, np.eye(4), np.ones(4), np.zeros(4, int))
    # Student's density with four degrees of freedom, by its formula.
    assert found.loss == pytest.approx(2.5 * np.sum(np.log(1 + sizes**2 / 4)))
    higher = [replace(found, sizes=sizes + 1e-6 * np.eye(4)[i]).loss for i in range(4)]
    np.testing.assert_allclose(
        found.pull * sizes, (np.array(higher) - found.loss) / 1e-6, atol=1e-5
    )
    assert found.pull[3] * sizes[3] < found.pull[2] * sizes[2]


def test_flat_numbers_and_back():
    numbers = np.arange(len(labels()), dtype=float)
    assert flat(unflat(numbers)).tolist() == numbers.tolist()
    assert len(flat(PRIOR_WIDTHS)) == len(numbers)
    assert set(CORRECTIONS) | {"residual"} == {label.partition("[")[0] for label in labels()}


def test_scatter_is_what_covers_nine_of_ten():
    needed = np.abs(np.random.default_rng(0).normal(size=2000)) * 0.05 / 1.645
    ones, alike = np.ones(2000), np.full(2000, "")
    assert scatter(needed, ones, alike, alike)[""] == pytest.approx(0.05, rel=0.05)
    # What the fit's own uncertainty covers needs no more.
    assert scatter(0 * needed, ones, alike, alike)[""] == 0.005
    # Few rows of a campaign count as much as many of another.
    far = np.append(needed, np.full(20, 0.5))
    weight, alike = np.append(ones / 2000, np.full(20, 1 / 20)), np.full(2020, "")
    assert scatter(far, weight, alike, alike)[""] == pytest.approx(0.5)
    assert scatter(*[np.zeros(0)] * 4) == {}


def test_a_population_of_few_rows_scatters_more_like_all():
    needed = np.array([*[0.1] * 48, *[0.4] * 16])
    populations = np.array([*["vllm dense"] * 48, *["vllm experts"] * 16])
    found = scatter(needed, np.ones(64), populations, populations)
    # Of all it is (48 x 0.1 + 16 x 0.4) / 64 = 0.175. The one's scale is (48 x 0.1 + 48 x 0.175) /
    # 96 = 0.1375, the other's (16 x 0.4 + 48 x 0.175) / 64 = 0.23125: 1.7297 times that covers its.
    assert found == pytest.approx(
        {"vllm experts": 0.4, "vllm dense": 0.1375 * 0.4 / 0.23125}, rel=1e-6
    )


def test_rows_of_a_unit_have_one_scale():
    # Root mean squares of 0.3 and 0.4, 0.3536, and of 0.1: with as many rows in a population of
    # their own, each is half-way to the mean of both, 0.2268, and covers the largest ratio to it.
    needed = np.repeat([0.3, 0.4, 0.1], [24, 24, 48])
    names = np.repeat(["trtllm dense", "vllm dense"], 48)
    found = scatter(needed, np.ones(96), names, names)
    scales = {"trtllm dense": (0.35355 + 0.22678) / 2, "vllm dense": (0.1 + 0.22678) / 2}
    factor = 0.4 / scales["trtllm dense"]
    assert found == pytest.approx({name: one * factor for name, one in scales.items()}, rel=1e-4)


@pytest.mark.slow
def test_a_fit_file_is_read_as_it_was_written(outcome, tmp_path):
    path = tmp_path / "mine.json"
    outcome.fit.write(path)
    found, case = load_fit(path), physim.Case.from_options(MODELS[0], gpu="h100_sxm")
    for fit_of in (lambda one: one.on(case), lambda one: one.at_branch(one.common)):
        read, was = fit_of(found), fit_of(outcome.fit)
        assert flat(read.corrections) == pytest.approx(flat(was.corrections), abs=1e-4)
        assert read.covariance == pytest.approx(was.covariance, rel=1e-2, abs=1e-4)
    assert found.on(case).scatter == pytest.approx(outcome.fit.on(case).scatter)
    assert found.common == ("all", "h100_sxm", "vllm", "vllm 0.33", "", "runs")
    assert found.record["in_sample_mape"]["itl"]["after"] < 1
    # The curvature of a branch is one line.
    assert max(map(len, path.read_text().splitlines())) < 5000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"evidence": {"branch": []}}, "evidence: is damaged"),
        ({"evidence": [3]}, "evidence[0]: is damaged"),
        ({"evidence": [{"branch": ["all"]}]}, "evidence[0].branch: is damaged"),
        (
            {"evidence": [{"branch": ["all"] * 6, "corrections": ["speed"]}]},
            "evidence[0].corrections: is damaged",
        ),
        (
            {"evidence": [{"branch": ["all"] * 6, "corrections": ["experts", "experts"]}]},
            "evidence[0].corrections: is damaged",
        ),
        (
            {
                "evidence": [
                    {"branch": ["all"] * 6, "corrections": ["experts"], "curvature": [1.0, 2.0]}
                ]
            },
            "evidence[0].curvature: has the shape (2,), not (1,)",
        ),
        ({"levels": {"gpu": 3}}, "levels.gpu: is damaged"),
        ({"levels": {"house": {}}}, "levels.house: is damaged"),
        ({"levels": {"gpu": {"h100_sxm": {"speed": 1.0}}}}, "levels.gpu.h100_sxm.speed: is no"),
        ({"widths": {"gpu": {"experts": "wide"}}}, "widths.gpu.experts: 'wide' is not a finite"),
        ({"common": ["all"]}, "common: is damaged"),
        ({"scatter": [1]}, "scatter: is damaged"),
        ({"scatter": {"vllm dense": 0.1}}, "scatter.vllm dense: is damaged"),
        ({"ranges": {"tp": [1]}}, "ranges.tp: has the shape"),
        ({"ranges": {"tp": [8, 1]}}, "ranges.tp: is damaged"),
        ({"ranges": {"tp": [-1, 8]}}, "ranges.tp: -1 is not between 0 and 1e+18"),
        ({"corrections": {"experts": 1e308}}, "corrections.experts: 1e+308 is not between -10"),
        ({"corrections": {"experts": 10**400}}, "corrections.experts: a value is not between"),
        ({"levels": {"gpu": {"x": {"experts": -99}}}}, "levels.gpu.x.experts: -99 is not between"),
        ({"widths": {"gpu": {"experts": 1e-300}}}, "widths.gpu.experts: 1e-300 is not between"),
        ({"noise": {"itl": -1}}, "noise.itl: -1 is not between 0 and 10"),
        ({"noise": {"latency": 0.1}}, "noise.latency: is no metric; use one of ttft, itl"),
        ({"frozen": "residual"}, "frozen: is damaged"),
        ({"prior_scale": "wide"}, "prior_scale: 'wide' is not a finite number"),
        ({"corrections": {"residual": {"hidden": []}}}, "corrections.residual: is damaged"),
        ({"schema_version": 9}, "schema_version: 9 is unknown"),
        ({"schema_version": 2}, "schema_version: 2 is of an older physim; run physim fit again"),
    ],
)
@pytest.mark.slow
def test_damaged_fit_files(outcome, tmp_path, change, complaint):
    path = tmp_path / "fit.json"
    outcome.fit.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as caught:
        load_fit(path)
    assert complaint in str(caught.value)


def test_evidence_that_is_none_is_refused(tmp_path):
    path, content = tmp_path / "fit.json", load_fit("default").to_dict()
    # Two corrections cannot be coupled more tightly than each is known.
    content["evidence"][0]["curvature"][1] = 1e9
    path.write_text(json.dumps(content))
    fit = load_fit(path)
    with pytest.raises(InputError, match="evidence: is no curvature of a loss"):
        fit.at_branch(fit.common)


@pytest.mark.slow
def test_intervals_hold_the_prediction_and_widen_far_from_the_data(outcome, tmp_path):
    path = tmp_path / "fit.json"
    outcome.fit.write(path)

    def predicted(**changes):
        load = {"rate": 4, "input_tokens": 575, "output_tokens": 248, "cached_tokens": 560}
        server = {"gpu": "h100_sxm", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
        return physim.predict(MODELS[0], **server, fit=path, **{**load, **changes})

    near, far = predicted(), predicted(input_tokens=8000, cached_tokens=0, rate=1)
    for prediction in (near, far):
        low, high = prediction.intervals["e2e_s"]
        assert low < prediction.e2e_s < high

    def width(prediction, name):
        low, high = prediction.intervals[name]
        return np.log(high / low)

    assert near.extrapolations == ()
    assert any("contexts of 8124 tokens, more than" in line for line in far.extrapolations)
    assert width(far, "ttft_s") > 1.5 * width(near, "ttft_s")
    assert (
        physim.predict(
            MODELS[0], gpu="h100_sxm", fit="none", rate=4, input_tokens=575, output_tokens=248
        ).intervals
        == {}
    )


@pytest.mark.slow
def test_far_from_the_data_the_corrections_are_as_uncertain_as_before(outcome):
    prior, known = flat(PRIOR_WIDTHS) ** 2, outcome.fit.at_branch(outcome.fit.common)
    # Twice as far as the runs go.
    twice = np.diag(known.beyond(np.log(2)).covariance)
    assert twice == pytest.approx((prior + np.diag(known.covariance)) / 2)
    assert np.diag(known.beyond(50.0).covariance) == pytest.approx(prior)


@pytest.mark.parametrize("tokens", [16, 4096, 20000])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B-FP8"])
def test_an_interval_is_never_below_the_roofline(model, tokens):
    options = {"gpu": "h100_sxm", "tp": 2, "rate": 0.1, "output_tokens": 100}
    case = physim.Case.from_options(model, input_tokens=tokens, **options)
    least, found = least_s(case), physim.predict(case)
    for name, bound in least.items():
        assert bound <= found.intervals[name][0] <= getattr(found, name)
    # Weights that a token visits, in 16 bit: 2 FLOP each and 2 bytes.
    if model == "Qwen/Qwen3-14B":
        blocks, head = 13_212e6, 151_936 * 5120
        # 40 layers of 40 heads of 128, and 4 FLOP for each number and pair of tokens.
        attention = 40 * 4 * 40 * 128 * tokens * (tokens + 1) / 2
        prompt = (2 * tokens * blocks + attention) / 2 / 989.4e12
        assert least["ttft_s"] == pytest.approx(prompt, rel=2e-3)
        assert least["itl_s"] == pytest.approx(2 * (blocks + head) / 2 / 3.35e12, rel=2e-3)


@pytest.mark.slow
def test_intervals_know_that_a_load_may_be_above_capacity(outcome, tmp_path):
    path = tmp_path / "fit.json"
    replace(outcome.fit, widths=outcome.fit.widths * 2).write(path)
    load = {"input_tokens": 2000, "output_tokens": 248, "max_num_seqs": 128}
    capacity = physim.predict(MODELS[0], gpu="h100_sxm", fit=path, rate=1, **load).saturation_rps
    close = physim.predict(MODELS[0], gpu="h100_sxm", fit=path, rate=0.97 * capacity, **load)
    assert close.intervals["ttft_s"][1] == float("inf")
    assert close.to_dict()["intervals"]["ttft_s"][1] is None


@pytest.mark.slow
def test_what_was_not_measured_is_as_uncertain_as_before(runs, tmp_path):
    rows = pd.read_csv(runs)
    rows["itl_mean"] = (rows["e2e_mean"] - rows["ttft_mean"]) / (rows["output_len"] - 1)
    path = tmp_path / "itl.csv"
    rows.drop(columns=["ttft_mean", "e2e_mean"]).to_csv(path, index=False)
    found, shipped = physim.fit([path]).fit, load_fit("default")
    for metric in ("ttft", "e2e"):
        assert found.scatter["vllm dense"][metric] == shipped.scatter["vllm dense"][metric]
    assert found.scatter["vllm dense"]["itl"] < shipped.scatter["vllm dense"]["itl"]
    assert set(found.record["in_sample_mape"]) == {"itl"}


@pytest.mark.slow
def test_two_experiments_do_not_say_how_far_a_third_is_off(runs, tmp_path):
    rows = pd.read_csv(runs)
    path = tmp_path / "two.csv"
    rows[rows["experiment"].isin(rows["experiment"].unique()[:2])].to_csv(path, index=False)
    assert physim.fit([path]).fit.scatter == load_fit("default").scatter


@pytest.mark.slow
def test_what_carries_over_to_another_gpu(outcome):
    known, there = (
        outcome.fit.on(physim.Case.from_options(MODELS[0], gpu=gpu))
        for gpu in ("h100_sxm", "a100_sxm")
    )
    # The engine's CPU is the same; of the kernels what all GPUs may share.
    assert there.corrections.front_end == known.corrections.front_end
    assert 0 < there.corrections.gemm_memory < known.corrections.gemm_memory
    before, after = (
        dict(zip(labels(), np.sqrt(np.diag(one.covariance)), strict=True)) for one in (known, there)
    )
    assert after["front_end"] == before["front_end"]
    assert before["gemm_memory"] < after["gemm_memory"] < PRIOR_WIDTHS.gemm_memory


@pytest.mark.slow
def test_a_fit_starts_from_another_and_keeps_what_that_knows(runs, outcome, tmp_path):
    path, few = tmp_path / "base.json", tmp_path / "few.csv"
    outcome.fit.write(path)
    frame = pd.read_csv(runs)
    again = frame.iloc[:6].assign(ttft_mean=1.001 * frame.ttft_mean[:6])
    pd.concat([again, frame.iloc[6:9]]).to_csv(few, index=False)
    found = fit([few], base=path)
    # Of a table that has grown, what the first fit knows counts once.
    known = [entry["reason"] for entry in found.left_out if "already" in entry["reason"]]
    assert (len(found.rows), known) == (6, [f"is in the fit {path} already"] * 3)
    counts = [len(set(one.fit.record["row_digests"])) for one in (outcome, found)]
    assert counts[1] == counts[0] + 6
    second = tmp_path / "second.json"
    found.fit.write(second)
    again.to_csv(tmp_path / "again.csv", index=False)
    with pytest.raises(InputError, match=r"every row: is in the fit .* already; add new ones"):
        fit([tmp_path / "again.csv"], base=second)
    case = physim.Case.from_options(MODELS[2], gpu="h100_sxm")
    before, after = (one.on(case).corrections for one in (outcome.fit, found.fit))
    # The same truth once more moves little, also of a model that was not seen again.
    assert flat(after)[:22] == pytest.approx(flat(before)[:22], abs=0.06)
    assert max(abs(row["itl_before"]) for row in found.rows) < 2.5
    assert len(found.fit.evidence.tree.branches) == len(MODELS) + 2
    with pytest.raises(InputError, match=r"is in the fit .* already; start from another"):
        fit([runs], base=path)


def of_straight_lines(monkeypatch, observed, slopes):
    """Has latencies be a tenth too long, and straight lines in the corrections."""

    def latencies(_, numbers, directions):
        values = observed.stages.observed + 0.1 + (numbers @ slopes)[:, None]
        along = np.zeros((*values.shape, len(slopes)))
        return values, along if directions is None else along + slopes

    monkeypatch.setattr(objective, "latencies_along", latencies)


def knowing_sums(runs):
    """Runs, and a fit that knows the sum of two corrections far better than each."""
    observed = observe([runs])
    curvature = np.zeros((1, len(CORRECTIONS), len(CORRECTIONS)))
    both = [list(CORRECTIONS).index(name) for name in ("gemm_compute", "experts_compute")]
    curvature[0][np.ix_(both, both)] = 1e4
    evidence = Evidence(Tree((observed.branches[0],)), curvature)
    start = flat(Corrections(gemm_compute=0.05, experts_compute=0.1))
    known = Fit("before", {("shared", "all"): start}, evidence=evidence)
    return observed, known, both


def test_what_no_run_has_stays_as_it_was(runs, monkeypatch):
    observed, known, (dense, experts) = knowing_sums(runs)
    of_straight_lines(monkeypatch, observed, flat(Corrections(gemm_compute=1.0)))
    problem = Problem.from_observed(observed, base=known)
    solved, parameters, _ = solve(problem, learns_widths=False)
    found = solved.corrections(parameters)[solved.branch]
    # Runs of dense models move what these have; experts are in none.
    assert np.all(found[:, dense] < 0.03)
    assert found[:, experts] == pytest.approx(0.1, abs=1e-12)
    # At the minimum they would have taken back what the runs gave, as far as both are known as one.
    minimum, _ = minimise(solved)
    assert np.all(np.abs(solved.corrections(minimum)[solved.branch][:, experts] - 0.1) > 0.01)


def test_runs_that_say_nothing_leave_a_fit_where_it_was(runs, monkeypatch):
    observed, known, _ = knowing_sums(runs)
    of_straight_lines(monkeypatch, observed, np.zeros(len(labels())))
    problem = Problem.from_observed(observed, base=known)
    parameters, losses = minimise(problem)
    assert problem.offsets(parameters) == pytest.approx(problem.start, abs=1e-12)
    assert losses[-1] == pytest.approx(problem.deviations(parameters).loss)


def test_a_fit_without_covariance_draws_nothing():
    case = physim.Case.from_options(MODELS[0], gpu="a100_sxm")
    known = Fit.from_corrections("mine", TRUTH).on(case)
    assert isinstance(known, Calibration)
    assert flat(known.corrections).tolist() == flat(TRUTH).tolist()
    assert known.draws(3) == []


@pytest.mark.slow
def test_left_out_models_are_predicted(runs):
    found = crossval([runs], "model", methods=("physim", "zero-shot", "blackbox", "ridge"))
    errors = {(one["method"], one["metric"]): one["mape"] for one in found.summary}
    # The truth is within the family of corrections, so that two models say what the third does.
    assert errors["physim", "itl"] < 0.5 * errors["zero-shot", "itl"]
    assert errors["physim", "itl"] < errors["ridge", "itl"]
    own = [row for row in found.rows if row["method"] == "physim"]
    assert {row["fold"] for row in own} == set(MODELS)
    assert len(own) == 3 * 12
    assert all(row["low"] < row["predicted"] < row["high"] for row in own)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["no residual", "constant MFU", "additive host"])
def test_ablations_are_problems_of_their_own(runs, method):
    from physim.validation.ablations import ablated

    problem = with_residual(Problem.from_observed(observe([runs])))
    other = ablated(method, problem)
    same = other.loss(other.centre) == pytest.approx(problem.loss(problem.centre))
    assert same == (method == "no residual")
    if method == "no residual":
        assert np.count_nonzero(other.widths) == np.count_nonzero(problem.widths) - 28


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"frozen": ("speed",)}, "freeze: 'speed': is not a correction; use one of gemm_memory"),
        ({"prior_scale": 0.0}, "prior scale: 0 is not positive"),
        ({"where": "tp == 8"}, "holds for no row"),
        ({"optimiser": "newton"}, "optimiser: 'newton' is unknown; use one of levenberg"),
        ({"base": "typo"}, "fit 'typo': is unknown"),
    ],
)
def test_options_that_cannot_be_used(runs, options, complaint):
    with pytest.raises(InputError) as caught:
        fit([runs], **options)
    assert complaint in str(caught.value)


def test_an_unknown_optimiser_is_refused_before_anything_is_read():
    with pytest.raises(InputError, match="optimiser: 'newton' is unknown"):
        fit(["missing.csv"], optimiser="newton")


def test_crossvals_refuse_to_freeze_what_is_no_correction(runs):
    complaint = "^freeze: 'typo': is not a correction; use one of gemm_memory"
    with pytest.raises(InputError, match=complaint):
        crossval([runs], frozen=("typo",))
    with pytest.raises(InputError, match=complaint):
        crossval_in_time([runs], "steps.csv", frozen=("experts", "typo"))
    with pytest.raises(InputError, match="prior scale: -1 is not positive"):
        crossval([runs], prior_scale=-1.0)


@pytest.mark.slow
def test_crossval_compares_with_the_fit_that_it_starts_from(runs, tmp_path):
    path = tmp_path / "truth.json"
    Fit("truth", offsets={("shared", "all"): flat(TRUTH)}).write(path)
    found = crossval([runs], "model", methods=("unfitted", "zero-shot"), base=path)
    errors = {(one["method"], one["metric"]): one["mape"] for one in found.summary}
    assert errors["unfitted", "itl"] == pytest.approx(0, abs=0.1)
    assert errors["zero-shot", "itl"] > 2


def test_crossval_refuses_rows_that_its_fit_knows(runs, tmp_path):
    path, known = tmp_path / "fit.json", hashlib.sha256(runs.read_bytes()).hexdigest()
    Fit("mine", record={"data": {"runs.csv": known}}).write(path)
    with pytest.raises(InputError, match="already; start from another"):
        crossval([runs], base=path)


def test_crossval_refuses_what_it_cannot_do(runs):
    with pytest.raises(InputError, match="'family' is unknown"):
        crossval([runs], "family")
    with pytest.raises(InputError, match="all rows are of one tp"):
        crossval([runs], "tp")
    with pytest.raises(InputError, match="method: 'magic' is unknown"):
        crossval([runs], "model", methods=("magic",))


def test_a_package_that_is_missing_is_said_before_the_work(runs, monkeypatch):
    monkeypatch.setattr("physim.validation.baselines.find_spec", lambda _: None)
    started = []
    with pytest.raises(InputError, match="needs scikit-learn"):
        crossval([runs], methods=("physim", "boosted"), progress=lambda *fold: started.append(fold))
    assert not started


@pytest.fixture
def trace(runs, tmp_path):
    """A hundred consecutive steps of one of the runs, as long as the truth makes them."""
    batch = 1 + np.random.default_rng(0).integers(0, 20, 101)
    prefill = (np.arange(101) % 7 == 0) * 1

    def write(cycles_s):
        pd.DataFrame(
            {
                "experiment_id": f"{MODELS[0]} 2.0",
                "step.id": np.arange(101),
                "step.ts_start_ns": np.rint(np.append(0.0, np.cumsum(cycles_s)) * 1e9).astype(int),
                "batch.num_decode_reqs": batch,
                "batch.num_prefill_reqs": prefill,
                "batch.prefill_tokens": 15 * prefill,
            }
        ).to_csv(tmp_path / "steps.csv", index=False)
        return tmp_path / "steps.csv"

    found = observe_steps(write(np.full(100, 0.01)), [runs])
    return write(np.exp(np.asarray(log_cycles(flat(TRUTH)[None], found.cycles))))


@pytest.mark.parametrize(
    ("model", "tp", "gpu", "engine"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 4, "h100_sxm", "vllm"),
        ("meta-llama/Llama-2-7b-hf", 1, "h100_sxm", "vllm"),
        ("Qwen/Qwen3-14B", 2, "h200_sxm", "sglang"),
        ("meta-llama/Llama-3.1-70B-Instruct", 4, "h200_sxm", "trtllm"),
        ("Qwen/Qwen3-32B", 4, "a100_sxm", "vllm"),
        ("Qwen/Qwen3-32B", 4, "b200_sxm", "trtllm"),
    ],
)
def test_the_shipped_fit_takes_no_gemm_beyond_the_roofline(model, tp, gpu, engine):
    """Where it was not measured, too: runs had some hundred tokens a step at most."""
    case = physim.Case.from_options(model, gpu=gpu, tp=tp, engine=engine)
    step = physim.step_model(case)
    tokens = 2.0 ** np.arange(14)
    parts = named_seconds(step, step.batch(prefill_requests=np.ones(14), chunk=tokens))
    rows = rows_of(case.server)
    gemms = [row for row in rows if isinstance(row, SizeRow) and row.gemm]
    peak, bandwidth = case.server.gpu.peak("bfloat16"), case.server.gpu.memory_bandwidth
    for name, count in (("qkv", 1), ("attention_output", 1), ("mlp", 2)):
        own = [row for row in gemms if row.part == name]
        assert len(own) == count
        # Weights and activations are of two bytes.
        work = [roofline.gemm(tokens, *row.gemm, 2.0, 2.0) for row in own]
        bound = [
            row.count * roofline.seconds(one, peak, bandwidth)
            for row, one in zip(own, work, strict=True)
        ]
        assert np.all(parts[name] > 1.01 * np.sum(bound, axis=0)), name


@pytest.mark.slow
def test_later_steps_are_predicted_from_earlier_ones(runs, trace):
    found = crossval_in_time([runs], trace, frozen=("residual",))
    fitted, bare = found.summary
    assert len(found.rows) == 2 * 20
    assert min(row["step"] for row in found.rows) == 80
    assert fitted["mape"] < 0.2 < bare["mape"]
    assert fitted["correlations"][f"{MODELS[0]} 2.0"] > 0.999


@pytest.mark.slow
def test_a_left_out_runs_steps_are_left_out_too(runs, trace):
    steps = observe_steps(trace, [runs])
    assert np.all(steps.of_experiments([f"{MODELS[0]} 2.0"]).cycles.weight == steps.cycles.weight)
    assert not np.any(steps.of_experiments([f"{MODELS[1]} 2.0"]).cycles.weight)


def test_steps_without_their_run_are_refused(runs, tmp_path):
    path = tmp_path / "steps.csv"
    pd.DataFrame(
        {
            "experiment_id": "elsewhere",
            "step.id": [1, 2],
            "step.ts_start_ns": [0, 10_000_000],
            "batch.num_decode_reqs": 4,
            "batch.num_prefill_reqs": 0,
            "batch.prefill_tokens": 0,
        }
    ).to_csv(path, index=False)
    with pytest.raises(InputError, match="elsewhere: is in no table; pass its run with --data"):
        observe_steps(path, [runs])


@pytest.mark.slow
def test_a_fit_of_one_campaign_is_little_worse_than_none_on_another(ground_truth):
    found = fit([ground_truth / "trainval.csv"], base="none").fit
    table, seen = [ground_truth / "seed16.csv"], observe([ground_truth / "trainval.csv"])
    where = f"not experiment in {sorted(set(seen.column('experiment').tolist()))}"
    unseen = observe(table, where)
    assert len(set(unseen.column("experiment"))) == 11
    predicted = [
        physim.predict_cases(unseen.cases, corrections)
        for corrections in ([found.on(case).corrections for case in unseen.cases], Corrections())
    ]
    errors = [
        np.mean(
            np.abs(
                np.array([[one.ttft_s, one.itl_s, one.e2e_s] for one in own])
                / np.exp(unseen.stages.observed)
                - 1
            ),
            axis=0,
        )
        for own in predicted
    ]
    assert np.all(errors[0] <= errors[1] + np.array([0.02, 0.005, 0.005]))


@pytest.mark.slow
def test_rows_of_engines_that_compose_steps_differently_are_each_predicted_in_their_way(tmp_path):
    path = tmp_path / "runs.csv"
    clients = {"concurrency": 8.0, "requests": 80}
    rows = [
        ROW | clients | {"experiment": engine, "engine": engine} for engine in ("sglang", "vllm")
    ]
    pd.DataFrame(rows).to_csv(path, index=False)
    both = observe([path])
    assert len(both.stages.chunks) == 2
    problem = Problem.from_observed(both)
    sizes = problem.deviations(problem.centre).sizes.reshape(2, 3)
    logs = both.stages.observed + sizes * NOISE
    predicted = physim.predict_cases(both.cases, physim.Corrections())
    expected = [[one.ttft_s, one.itl_s, one.e2e_s] for one in predicted]
    assert np.exp(logs) == pytest.approx(np.array(expected), rel=1e-6)
    assert expected[0][0] != pytest.approx(expected[1][0], rel=0.01)


@pytest.mark.slow
def test_what_is_peculiar_to_campaigns_scatters_where_a_fit_is_for_none(runs, tmp_path):
    slower = pd.read_csv(runs)
    slower["e2e_mean"] += 0.3 * (slower["e2e_mean"] - slower["ttft_mean"])
    path = tmp_path / "slower.csv"
    slower["experiment"] = "slower " + slower["experiment"]
    slower.to_csv(path, index=False)
    one, both = fit([path], base="none").fit, fit([runs, path], base="none").fit
    # A fit to one is for it. Of both the next may be of either kind, 13% from the middle.
    assert one.scatter["vllm dense"]["itl"] < 0.02
    assert both.scatter["vllm dense"]["itl"] > 0.04
