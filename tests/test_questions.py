"""Capacity under objectives, deployments side by side, and what limits them."""

import dataclasses
import json
from math import isclose

import numpy as np
import pytest

import physim
from physim import roofline
from physim.corrections.fields import CORRECTIONS
from physim.corrections.files import load_fit
from physim.errors import InputError
from physim.inputs.attempts import check_lists
from physim.inputs.case import Case
from physim.models.lookup import load_model
from physim.prediction.many import predict_cases
from physim.questions.elasticities import _MOVED, RATES, _slopes
from physim.service.service import Service

MODEL = "Qwen/Qwen3-14B"
LOAD = {"input_tokens": 786, "output_tokens": 251}
DEPLOYMENT = {"tp": 2, "max_num_seqs": 128, "max_num_batched_tokens": 2048}


def test_objectives():
    assert physim.Objective.parse("ttft_p99=500ms") == physim.Objective("ttft", "p99", 0.5)
    assert physim.Objective.parse("e2e_mean=2.5s").seconds == 2.5
    assert physim.Objective.parse("itl_p50=900 us").seconds == pytest.approx(9e-4)
    assert physim.Objective.parse("ttft=500ms") == physim.Objective("ttft", "each", 0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ttft_p99", "slo 'ttft_p99': has no bound; write it like ttft_p99=500ms"),
        ("itl=5ms", "slo itl: a request has many of itl; give a statistic, such as itl_p99"),
        ("ttft_p99=fast", "the bound 'fast' is not a number and a unit; write it like"),
        ("ttft_p99=500", "the bound '500' has no unit; use one of s, ms, us"),
        ("ttft_p99=5 min", "the unit 'min' is unknown; use one of s, ms, us"),
        ("tps=5ms", "the metric 'tps' is unknown; use one of ttft, itl, tpot, e2e"),
        (
            "tps_p99=5ms",
            "slo tps_p99: the metric 'tps' is unknown; use one of ttft, itl, tpot, e2e",
        ),
        ("ttft_p96=5ms", "slo ttft_p96: the statistic 'p96' is unknown; use one of mean, p50"),
        ("ttft_p99=-5ms", "slo ttft_p99: the bound of -0.005 s is not positive; give a time"),
    ],
)
def test_bad_objectives(text, complaint):
    with pytest.raises(InputError) as caught:
        physim.Objective.parse(text)
    assert complaint in str(caught.value)


def test_objectives_on_itl_are_on_gaps_and_on_tpot_on_requests():
    found = physim.predict(MODEL, gpu="h100_sxm", rate=12, arrival="poisson", **LOAD)
    assert found.itl_s == found.tpot_s
    by_itl, by_tpot = (physim.Objective.parse(f"{name}_p99=15ms") for name in ("itl", "tpot"))
    # One step in some carries another's prompt, which takes longer than all else in it.
    assert by_itl.latency_s(found) > 2 * by_tpot.latency_s(found)


def test_goodput_is_of_requests_that_keep_to_all_bounds():
    found = physim.predict(MODEL, gpu="h100_sxm", rate=12, arrival="poisson", **LOAD, **DEPLOYMENT)
    latencies = found.whole.latencies
    assert found.goodput(ttft=latencies["ttft"]["p90"]) == pytest.approx(0.9, abs=0.01)
    both = found.goodput(ttft=latencies["ttft"]["p90"], tpot=latencies["tpot"]["p90"])
    assert 0.8 <= both < 0.9
    assert found.goodput() == 1.0
    assert found.goodput(e2e=1e-3) == 0.0
    with pytest.raises(InputError, match="goodput: itl: is no latency of a request; use one of"):
        found.goodput(itl=0.01)
    with pytest.raises(InputError, match="goodput: ttft: 0 s is not positive"):
        found.goodput(ttft=0.0)


@pytest.mark.slow
def test_goodput_counts_those_that_give_up():
    case = {"gpu": "h100_sxm", "stages": [(60, 60)], "timeout_s": 10.0, "fit": "none"}
    for method in ("fluid", "replay"):
        found = physim.predict(MODEL, method=method, **case, **LOAD, **DEPLOYMENT)
        served = found.whole.completed / found.whole.arrived
        assert served < 0.95
        assert found.goodput(e2e=1e3) == pytest.approx(served, rel=1e-3)


