"""Lengths of requests as they go together: distributions, samples, points, presets and files."""

import gzip
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from limits_by_hand import config_of
from typer.testing import CliRunner

import physim
from physim.batching.demand import Demand
from physim.batching.kv_capacity import kv_slots, kv_use
from physim.batching.limits import Limits
from physim.cli import app
from physim.errors import InputError
from physim.inputs.lengths import STRATA, Lengths
from physim.inputs.request_lengths import RequestLengths, presets
from physim.inputs.request_points import joint_points, longest_parts, scramble
from physim.inputs.request_traces import read_requests
from physim.replay.cluster import replay
from physim.replay.request import Request
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload, drawn, read_trace


def heavy(count=20_000, seed=0):
    """Requests of log-normal lengths; of half the prompts a part is cached."""
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, count))
    inputs = np.rint(np.maximum(np.exp(6 + one), 2))
    outputs = np.rint(np.maximum(np.exp(5 + 0.6 * one + 0.8 * other), 1))
    cached = np.where(rng.random(count) < 0.5, np.floor(0.9 * inputs), 0.0)
    return inputs, outputs, cached


# ---- distributions with a heavy tail ----


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
@pytest.mark.parametrize(("mean", "std"), [(248, 300), (1000, 3000), (12_000, 15_800), (50, 5)])
def test_parts_of_a_heavy_tail_keep_the_mean_and_the_spread(kind, mean, std):
    lengths = Lengths(kind, mean, std)
    # What is below one token is raised to it: of a wide gamma distribution some thousandths.
    assert lengths.strata().mean() == pytest.approx(mean, rel=1e-9 if kind == "lognormal" else 1e-3)
    assert lengths.fine.std() == pytest.approx(std, rel=0.05)
    drawn_lengths = lengths.sample(np.random.default_rng(0), 400_000)
    assert drawn_lengths.mean() == pytest.approx(mean, rel=0.02)
    assert drawn_lengths.std() == pytest.approx(std, rel=0.1)


def test_a_lognormal_distribution_by_hand():
    # Of mean 100 and deviation 100 the logarithms have the variance ln 2, so the median is
    # 100 / sqrt(2) and 23.8 % = 1 - Phi(0.7125) are beyond 127.8 = exp(mu + 0.7125 sigma).
    lengths = Lengths.lognormal(100, 100)
    sigma = math.sqrt(math.log(2))
    assert lengths.share_beyond(100 / math.sqrt(2)) == pytest.approx(0.5, abs=1e-3)
    assert lengths.share_beyond(70.7107 * math.exp(0.7125 * sigma)) == pytest.approx(
        0.238, abs=1e-3
    )
    # Of the tokens Phi(-sigma) are in the shorter half of the requests.
    below = lengths.strata()[: STRATA // 2].sum() / lengths.strata().sum()
    assert below == pytest.approx(0.2025, abs=1e-4)


def test_a_gamma_distribution_by_hand():
    # Deviation and mean alike make it an exponential distribution.
    lengths = Lengths.gamma(500, 500)
    assert lengths.share_beyond(1000) == pytest.approx(math.exp(-2), abs=1e-3)
    np.testing.assert_allclose(lengths.strata(), Lengths.exponential(500).strata(), rtol=2e-3)
    # E min(X, 1000) = 500 (1 - exp(-2))
    cut = lengths.up_to(1000)
    assert cut.mean == pytest.approx(500 * (1 - math.exp(-2)), rel=1e-3)
    assert max(cut.values) == 1000


@pytest.mark.parametrize("kind", ["lognormal", "gamma"])
def test_narrow_and_wide_distributions(kind):
    assert (Lengths(kind, 100, 0).fine == 100).all()
    assert (Lengths(kind, 100, 0).sample(np.random.default_rng(0), 50) == 100).all()
    narrow = Lengths(kind, 1000, 1e-6).fine
    np.testing.assert_allclose(narrow, 1000, rtol=1e-3)
    assert (np.diff(narrow) >= 0).all()
    with pytest.raises(InputError, match=r"std: 11000 is above 100 means"):
        Lengths(kind, 100, 11_000)
    assert Lengths.parse(f"{kind}:248:300") == Lengths(kind, 248, 300)
    for text in (f"{kind}:248", f"{kind}:248:300:1", f"{kind}:0.5:2", f"{kind}:9:nan"):
        with pytest.raises(InputError, match=f"^output '{text}'"):
            Lengths.parse(text, "output")


# ---- points and moments ----


@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 65, 1000, 20_000])
def test_points_keep_every_mean(count):
    inputs, outputs, cached = heavy(count)
    points = joint_points(inputs, cached, outputs)
    assert [len(own) for own in points] == [STRATA] * 3
    for own, exact in zip(points, (inputs, cached, outputs), strict=True):
        assert own.mean() == pytest.approx(exact.mean(), rel=1e-9, abs=1e-9)
    assert (points.cached_tokens <= points.input_tokens).all()


