"""Recommendations: what is recommended keeps to the objectives, and nothing cheaper does."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import physim
from physim.cli import app
from physim.errors import InputError
from physim.models.lookup import formats_of, load_model
from physim.models.parallelism import layout_name
from physim.prediction.commands import manifest_of
from physim.questions import recommendation
from physim.questions.candidates import layouts_of
from physim.questions.recommendation import shared
from physim.questions.servers import Servers, most_clients

LOAD = {"input_tokens": 786, "output_tokens": 251, "rate": 40.0}
SMALL = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
ASKED = {"slo": ["ttft_p99=500ms", "itl_mean=15ms"], "gpus": ["h100_sxm", "a100_sxm"]}


@pytest.fixture(scope="module")
def found():
    prices = {"h100_sxm": 2.5, "a100_sxm": 1.5}
    return physim.recommend("Qwen/Qwen3-14B", prices=prices, count=2, **ASKED, **LOAD, **SMALL)


@pytest.fixture(scope="module")
def few():
    """One of two layouts, without what limits it, whose slopes take half a minute to compile."""
    asked = {"slo": ["itl_mean=20ms"], "prices": {"h100_sxm": 2.5}, "gpus": ["h100_sxm"]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recommendation, "_limit", lambda *_: "memory_bandwidth")
        return physim.recommend("Qwen/Qwen3-14B", tps=[2], pps=[1, 2], **asked, **LOAD, **SMALL)


@pytest.mark.slow
def test_what_is_recommended_keeps_to_the_objectives(found):
    for one in found.choices:
        for objective in found.asked.objectives:
            assert objective.latency_s(one.prediction) <= objective.seconds
            assert objective.latency_s(one.replayed) <= objective.seconds
        assert 0 <= one.headroom < 1
        assert set(one.chances) == {"ttft_p99", "itl_mean", "throughput"}
        # What is predicted to be met is met more likely than not.
        assert all(0.5 <= chance <= 1 for chance in one.chances.values())
    costs = [one.cost for one in found.choices]
    assert costs == sorted(costs)


@pytest.mark.slow
def test_a_server_fewer_does_not_keep_to_them(found):
    for one in found.choices:
        if one.replicas == 1:
            continue
        load = one.case.demanded
        more = load.rate * one.replicas / (one.replicas - 1)
        case = one.case.under(replace(load, rate=more))
        both = [physim.predict(case, method=method) for method in ("fluid", "replay")]
        assert any(found.asked.missed(fewer) for fewer in both)


@pytest.mark.slow
def test_servers_together_are_predicted_as_one_by_one(found):
    cases = found.servers.cases[::7]
    fit = physim.load_fit("default")
    servers = Servers(cases, fit)
    together = servers.under(np.arange(len(cases)), np.full(len(cases), 0.25))
    for place, case in enumerate(cases):
        one = physim.predict(case.under(replace(case.demanded, rate=10.0)))
        assert servers.saturation[place] == pytest.approx(one.saturation_rps, rel=1e-4)
        assert together.means["itl"][place] == pytest.approx(one.itl_s, rel=1e-4)
        expected = np.inf if one.ttft_s is None else one.ttft_s
        assert together.means["ttft"][place] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_clients_are_shared_among_servers():
    asked = {**ASKED, "slo": ["ttft_mean=1s", "tpot_mean=12ms"], "gpus": ["h100_sxm"]}
    load = {**LOAD, "rate": None, "concurrency": 48.0}
    found = physim.recommend("Qwen/Qwen3-14B", max_gpus=2, count=1, **asked, **load, **SMALL)
    (best,) = found.choices
    assert best.case.demanded.concurrency == 48.0 / best.replicas
    assert found.asked.missed(best.replayed) is None
    assert found.asked.missed(physim.predict(best.case)) is None


@pytest.mark.slow
@pytest.mark.parametrize("recommended", ["few", "found"])
def test_the_cost_is_that_of_all_servers(request, recommended):
    found = request.getfixturevalue(recommended)
    best = found.choices[0]
    tokens = 40.0 * 251 * 3600
    price = {"h100_sxm": 2.5, "a100_sxm": 1.5}[best.case.server.gpu.key]
    assert best.cost == pytest.approx(best.gpus * price / tokens * 1e6, rel=1e-3)
    assert json.loads(json.dumps(found.to_dict()))["choices"][0]["gpus"] == best.gpus
    assert best.price == best.gpus * price
    assert best.to_dict()["command"].startswith("vllm serve Qwen/Qwen3-14B")
    assert found.to_frame()["gpus"].tolist() == [one.gpus for one in found.choices]


@pytest.mark.slow
def test_no_point_of_a_frontier_has_less_of_both(found):
    trade = found.tradeoff
    best = trade.frontier(np.ones(len(trade.servers), bool))
    assert np.all(np.diff(trade.of_a_gpu[best]) <= 0)
    assert np.all(np.diff(trade.of_a_user[best]) >= 0)
    for place in best:
        more = (trade.of_a_gpu > trade.of_a_gpu[place]) & (trade.of_a_user > trade.of_a_user[place])
        assert not more.any()


def test_a_load_is_shared_out_evenly():
    lengths = {"input_tokens": 786, "output_tokens": 251}
    clients = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", concurrency=160, **lengths)
    assert shared(clients, 4).demanded.concurrency == 40
    # Of clients that do not share out evenly, or are fewer than servers, the most of any server.
    few = clients.under(replace(clients.demanded, concurrency=8.0, requests=80))
    assert [shared(few, n).demanded.concurrency for n in (1, 3, 4, 16)] == [8, 3, 2, 1]
    assert [shared(few, n).demanded.requests for n in (1, 3, 4, 16)] == [80, 30, 20, 10]
    assert most_clients(np.array([8.0, 8.0, 0.5]), np.array([1 / 3, 1 / 8, 1.0])).tolist() == [
        *(3, 1, 1)
    ]
    rate = physim.Case.from_options("Qwen/Qwen3-14B", gpu="h100_sxm", rate=40, **lengths)
    assert shared(rate, 4).demanded.rate == 10


@pytest.mark.parametrize(
    ("model", "count"),
    [("Qwen/Qwen3-14B", 9), ("Qwen/Qwen3-30B-A3B", 35)],
    ids=["dense", "mixture"],
)
def test_layouts_are_searched_within_a_node(model, count):
    found = layouts_of(load_model(model), 8, {})
    assert len({*map(str, found)}) == len(found) == count
    for one in found:
        assert one["tp"] * one["dp"] * one["pp"] <= 8
        assert one["ep"] in (1, one["tp"] * one["dp"])


@pytest.mark.parametrize(
    ("tried", "names"),
    [
        ({"tp": [2], "dp": [1]}, ["tp 2", "tp 2, ep 2", "tp 2, pp 2", "tp 2, pp 2, ep 2"]),
        ({"tp": [1, 2], "pp": [3], "dp": [1], "ep": [1]}, ["tp 1, pp 3", "tp 2, pp 3"]),
        # What is asked for may span nodes; what is searched beside it does not grow it.
        ({"tp": [16], "pp": [1], "ep": [1]}, ["tp 16"]),
        ({"tp": [8], "pp": [1], "dp": [2]}, ["tp 8, dp 2", "tp 8, dp 2, ep 16"]),
        ({"tp": [8], "pp": [4]}, []),
    ],
)
def test_a_search_keeps_to_the_degrees_that_are_named(tried, names):
    most = 4 if tried.get("dp") == [1] and "pp" not in tried else 16
    found = layouts_of(load_model("Qwen/Qwen3-30B-A3B"), most, tried)
    assert [layout_name(one) for one in found] == names


def test_layouts_that_are_asked_for_are_recommended(few):
    layouts = {str(case.server.parallelism) for case in few.servers.cases}
    assert layouts == {"tp 2", "tp 2, pp 2"}
    assert {one.case.server.parallelism.tp for one in few.choices} == {2}


def test_a_model_that_does_not_fit_says_what_it_needs():
    with pytest.raises(InputError, match=r"on up to 2 of h100_sxm: cannot be served; .* needs"):
        physim.recommend(
            "deepseek-ai/DeepSeek-V3", slo=["itl_mean=1s"], gpus=["h100_sxm"], max_gpus=2, **LOAD
        )


def test_checkpoints_in_fewer_bits_are_found():
    assert formats_of("Qwen3-32B") == ["Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8"]
    assert formats_of("Qwen/Qwen3-8B") == ["Qwen/Qwen3-8B"]
    assert formats_of("deepseek-v3.1") == [
        "deepseek-ai/DeepSeek-V3.1",
        "nvidia/DeepSeek-V3.1-NVFP4",
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"slo": []}, "slo: is missing"),
        pytest.param(
            {"slo": ["itl_mean=1ms"]},
            "slo itl_mean=1ms: is missed by all .* ms at best",
            marks=pytest.mark.slow,
        ),
        ({"max_gpus": 0}, "max GPUs: 0 is not positive"),
        ({"count": 0}, "count: 0 is not positive"),
        ({"prices": {"h100_sxm": 2.0}}, "price of a100_sxm: is missing"),
        ({"prices": {"h100_sxm": -1.0}}, "price of h100_sxm: -1 is not positive"),
        ({"goodput": 2.0}, "goodput: 2 is no share"),
        ({"tpx": 2}, "option 'tpx': is unknown"),
        ({"tp": 2}, "option 'tp': is unknown; did you mean tps?"),
        ({"dps": [2], "gpus": ["h100_sxm"]}, "^dp: 2 shares experts, and Qwen/Qwen3-14B has none"),
        ({"tps": [16]}, "on up to 8 of h100_sxm, a100_sxm: has none of the layouts"),
        ({"rate": None}, "^load: has no rate"),
        ({"engine": "foo"}, "^engine 'foo': is unknown"),
        pytest.param(
            {"rate": 1e6},
            "^load: is above the capacity of all .* requests/s at best",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_asked(change, complaint):
    with pytest.raises(InputError, match=complaint):
        physim.recommend("Qwen/Qwen3-14B", **{**ASKED, **LOAD, **SMALL, **change})


def test_a_manifest_has_the_server_and_its_gpus(few):
    best = few.choices[0]
    text = manifest_of(best.case, best.replicas)
    assert f"replicas: {best.replicas}\n" in text
    assert f"nvidia.com/gpu: {best.case.server.parallelism.gpus}\n" in text
    assert "vllm serve Qwen/Qwen3-14B --tensor-parallel-size" in text


@pytest.mark.slow
def test_the_command(tmp_path):
    words = "recommend Qwen/Qwen3-14B --rate 40 --input 786 --output 251 --slo itl_mean=15ms"
    limits = "--gpus h100_sxm --max-num-seqs 256 --max-num-batched-tokens 8192 --count 1"
    files = [str(tmp_path / name) for name in ("pareto.png", "server.yaml")]
    more = ["--pareto", files[0], "--manifest", files[1]]
    done = CliRunner().invoke(app, [*words.split(), *limits.split(), *more])
    assert done.exit_code == 0, done.output
    assert "vllm serve" in done.stdout
    assert all((tmp_path / name).stat().st_size > 500 for name in ("pareto.png", "server.yaml"))
