"""Which measurement tells most, what runs told, whether a server has changed, and passports."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_evaluation import ROW
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.cli.fit import estimates_table, prior_interval
from physim.corrections.calibration import TWO_SIDED_90
from physim.corrections.fields import CORRECTIONS, Corrections
from physim.corrections.files import Fit, load_fit
from physim.corrections.passport import MadeOn, elsewhere
from physim.errors import InputError
from physim.fitting.drift import changed, drift
from physim.fitting.fit import Estimate, fit
from physim.fitting.identified import Identified, Known, identified
from physim.fitting.next_runs import LOADS, STEPS, candidates, chosen, next_runs, spread_of

MODEL = "Qwen/Qwen3-8B"
TRUTH = Corrections(gemm_memory=0.08, front_end=0.3)
TARGET = {"gpu": "h100_sxm", "rate": 6.0, "input_tokens": 2000, "output_tokens": 200}


def table(path, corrections=TRUTH):
    """Four runs of a server, as physim with some corrections predicts them."""
    rows = [
        {
            **ROW,
            "experiment": f"at {rate:g}, {output}",
            "model": MODEL,
            "rate_rps": rate,
            "output_len": output,
        }
        for rate, output in ((2.0, 248), (6.0, 248), (12.0, 128), (1.0, 900))
    ]
    cases = [
        physim.Case.from_options(
            MODEL,
            gpu="h100_sxm",
            max_num_seqs=128,
            max_num_batched_tokens=2048,
            max_model_len=4096,
            rate=row["rate_rps"],
            input_tokens=575,
            output_tokens=row["output_len"],
            cached_tokens=560,
            prefixes=9,
        )
        for row in rows
    ]
    for row, prediction in zip(rows, physim.predict_cases(cases, corrections), strict=True):
        row |= {"ttft_mean": prediction.ttft_s, "e2e_mean": prediction.e2e_s}
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return fit([table(tmp_path_factory.mktemp("runs") / "runs.csv")], base="none")


def test_the_measurement_that_a_target_follows_is_chosen():
    # One is of the target's correction alone, to a standard deviation; the other of another's.
    slopes = np.array([[[0.0, 1.0]], [[1.0, 0.0]]])
    found = list(chosen(slopes, np.array([[1.0, 0.0]]), np.eye(2), 2))
    assert [place for place, _ in found] == [1, 0]
    # 1 / (1 + 1) is left after the first, and the second tells nothing.
    assert [float(left[0]) for _, left in found] == pytest.approx([0.5, 0.5])


def test_what_is_left_is_the_posteriors():
    rng = np.random.default_rng(1)
    slopes, target = rng.normal(size=(6, 3, 5)), rng.normal(size=(2, 5))
    root = rng.normal(size=(5, 5))
    spread = root @ root.T
    precision = np.linalg.inv(spread)
    for place, left in chosen(slopes, target, spread, 4):
        precision += slopes[place].T @ slopes[place]
        expected = np.diag(target @ np.linalg.inv(precision) @ target.T)
        assert left == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_measurements_make_a_target_certain_and_have_commands():
    found = next_runs(MODEL, fit="none", count=4, **TARGET)
    widths = [found.before, *(run.left for run in found.runs)]
    for metric in ("ttft", "itl", "e2e"):
        halves = [one[metric] for one in widths]
        assert halves == sorted(halves, reverse=True)
        assert halves[-1] < 0.4 * halves[0]
    assert len({run.what for run in found.runs}) == 4
    assert all(command.startswith("vllm bench ") for command in found.commands)
    json.dumps(found.to_dict())


@pytest.mark.slow
def test_steps_are_one_command():
    found = next_runs(MODEL, fit="none", count=3, kinds=[STEPS], **TARGET)
    (command,) = found.commands
    assert command.startswith("vllm bench forward --model Qwen/Qwen3-8B --load-format dummy")
    assert command.count("--case ") == 3
    assert all(run.batch in command for run in found.runs)


@pytest.mark.slow
def test_chosen_measurements_beat_random_ones():
    case = physim.Case.from_options(MODEL, **TARGET)
    none = load_fit("none")
    found, spread = candidates(case, none.on(case)), spread_of(none, case)
    # The target's own load is as good a target as any.
    target = found.slopes[found.names.index("load: 3.9 req/s of 2,000 + 200 tokens")]
    wanted = [np.sum(np.log(left)) for _, left in chosen(found.slopes, target, spread, 5)][-1]
    needed = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(found.slopes))
        precision, count = np.linalg.inv(spread), 0
        for place in order.tolist():
            precision += found.slopes[place].T @ found.slopes[place]
            count += 1
            left = np.diag(target @ np.linalg.inv(precision) @ target.T)
            if np.sum(np.log(left)) <= wanted:
                break
        needed.append(count)
    assert np.median(needed) >= 2 * 5


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"count": 0}, "next: 0 is out of range"),
        ({"kinds": ["days"]}, "next kinds: days are no kinds of measurements; use steps or loads"),
        ({"kinds": []}, "next kinds: none are no kinds"),
        ({"kinds": [STEPS], "engine": "sglang"}, "sglang has no benchmark of steps"),
        ({"rate": 500.0}, "next: the target's load is above capacity; give a lower rate"),
        ({"requests": 100}, "next: the target's load ends or changes"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_asked(change, complaint):
    with pytest.raises(InputError) as caught:
        next_runs(MODEL, **{"fit": "none", "kinds": [LOADS], **TARGET, **change})
    assert complaint in str(caught.value)


@pytest.mark.slow
def test_what_runs_told(outcome):
    found = identified(outcome.fit, outcome.case, load_fit("none"))
    assert {"front_end", "gemm_memory"} <= {one.name for one in found.told}
    by_name = {one.name: one for one in found.known}
    # Nothing is said of experts, which the model has none of.
    assert "experts" not in by_name
    assert by_name["sampling"] in found.untold
    assert by_name["front_end"].factor == pytest.approx(np.exp(0.3), rel=0.15)
    assert any("cannot tell" in line and "would" in line for line in found.describe())
    json.dumps(found.to_dict())


def test_what_runs_told_in_words():
    known = (Known("gemm_memory", 1.0, 1.1, 0.8), Known("gemm_compute", 0.9, 1.2, 0.34))
    assert Identified((*known, Known("sampling", 1.0, 2.0, 0.02)), ()).describe() == [
        "The runs determine, with 90% intervals: gemm_memory 1.00 (0.91 to 1.10).",
        "They narrow by less than half of the variance: gemm_compute 0.90 (0.75 to 1.08).",
        "They say next to nothing of: sampling.",
    ]
    assert Identified(known[1:], ()).describe() == [
        "The runs determine no correction.",
        "They narrow by less than half of the variance: gemm_compute 0.90 (0.75 to 1.08).",
    ]


def test_a_correction_far_from_what_was_expected_is_named():
    far = Known("sampling", 8.19, 1.6, 0.9, (0.22, 4.6))
    near = Known("decode_attention", 1.2, 1.1, 0.9, (0.5, 2.0))
    found = Identified((far, near), ())
    (line,) = [line for line in found.describe() if "expected" in line]
    assert line.startswith("sampling 8.19 is beyond what was expected (0.22 to 4.60)")
    assert found.to_dict()["unlikely"] == {"sampling": [0.22, 4.6]}


def test_a_fit_and_what_is_shown_of_it_have_the_same_priors():
    known = load_fit("default")
    places = range(len(CORRECTIONS))
    some = [
        Estimate(name, prior, 0.0, 0.0, 0.0, {})
        for name, prior in zip(CORRECTIONS, known.prior.tolist(), strict=True)
    ]
    cells = list(
        estimates_table([*some, Estimate("held", 0.0, 0.1, 0.1, 0.1, {})]).columns[1].cells
    )
    assert cells == [*(prior_interval(float(known.prior[place])) for place in places), "1, held"]
    shown = CliRunner().invoke(app, ["show", "fit", "default"]).output
    assert all(cell in shown for cell in cells[:-1])
    assert prior_interval(np.log(1.5) / TWO_SIDED_90) == "0.67 to 1.50"


def test_of_a_fit_that_knows_nothing_nothing_is_told():
    case = physim.Case.from_options(MODEL, **TARGET)
    with pytest.raises(InputError, match="does not say how certain it is; fit one to runs"):
        identified(load_fit("none"), case)


def simulated(rng, shift, rows=20):
    """Deviations of a day's runs, with what a fit knows of three corrections."""
    size = len(CORRECTIONS)
    slopes = np.zeros((rows, size))
    slopes[:, :3] = rng.normal(size=(rows, 3)) * 20
    spread = np.diag([one.prior**2 / 10 for one in CORRECTIONS.values()])
    known = np.zeros(size)
    known[:3] = rng.normal(size=3) * np.sqrt(np.diag(spread)[:3])
    sizes = slopes @ (known + shift) + rng.normal(size=rows)
    return sizes, slopes, np.ones(rows), spread