def test_points_by_hand():
    # 64 prompts, the longest with the longest outputs: each is a point, and outputs are exchanged
    # within groups of eight alone.
    tokens = np.arange(1.0, 65.0)
    points = joint_points(tokens, np.zeros(64), 10 * tokens)
    assert points.input_tokens.tolist() == tokens.tolist()
    assert sorted(points.output_tokens[:8]) == [10, 20, 30, 40, 50, 60, 70, 80]
    assert points.output_tokens[8:16].min() == 90
    assert points.output_tokens[:8].tolist() == [10 * (rank + 1) for rank in scramble(8)]


def test_points_keep_how_lengths_go_together():
    inputs, outputs, cached = heavy()
    points = joint_points(inputs, cached, outputs)
    # Logarithms, since a few longest requests decide of the lengths themselves.
    exact = np.corrcoef(np.log(inputs), np.log(outputs))[0, 1]
    own = np.corrcoef(np.log(points.input_tokens), np.log(points.output_tokens))[0, 1]
    assert exact == pytest.approx(0.6, abs=0.02)
    assert own == pytest.approx(exact, abs=0.05)
    # What is computed of prompts differs by what is cached, within groups of like prompts too.
    new = points.input_tokens - points.cached_tokens
    assert new.std() == pytest.approx((inputs - cached).std(), rel=0.1)
    assert (new > 0).all()


def test_points_of_lengths_that_say_nothing_of_each_other():
    load = physim.Load(Lengths.exponential(500), Lengths.lognormal(200, 300), rate=1)
    points = load.points()
    np.testing.assert_array_equal(points.input_tokens, Lengths.exponential(500).strata())
    np.testing.assert_array_equal(
        np.sort(points.output_tokens), Lengths.lognormal(200, 300).strata()
    )
    assert abs(np.corrcoef(points.input_tokens, points.output_tokens)[0, 1]) < 0.03
    assert not points.cached_tokens.any()
    cached = replace(load, cached_tokens=100.0).points()
    # A prompt that is shorter than what is cached has one token to compute.
    np.testing.assert_allclose(
        cached.input_tokens - cached.cached_tokens,
        np.maximum(Lengths.exponential(500).strata() - 100, 1),
    )


@pytest.mark.parametrize("count", [8, 64, 4096])
def test_the_scrambling_permutation(count):
    found = scramble(count)
    assert sorted(found.tolist()) == list(range(count))
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.03


def test_moments_by_hand():
    own = RequestLengths.from_columns([10, 20], [1, 3], [4, 0])
    moments = own.moments
    assert (moments.input, moments.cached, moments.new, moments.output) == (15, 2, 13, 2)
    assert (moments.input_squared, moments.new_squared) == (250, 218)
    assert (moments.output_squared, moments.input_output, moments.new_output) == (5, 35, 33)
    # Exponential: E X^2 = 2 mean^2, but for what is lost between the last of 4,096 points; and
    # what says nothing of each other is multiplied.
    load = physim.Load(Lengths.exponential(500), Lengths.gamma(200, 100), rate=1)
    assert load.moments().input_squared == pytest.approx(2 * 500**2, rel=0.01)
    assert load.moments().output_squared == pytest.approx(200**2 + 100**2, rel=1e-3)
    assert load.moments().input_output == pytest.approx(500 * 200, rel=1e-5)
    assert physim.Load.of_requests(own, rate=1).moments() == moments
    # Of one length each, one request stands for all.
    alike = physim.Load(500, 200, rate=1, cached_tokens=100).moments()
    assert (alike.new, alike.new_squared, alike.output_squared) == (400, 400**2, 200**2)
    assert alike.new_cv2 == 0.0


