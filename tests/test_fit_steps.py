"""Fits to steps of one server: what they tell, how well, and what a user may do wrong."""

import numpy as np
import pytest
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.corrections.fields import CORRECTIONS, Corrections, flat
from physim.corrections.files import load_fit
from physim.errors import InputError
from physim.fitting.drift import drift
from physim.fitting.empirical_bayes import solve
from physim.fitting.fit import fit
from physim.fitting.objective import Problem
from physim.fitting.observations import Observed
from physim.fitting.step_cycles import CLOCK_NAMES, alike, log_cycles, observe_served
from physim.measured import step_table
from physim.measured.steps import MeasuredSteps
from physim.step.batch import Batch

TRUTH = Corrections(gemm_memory=0.12, decode_attention=-0.2, gemm_compute=-0.1)
MODEL, GPU = "Qwen/Qwen3-8B", "h100_sxm"
LOAD = {"rate": 8.0, "input_tokens": 900, "output_tokens": 200}


def steps_of(case, clock, count=3000, noise=0.03, seed=0):
    """Steps of a server with the true corrections."""
    rng = np.random.default_rng(seed)
    decoding = rng.integers(0, 100, count).astype(float)
    prompts = (rng.random(count) < 0.2) * 1.0
    decoding[(decoding + prompts) == 0] = 1
    columns = {
        "decode_requests": decoding,
        "context_tokens": decoding * rng.integers(100, 3000, count),
        "prefill_requests": prompts,
        "prefill_tokens": prompts * rng.integers(50, 4000, count),
        "cached_tokens": 0 * prompts,
        "seconds": np.full(count, 0.01),
    }
    steps = MeasuredSteps.from_columns(columns, clock, "steps.csv")
    cycles = observe_served([steps], case, "steps").cycles
    logs = [
        np.asarray(log_cycles(flat(TRUTH)[None], piece))[: own.stop - own.start]
        for own, piece in cycles.chunks()
    ]
    columns["seconds"] = np.exp(np.concatenate(logs) + noise * rng.normal(size=count))
    return MeasuredSteps.from_columns(columns, clock, "steps.csv")


@pytest.fixture(scope="module")
def case():
    return physim.Case.from_options(MODEL, gpu=GPU)