@pytest.mark.slow
def test_a_capacity_of_requests_that_keep_to_bounds():
    asked = {"gpu": "h100_sxm", "slo": ["ttft=100ms", "tpot=12ms"], **LOAD, **DEPLOYMENT}
    most, fewer = (physim.capacity(MODEL, goodput=share, **asked) for share in (0.5, 0.95))
    assert most.limited_by == fewer.limited_by == "goodput"
    assert most.goodput == pytest.approx(0.5, abs=0.01)
    assert fewer.goodput == pytest.approx(0.95, abs=0.01)
    assert fewer.rate_rps < most.rate_rps
    with pytest.raises(InputError, match=r"goodput 0\.9: is missed at any rate: 0 of the requests"):
        physim.capacity(MODEL, **{**asked, "slo": ["ttft=1ms"]})
    with pytest.raises(InputError, match=r"goodput: 1\.5 is no share; give one above 0, up to 1"):
        physim.capacity(MODEL, goodput=1.5, **asked)


@pytest.mark.parametrize(
    "slo",
    ["itl_mean=12ms", "ttft_p99=200ms", pytest.param("e2e_mean=60s", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_a_capacity_has_the_interval_of_what_limits_it(slo):
    found = physim.capacity(MODEL, gpu="h100_sxm", slo=[slo], **LOAD, **DEPLOYMENT)
    low, high = found.interval_rps
    # One request in a hundred meets another's prompt at a tenth of the rate already.
    least = 0.05 if "p99" in slo else 0.1
    assert least * found.rate_rps < low < found.rate_rps < high < 2 * found.rate_rps
    # At its lower end a server serves less by what is not known of its saturation, and answers
    # later by what is not known of its ITL.
    if slo.startswith("itl"):
        asked = {"gpu": "h100_sxm", "arrival": "poisson", **LOAD, **DEPLOYMENT}
        light = physim.predict(MODEL, rate=found.rate_rps / 2, **asked)
        later = light.intervals["itl_s"][1] / light.itl_s
        less = light.intervals["saturation_rps"][0] / light.saturation_rps
        at = physim.predict(MODEL, rate=low / less, **asked)
        assert later * at.itl_s == pytest.approx(0.012, rel=2e-3)
    none = physim.capacity(MODEL, gpu="h100_sxm", slo=[slo], fit="none", **LOAD, **DEPLOYMENT)
    assert none.interval_rps is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slo", "limited_by"),
    [
        (["itl_mean=16ms"], "itl_mean"),
        (["ttft_p99=100ms", "itl_mean=25ms"], "ttft_p99"),
    ],
)
def test_the_capacity_just_keeps_to_its_objectives(slo, limited_by):
    found = physim.capacity(MODEL, gpu="h100_sxm", slo=slo, **LOAD, **DEPLOYMENT)
    assert found.limited_by == limited_by
    objective = next(one for one in found.objectives if one.name == limited_by)
    assert objective.latency_s(found.prediction) == pytest.approx(objective.seconds, rel=2e-3)
    more = physim.predict(
        MODEL,
        gpu="h100_sxm",
        rate=1.005 * found.rate_rps,
        arrival="poisson",
        **LOAD,
        **DEPLOYMENT,
    )
    assert objective.latency_s(more) > objective.seconds


@pytest.mark.slow
def test_a_loose_objective_is_limited_by_the_server():
    found = physim.capacity(
        MODEL, gpu="h100_sxm", slo=["itl_mean=1s"], arrival="constant", **LOAD, **DEPLOYMENT
    )
    assert found.limited_by == "throughput"
    assert found.rate_rps == pytest.approx(found.prediction.saturation_rps, rel=0.01)


@pytest.mark.slow
def test_an_objective_that_nothing_meets_is_refused():
    with pytest.raises(InputError, match=r"is missed at any rate: it is .* ms on an idle server"):
        physim.capacity(MODEL, gpu="h100_sxm", slo=["itl_mean=1ms"], **LOAD, **DEPLOYMENT)
    with pytest.raises(InputError, match="slo: is missing"):
        physim.capacity(MODEL, gpu="h100_sxm", slo=[], **LOAD, **DEPLOYMENT)


@pytest.mark.slow
def test_capacity_agrees_with_bisecting_replays():
    objective = physim.Objective.parse("itl_mean=16ms")
    found = physim.capacity(
        MODEL, gpu="h100_sxm", slo=[objective], arrival="constant", **LOAD, **DEPLOYMENT
    )
    low, high = 0.8 * found.rate_rps, 1.2 * found.rate_rps
    for _ in range(5):
        rate = (low + high) / 2
        # The requests in the middle meet neither a batch that fills nor one that drains.
        replayed = physim.predict(
            MODEL,
            gpu="h100_sxm",
            stages=[(rate, 8.0)] * 3,
            arrival="constant",
            method="replay",
            **LOAD,
            **DEPLOYMENT,
        )
        met = replayed.stages[1].latencies["itl"]["mean"] <= objective.seconds
        low, high = (rate, high) if met else (low, rate)
    assert (low + high) / 2 == pytest.approx(found.rate_rps, rel=0.02)


def test_deployments_side_by_side():
    found = physim.compare(
        [MODEL, "meta-llama/Llama-3.1-70B-Instruct"],
        ["h100_sxm", "a100_sxm"],
        [1, 4],
        rate=4,
        **LOAD,
        prices={"h100_sxm": 3.0, "a100_sxm": 1.8},
    )
    assert len(found.rows) == 6
    assert {(row["model"], row["tp"]) for row in found.refused} == {
        ("meta-llama/Llama-3.1-70B-Instruct", 1)
    }
    costs = [row["cost_per_million_tokens"] for row in found.rows if row["ttft_s"] is not None]
    assert costs == sorted(costs)
    one = next(row for row in found.rows if (row["gpu"], row["tp"]) == ("h100_sxm", 1))
    # 4 requests of 251 tokens a second, at 3 an hour.
    assert one["cost_per_million_tokens"] == pytest.approx(3 / 3600 / (4 * 251) * 1e6, rel=1e-3)
    alone = physim.predict(MODEL, gpu="h100_sxm", rate=4, input_tokens=786, output_tokens=251)
    assert one["ttft_s"] == pytest.approx(alone.ttft_s)
    assert list(found.to_frame()["gpu"]) == [row["gpu"] for row in found.rows]


def test_layouts_side_by_side():
    mixture, pair = "Qwen/Qwen3-30B-A3B", [1, 2]
    found = physim.compare(
        [mixture], ["h100_sxm"], pair, dps=pair, eps=pair, rate=4, fit="none", **LOAD
    )
    degrees = ("tp", "pp", "dp", "ep")
    layouts = {tuple(row[name] for name in degrees) for row in found.rows}
    assert layouts == {
        (1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 2, 2), (2, 1, 1, 1), (2, 1, 1, 2), (2, 1, 2, 1),
    }  # fmt: skip
    refused = {tuple(row[name] for name in degrees): row["reason"] for row in found.refused}
    assert refused.keys() == {(1, 1, 1, 2), (2, 1, 2, 2)}
    assert refused[1, 1, 1, 2].startswith("ep: 2 does not divide the 1 GPUs of tp 1 and dp 1")
    one = next(row for row in found.rows if row["dp"] == row["ep"] == 2)
    alone = physim.predict(mixture, gpu="h100_sxm", dp=2, ep=2, rate=4, fit="none", **LOAD)
    assert one["itl_s"] == pytest.approx(alone.itl_s)


def test_what_cannot_serve_the_load_comes_last():
    found = physim.compare([MODEL], ["l40s", "h100_sxm"], [1], rate=8, **LOAD)
    assert [row["gpu"] for row in found.rows] == ["h100_sxm", "l40s"]
    assert found.rows[1]["ttft_s"] is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"order": "beauty"}, "sort: 'beauty' cannot be used; use one of cost, ttft"),
        ({"order": "cost"}, "give --price"),
        ({"prices": {"h100_sxm": -1.0}}, "price of h100_sxm: -1 is not positive"),
        ({"prices": {"b200_sxm": 1.0}}, "is of no GPU that is compared"),
        ({"tps": [3]}, "tp: 3 does not divide"),
        ({"dps": [2]}, f"dp: 2 shares experts, and {MODEL} has none"),
        ({"pps": [0]}, "pps: 0 is not a positive integer"),
        ({"pp": 2}, "option 'pp': is unknown; did you mean pps?"),
    ],
)
def test_what_cannot_be_compared(options, complaint):
    given = {"models": [MODEL], "gpus": ["h100_sxm"], "tps": [1]} | options
    with pytest.raises(InputError) as caught:
        physim.compare(rate=4, **LOAD, **given)
    assert complaint in str(caught.value)