# ---- joint lengths ----


def test_the_order_of_requests_is_of_no_account():
    own = RequestLengths.from_columns([10, 20, 10], [1, 3, 2], [4, 0, 0])
    other = RequestLengths.from_columns([20, 10, 10], [3, 2, 1], [0, 0, 4], name="another")
    assert own == other
    assert hash(own) == hash(other)
    assert own.inputs == Lengths.empirical((10, 10, 20))
    assert own.outputs.mean == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([], []), "have no request"),
        (([1, 2], [3]), "have 2 prompts, 2 cached parts and 1 outputs"),
        (([1, 0.5], [3, 3]), "input_tokens: 0.5 is below 1"),
        (([1, 2], [3, math.nan]), "output_tokens: nan is below 1"),
        (([1, math.inf], [3, 3]), "input_tokens: inf is below 1"),
        (([10], [3], [11]), "cached_tokens: are more than the prompt has"),
        (([10], [3], [-1]), "cached_tokens: -1 is below 0"),
    ],
)
def test_joint_lengths_that_cannot_be(given, says):
    with pytest.raises(InputError, match=f"^lengths 'requests'.*{says}"):
        RequestLengths.from_columns(*given)


def test_a_load_of_requests():
    own = RequestLengths.from_columns([100, 300], [10, 30], [0, 80])
    load = physim.Load.of_requests(own, rate=2, arrival="poisson")
    assert (load.mean_input, load.mean_output, load.cached_tokens) == (200, 20, 40)
    faster = replace(load, rate=4)
    assert (faster.lengths, faster.input_tokens) == (own, load.input_tokens)
    alike = load.with_lengths(RequestLengths.from_columns([50], [5]))
    assert (alike.input_tokens, alike.output_tokens, alike.cached_tokens) == (50, 5, 0)
    assert alike.arrival == "poisson"
    content = load.to_dict()
    assert (content["input_tokens"], content["output_tokens"]) == (200, 20)
    assert content["lengths"]["moments"]["input_output"] == (100 * 10 + 300 * 30) / 2
    json.dumps(content)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"input_tokens": 5},
            "load: input_tokens: is given by lengths already; leave one of the two",
        ),
        (
            {"output_tokens": Lengths.exponential(5)},
            "load: output_tokens: is given by lengths already",
        ),
        ({"cached_tokens": 3.0}, "load: cached_tokens: is given by lengths already"),
        ({"prefixes": 3}, "prefixes: are each request's own where lengths are given"),
    ],
)
def test_lengths_that_are_given_twice(given, says):
    with pytest.raises(InputError, match=says):
        physim.Load(lengths=RequestLengths.from_columns([100], [10]), rate=1, **given)


def test_lengths_that_are_not_given():
    with pytest.raises(InputError, match="load: input_tokens: is missing; give it, or lengths"):
        physim.Load(rate=1)
    with pytest.raises(InputError, match=r"lengths: 'sharegpt' is not a physim\.RequestLengths"):
        physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", rate=1, lengths="sharegpt")


def test_requests_made_longer_by_hand():
    # Twice as long prompts with as much of them cached, outputs half as long and never empty.
    requests = physim.RequestLengths.from_columns([100, 300], [1, 19], [50, 0], name="two")
    found = requests.with_means(400, 5)
    assert found.input_tokens == (200, 600)
    assert found.cached_tokens == (100, 0)
    assert found.output_tokens == (1, 9.5)
    assert found.name == "two"
    with pytest.raises(InputError, match=r"mean output_tokens: 0\.5 is below 1"):
        requests.with_means(400, 0.5)