def test_alarms_are_as_rare_as_stated_where_nothing_changed():
    rng, nothing = np.random.default_rng(0), np.zeros(len(CORRECTIONS))
    found = np.array([changed(*simulated(rng, nothing))[0] for _ in range(1500)])
    # Two standard errors of 1,500 draws are 0.011 at 5%, and 0.005 at 1%.
    assert np.mean(found < 0.05) == pytest.approx(0.05, abs=0.015)
    assert np.mean(found < 0.01) == pytest.approx(0.01, abs=0.007)


def test_a_change_is_seen_and_named():
    rng = np.random.default_rng(0)
    shift = np.zeros(len(CORRECTIONS))
    shift[1] = -0.5
    name = list(CORRECTIONS)[1]
    for _ in range(20):
        p_value, shifts = changed(*simulated(rng, shift))
        assert p_value < 1e-3
        assert shifts[0].name == name
        # Predictions are too low by it: the time has grown.
        assert shifts[0].factor == pytest.approx(np.exp(0.5), rel=0.35)


@pytest.mark.slow
def test_a_slower_server_is_told_from_the_same(outcome, tmp_path):
    same = table(tmp_path / "same.csv")
    (found,) = drift([same], outcome.fit)
    assert not found.changed
    assert found.shifts == ()
    slower = table(tmp_path / "slower.csv", replace(TRUTH, gemm_memory=0.08 + np.log(1.2)))
    (found,) = drift([slower], outcome.fit)
    assert found.changed
    assert found.errors["itl"] < -5
    assert "gemm_memory" in {one.name for one in found.shifts}
    with pytest.raises(InputError, match="fit none: does not say how certain it is"):
        drift([same], "none")
    with pytest.raises(InputError, match="false alarms: 2 is no chance"):
        drift([same], outcome.fit, false_alarms=2)