@pytest.fixture(scope="module")
def explained():
    return physim.explain(MODEL, gpu="h100_sxm", rate=12, **LOAD, **DEPLOYMENT)


def _metrics(case, corrections):
    (one,) = predict_cases([case], corrections)
    return np.array([one.ttft_s, one.itl_s, one.e2e_s, one.saturation_rps])


@pytest.mark.slow
@pytest.mark.parametrize("part", [*RATES, "decode_attention", "step_overhead", "front_end"])
def test_elasticities_agree_with_differences(explained, part):
    case, step = explained.case, 0.01
    corrections = load_fit("default").on(case).corrections

    def value_at(log):
        if part in CORRECTIONS:
            moved = dataclasses.replace(corrections, **{part: getattr(corrections, part) + log})
            return _metrics(case, moved)
        gpu, factor = case.server.gpu, np.exp(log)
        if part == "peak_flops":
            changed = {"peak_flops": tuple((n, p * factor) for n, p in gpu.peak_flops)}
        else:
            changed = {part: getattr(gpu, part) * factor}
        other = dataclasses.replace(gpu, **changed)
        return _metrics(
            Case(Service.single(dataclasses.replace(case.server, gpu=other)), case.load),
            corrections,
        )

    slopes = (np.log(value_at(step)) - np.log(value_at(-step))) / (2 * step)
    found = list(explained.values[part].values())
    assert found == pytest.approx(slopes, rel=0.01, abs=2e-3)