def test_requests_made_longer_keep_their_moments():
    preset = physim.RequestLengths.read("mooncake-conversation")
    found = preset.with_means(2 * preset.moments.input, 3 * preset.moments.output).moments
    assert found.new == pytest.approx(2 * preset.moments.new)
    assert found.new_squared == pytest.approx(4 * preset.moments.new_squared)
    assert found.new_output == pytest.approx(6 * preset.moments.new_output)
    assert found.output_cv2 == pytest.approx(preset.moments.output_cv2)


def test_many_requests_are_condensed_to_those_that_stand_for_all():
    requests = physim.RequestLengths.from_columns(*heavy(20_000), name="heavy")
    found = requests.condensed()
    assert len(found.input_tokens) == 1024
    assert found.moments == requests.moments
    assert found.name == "heavy"
    np.testing.assert_allclose(found.arrays[0].mean(), requests.arrays[0].mean(), rtol=1e-12)
    assert found.condensed() is found


def test_requests_end_at_max_model_len_each_by_itself():
    own = RequestLengths.from_columns([100, 1000, 1900], [500, 500, 500], [0, 0, 800])
    server = {"gpu": "h100_sxm", "max_model_len": 2048}
    case = physim.Case.from_options("Qwen/Qwen3-8B", lengths=own, rate=1, **server)
    assert case.notes == (
        "33.33% of the outputs end early, where requests reach max_model_len 2048",
    )
    assert case.load.lengths.output_tokens == (500, 500, 148)
    assert case.load.cached_tokens == pytest.approx(800 / 3)
    assert case.under(replace(case.load, rate=2)).notes == case.notes
    with pytest.raises(InputError, match=r"33\.\d+% of the prompts are longer than max_model_len"):
        physim.Case.from_options(
            "Qwen/Qwen3-8B", lengths=own, rate=1, gpu="h100_sxm", max_model_len=1800
        )


def test_the_fluids_figures_of_joint_lengths():
    inputs, outputs, cached = heavy()
    blocks = cached // 16 * 16
    own = RequestLengths.from_columns(inputs, outputs, blocks)
    demand = Demand.from_load(physim.Load.of_requests(own, rate=1), 16)
    assert demand.input_tokens == pytest.approx(inputs.mean())
    assert demand.cached_tokens == pytest.approx(blocks.mean(), rel=0.05)
    new = inputs - blocks
    assert demand.prompt_cv2 == pytest.approx(new.var() / new.mean() ** 2, rel=1e-6)
    assert np.mean(demand.output_steps) == pytest.approx(outputs.mean(), rel=1e-6)


def test_prefixes_of_ones_own_take_kv_blocks():
    cached, whole = (
        Demand.from_load(
            physim.Load.of_requests(RequestLengths.from_columns([1000], [100], found), rate=1), 16
        )
        for found in ([800], None)
    )
    assert cached.new_tokens == 200
    # Ten requests of age 50 have 65.6 blocks each, and half a one that is not full.
    for demand in (cached, whole):
        assert kv_use(LIMITS, demand, 10.0, 50.0) == pytest.approx(
            10 * (1050 / 16 + 0.5) / 3000, rel=1e-4
        )
        # Half of the next prompt's new blocks are left over.
        left = float(demand.new_tokens) / 2 / 16
        assert kv_slots(LIMITS, demand) == pytest.approx(
            (3000 - left) / (1050 / 16 + 0.5), rel=1e-3
        )


# ---- the replay ----


def test_drawn_requests_are_whole():
    inputs, outputs, cached = heavy(200)
    load = physim.Load.of_requests(
        RequestLengths.from_columns(inputs, outputs, cached), rate=1, requests=5000
    )
    known = set(zip(inputs.tolist(), cached.tolist(), outputs.tolist(), strict=True))
    own = {
        (one.input_tokens, one.prefix_tokens, one.output_tokens)
        for one in drawn(load, config_of(LIMITS), 0).requests
    }
    assert own <= known
    assert len(own) > 190


LIMITS = Limits(64, 2048, 1_000_000, 3000, block_size=16, async_scheduling=False)
SECONDS = LinearStepTimes(0.01, 1e-4, 0.0)


def replayed(requests, **limits):
    workload = Workload(requests, 1_000_000)
    return replay(workload, SECONDS, config_of(replace(LIMITS, **limits)))