@pytest.mark.slow
def test_a_fit_says_what_it_was_made_on(outcome, tmp_path):
    path = tmp_path / "mine.json"
    outcome.fit.write(path)
    (kind,) = load_fit(path).made_on
    assert (kind.gpu, kind.engine, kind.model, kind.rows) == ("h100_sxm", "vllm", MODEL, 4)
    here = physim.predict(MODEL, fit=path, max_num_seqs=128, max_num_batched_tokens=2048, **TARGET)
    assert not any("fit's runs are of" in line for line in here.extrapolations)
    there = physim.predict(MODEL, fit=path, **{**TARGET, "gpu": "a100_sxm"})
    assert any(
        line.startswith("a100_sxm, and the fit's runs are of h100_sxm: corrections of kernels hold")
        for line in there.extrapolations
    )
    path.write_text(json.dumps(json.loads(path.read_text()) | {"made_on": [{"gpu": 3}]}))
    with pytest.raises(InputError, match="made_on: is damaged"):
        load_fit(path)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, None),
        ({"engine": "sglang"}, "sglang, and the fit's runs are of vllm"),
        ({"engine_version": "0.11.0"}, "the engine's version is 0.11, and 0.33"),
        ({"max_num_seqs": 64}, "max_num_seqs is 64, and"),
        ({"async_scheduling": False}, "asynchronous scheduling is off, and on"),
        ({"kv_cache_dtype": "fp8"}, "the KV cache's format is fp8, and bfloat16"),
    ],
)
def test_in_what_a_case_differs(change, line):
    case = physim.Case.from_options(MODEL, **TARGET)
    kinds = [MadeOn.from_server(case.server)]
    found = elsewhere(kinds, physim.Case.from_options(MODEL, **{**TARGET, **change}))
    assert (found == []) if line is None else any(one.startswith(line) for one in found)


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    runs, mine = table(tmp_path / "runs.csv"), tmp_path / "mine.json"
    run = CliRunner().invoke
    asked = ["--data", str(runs), "--from", "none", "--out", str(mine), "--freeze", "residual"]
    done = run(app, ["fit", *asked, "--next", "2", "--target", "rate=6,input=2000,output=200"])
    assert done.exit_code == 0, done.output
    for text in ("The runs determine, with 90% intervals: ", "as it is known", "vllm bench"):
        assert text in done.output
    today = table(tmp_path / "today.csv", Corrections(gemm_memory=0.5))
    done = run(app, ["fit", "--from", str(mine), "--data", str(today), "--check"])
    assert done.exit_code == 0, done.output
    assert "  changed: runs of the same server are as far off in one check of " in done.output
    same = run(app, ["fit", "--from", str(mine), "--data", str(runs), "--check"])
    assert "  no change: runs of the same server are at least as far off in " in same.output
    assert run(app, ["show", "fit", str(mine)]).output.count("h100_sxm") >= 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--out: is missing; name the fit file to write"),
        (["--next", "2", "--target", "speed=3"], "--target: 'speed': is unknown"),
        (["--next", "2", "--target", "rate=fast"], "--target: rate: 'fast' is not a number"),
        (["--next", "2", "--target", "rate=2,rate=3"], "is there twice"),
        (["--next", "2", "--target", "rate=2,input=10"], "--target: has no output; add it"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, arguments, complaint):
    out = ["--out", str(tmp_path / "fit.json")] if arguments else []
    done = CliRunner().invoke(app, ["fit", "--data", "runs.csv", *out, *arguments])
    assert done.exit_code != 0
    assert complaint in str(done.exception or done.output)
    assert not (tmp_path / "fit.json").exists()


def test_a_fit_of_nothing_has_no_passport():
    assert Fit("mine").made_on == ()