def test_slopes_where_something_bends_or_ends():
    def slope(up, down):
        """From metrics that follow one percent more by so many percent, and one percent less."""
        up, down = np.array([[_MOVED * up]]), np.array([[-_MOVED * down]])
        return _slopes(np.zeros(1), up, down).item()

    assert slope(0.5, 0.5) == pytest.approx(0.5)
    assert slope(0.55, 0.5) == pytest.approx(0.525)
    # As even as can be: only towards less even.
    assert slope(-0.12, 0.0) == pytest.approx(-0.12)
    assert slope(0.0, -0.12) == 0.0
    # With more it is above capacity; or with less.
    assert slope(np.inf, 2.0) == pytest.approx(2.0)
    assert slope(-3.0, -np.inf) == pytest.approx(-3.0)


@pytest.mark.slow
def test_what_was_explained_is_said(explained):
    content = json.loads(json.dumps(explained.to_dict()))
    assert content["load"]["rate"] == explained.case.demanded.rate
    assert content["fit"] == explained.fit


@pytest.mark.slow
def test_elasticities_make_sense(explained):
    values = explained.values
    assert -1.5 < values["memory_bandwidth"]["itl"] < -0.4
    assert values["experts"] == dict.fromkeys(("ttft", "itl", "e2e", "saturation"), 0.0)
    assert values["front_end"]["ttft"] > 0.05
    assert values["front_end"]["itl"] == pytest.approx(0, abs=1e-6)
    assert explained.metrics["ttft"] < explained.metrics["e2e"]


@pytest.mark.slow
def test_evictions_are_what_limits():
    """More of the KV cache keeps more prefixes, which is felt as bandwidth is."""
    shared = {"cached_tokens": 1024, "prefixes": 300, "popularity": "uniform"}
    case = {"gpu": "h100_sxm", "rate": 6.0, "input_tokens": 1200, "output_tokens": 150}

    def explained(blocks):
        return physim.explain("Qwen/Qwen3-14B", **case, **shared, kv_blocks=blocks, fit="none")

    found = explained(12_800)
    assert 0.3 < found.hit_rate < 0.5
    up, down = explained(12_864).metrics, explained(12_736).metrics
    for metric, value in found.values["kv_blocks"].items():
        slope = np.log(up[metric] / down[metric]) / np.log(12_864 / 12_736)
        assert value == pytest.approx(slope, rel=0.03)
    assert found.values["kv_blocks"]["ttft"] < -0.1
    assert "blocks of the KV cache" in found.notable()


def test_a_load_that_cannot_be_explained():
    with pytest.raises(InputError, match="ends or changes"):
        physim.explain(MODEL, rate=1, requests=10, **LOAD, gpu="h100_sxm")


@pytest.mark.slow
def test_a_load_above_saturation_cannot_be_explained():
    with pytest.raises(InputError, match="is above the saturation throughput of"):
        physim.explain(MODEL, rate=1e4, **LOAD, gpu="h100_sxm", **DEPLOYMENT)