def test_a_prefix_of_ones_own_takes_no_time_and_all_its_blocks():
    # 800 of 1,000 tokens are there, so a step has 200: 10 ms and 0.1 ms for each.
    alone = Request(0, 0.0, 1000, 1, prefix_tokens=800)
    frame = replayed([alone]).to_frame()
    assert frame["ttft_s"][0] == pytest.approx(0.01 + 200 * 1e-4)
    assert frame["cached_tokens"][0] == 800
    # Only full blocks are found, and the last token is computed in any case.
    odd = Request(0, 0.0, 1000, 1, prefix_tokens=1000)
    assert replayed([odd]).to_frame()["cached_tokens"][0] == 992
    # A prompt has 63 blocks. Two of them are too many for 100, so one waits for the other.
    two = [Request(n, 0.0, 1000, 1, prefix_tokens=800) for n in range(2)]
    few = replayed(two, kv_blocks=100).to_frame()["ttft_s"]
    assert few.max() == pytest.approx(2 * few.min(), rel=1e-6)
    many = replayed([Request(n, 0.0, 1000, 1, prefix_tokens=800) for n in range(2)]).to_frame()
    assert many["ttft_s"].max() == pytest.approx(many["ttft_s"].min())


def test_no_prefix_is_found_without_a_prefix_cache():
    alone = Workload([Request(0, 0.0, 1000, 1, prefix_tokens=800)], 2000)
    engine = config_of(LIMITS, prefix_caching=False)
    assert replay(alone, SECONDS, engine).to_frame()["cached_tokens"][0] == 0


@pytest.mark.parametrize("seed", range(6))
def test_preempted_requests_with_prefixes_are_all_served(seed):
    rng = np.random.default_rng(seed)
    requests = []
    for number, arrival in enumerate(np.sort(rng.uniform(0, 0.5, 60)).tolist()):
        prompt = int(rng.integers(2, 400))
        own = int(rng.integers(0, prompt))
        output = int(rng.integers(1, 200))
        requests.append(Request(number, arrival, prompt, output, prefix_tokens=own))
    # The last comes when all are done and takes all 80 blocks, so none may have been lost.
    requests.append(Request(60, 1000.0, 80 * 16, 1))
    result = replayed(requests, kv_blocks=80)
    frame = result.to_frame()
    assert sum(one.preemptions for one in requests) > 0
    assert frame["e2e_s"].notna().all()
    assert requests[-1].scheduled_s == pytest.approx(1000)
    assert result.samples.kv_blocks.max() <= 80


@pytest.mark.slow
def test_fluid_and_replay_of_joint_lengths_agree():
    inputs, outputs, cached = heavy(2000)
    own = RequestLengths.from_columns(inputs, np.minimum(outputs, 2000), cached)
    given = {"gpu": "h100_sxm", "rate": 4.0, "arrival": "poisson", "fit": "none"}
    fluid, exact = (
        physim.predict("Qwen/Qwen3-8B", lengths=own, method=method, **given)
        for method in ("fluid", "replay")
    )
    assert fluid.itl_s == pytest.approx(exact.itl_s, rel=0.1)
    assert fluid.e2e_s == pytest.approx(exact.e2e_s, rel=0.1)
    assert fluid.to_dict()["load"]["lengths"]["requests"] == 2000


# ---- files ----

HEADER = "arrival_s,input_tokens,output_tokens"


def test_pairs_from_a_table(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("input_tokens,output_tokens,cached_tokens\n100,5,64\n50,9,\n")
    own = RequestLengths.read(path)
    assert own == RequestLengths.from_columns([100, 50], [5, 9], [64, 0])
    assert own.name == "pairs.csv"


def test_lengths_from_a_trace_with_prefixes(tmp_path):
    path = tmp_path / "trace.csv"
    # In order of arrival; the first of the group finds nothing.
    path.write_text(f"{HEADER},prefix_group\n7,70,1,a\n1,64,2,a\n3,90,3,a\n2,50,4,\n")
    found = read_requests(path)
    assert found.arrival_s.tolist() == [0, 1, 2, 6]
    assert found.input_tokens.tolist() == [64, 50, 90, 70]
    # The shortest prompt of the group is its prefix.
    assert found.cached_tokens.tolist() == [0, 0, 64, 64]


def test_a_replayed_trace_says_what_each_request_finds(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER},cached_tokens\n0,100,5,64\n1,50,9,\n")
    assert [one.prefix_tokens for one in read_trace(path, 16).requests] == [64, 0]


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]},
    {"timestamp": 3000, "input_length": 1200, "output_length": 8, "hash_ids": [1, 2, 4]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 9, "hash_ids": [5, 2]},
    {"timestamp": 4000, "input_length": 1024, "output_length": 9, "hash_ids": [5, 2]},
]