@pytest.fixture(scope="module")
def log(case, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "steps.csv"
    step_table.write(path, steps_of(case, "loop"))
    return path


@pytest.fixture(scope="module")
def outcome(case, log):
    return fit(steps=log, server=case, base="none")


@pytest.mark.slow
def test_a_log_alone_tells_the_corrections_that_its_steps_follow(outcome):
    assert outcome.rows == []
    # What steps do not tell is where it was; all else within its interval.
    by_name = {one.name: one for one in outcome.estimates}
    for name in ("gemm_memory", "decode_attention", "gemm_compute"):
        assert by_name[name].low - 0.01 <= getattr(TRUTH, name) <= by_name[name].high + 0.01
        assert by_name[name].high - by_name[name].low < CORRECTIONS[name].prior
    assert by_name["front_end"].value == pytest.approx(0, abs=1e-6)
    assert by_name["gemm_memory"].moved_by.keys() == {"steps"}
    (kind,) = outcome.fit.made_on
    assert (kind.model, kind.rows) == (MODEL, 1)


@pytest.mark.slow
def test_a_held_load_is_predicted_and_its_interval_is_narrow(outcome, case):
    truth = physim.predict_cases([case.under(physim.Load(**LOAD))], [TRUTH])[0]
    before = physim.predict(MODEL, gpu=GPU, fit="none", **LOAD)
    found = physim.prediction.intervals.predict_with_interval(
        case.under(physim.Load(**LOAD)), outcome.fit.on(case)
    )
    assert abs(before.itl_s / truth.itl_s - 1) > 0.03
    assert found.itl_s == pytest.approx(truth.itl_s, rel=0.01)
    assert found.e2e_s == pytest.approx(truth.e2e_s, rel=0.01)
    low, high = found.intervals["itl_s"]
    assert low < truth.itl_s < high < 1.2 * low


@pytest.mark.slow
def test_of_another_model_it_is_less_sure(outcome):
    there = physim.Case.from_options("Qwen/Qwen3-14B", gpu=GPU)
    here = physim.Case.from_options(MODEL, gpu=GPU)
    assert outcome.fit.on(there).scatter["itl"] > 2 * outcome.fit.on(here).scatter["itl"]


@pytest.mark.slow
def test_a_fit_to_steps_is_read_as_it_was_written(outcome, tmp_path, case):
    path = tmp_path / "mine.json"
    outcome.fit.write(path)
    found = load_fit(path).on(case)
    assert found.scatter == pytest.approx(outcome.fit.on(case).scatter)
    assert flat(found.corrections) == pytest.approx(
        flat(outcome.fit.on(case).corrections), abs=1e-4
    )


@pytest.mark.slow
def test_the_noise_of_steps_is_learned(case):
    for noise in (0.02, 0.08):
        trace = observe_served([steps_of(case, "loop", 2000, noise)], case, "steps")
        problem = Problem.from_observed(Observed.nothing(), trace)
        problem, _, _ = solve(problem, learns_widths=False)
        # Student's distribution has its scale below the standard deviation of normal noise.
        assert problem.step_noise[CLOCK_NAMES.index("loop")] == pytest.approx(noise, rel=0.3)


@pytest.mark.slow
def test_a_slower_server_is_told_by_its_steps(outcome, case, tmp_path):
    today = steps_of(case, "loop", 1000, seed=5)
    same, slower = tmp_path / "same.csv", tmp_path / "slower.csv"
    step_table.write(same, today)
    columns = {name: one for name, one in today.columns.items() if not np.isnan(one).any()}
    # Clocks that are 10% lower make everything longer.
    columns["seconds"] = columns["seconds"] * 1.1
    step_table.write(slower, MeasuredSteps.from_columns(columns, "loop", "slower.csv"))
    (found,) = drift(fit=outcome.fit, steps=[same], server=case)
    assert not found.changed
    (found,) = drift(fit=outcome.fit, steps=[slower], server=case)
    assert found.changed
    assert found.errors["step"] == pytest.approx(-9, abs=1)
    assert all(one.factor > 1 for one in found.shifts)


@pytest.mark.slow
def test_clocks_that_differ_go_together(case, log, tmp_path):
    timed = tmp_path / "timed.csv"
    step_table.write(timed, steps_of(case, "forward", 60, noise=0.01, seed=1))
    both = fit(steps=[log, timed], server=case, base="none")
    alone = fit(steps=log, server=case, base="none")

    def width(outcome, name):
        (one,) = [one for one in outcome.estimates if one.name == name]
        return one.high - one.low

    assert width(both, "decode_attention") < width(alone, "decode_attention")


def test_alike_steps_count_as_some():
    ones = np.ones(50)
    batch = Batch.summarised(
        decode_requests=np.append(16 * ones, 80 * ones),
        context=np.append(1000 * ones, 1010 * ones),
        windows=np.array([np.inf]),
    )
    batch = type(batch)(
        **{
            name: np.broadcast_to(value, (100, 1) if name == "attended" else (100,))
            for name, value in vars(batch).items()
            if value is not None
        }
    )
    assert len(set(alike(batch, np.zeros(100, int)).tolist())) == 2
    assert len(set(alike(batch, np.arange(100) % 2).tolist())) == 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "data: is missing; give tables of runs, or steps with their server"),
        ({"steps": "x.csv"}, "data: is missing"),
        ({"server": True}, "data: is missing"),
        ({"steps": "no_such.csv", "server": True}, "no_such.csv"),
    ],
)
def test_what_cannot_be_fitted(case, options, complaint):
    if options.get("server"):
        options = {**options, "server": case}
    with pytest.raises(InputError) as caught:
        fit(**options)
    assert complaint in str(caught.value)


@pytest.mark.slow
def test_contexts_have_to_be_known(case, tmp_path):
    steps = steps_of(case, "loop", 50)
    path = tmp_path / "bare.csv"
    bare = MeasuredSteps.from_columns(
        {
            name: values
            for name, values in steps.columns.items()
            if name != "context_tokens" and not np.isnan(values).any()
        },
        "loop",
        "bare.csv",
    )
    step_table.write(path, bare)
    with pytest.raises(InputError, match=r"context_tokens: are not known"):
        fit(steps=path, server=case, base="none")
    found = fit(steps=path, server=case, base="none", context=1500.0)
    assert len(found.estimates) == len(CORRECTIONS)


@pytest.mark.slow
def test_on_the_command_line(log, tmp_path):
    out = tmp_path / "mine.json"
    asked = ["fit", "--steps", str(log), "--from", "none", "--out", str(out)]
    done = CliRunner().invoke(app, [*asked, "--server", f"model={MODEL},gpu={GPU}"])
    assert done.exit_code == 0, done.output
    assert "The runs determine, with 90% intervals: " in done.output
    assert out.exists()


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ("gpu=h100_sxm", "--server: names no model"),
        ("model=a,model=b,gpu=h100_sxm", "--server: names several models"),
        (f"model={MODEL},gpu=h100_sxm,replicas=2", "--server: replicas: is of a fleet"),
        (f"model={MODEL},gpu=h100_sxm,tpp=2", "'tpp': is unknown; did you mean tp?"),
        (f"model={MODEL}", "gpu: is missing"),
    ],
)
def test_servers_that_cannot_be_read(server, complaint, tmp_path):
    done = CliRunner().invoke(
        app, ["fit", "--steps", "x.csv", "--server", server, "--out", str(tmp_path / "f.json")]
    )
    assert done.exit_code != 0
    assert complaint in str(done.exception or done.output)
