"""The public prediction."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import physim
from physim.corrections.calibration import Calibration
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.case import Case
from physim.models.parallelism import Parallelism
from physim.prediction import steady
from physim.prediction.arrays import padded, stack, unstacked
from physim.prediction.intervals import predict_with_interval

HOME = Path(physim.__file__).parent
LOAD = {"input_tokens": 786, "output_tokens": 251, "cached_tokens": 770}


def qwen(**change):
    given = {"gpu": "h100_sxm", "tp": 2, "rate": 6, **LOAD, **change}
    return physim.predict("Qwen/Qwen3-14B", **given)


def test_a_prediction_is_consistent():
    p = qwen()
    assert p.e2e_s == pytest.approx(p.ttft_s + 250 * p.itl_s)
    assert p.output_tokens_per_s == pytest.approx(6 * 251)
    assert sum(p.pool.step_parts_s.values()) == pytest.approx(p.pool.step_s)
    assert 0 < p.pool.kv_use < 1
    assert p.requests_per_s < p.saturation_rps
    assert "Qwen/Qwen3-14B on 2 x h100_sxm" in repr(p)
    assert p.assumptions == ()


def test_frame_and_dictionary_agree():
    p = qwen()
    frame = p.to_frame()
    assert len(frame) == 1
    assert frame["ttft_s"][0] == p.to_dict()["ttft_s"] == p.ttft_s
    assert frame["rate"][0] == 6
    assert frame["step_mlp_s"][0] == p.pool.step_parts_s["mlp"]


def test_saturation_is_said_with_the_capacity():
    p = qwen(rate=1e5)
    assert p.saturated
    assert p.ttft_s is p.e2e_s is None
    assert p.requests_per_s == pytest.approx(p.saturation_rps)
    assert "above capacity" in repr(p)
    assert not qwen(rate=p.saturation_rps * 0.9).saturated


def test_few_sizes_are_ever_solved():
    sizes = {count: len(padded(range(count), (1, 8, 32))) for count in (1, 2, 8, 9, 32, 33, 100)}
    assert sizes == {1: 1, 2: 8, 8: 8, 9: 32, 32: 32, 33: 64, 100: 128}
    assert padded([3, 4, 5]) == [3, 4, 5, 5]


def test_a_load_that_is_served_is_within_capacity():
    # Eight GPUs on PCIe serve these requests slower with a thousand slots taken than with forty.
    p = physim.predict(
        "Qwen/Qwen3-30B-A3B",
        gpu="l40s",
        tp=8,
        rate=3,
        input_tokens=1,
        output_tokens=500,
        max_num_seqs=1024,
    )
    assert not p.saturated
    assert p.saturation_rps >= p.requests_per_s


@pytest.mark.slow
def test_a_closed_loop_is_never_saturated():
    p = qwen(rate=None, concurrency=5000)
    assert not p.saturated
    # Little's law; and clients who begin at once fill slots as requests without end do.
    assert p.requests_per_s == pytest.approx(5000 / p.e2e_s, rel=1e-3)
    assert p.requests_per_s == pytest.approx(p.saturation_rps, rel=0.01)


def test_a_jump_of_a_steps_time_is_passed_smoothly():
    """From 128 to 129 requests a GEMM takes another tile: 20% of a step on an A100."""
    rates = (10.5, 10.9, 11.1, 11.3, 11.7)
    cases = [
        physim.Case.from_options(
            "Qwen/Qwen3-14B", gpu="a100_sxm", tp=2, rate=rate, input_tokens=786, output_tokens=251
        )
        for rate in rates
    ]
    found = [1e3 * one.itl_s for one in physim.predict_cases(cases, Corrections())]
    # Means of two replays of 6,000 requests at the first, second, fourth and last.
    replayed = {0: 47.5, 1: 55.4, 3: 64.5, 4: 73.7}
    for place, itl_ms in replayed.items():
        assert found[place] == pytest.approx(itl_ms, rel=0.07), rates[place]
    assert found == sorted(found)


def test_one_output_token_has_no_itl():
    assert qwen(output_tokens=1).itl_s is None


@pytest.mark.slow
def test_cases_of_all_kinds_at_once_are_those_one_by_one():
    cases = [
        physim.Case.from_parts(
            model, gpu, physim.Deployment(Parallelism(tp)), physim.Load(500, 200, rate=rate)
        )
        for model, gpu, tp, rate in [
            ("Qwen/Qwen3-14B", "h100_sxm", 1, 2.0),
            ("mistralai/Mixtral-8x7B-v0.1", "h200_sxm", 2, 5.0),
            ("meta-llama/Llama-3.1-8B-Instruct", "l40s", 2, 1e4),
        ]
    ]
    together = physim.predict_cases(cases, Corrections())
    for case, prediction in zip(cases, together, strict=True):
        (alone,) = physim.predict_cases([case], Corrections())
        assert prediction.itl_s == pytest.approx(alone.itl_s, rel=1e-9)
        assert prediction.saturated == alone.saturated
    assert physim.predict_cases([], Corrections()) == []


def test_a_step_model_by_names():
    model = physim.step_model("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2)
    step = jax.jit(lambda batch: model(batch))
    p = qwen()
    time = step(physim.Batch.summarised(decode_requests=p.pool.batch, context=786 + 251 / 2))
    # A mean step differs from this one by the few that carry a prompt.
    assert float(time.latency) == pytest.approx(p.pool.step_s, rel=0.02)


def test_faster_hardware_is_faster():
    slow, fast = qwen(gpu="a100_sxm"), qwen(gpu="h200_sxm")
    assert fast.itl_s < qwen().itl_s < slow.itl_s


def test_a_gpu_that_is_better_in_every_figure_is_never_slower():
    cases = [
        physim.Case.from_options(
            "Qwen/Qwen3-14B",
            gpu=gpu,
            tp=2,
            rate=rate,
            input_tokens=prompt,
            output_tokens=200,
        )
        for gpu in ("h100_sxm", "h200_sxm")
        for rate in (1.0, 6.0)
        for prompt in (200, 1000, 3000)
    ]
    # The physics: fits have offsets by GPU, each known no better than its runs.
    found = physim.predict_cases(cases, Corrections())
    half = len(cases) // 2
    for h100, h200 in zip(found[:half], found[half:], strict=True):
        assert h200.ttft_s <= h100.ttft_s * 1.002
        assert h200.itl_s <= h100.itl_s * 1.002


def test_stand_in_kernels_are_said():
    assert "efficiencies of h100_sxm" in qwen(gpu="mi300x").assumptions[0]


@pytest.mark.slow
@pytest.mark.parametrize("mixed", ["weighted-average", "smooth-weighted"])
def test_mixed_modes_are_selectable(mixed):
    p = qwen(mixed=mixed, cached_tokens=0, rate=20)
    assert math.isfinite(p.itl_s)
    assert p.itl_s != qwen(cached_tokens=0, rate=20).itl_s


def test_fits(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"schema_version": 3, "corrections": {"gemm_memory": 0.1, "front_end": 1}}')
    corrected = qwen(fit=path)
    assert corrected.itl_s > qwen(fit="none").itl_s
    assert corrected.fit == str(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "schema_version: None is unknown"),
        ('{"schema_version": 3, "corrections": []}', "corrections: is damaged"),
        ('{"schema_version": 3, "corrections": {"speed": 1}}', "corrections.speed: is unknown"),
        (
            '{"schema_version": 3, "corrections": {"gemm_memory": "x"}}',
            "'x' is not a finite number",
        ),
        (
            '{"schema_version": 3, "corrections": {"gemm_memory": NaN}}',
            "nan is not a finite number",
        ),
        ("{", "broken JSON"),
    ],
)
def test_damaged_fits(tmp_path, text, complaint):
    path = tmp_path / "fit.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        qwen(fit=path)
    assert complaint in str(caught.value)


def test_an_unknown_fit():
    with pytest.raises(
        InputError, match="fit 'best': is unknown; use one of default, none, public-2026-11"
    ):
        qwen(fit="best")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_num_seq": 64}, "option 'max_num_seq': is unknown; did you mean max_num_seqs?"),
        ({"input_token": 5}, "option 'input_token': is unknown; did you mean input_tokens?"),
        ({"input": 5}, "option 'input': is unknown; did you mean input_tokens?"),
        ({"tensor_parallel": 2}, "option 'tensor_parallel': is unknown; use one of input_tokens, "),
        ({"pp": 37}, "pp: 37 stages for the 36 layers of Qwen/Qwen3-8B"),
        ({"dp": 2}, "dp: 2 shares experts, and Qwen/Qwen3-8B has none"),
        ({"ep": 2}, "ep: 2 does not divide the 1 GPUs"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options, complaint):
    with pytest.raises(InputError) as caught:
        physim.predict("Qwen/Qwen3-8B", gpu="h100_sxm", rate=6, **{**LOAD, **options})
    assert str(caught.value).startswith(complaint)


def test_a_case_is_predicted_as_its_names_are():
    options = {"gpu": "h100_sxm", "tp": 2, "rate": 6, "max_num_seqs": 64, **LOAD}
    case = physim.Case.from_options("Qwen/Qwen3-14B", **options)
    assert physim.predict(case) == physim.predict("Qwen/Qwen3-14B", **options)
    assert physim.predict(case, fit="none") == physim.predict(
        "Qwen/Qwen3-14B", **options, fit="none"
    )


@pytest.mark.parametrize(
    ("ask", "options"),
    [
        (physim.predict, {"rate": 4}),
        (physim.predict, {"gpu": "h100_sxm", "tp": 2}),
        (physim.step_model, {"max_num_seqs": 64}),
        (physim.explain, {"rate": 4}),
        (lambda case, **more: physim.capacity(case, slo=["itl_mean=15ms"], **more), {"tp": 2}),
    ],
)
def test_options_beside_a_case_are_refused(ask, options):
    case = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", rate=6, **LOAD)
    with pytest.raises(
        InputError, match=f"^{', '.join(options)}.*: cannot be combined with a case; "
    ):
        ask(case, **options)


def test_a_case_without_a_load_is_no_prediction():
    server = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2)
    assert server.what == "Qwen/Qwen3-14B on 2 x h100_sxm"
    with pytest.raises(InputError, match=r"^load: is missing"):
        physim.predict(server)
    with pytest.raises(InputError, match=r"^gpu: is missing"):
        physim.predict("Qwen/Qwen3-14B", rate=6, **LOAD)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "requests"), [("fluid", None), ("replay", 50)])
def test_a_fit_without_covariance_says_where_it_extrapolates(method, requests):
    options = {"gpu": "h100_sxm", "tp": 2, "rate": 6, "requests": requests, **LOAD}
    case = physim.Case.from_options("Qwen/Qwen3-14B", **options)
    fit = Calibration("mine", Corrections(), ranges={"tp": (1.0, 1.0), "context": (900.0, 950.0)})
    prediction = predict_with_interval(case, fit, method)
    assert prediction.extrapolations == ("tp 2, more than the fitted runs' 1",)
    assert prediction.intervals == {}


def test_intervals_without_covariance_are_wider_where_they_extrapolate():
    case = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2, rate=6, **LOAD)
    known = Calibration("mine", Corrections(), scatter={"ttft": 0.1, "itl": 0.05, "e2e": 0.05})
    near, far = (
        predict_with_interval(case, dataclasses.replace(known, ranges=ranges))
        for ranges in ({}, {"tp": (1.0, 1.0), "context": (900.0, 950.0)})
    )
    assert far.extrapolations == ("tp 2, more than the fitted runs' 1",)
    for name, (low, high) in near.intervals.items():
        assert far.intervals[name][0] < low < high < far.intervals[name][1]


def test_the_front_door():
    assert set(physim.__all__) <= set(dir(physim))
    for name in physim.__all__:
        assert getattr(physim, name).__doc__
    # No module has the name of a function: importing one would put it in the function's place.
    assert not {name for name in physim.__all__ if (HOME / f"{name}.py").exists()}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = physim.nothing


def test_a_prediction_in_a_notebook():
    served = physim.predict(
        "Qwen/Qwen3-14B", gpu="h100_sxm", rate=6, input_tokens=786, output_tokens=251
    )
    page = served._repr_html_()
    for text in (
        "6 req/s, Poisson arrivals",
        f"<td>{1e3 * served.itl_s:.4g}</td>",
        "<td>mlp</td>",
        "p99",
    ):
        assert text in page
    flooded = physim.predict(
        "Qwen/Qwen3-14B", gpu="h100_sxm", rate=1e5, input_tokens=786, output_tokens=251
    )
    assert "above capacity" in flooded._repr_html_()


@pytest.mark.parametrize(
    ("clients", "change", "tolerance"),
    [
        # One step for all prompts, a step and a rest, four steps, no step scheduled ahead.
        (8, {}, 0.01),
        (12, {}, 0.05),
        # Those who come again do so after whole steps, which the fluid does not count.
        (40, {}, 0.06),
        (40, {"async_scheduling": False}, 0.06),
        # More to prefill than steps to decode: prompts wait in line.
        (100, {"input_tokens": 2000, "output_tokens": 20, "max_num_batched_tokens": 2048}, 0.05),
    ],
)
def test_clients_with_requests_of_one_length_stay_in_step(clients, change, tolerance):
    case = {"gpu": "h100_sxm", "tp": 2, "concurrency": clients, "fit": "none"}
    case |= {"input_tokens": 786, "output_tokens": 251, "requests": 50 * clients, **change}
    fluid = physim.predict("Qwen/Qwen3-14B", **case)
    replayed = physim.predict("Qwen/Qwen3-14B", method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=tolerance)
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.03)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=0.025)
    assert fluid.requests_per_s == pytest.approx(replayed.requests_per_s, rel=0.035)
    assert any("stay in step" in line for line in fluid.assumptions)


def test_clients_with_requests_of_many_lengths_do_not():
    case = {"gpu": "h100_sxm", "tp": 2, "concurrency": 40, "fit": "none"}
    lengths = {
        "input_tokens": physim.Lengths.normal(786, 100),
        "output_tokens": physim.Lengths.normal(251, 25),
    }
    fluid = physim.predict("Qwen/Qwen3-14B", **lengths, **case)
    replayed = physim.predict("Qwen/Qwen3-14B", method="replay", **lengths, **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.1)
    assert not fluid.assumptions


def test_loads_say_what_is_missing_or_too_much():
    with pytest.raises(InputError, match="has no rate, concurrency, stages or trace"):
        physim.Load(786, 251)
    with pytest.raises(InputError, match="has rate and concurrency; give one of them alone"):
        physim.Load(786, 251, rate=1, concurrency=2)
    # Here types are checked before the message could be given.
    code = "import physim; physim.Load(786, 'exponential:248', rate=1)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pass physim.Lengths.parse('exponential:248')" in run.stderr


@pytest.mark.parametrize("spread", [0, 200])
def test_what_stands_for_a_trace_has_its_prefixes_and_lengths(tmp_path, spread):
    count, rate, groups = 600, 12.0, 4
    rng = np.random.default_rng(0)
    outputs = 248 + rng.integers(-spread, spread + 1, count)
    frame = pd.DataFrame(
        {
            "arrival_s": np.arange(count) / rate,
            "input_tokens": 575,
            "output_tokens": outputs,
            "prefix_group": np.arange(count) % groups,
            "prefix_tokens": 560,
        }
    )
    frame.to_csv(tmp_path / "trace.csv", index=False)
    case = Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2, max_num_seqs=256)
    found = physim.predict_trace(case, tmp_path / "trace.csv", fit="none")
    load = physim.Load(
        575,
        physim.Lengths.empirical(tuple(outputs.tolist())),
        rate=rate,
        cached_tokens=560,
        prefixes=groups,
    )
    expected = physim.predict(case.under(load), fit="none")
    assert found.saturation_rps == pytest.approx(expected.saturation_rps, rel=0.02)
    assert found.pool.kv_use == pytest.approx(expected.pool.kv_use, rel=0.03)


def test_a_trace_with_prefixes_on_separate_pools(tmp_path):
    """A request forgets what it shares once it leaves for the second pool."""
    rows = (
        {
            "timestamp": 300 * number,
            "input_length": 2000,
            "output_length": 20,
            "hash_ids": [1, 2, 100 + number, 200 + number],
        }
        for number in range(40)
    )
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    pools = {"prefill": {"replicas": 2}, "decode": {"tp": 2}}
    case = Case.from_options("Qwen/Qwen3-8B", gpu="h100", **pools)
    found = physim.predict_trace(case, trace, fit="none")
    # Two servers compute the first two blocks of 512 tokens once each.
    assert found.pools[0].hit_rate == pytest.approx(38 * 1024 / (40 * 2000), rel=0.01)
    assert found.requests_per_s == pytest.approx(10 / 3, rel=0.1)
    with pytest.raises(InputError, match="method: fluid predicts a trace on one server, not on"):
        physim.predict_trace(case, trace, fit="none", method="fluid")


@pytest.mark.parametrize(("clients", "seats"), [(512, 128), (32, 8), (32, 2)])
@pytest.mark.slow
def test_percentiles_of_clients_who_wait_in_line_are_the_replays(clients, seats):
    case = {"gpu": "h100_sxm", "concurrency": clients, "max_num_seqs": seats, "fit": "none"}
    case |= {"input_tokens": 575, "output_tokens": physim.Lengths.exponential(248)}
    fluid = physim.predict("Qwen/Qwen3-8B", **case).whole.latencies
    replayed = physim.predict(
        "Qwen/Qwen3-8B", requests=20 * clients, method="replay", **case
    ).whole.latencies
    for metric in ("ttft", "e2e"):
        for statistic, within in (("mean", 0.06), ("p50", 0.06), ("p90", 0.12), ("p99", 0.15)):
            seen = replayed[metric][statistic]
            assert fluid[metric][statistic] == pytest.approx(seen, rel=within), (metric, statistic)


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        {"rate": 12, "arrival": "poisson", "input_tokens": 786},
        {"concurrency": 32, "requests": 600, "input_tokens": 786, "output_tokens": 251},
        {"stages": [(3, 40), (10, 40)], "arrival": "poisson", "input_tokens": 1500},
    ],
)
def test_gaps_between_tokens_are_the_replays(load):
    case = {"gpu": "h100_sxm", "tp": 2, "output_tokens": 151, "fit": "none", **load}
    fluid, replayed = (
        physim.predict("Qwen/Qwen3-14B", method=method, **case).whole.latencies["itl"]
        for method in ("fluid", "replay")
    )
    # Half are of steps that only decode; one in a hundred meets the prompts of others.
    for statistic, within in (("mean", 0.06), ("p50", 0.04), ("p90", 0.1), ("p99", 0.3)):
        seen = replayed[statistic]
        assert fluid[statistic] == pytest.approx(seen, rel=within), statistic


@pytest.mark.parametrize(
    ("budget", "tokens", "rate"),
    # A prompt and a quarter of a step, two and a half, and 0.6, of which two need two steps.
    [
        (2048, 2500.0, 1.6),
        pytest.param(2048, 5000.0, 0.75, marks=pytest.mark.slow),
        pytest.param(8192, 5000.0, 1.2, marks=pytest.mark.slow),
    ],
)
def test_prompts_that_share_few_steps_are_the_replays(budget, tokens, rate):
    case = {"gpu": "a100_sxm", "tp": 2, "max_num_batched_tokens": budget, "fit": "none"}
    case |= {"input_tokens": tokens, "output_tokens": 150.0, "rate": rate, "arrival": "poisson"}
    fluid, replayed = (
        physim.predict("Qwen/Qwen3-14B", method=method, **case).whole.latencies["ttft"]
        for method in ("fluid", "replay")
    )
    for statistic, within in (("mean", 0.04), ("p50", 0.2), ("p90", 0.2)):
        assert fluid[statistic] == pytest.approx(replayed[statistic], rel=within), statistic


def test_a_fit_is_taken_as_it_is():
    known = physim.load_fit("default")
    case = {"gpu": "h100_sxm", "rate": 2.0, "input_tokens": 500, "output_tokens": 100}
    found, named = (physim.predict("Qwen/Qwen3-8B", fit=fit, **case) for fit in (known, "default"))
    assert found.to_dict() == named.to_dict()


def test_a_handover_that_takes_longer_does_so_in_the_replay_too():
    # The correction adds steps when requests arrive, not the longer ones of their own prompts.
    from physim.prediction.checked import checked
    from physim.prediction.many import predict_cases

    case = physim.Case.from_options(
        "Qwen/Qwen3-8B",
        gpu="h100_sxm",
        input_tokens=2500.0,
        output_tokens=150.0,
        rate=7.0,
        arrival="poisson",
    )
    corrections = Corrections(handover=0.5)
    (prediction,) = predict_cases([case], [corrections])
    found = checked(prediction, case, corrections, seed=1)
    (ttft,) = [row for row in found.rows if (row.quantity, row.statistic) == ("ttft", "mean")]
    assert ttft.fluid == pytest.approx(ttft.replay, rel=0.04)


@pytest.mark.parametrize(
    "load", [{"rate": 6}, {"rate": 6, "arrival": "poisson"}, {"concurrency": 8}]
)
@pytest.mark.parametrize("output", [1.2, 3.7, 100.3])
def test_fractions_of_a_token_have_percentiles(load, output):
    found = physim.predict(
        "Qwen/Qwen3-8B", gpu="h100_sxm", input_tokens=500, output_tokens=output, fit="none", **load
    )
    for latency in found.whole.latencies.values():
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] < 1


@pytest.mark.parametrize("method", ["fluid", "replay"])
def test_requests_end_at_max_model_len(method):
    case = {"gpu": "h100_sxm", "max_model_len": 2048, "fit": "none", "requests": 400}
    long = physim.Lengths.exponential(500)
    found = physim.predict(
        "Qwen/Qwen3-8B", method=method, input_tokens=1000, output_tokens=long, rate=2, **case
    )
    (note,) = [line for line in found.assumptions if "end early" in line]
    # exp(-1048 / 500)
    assert note == "12.30% of the outputs end early, where requests reach max_model_len 2048"
    mean = found.output_tokens_per_s / found.requests_per_s
    # 500 (1 - exp(-1048 / 500))
    assert mean == pytest.approx(438.5, rel=1e-3 if method == "fluid" else 0.1)
    # exp(-2047 / 1000) of the prompts cannot be served, more than are left out.
    prompts = physim.Lengths.exponential(1000)
    with pytest.raises(InputError, match=r"12\.9\d% of the prompts are longer than max_model_len"):
        physim.predict(
            "Qwen/Qwen3-8B", method=method, input_tokens=prompts, output_tokens=9, rate=2, **case
        )


def test_another_load_is_held_to_the_same_limits():
    long = physim.Lengths.exponential(500)
    server = {"gpu": "h100_sxm", "max_model_len": 2048}
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", input_tokens=1000, output_tokens=long, rate=2, **server
    )
    (note,) = case.notes
    assert "of the outputs end early" in note
    assert case.under(dataclasses.replace(case.load, rate=3)).notes == (note,)
    short, too_long = physim.Load(9, 9, rate=3), physim.Load(2000, 100, rate=3)
    assert case.under(short).notes == case.under(None).notes == ()
    with pytest.raises(InputError, match="exceed max_model_len 2048"):
        case.under(too_long)


def test_what_is_no_number_does_not_leave():
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", gpu="h100_sxm", rate=2, input_tokens=500, output_tokens=100
    )
    with pytest.raises(
        InputError, match="Qwen3-8B on 1 x h100_sxm, 2 req/s, Poisson arrivals: the model finds"
    ):
        physim.predict_cases([case], Corrections(gemm_memory=math.nan))


@pytest.mark.parametrize(
    ("load", "complaint"),
    [
        ({"rate": 1e-300}, "rate: 1e-300 is not between 1e-09 and 1e"),
        ({"stages": [(1e300, 10)]}, "stage: rate: 1e.300 is not between"),
        ({"concurrency": 4, "arrival": "constant"}, "arrival: has no meaning for clients"),
        ({"concurrency": 4, "burstiness": 0.5}, "arrival: has no meaning for clients"),
    ],
)
def test_loads_without_a_meaning_are_refused(load, complaint):
    with pytest.raises(InputError, match=complaint):
        physim.predict("Qwen/Qwen3-8B", gpu="h100_sxm", input_tokens=5, output_tokens=5, **load)


def test_the_engine_is_said():
    found = physim.predict(
        "Qwen/Qwen3-8B",
        gpu="h100_sxm",
        rate=2,
        input_tokens=500,
        output_tokens=100,
        engine_version="0.15.1",
        max_num_seqs=64,
        sampling="greedy",
        fit="none",
    )
    assert found.pool.describe_engine() == (
        "vllm 0.15.1: max_num_seqs 64, max_num_batched_tokens 8192, max_model_len 40960, "
        "asynchronous scheduling, bfloat16 KV cache, greedy sampling"
    )
    content = json.loads(json.dumps(found.to_dict()))["pools"][0]["server"]
    assert (content["engine"], content["engine_version"]) == ("vllm", "0.15.1")
    assert (content["max_num_seqs"], content["sampling"]) == (64, "greedy")
    assert found.to_frame()["engine_version"].tolist() == ["0.15.1"]
    assert found.pool.describe_engine() in found._repr_html_()


def test_the_parts_of_the_time_to_first_token_sum_to_it():
    model = "meta-llama/Llama-3.1-8B-Instruct"
    lengths = {"gpu": "h100_sxm", "input_tokens": 2000, "output_tokens": 200, "fit": "none"}
    alone = physim.predict(model, rate=0.001, **lengths)
    busy = physim.predict(model, rate=6.0, **lengths)
    clients = physim.predict(model, concurrency=64, requests=640, warm_up_s=2.0, **lengths)
    for found in (alone, busy, clients):
        assert sum(found.ttft_parts_s.values()) == pytest.approx(found.ttft_s, rel=1e-5)
        assert all(part >= 0 for part in found.ttft_parts_s.values())
    # Without any other request: 5 ms in the API server and 2 us for each of 2,000 tokens, half of
    # 20 us for a token on its way out (physim/step/front_end.py), and the rest is the one step of
    # the prompt.
    parts = alone.ttft_parts_s
    assert parts["front_end"] == pytest.approx(9e-3)
    assert parts["output"] == pytest.approx(10e-6, rel=0.05)
    assert parts["prefill"] == pytest.approx(alone.ttft_s - 9.01e-3, rel=0.01)
    assert busy.ttft_parts_s["scheduling"] > 0
    # Each of 64 clients begins ten times, and waits once.
    assert clients.ttft_parts_s["warm_up"] == pytest.approx(2.0 / 10)
    assert clients.ttft_parts_s["queue"] > 0


@pytest.mark.parametrize(("version", "each_s"), [("0.18.0", 4e-6), ("0.33", 2e-6)])
def test_tokens_of_a_prompt_take_time_in_the_api_server(version, each_s):
    load = {"input_tokens": 8000, "output_tokens": 2, "rate": 0.001, "fit": "none"}
    server = {"gpu": "h100_sxm", "engine_version": version}
    found = physim.predict("Qwen/Qwen3-14B", **server, **load)
    assert found.ttft_parts_s["front_end"] == pytest.approx(5e-3 + 8000 * each_s)
    assert sum(found.ttft_parts_s.values()) == pytest.approx(found.ttft_s)


@pytest.mark.slow
def test_clients_meet_the_time_of_their_prompts_tokens_in_the_replay_too():
    load = {"input_tokens": 8000, "output_tokens": 300, "concurrency": 4, "requests": 40}
    server = {"gpu": "h100_sxm", "engine_version": "0.18.0", "fit": "none"}
    fluid, replayed = (
        physim.predict("Qwen/Qwen3-14B", method=method, **server, **load)
        for method in ("fluid", "replay")
    )
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.1)
    assert fluid.e2e_s == pytest.approx(replayed.e2e_s, rel=0.02)


@pytest.mark.slow
def test_what_a_short_prompt_waits_for_launches_is_a_part_of_its_first_token():
    # TensorRT-LLM launches 36 layers at 0.7 ms: a short prompt takes 25 ms, in which the GPU's time
    # hides; a long one hides the launches.
    server = {"gpu": "h200_sxm", "engine": "trtllm", "rate": 0.001, "fit": "none"}
    short, long = (
        physim.predict("openai/gpt-oss-120b", input_tokens=tokens, output_tokens=2, **server)
        for tokens in (16, 20000)
    )
    both = short.ttft_parts_s["launches"] + short.ttft_parts_s["prefill"]
    # 2 ms more of the CPU for any step, beside which the GPU's time hardly counts.
    assert both == pytest.approx(36 * 0.7e-3 + 2e-3, rel=0.05)
    assert short.ttft_parts_s["launches"] > 0.5 * both
    assert long.ttft_parts_s["launches"] < 0.01 * long.ttft_s


@pytest.mark.slow
def test_loads_that_end_have_no_parts_of_their_first_tokens():
    found = physim.predict(
        "Qwen/Qwen3-8B", gpu="h100_sxm", rate=2.0, requests=100, input_tokens=100, output_tokens=50
    )
    assert found.ttft_parts_s == {}


def test_what_was_not_said_of_a_scenario_is_listed():
    load = {"rate": 1.0, "input_tokens": 500, "output_tokens": 100}
    plain = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", **load)
    said = {"engine": "vllm", "engine_version": "0.15.1", "max_num_seqs": 64}
    said |= {"max_num_batched_tokens": 2048, "max_model_len": 4096, "sampling": "greedy"}
    load |= {"arrival": "gamma", "cached_tokens": 100}
    other = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", **said, **load)
    one, two = physim.predict_cases([plain, other], Corrections())
    sizes = plain.server.sizes
    assert one.scenario == (
        f"vllm {plain.server.profile.version}",
        f"max_num_seqs {sizes.max_num_seqs}",
        f"max_num_batched_tokens {sizes.max_num_batched_tokens}",
        f"max_model_len {sizes.max_model_len}",
        "truncated sampling",
        "no prompt tokens cached",
        "prompts of one length",
        "outputs of one length",
        "Poisson arrivals",
    )
    assert two.scenario == ("prompts of one length", "outputs of one length")
    assert two.to_dict()["scenario"] == list(two.scenario)


def test_records_are_stacked_and_taken_apart():
    one, other = physim.Corrections(lm_head=0.1), physim.Corrections(host_step=-0.2)
    found = unstacked(stack([one, other, one]))
    assert [own.lm_head for own in found] == [0.1, 0.0, 0.1]
    assert [own.host_step for own in found] == [0.0, -0.2, 0.0]


@pytest.mark.slow
def test_many_cases_are_solved_by_the_chunk(monkeypatch):
    load = {"gpu": "h100_sxm", "input_tokens": 786, "output_tokens": 251}
    cases = [
        physim.Case.from_options("Qwen/Qwen3-8B", rate=rate, **load)
        for rate in (1.0, 4.0, 16.0, 64.0, 256.0)
    ]
    whole = physim.predict_cases(cases, physim.Corrections())
    monkeypatch.setattr(steady, "_SIZES", {5: 2})
    by_two = physim.predict_cases(cases, physim.Corrections())
    for one, other in zip(by_two, whole, strict=True):
        assert jax.tree.structure(one.to_dict()) == jax.tree.structure(other.to_dict())
        # Sums of products are taken in another order.
        for own, same in zip(*map(jax.tree.leaves, (one.to_dict(), other.to_dict())), strict=True):
            assert own == (pytest.approx(same, rel=1e-9) if isinstance(same, float) else same)


@pytest.mark.parametrize("method", ["fluid", "replay"])
def test_an_answer_of_one_token_keeps_to_any_time_between_tokens(method):
    case = {"gpu": "h100_sxm", "rate": 2.0, "input_tokens": 500, "fit": "none", "method": method}
    one = physim.predict("Qwen/Qwen3-8B", output_tokens=1, **case)
    assert one.goodput(tpot=1e-6) == 1.0
    # Three of four answers are one token, and those of the fourth take longer than that.
    some = physim.predict(
        "Qwen/Qwen3-8B", output_tokens=physim.Lengths.empirical((1, 1, 1, 200)), **case
    )
    assert some.goodput(tpot=1e-6) == pytest.approx(0.75, abs=0.02)


LENGTHS_OF_SOME = {"input_tokens": 500, "output_tokens": 100}


def test_corrections_are_of_all_cases_or_of_each():
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", rate=1, **LENGTHS_OF_SOME)
    with pytest.raises(InputError, match="are 1 for 2 cases"):
        physim.predict_cases([case, case], [physim.Corrections()])


@pytest.mark.slow
def test_a_load_that_all_give_up_on_has_no_latencies():
    case = {"gpu": "h100_sxm", "rate": 1.0, "requests": 20, "timeout_s": 0.01, "fit": "none"}
    with pytest.raises(InputError, match="no request that is completed"):
        physim.predict("Qwen/Qwen3-8B", **case, **LENGTHS_OF_SOME)


def test_a_wait_for_tokens_does_not_jump_where_two_prompts_just_fit_a_step():
    # Two prompts of 4,000 tokens fit a step that decodes few. TTFT fell by up to 7% from one rate
    # to the next, and with it went the slopes of `explain`.
    lengths = {"input_tokens": 4000, "output_tokens": 300, "max_model_len": 8192}
    server = {"gpu": "h100_sxm", "tp": 2, "arrival": "poisson"}
    rates = np.linspace(1.8, 2.4, 61)
    cases = [Case.from_options("Qwen/Qwen3-32B", rate=rate, **server, **lengths) for rate in rates]
    found = [one.ttft_s for one in physim.predict_cases(cases, Corrections())]
    longer = np.diff(np.log(found))
    assert np.all(longer > 0)
    assert np.max(np.abs(np.diff(longer))) < 0.002


def test_short_answers_wait_for_prompts_that_take_most_of_the_time():
    # TTFT was 30% short while a prompt was under way for a mean step with prompts and without.
    case = {"gpu": "h100_sxm", "rate": 3.0, "arrival": "poisson", "fit": "none"}
    case |= {"input_tokens": 4000, "output_tokens": 1}
    fluid = physim.predict("Qwen/Qwen3-14B", **case)
    replayed = physim.predict("Qwen/Qwen3-14B", method="replay", **case)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.08)