@pytest.mark.parametrize("packed", [True, False])
def test_public_formats(tmp_path, packed):
    texts = {"azure.csv": AZURE, "mooncake.jsonl": "\n".join(map(json.dumps, MOONCAKE))}
    found = []
    for name, text in texts.items():
        path = tmp_path / (name + packed * ".gz")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        found.append(read_requests(path, arrivals=True))
    azure, mooncake = found
    assert azure.arrival_s.tolist() == pytest.approx([0, 4.314579], abs=1e-6)
    assert azure.input_tokens.tolist() == [374, 396]
    assert azure.output_tokens.tolist() == [44, 109]
    assert mooncake.arrival_s.tolist() == [0, 1, 3, 4]
    # A block that came before counts only if all before it did; the last token is computed.
    assert mooncake.cached_tokens.tolist() == [0, 0, 1024, 1023]
    assert mooncake.output_tokens.tolist() == [7, 9, 8, 9]


def test_public_traces_are_replayed(tmp_path):
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(map(json.dumps, MOONCAKE)))
    frame = replay(read_trace(path, 16), SECONDS, config_of(LIMITS)).to_frame()
    # The third prompt has the first one's two blocks of 512; of the last one's 64 blocks of 16, all
    # of which are there, that with the last token is computed.
    assert frame.sort_values("arrival_s")["cached_tokens"].tolist() == [0, 0, 1024, 1008]
    # Of a cache of 100 blocks, the second and third prompt leave none of what they do not share.
    few = replay(read_trace(path, 16), SECONDS, config_of(replace(LIMITS, kv_blocks=100)))
    assert few.to_frame().sort_values("arrival_s")["cached_tokens"].tolist()[3] < 1008
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    frame = replay(read_trace(path, 16), SECONDS, config_of(LIMITS)).to_frame()
    assert frame["input_tokens"].tolist() == [374, 396]
    assert frame["arrival_s"].tolist() == pytest.approx([0, 4.314579], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "input_tokens\n5\n", "a.csv: has no column output_tokens"),
        ("a.csv", "input_tokens,output_tokens,cached_tokens\n5,2,6\n", "cached_tokens: 6 are more"),
        ("a.csv", "input_tokens,output_tokens\n5,0\n", "line 2: output_tokens: 0 is not positive"),
        ("a.csv", f"{HEADER}\n1,5,2\n,5,2\n", "arrival_s: is empty in some rows"),
        (
            "a.csv",
            f"{HEADER},cached_tokens,prefix_group\n1,5,2,3,a\n",
            "cached_tokens: is given beside prefix_group",
        ),
        ("a.csv", AZURE.replace("18:15:50", "soon"), "TIMESTAMP: 2023-11-16 soon.* is no date"),
        ("a.csv", AZURE.replace("396", "0"), "line 3: ContextTokens: 0 is not positive"),
        ("a.csv.gz", "input_tokens,output_tokens\n5,1\n", "is not compressed by gzip"),
        (
            "a.csv.gz",
            gzip.compress(b"input_tokens,output_tokens\n" + b"7,5\n" * 9, mtime=0)[:-9],
            "is cut off or damaged",
        ),
        ("a.jsonl", "[1]\n", "line 1: is no JSON object"),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1: input_length: is missing"),
        ("a.jsonl", "\n", "holds no row"),
        ("a.jsonl", b"\xff\xfe\n", "is not UTF-8 text"),
        ("a.txt", "5 6\n7 8\n", "a.txt: has no column input_tokens, output_tokens"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=says):
        RequestLengths.read(path)


