"""The replay against an engine walked step by step, and what must hold for any workload."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of
from walked_engine import Job, walk

import physim
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.inputs.stages import Stage
from physim.prediction.replayed import replay_of
from physim.replay.cluster import Cluster, replay
from physim.replay.kv_cache import KVCache
from physim.replay.request import Request
from physim.replay.segment import Segment
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes, ModelStepTimes, WalkedStepTimes
from physim.replay.workload import Conversations, Workload, drawn, read_trace

LINEAR = LinearStepTimes(6.9e-3, 17.67e-6, 31e-6)
# A longest context that no request reaches, tokens.
LONGEST = 1_000_000
SERVER = config_of(Limits(64, 2048, LONGEST, 3000))


def synchronous(slots, budget, blocks, **outside):
    """An engine that forms a step when the one before it is over."""
    return config_of(Limits(slots, budget, LONGEST, blocks, async_scheduling=False), **outside)


def random_case(seed):
    """An engine, and requests of a few groups that share a prefix, as tuples."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 4, 16]))
    slots = int(rng.integers(1, 12))
    count, groups = int(rng.integers(1, 60)), int(rng.integers(1, 5))
    prefixes = [int(rng.integers(0, 90)) for _ in range(groups)]
    arrivals = np.sort(rng.uniform(0, rng.choice([0.1, 1, 5]), count)).tolist()
    requests = []
    for arrival in arrivals:
        group = int(rng.integers(groups))
        prompt = prefixes[group] + int(rng.integers(1, 80))
        requests.append((arrival, group, prompt, int(rng.integers(1, 60))))
    least = max(-(-(prompt + output - 1) // size) for _, _, prompt, output in requests)
    limits = Limits(
        max_num_seqs=slots,
        max_num_batched_tokens=int(rng.integers(max(slots, 8), 200)),
        max_model_len=LONGEST,
        kv_blocks=int(least * rng.choice([1, 1.3, 2, 5, 50]) + rng.integers(0, 3)),
        block_size=size,
        async_scheduling=bool(rng.random() < 0.5),
        whole_prompts=bool(seed % 2),
    )
    engine = config_of(limits, prefix_caching=bool(rng.random() < 0.7))
    return engine, prefixes, requests


def workload_of(engine, prefixes, requests):
    segments = [Segment(0, tokens, engine.kv.block_size) for tokens in prefixes]
    return Workload(
        [
            Request(n, arrival, prompt, output, path=[segments[group]])
            for n, (arrival, group, prompt, output) in enumerate(requests)
        ],
        longest=200,
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_replay_is_the_walk(block):
    """Times, cache hits and preemptions of every request, in forty random cases a block."""
    for seed in range(40 * block, 40 * block + 40):
        engine, prefixes, requests = random_case(seed)
        sizes = engine.sizes
        replayed = replay(workload_of(engine, prefixes, requests), LINEAR, engine)
        jobs = []
        for number, (arrival, group, prompt, output) in enumerate(requests):
            own = range(prompt - prefixes[group] + output)
            content = [10**6 * (group + 1) + k for k in range(prefixes[group])]
            content += [-(1000 * number + k + 1) for k in own]
            jobs.append(Job(arrival, prompt, output, tuple(content)))

        def seconds(step):
            decodes = sum(decodes for _, _, decodes in step)
            prefill = sum(new for new, _, decodes in step if not decodes)
            return 6.9e-3 + 17.67e-6 * prefill + 31e-6 * decodes

        walk(
            jobs,
            seconds,
            sizes.max_num_seqs,
            sizes.max_num_batched_tokens,
            engine.kv.blocks,
            engine.kv.block_size,
            engine.policy.async_scheduling,
            engine.prefix_caching,
            engine.policy.whole_prompts,
        )
        for request, job in zip(replayed.requests, jobs, strict=True):
            seen = (request.scheduled_s, request.first_token_s, request.finished_s)
            assert seen == pytest.approx((job.scheduled_s, job.first_token_s, job.finished_s))
            assert request.preemptions == job.preemptions
            assert request.cached_tokens == job.cached_tokens
        # Each token after the first is one gap, which together are the time in which they came.
        gaps, frame = replayed.gaps, replayed.to_frame()
        assert gaps.tokens.sum() == (frame["output_tokens"] - 1).sum()
        decoding = frame["finished_s"] - frame["first_token_s"]
        assert gaps.gap_s @ gaps.tokens == pytest.approx(decoding.sum())


def test_a_gap_is_long_where_another_prompt_is_computed():
    # Ten tokens of a request, one a step; in the fourth step another's prompt of 1,000 is computed.
    requests = [Request(0, 0.0, 100, 10), Request(1, 0.03, 1000, 1)]
    found = replay(Workload(requests, longest=2000), LINEAR, synchronous(8, 2048, 1000))
    alone, longer = 6.9e-3 + 31e-6, 6.9e-3 + 31e-6 + 1000 * 17.67e-6
    itl, tpot = found.summary()["itl"], found.summary()["tpot"]
    assert itl["mean"] == pytest.approx(tpot["mean"])
    assert tpot["mean"] == pytest.approx((8 * alone + longer) / 9)
    assert itl["p50"] == pytest.approx(alone)
    # Between the eighth and the ninth of nine gaps.
    assert itl["p95"] == pytest.approx(alone + 0.6 * (longer - alone))
    assert tpot["p95"] == tpot["mean"]


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_jumping_is_walking(seed):
    engine, prefixes, requests = random_case(seed)
    walked = WalkedStepTimes(LINEAR.step)
    jumped, stepped = (
        replay(workload_of(engine, prefixes, requests), times, engine) for times in (LINEAR, walked)
    )
    assert jumped.steps == stepped.steps
    for one, other in zip(jumped.requests, stepped.requests, strict=True):
        assert one.finished_s == pytest.approx(other.finished_s, rel=1e-12)
        assert one.first_token_s == pytest.approx(other.first_token_s, rel=1e-12)


@given(
    seed=st.integers(0, 10**6),
    horizon=st.floats(0.01, 6),
    timeout=st.one_of(st.none(), st.floats(0.05, 3)),
)
@settings(max_examples=300)
@pytest.mark.slow
def test_requests_are_conserved_and_none_starves(seed, horizon, timeout):
    engine, prefixes, requests = random_case(seed)
    arrived = sum(arrival <= horizon for arrival, *_ in requests)
    part = replay(workload_of(engine, prefixes, requests), LINEAR, engine, timeout, horizon)
    assert sum(part.counts().values()) == arrived
    whole = replay(workload_of(engine, prefixes, requests), LINEAR, engine, timeout)
    counts = whole.counts()
    assert counts["completed"] + counts["dropped"] == len(requests)
    if timeout is None:
        assert counts["dropped"] == 0
        # First come, first served.
        starts = [request.scheduled_s for request in whole.requests]
        assert starts == sorted(starts)
    for request in whole.requests:
        if request.finished_s is not None:
            least = LINEAR.beta0_s * (1 + request.output_tokens - 1)
            assert request.finished_s - request.arrival_s >= least - 1e-9
            assert request.arrival_s <= request.scheduled_s <= request.first_token_s
            assert request.first_token_s <= request.finished_s
    # All blocks are given back.
    assert whole.samples.kv_blocks.max() <= engine.kv.blocks


@given(st.integers(0, 10**6), st.floats(1.05, 4))
@settings(max_examples=100)
@pytest.mark.slow
def test_more_load_never_shortens_a_mean(seed, factor):
    """The same requests, closer together; the means of equal requests without a prefix cache."""
    rng = np.random.default_rng(seed)
    engine = synchronous(int(rng.integers(1, 20)), 512, 4000)
    prompt, output = int(rng.integers(1, 200)), int(rng.integers(2, 60))
    gap = float(rng.uniform(0.005, 0.5))

    def mean(gap):
        requests = [Request(n, n * gap, prompt, output) for n in range(120)]
        return replay(Workload(requests, 300), LINEAR, engine).to_frame()["e2e_s"].mean()

    # A step more or less, for where in a step requests arrive.
    assert mean(gap / factor) >= mean(gap) - 0.5 * (LINEAR.beta0_s + 31e-6 * 20)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_who_loses_its_place_gives_up_the_block_of_a_step_under_way(stages):
    preemptions = 0
    for seed in range(40):
        engine, prefixes, requests = random_case(seed)
        engine = dataclasses.replace(engine, parallelism=physim.Parallelism(pp=stages))
        server = ReplayServer(LINEAR, engine, timeout_s=None if seed % 2 else 0.3)
        workload = workload_of(engine, prefixes, requests)
        Cluster(workload, [[server]]).run()
        assert server.kv_blocks == 0
        preemptions += sum(request.preemptions for request in workload.requests)
    assert preemptions > 100


def test_blocks_are_all_free_in_the_end():
    cache = KVCache(10)
    segment = Segment(0, 64, 16)
    cache.hold(segment)
    cache.take(6)
    segment.present = 4
    assert cache.free == 4
    cache.give_up([segment], 2)
    assert cache.free == 10
    assert cache.found([segment], 10) == 4
    # The blocks never used go first, then the request's own, then the segment's from its end.
    cache.take(7)
    assert segment.present == 3
    assert cache.found([segment], 10) == 3
    assert cache.unused([segment], 3) == 3


@pytest.fixture(scope="module")
def model():
    return physim.step_model("Qwen/Qwen3-14B", gpu="h100_sxm", tp=2)


@pytest.fixture(scope="module")
def times(model):
    return ModelStepTimes(model, 256, 2048, 4000)


def test_tabulated_step_times_are_the_models(model, times):
    @jax.jit
    def exact(decode_context, **sums):
        batch = physim.Batch(query_tokens=1.0, attended=jnp.array([decode_context]), **sums)
        return model(batch).latency

    rng = np.random.default_rng(0)
    for _ in range(300):
        decodes = int(rng.integers(0, 200))
        context = decodes * int(rng.integers(2, 3000)) + int(rng.integers(0, max(decodes, 1)))
        count = int(rng.choice([1, 1, 1, 2, 3, 7]))
        chunks = rng.integers(1, 1800 // count, count)
        cached = rng.integers(0, 2000, count) * int(rng.integers(2))
        prefill = {
            "prefill_requests": count,
            "prefill_tokens": chunks.sum(),
            "prefill_squares": (chunks**2).sum(),
            "cached_tokens": cached.sum(),
            "cached_products": (chunks * cached).sum(),
        }
        sums = {"decode_requests": decodes, "decode_context": context}
        sums |= {name: int(value) for name, value in prefill.items()}
        # Chunks of unlike lengths are taken for as many of their root mean square length.
        tolerance = 1e-3 if count == 1 else 0.015
        seconds = float(exact(**{name: float(value) for name, value in sums.items()}))
        assert times.step(**sums) == pytest.approx(seconds, rel=tolerance)
        if decodes:
            steps, seconds, last = times.decode(decodes, context, 20, 1e9)
            alone = dict.fromkeys(prefill, 0.0) | {"decode_requests": float(decodes)}
            walked = [
                float(exact(decode_context=float(context + decodes * k), **alone))
                for k in range(20)
            ]
            assert steps == 20
            assert seconds == pytest.approx(sum(walked), rel=1e-3)
            assert last == pytest.approx(walked[-1], rel=1e-3)


@given(requests=st.integers(1, 256), mean=st.floats(2, 3000), until=st.floats(1e-4, 3))
@settings(max_examples=200)
def test_a_run_ends_with_the_step_that_reaches_its_time(times, requests, mean, until):
    context = int(requests * mean)
    steps, seconds, last = times.decode(requests, context, 400, until)
    assert 1 <= steps <= 400
    assert steps == 400 or seconds >= until * (1 - 1e-12)
    assert steps == 1 or seconds - last < until * (1 + 1e-12)


def test_blended_steps_are_not_replayed():
    blended = physim.step_model("Qwen/Qwen3-8B", gpu="h100_sxm", mixed="weighted-average")
    with pytest.raises(InputError, match="cannot be replayed"):
        ModelStepTimes(blended, 8, 512, 100)


def test_a_seed_says_it_all(model):
    load = Load(
        Lengths.normal(400, 100),
        Lengths.exponential(80),
        stages=(Stage(5, 10), Stage(9, 10)),
        arrival="gamma",
        burstiness=0.5,
    )
    times = ModelStepTimes(model, 64, 2048, 4000)

    def frame(seed):
        result = replay(
            drawn(load, SERVER, seed), times, synchronous(64, 2048, 3000), timeout_s=5.0
        )
        return result.to_frame().to_csv()

    assert frame(3) == frame(3)
    assert frame(3) != frame(4)


@pytest.mark.parametrize(
    ("arrival", "burstiness", "cv2"),
    [("constant", 1.0, 0.0), ("poisson", 1.0, 1.0), ("gamma", 0.5, 2.0), ("gamma", 4.0, 0.25)],
)
def test_drawn_arrivals(arrival, burstiness, cv2):
    load = Load(9, 9, rate=4.0, requests=40000, arrival=arrival, burstiness=burstiness)
    gaps = np.diff([request.arrival_s for request in drawn(load, SERVER, 0).requests])
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv2, abs=0.06)


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths.fixed(250.5),
        Lengths.normal(300, 60),
        Lengths.exponential(128),
        Lengths.empirical((3, 50, 50, 900)),
    ],
)
def test_drawn_lengths_and_their_strata(lengths):
    drawn_lengths = lengths.sample(np.random.default_rng(0), 200_000)
    strata = lengths.strata()
    assert drawn_lengths.mean() == pytest.approx(lengths.mean, rel=0.01)
    assert strata.mean() == pytest.approx(lengths.mean, rel=0.01)
    assert np.all(np.diff(strata) >= 0)
    # The parts' means lose what lengths vary within them.
    assert strata.std() == pytest.approx(drawn_lengths.std(), rel=0.05, abs=1.0)


@pytest.mark.parametrize(
    "text",
    [
        *("many", "normal:3", "uniform:3:4", "exponential:0.5", "file:no", "file:a\0", "0", "-5"),
        *("inf", "normal:9:-1", "normal:9:nan", "", ":", "1e400"),
    ],
)
def test_lengths_that_are_none_say_where(text):
    with pytest.raises(InputError, match=r"^output_tokens '"):
        Lengths.parse(text, "output_tokens")


def test_lengths_from_a_file(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("3\n5\n10\n")
    assert Lengths.parse(f"file:{path}") == Lengths.empirical((3, 5, 10))
    assert Lengths.parse("normal:248:50") == Lengths.normal(248, 50)
    assert Lengths.parse("248") == 248.0


def test_clients_send_when_they_are_answered(model):
    load = Load(100, 20, concurrency=7, requests=100)
    times = ModelStepTimes(model, 64, 2048, 200)
    engine = synchronous(64, 2048, 3000, front_end_s=0.004, output_s=0.001)
    frame = replay(drawn(load, SERVER, 0), times, engine).to_frame()
    assert len(frame) == 100
    ends = frame["arrival_s"] + frame["e2e_s"]
    for arrival in frame["arrival_s"]:
        assert ((frame["arrival_s"] <= arrival) & (ends > arrival + 1e-9)).sum() <= 7
    # Each but the first seven is sent the moment another is answered.
    assert np.isin(np.round(frame["arrival_s"][7:], 9), np.round(ends, 9)).all()


def test_turns_find_what_was_said(model):
    conversations = Conversations(
        groups=2,
        users_per_group=3,
        system_tokens=160,
        question_tokens=40,
        output_tokens=64,
        rate=2.0,
        turns=60,
        max_model_len=1000,
    )
    times = ModelStepTimes(model, 64, 2048, 1000)
    result = replay(conversations.workload(16, 0), times, synchronous(64, 2048, 10_000))
    frame = result.to_frame().assign(user=[request.conversation for request in result.requests])
    assert len(frame) == 60
    for _, turns in frame.sort_values("number").groupby("user"):
        ends = turns["arrival_s"] + turns["e2e_s"]
        # A turn waits for the answer before it, and is due at its time.
        assert (turns["arrival_s"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all()
        assert (turns["arrival_s"] >= turns["number"] / 2.0 - 1e-9).all()
        inputs, cached = turns["input_tokens"].to_numpy(), turns["cached_tokens"].to_numpy()
        # Prompt and answer of the turn before are found, but for the block that is not full.
        said = inputs[:-1] + 64 - 1
        longer = inputs[1:] > inputs[:-1]
        assert (cached[1:][longer] == said[longer] // 16 * 16).all()
        assert inputs.max() + 64 <= 1000
        assert (~longer).sum() == 1  # too long once, and begun afresh
    first = frame.sort_values("arrival_s").iloc[1]
    assert first["cached_tokens"] in (0, 160)


def test_a_trace(tmp_path, model):
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n"
        "1.0,200,10,a,128\n0.0,300,20,a,128\n5.0,100,5,,\n"
    )
    workload = read_trace(path, 16)
    assert [request.arrival_s for request in workload.requests] == [0.0, 1.0, 5.0]
    times = ModelStepTimes(model, 64, 2048, workload.longest)
    frame = replay(workload, times, synchronous(64, 2048, 3000)).to_frame()
    assert frame["cached_tokens"].tolist() == [0, 128, 0]
    assert frame["output_tokens"].tolist() == [20, 10, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens\n0,5\n", "has no column output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n", "holds no row"),
        ("arrival_s,input_tokens,output_tokens\n0,5,3\n-1,5,3\n", "line 3: arrival_s: -1"),
        ("arrival_s,input_tokens,output_tokens\n0,5.5,3\n", "line 2: input_tokens: 5.5"),
        ("arrival_s,input_tokens,output_tokens\n0,5,0\n", "line 2: output_tokens: 0"),
        ("arrival_s,input_tokens,output_tokens\n0,x,2\n", "line 2: input_tokens: x"),
        ("arrival_s,input_tokens,output_tokens\n\n\n0,x,2\n", "line 4: input_tokens: x"),
        ("arrival_s,input_tokens,output_tokens\n0,True,2\n", "line 2: input_tokens: True is not"),
        ("arrival_s,input_tokens,output_tokens\nnan,1,2\n", "line 2: arrival_s: is empty"),
        ("arrival_s,input_tokens,output_tokens\n1e400,1,2\n", "line 2: arrival_s: 1e400 is not a"),
        # A row that is longer than the others is not a row of one more column.
        ("arrival_s,input_tokens,output_tokens\n1,2,3,4\n", "line 2: has 4 cells for 3 columns"),
        ("arrival_s,input_tokens,output_tokens\n1,2\n", "line 2: has 2 cells for 3 columns"),
        ("arrival_s,input_tokens,input_tokens,output_tokens\n1,2,2,3\n", "a column input_tokens"),
        ("", "is not a CSV table; pass one with a header"),
        ("arrival_s,\0,output_tokens\n1,2,3\n", "has no column input_tokens"),
        (
            "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n0,5,2,a,9\n",
            "prefix_tokens of group a",
        ),
        (
            "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n0,5,2,,3\n",
            "line 2: prefix_group: is empty, and prefix_tokens is not",
        ),
        (
            "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n0,5,2,a,-3\n",
            "line 2: prefix_tokens: -3 is below 0",
        ),
    ],
)
def test_traces_that_are_none(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_trace(path, 16)


def test_a_request_that_never_fits_is_refused():
    workload = drawn(Load(100, 100, rate=1.0, requests=3), SERVER, 0)
    with pytest.raises(InputError, match="needs 13 KV blocks and there are 12"):
        replay(workload, LINEAR, synchronous(4, 512, 12))


def test_a_front_end_and_its_output_hold_nobody():
    load = Load(50, 11, rate=0.5, arrival="constant", requests=20)
    bare = synchronous(4, 512, 100)
    slow = dataclasses.replace(
        bare,
        front_end_s=0.010,
        front_end_per_token_s=0.001,
        output_s=0.002,
        output_per_token_s=0.003,
    )
    one, other = (
        replay(drawn(load, SERVER, 0), LINEAR, engine).to_frame() for engine in (bare, slow)
    )
    assert (other["ttft_s"] - one["ttft_s"]).to_numpy() == pytest.approx(0.01 + 0.05 + 0.005)
    assert (other["e2e_s"] - other["ttft_s"] - one["e2e_s"] + one["ttft_s"]).to_numpy() == (
        pytest.approx(10 * 0.003)
    )
    assert other["wait_s"].to_numpy() == pytest.approx(0.0, abs=1e-9)


def test_the_output_of_a_step_is_of_the_requests_that_it_gives_tokens():
    """Steps take a second, and 10 ms of output for each of their requests, which holds nobody."""
    config = synchronous(4, 64, 100, output_per_request_s=0.010)

    def out_ms(prompts_apart):
        policy = dataclasses.replace(config.policy, prompts_apart=prompts_apart)
        engine = dataclasses.replace(config, policy=policy)
        # The second comes in the first's first step; its prompt takes two of 64 tokens.
        requests = [Request(0, 0.0, 50, 4), Request(1, 0.5, 100, 3)]
        found = replay(Workload(requests, LONGEST), LinearStepTimes(1.0, 0.0, 0.0), engine)
        frame = found.to_frame()
        frame["first_s"] = frame["arrival_s"] + frame["ttft_s"]
        frame["last_s"] = frame["arrival_s"] + frame["e2e_s"]
        return (1000 * frame[["first_s", "last_s"]]).to_numpy().round(6).tolist()

    # Together: a prompt; a decode beside the half of a prompt; a decode beside its end; two
    # decodes, the last of the first; a decode alone.
    assert out_ms(prompts_apart=False) == [[1010, 4020], [3020, 5010]]
    # Apart: three steps of prompts; two decodes, twice, until the second is done; one alone.
    assert out_ms(prompts_apart=True) == [[1010, 6010], [3010, 5020]]


@pytest.mark.slow
def test_more_requests_decode_than_a_step_has_tokens_for_prompts():
    case = {"gpu": "h100_sxm", "engine": "sglang", "max_num_batched_tokens": 64, "fit": "none"}
    case |= {"max_num_seqs": 256, "concurrency": 128, "requests": 256}
    case |= {"input_tokens": 16, "output_tokens": 200}
    found = physim.predict("Qwen/Qwen3-8B", method="replay", **case)
    assert found.pool.batch > 64
    fluid = physim.predict("Qwen/Qwen3-8B", **case)
    assert fluid.itl_s == pytest.approx(found.itl_s, rel=0.06)


def test_prompts_are_tokenised_in_the_order_in_which_they_come():
    # The second takes 40 ms less, but does not overtake the first, which takes 5 and 40: an API
    # server reads one prompt after another.
    case = physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", max_model_len=32_768)
    workload = Workload([Request(0, 0.0, 20_000, 5), Request(1, 0.0, 100, 5)], 20_005)
    frame = replay_of(workload, case, Corrections()).to_frame()
    first, second = frame["scheduled_s"]
    assert first == pytest.approx(0.045)
    assert second >= first
    assert frame["ttft_s"].is_monotonic_increasing