@pytest.mark.slow
def test_pictures(explained, tmp_path):
    from physim import plot

    roof = plot.draw_roofline(MODEL, gpu="h100_sxm", tp=2)
    assert roof.get_ylabel() == "TFLOP/s of one GPU"
    # No operation is above the roof of its format, nor far below it: TB/s and TFLOP/s.
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in roof.get_lines()[1:]]
    shares = np.array([y / min(x * 3.35, 989.4) for x, y in points])
    assert np.all((shares > 0.02) & (shares <= 1.15))
    # The output layer of 16 requests that decode is near the roof, where its closed form is.
    arch = load_model(MODEL)
    flops, moved = roofline.gemm(16.0, arch.vocab_size / 2, arch.hidden_size, 2.0, 2.0)
    near = [
        share for (x, _), share in zip(points, shares, strict=True) if isclose(x, flops / moved)
    ]
    assert 0.7 < max(near) <= 1
    for against in ("batch", "context"):
        assert "ms" in plot.draw_breakdown(MODEL, gpu="h100_sxm", against=against).get_ylabel()
    loads = plot.draw_load(
        MODEL,
        rate=1,
        **LOAD,
        gpu="h100_sxm",
        metrics=("ttft", "itl"),
        objectives=[physim.Objective.parse("ttft_p99=500ms")],
        mark=5.0,
        **DEPLOYMENT,
    )
    assert [axes.get_ylabel() for axes in loads] == ["TTFT, ms", "ITL, ms"]
    bars = plot.draw_elasticities(explained)
    for number, drawn in enumerate((roof, loads, bars, plot.draw_explanation(explained))):
        path = tmp_path / f"{number}.png"
        plot.save(drawn, path)
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not batch or context"):
        plot.draw_breakdown(MODEL, gpu="h100_sxm", against="speed")


def test_prices_by_any_name_of_a_gpu():
    found = physim.compare(
        ["Qwen/Qwen3-8B"], ["h100", "A100"], prices={"H100": 2.5, "a100_sxm": 1.5}, rate=4, **LOAD
    )
    costs = {row["gpu"]: row["cost_per_million_tokens"] for row in found.rows}
    tokens = found.rows[0]["output_tokens_per_s"]
    assert costs["h100_sxm"] == pytest.approx(2.5 / 3600 / tokens * 1e6)
    assert costs["a100_sxm"] < costs["h100_sxm"]


def test_a_comparison_is_drawn(tmp_path):
    found = physim.compare(
        ["Qwen/Qwen3-8B"], ["h100_sxm", "a100_sxm"], [1], pps=[1, 2], rate=14, fit="none", **LOAD
    )
    from physim import plot

    drawn = plot.draw_comparison(found)
    assert [axes.get_xlabel() for axes in drawn] == [
        "TTFT, ms",
        "ITL, ms",
        "E2E, s",
        "saturation, requests/s",
    ]
    widths = [bar.get_width() for bar in drawn[1].patches]
    assert widths == pytest.approx([1e3 * row["itl_s"] for row in found.rows])
    # The load is above what one A100 serves.
    assert drawn[0].patches[-1].get_width() == 0
    names = [label.get_text() for label in drawn[0].get_yticklabels()]
    assert names.count(plot.figures.literal("Qwen3-8B, 2 x a100_sxm (tp 1, pp 2)")) == 1
    plot.save(drawn, tmp_path / "compared.png")
    assert (tmp_path / "compared.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: physim.compare([MODEL], "h100_sxm", [1]), "gpus: 'h100_sxm' is no list"),
        (lambda: check_lists(models=MODEL, tps=1), f"models: {MODEL!r} is no list; put it into"),
        (lambda: check_lists(models=[MODEL], tps=1), "tps: 1 is no list; put it into one: [...]"),
        (lambda: check_lists(fleets={}), "fleets: {} is no list"),
        (lambda: physim.recommend(MODEL, slo="ttft=1s"), "slo: 'ttft=1s' is no list"),
        (lambda: physim.capacity(MODEL, slo="ttft=1s"), "slo: 'ttft=1s' is no list"),
        (lambda: physim.recommend(MODEL, slo=["ttft=1s"], gpus="h100_sxm"), "gpus: 'h100_sxm'"),
    ],
)
def test_one_thing_where_several_are_tried(ask, complaint):
    with pytest.raises(InputError) as caught:
        ask()
    assert str(caught.value).startswith(complaint)


def test_a_case_where_several_are_compared():
    case = physim.Case.from_options(MODEL, gpu="h100_sxm")
    with pytest.raises(InputError, match=r"models: the case .*Qwen.* is no list"):
        check_lists(models=case)


@pytest.mark.slow
def test_the_rate_of_clients_who_become_an_open_loop():
    # Nothing of theirs is left: neither the requests and the warm-up, nor even arrivals.
    lengths = {"input_tokens": 2000, "output_tokens": 100, "gpu": "h100_sxm"}
    asked = {"slo": ["ttft_p99=300ms"], "fit": "none"}
    clients = physim.Case.from_options(
        "Qwen/Qwen3-8B", concurrency=8, requests=100, warm_up_s=10, **lengths
    )
    expected = physim.capacity("Qwen/Qwen3-8B", **lengths, **asked)
    assert physim.capacity(clients, **asked).rate_rps == pytest.approx(expected.rate_rps, rel=1e-3)