def test_what_is_no_file_names_the_presets(tmp_path):
    with pytest.raises(InputError, match=r"lengths 'nosuch': is no preset.*sharegpt, or a \.csv"):
        RequestLengths.read("nosuch")
    with pytest.raises(InputError, match=r"none\.csv: No such file"):
        RequestLengths.read(tmp_path / "none.csv")


# ---- presets ----


def test_presets_are_the_published_figures():
    assert presets() == ["azure-conversation-2023", "mooncake-conversation", "sharegpt"]
    # Means and standard deviations as the traces' descriptions have them, and the vLLM paper's.
    published = {
        "azure-conversation-2023": (1155, 1109, 211, 163, 0),
        "mooncake-conversation": (12_035, 15_800, 343, 250, 0.366),
        "sharegpt": (161.31, None, 337.99, None, 0),
    }
    for name, (inputs, spread, outputs, own_spread, cached) in published.items():
        load = physim.Load.of_requests(RequestLengths.read(name), rate=1)
        moments, points = load.moments(), load.points()
        assert load.mean_input == pytest.approx(inputs, rel=1e-3)
        assert load.mean_output == pytest.approx(outputs, rel=2e-3)
        # By tokens a little more is cached than by blocks, of which a prompt's last is not full.
        assert moments.cached / moments.input == pytest.approx(cached, abs=0.01)
        for mean, exact in zip(
            points, (moments.input, moments.cached, moments.output), strict=True
        ):
            assert mean.mean() == pytest.approx(exact, rel=1e-4)
        if spread is not None:
            assert math.sqrt(moments.input_squared - moments.input**2) == pytest.approx(
                spread, rel=1e-3
            )
            assert math.sqrt(moments.output_squared - moments.output**2) == pytest.approx(
                own_spread, rel=1e-3
            )


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("azure-conversation-2023", "azure_conversation_2023.csv.gz"),
        ("mooncake-conversation", "mooncake_conversation.jsonl.gz"),
    ],
)
def test_presets_are_what_the_traces_say(traces, name, file):
    exact, preset = RequestLengths.read(traces / file), RequestLengths.read(name)
    for own, other in zip(preset.moments, exact.moments, strict=True):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-3)
    for own, other in zip(preset.points, exact.points, strict=True):
        assert own.std() == pytest.approx(other.std(), rel=0.02, abs=1e-9)
    rng = np.random.default_rng(0)
    for own, other in zip(preset.sample(rng, 100_000), exact.arrays, strict=True):
        # Three standard errors of the widest, which is what is cached.
        assert own.mean() == pytest.approx(other.mean(), rel=0.025)
        assert own.std() == pytest.approx(other.std(), rel=0.05)


def test_mooncakes_cached_share_is_what_its_readme_says(traces):
    found = read_requests(traces / "mooncake_conversation.jsonl.gz")
    blocks = np.ceil(found.cached_tokens / 512).sum() / np.ceil(found.input_tokens / 512).sum()
    assert blocks == pytest.approx(0.366, abs=5e-4)
    assert len(found.input_tokens) == 12_031


# ---- the command line ----


def run(*words):
    return CliRunner().invoke(app, [*words])


PREDICT = ("predict", "Qwen3-8B", "--gpu", "h100", "--rate", "2", "--fit", "none", "--json")


def test_lengths_on_the_command_line(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("input_tokens,output_tokens\n100,5\n500,9\n")
    content = json.loads(run(*PREDICT, "--lengths", str(path)).stdout)
    assert content["load"]["input_tokens"] == 300
    assert content["load"]["lengths"]["name"] == "pairs.csv"
    preset = json.loads(run(*PREDICT, "--lengths", "sharegpt").stdout)
    assert preset["load"]["output_tokens"] == pytest.approx(337.99)
    longer = run(*PREDICT, "--lengths", str(path), "--input", "600", "--output", "700")
    assert json.loads(longer.stdout)["load"]["output_tokens"] == 700


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--lengths", "sharegpt", "--input", "5"],
            "--output: is missing; give both, or --lengths",
        ),
        (
            ["--lengths", "sharegpt", "--input", "exponential:5", "--output", "9"],
            "--input 'exponential:5': is a distribution, which --lengths is too",
        ),
        (
            ["--lengths", "sharegpt", "--input", "0.5", "--output", "9"],
            "--input '0.5': mean: 0.5 is below 1",
        ),
        (["--lengths", "sharegpt", "--cached", "5"], "--cached: is given by --lengths already"),
        (["--input", "5"], "--output: is missing; give both, or --lengths"),
        ([], "--input and --output: are missing; give both, or --lengths"),
    ],
)
def test_lengths_that_the_command_line_refuses(words, says):
    result = run(*PREDICT, *words)
    assert says in str(result.exception)


def test_the_longest_prompts_in_parts():
    # Of 640 requests the last point is of the ten longest: eight parts of 5/4 requests.
    tokens = np.arange(1.0, 641.0)
    parts = longest_parts(tokens)
    assert parts[0] == pytest.approx((631 + 632 / 4) / 1.25)
    assert parts[-1] == pytest.approx((640 + 639 / 4) / 1.25)
    assert parts.mean() == pytest.approx(tokens[-10:].mean())
    # Of one request the last point is that one.
    assert longest_parts(np.array([700.0])) == pytest.approx(700.0)
    load = physim.Load(rate=1.0, input_tokens=900, cached_tokens=200, output_tokens=5)
    assert load.longest() == pytest.approx(700.0)


@pytest.mark.slow
def test_lengths_in_a_sweep(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{number},{500 + number},{10 + number}" for number in range(200)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    axes = {"model": ["Qwen/Qwen3-8B"], "gpu": ["h100_sxm"], "rate": [2.0], "fit": ["none"]}
    axes |= {"lengths": ["sharegpt", "nosuch"], "arrival": ["poisson", f"trace:{path}"]}
    assert physim.sweep(physim.CaseGrid(axes), tmp_path / "out", jobs=1) == 4
    found = pd.read_parquet(tmp_path / "out").set_index(["lengths", "arrival"])
    assert found.loc["nosuch", "problem"].str.contains("is no preset and no file").all()
    for arrival in ("poisson", f"trace:{path}"):
        assert found.loc[("sharegpt", arrival), "problem"] == ""
    # Even arrivals wait less than those by chance.
    waits = found.loc["sharegpt", "ttft_mean_s"]
    assert waits[f"trace:{path}"] < 1.01 * waits["poisson"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["capacity", "Qwen3-8B", "--gpu", "h100", "--slo", "e2e_p99=20s"],
        ["compare", "Qwen3-8B", "--gpus", "h100", "--rate", "2"],
        ["explain", "Qwen3-8B", "--gpu", "h100", "--rate", "2"],
        ["recommend", "Qwen3-8B", "--gpus", "h100", "--rate", "2", "--slo", "e2e_p99=20s"],
    ],
)
def test_every_command_that_takes_a_load_takes_lengths(words):
    words = [*words, "--lengths", "azure-conversation-2023", "--fit", "none", "--json"]
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    json.loads(result.stdout)


def test_a_few_prompts_too_long_for_the_engine_are_left_out():
    # Of 4,096 equal parts of these prompts one is beyond Qwen3-8B's 40,960 tokens.
    prompts = physim.Lengths.lognormal(2000, 2500)
    asked = {"gpu": "h100_sxm", "rate": 1.0, "fit": "none"}
    joint = physim.RequestLengths.independent(prompts, 100)
    for load in ({"input_tokens": prompts, "output_tokens": 100}, {"lengths": joint}):
        found = physim.predict("Qwen/Qwen3-8B", **load, **asked)
        assert any(note.startswith("0.02% of the prompts are longer") for note in found.assumptions)
        assert found.load.mean_input == pytest.approx(2000, rel=0.01)
        assert found.load.mean_input < 2000
    recorded = replace(joint, recorded=True)
    many = {"input_tokens": physim.Lengths.lognormal(20_000, 25_000), "output_tokens": 100}
    for refused in ({"lengths": recorded}, many):
        with pytest.raises(physim.InputError, match="longer than max_model_len 40960 allows"):
            physim.predict("Qwen/Qwen3-8B", **refused, **asked)
