"""The replay with drafts: closed forms, and what must hold for any workload."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.errors import InputError
from physim.replay.cluster import Cluster, replay
from physim.replay.config import ReplayConfig
from physim.replay.drafted_tokens import DraftedTokens
from physim.replay.request import Request
from physim.replay.segment import Segment
from physim.replay.server import ReplayServer
from physim.replay.step_times import LinearStepTimes, ModelStepTimes, WalkedStepTimes
from physim.replay.workload import Workload
from physim.service.draft import Draft
from physim.service.kv_store import KVStore, KVTier
from physim.service.phases import DECODE, PREFILL
from physim.service.policy import Policy
from physim.service.service import Transfer
from physim.service.sizes import Sizes

# Every step takes ten milliseconds.
STEP_S = 0.01
CONSTANT = LinearStepTimes(STEP_S, 0.0, 0.0)
# Steps take longer with what is attended to.
GROWING = WalkedStepTimes(
    lambda *, decode_context, prefill_tokens, **_: (
        5e-3 + 1e-6 * decode_context + 2e-5 * prefill_tokens
    )
)
CERTAIN, REFUSED = Draft("ngram", (1.0, 1.0, 1.0)), Draft("ngram", (0.0, 0.0, 0.0))
LIKELY = Draft("ngram", (0.8, 0.6, 0.3))


def engine_of(draft, slots=8, budget=2048, blocks=1000, **others):
    policy = Policy(async_scheduling=False, **others.pop("policy", {}))
    block_size = others.pop("block_size", 16)
    store = KVStore((KVTier(blocks),), block_size)
    return ReplayConfig(Sizes(slots, budget, 10_000), store, policy, draft=draft, **others)


def replayed(engine, *requests, times=CONSTANT, seed=0):
    return replay(Workload(list(requests), 10_000), times, engine, seed=seed)


@pytest.mark.parametrize(
    ("draft", "output", "steps"),
    # The prompt's step gives the first token. Of three drafts and one more, twelve tokens are three
    # steps, the thirteenth another.
    [(CERTAIN, 13, 4), (CERTAIN, 14, 5), (CERTAIN, 1, 1), (REFUSED, 13, 13), (None, 13, 13)],
)
def test_steps_of_a_request_by_hand(draft, output, steps):
    result = replayed(engine_of(draft), Request(0, 0.0, 10, output))
    (row,) = result.to_frame().to_dict("records")
    assert result.steps == steps
    assert row["ttft_s"] == pytest.approx(STEP_S)
    assert row["e2e_s"] == pytest.approx(steps * STEP_S)
    if output > 1:
        assert row["tpot_s"] == pytest.approx((steps - 1) * STEP_S / (output - 1))


def test_tokens_of_a_step_come_at_once():
    found = replayed(engine_of(CERTAIN), Request(0, 0.0, 10, 13))
    gaps = found.gaps
    assert gaps.tokens[gaps.gap_s > 0].sum() == 3
    assert gaps.tokens[gaps.gap_s == 0].sum() == 9
    itl = found.summary()["itl"]
    assert itl["mean"] == pytest.approx(3 * STEP_S / 12)
    assert (itl["p50"], itl["p99"]) == pytest.approx((0.0, STEP_S))
    assert found.work.steps.tolist() == [1, 3]
    assert found.work.given.tolist() == [0, 4]
    assert found.work.means()["given"] == 3


def test_what_a_step_computes_by_hand():
    seen = []

    def seconds(**sums):
        seen.append((sums["decode_requests"], sums["decode_context"], sums["prefill_tokens"]))
        return STEP_S

    requests = Request(0, 0.0, 10, 9), Request(1, 0.015, 20, 1)
    replayed(engine_of(CERTAIN, budget=12), *requests, times=WalkedStepTimes(seconds))
    # A request of ten tokens verifies four more, beside which eight of another's prompt are
    # computed, then eight more.
    assert seen == [(0, 0, 10), (1, 14, 0), (1, 18, 8), (0, 0, 12)]


def test_memory_bound_steps_are_as_much_faster_as_tokens_are_accepted():
    # Verifying and proposing takes a step 1.25 times as long.
    requests = [Request(n, 0.0, 100, 3001) for n in range(8)]
    slower = LinearStepTimes(0.0125, 0.0, 0.0)
    drafted = replayed(engine_of(LIKELY, blocks=2000), *requests, times=slower)
    requests = [Request(n, 0.0, 100, 3001) for n in range(8)]
    plain = replayed(engine_of(None, blocks=2000), *requests)
    gain = plain.to_frame()["tpot_s"].mean() / drafted.to_frame()["tpot_s"].mean()
    # Of 24,000 tokens in some 9,000 steps.
    assert gain == pytest.approx(LIKELY.accepted_length / 1.25, rel=0.015)
    # Each step of a request is a draw; eight of them give fewer than were accepted, the last ones.
    work = drafted.work
    count = work.steps @ work.decoding
    error = 4 * (LIKELY.variance / count) ** 0.5 + 8 * LIKELY.tokens / count
    assert work.steps @ work.given / count == pytest.approx(LIKELY.accepted_length, abs=error)


def test_blocks_of_drafts_are_taken_before_they_are_known_and_kept():
    # Twelve tokens fill three blocks of four. With the eight tokens of a step they are five, after
    # it with the next eight six, though one is accepted each time.
    draft = Draft("ngram", (0.0,) * 7)
    batch = DraftedTokens(draft, 4, 10_000, np.random.default_rng(0))
    request = Request(0, 0.0, 12, 4)
    request.computed, request.generated = 12, 1
    batch.join(request)
    assert batch.attended == 20
    assert batch.blocks_for(request) == batch.blocks_of_next_step() == 2
    assert [batch.blocks_after(steps) for steps in (0, 1, 2)] == [0, 1, 1]
    assert [batch.most_steps(free) for free in (0, 1)] == [1, 3]
    batch.ran(1)
    batch.leave(request)
    # Thirteen tokens fill four blocks, of five that it has.
    assert (request.computed, request.generated, request.ahead) == (13, 2, 1)
    assert (batch.decoding, batch.context, batch.blocks_of_next_step()) == (0, 0, 0)


def test_a_request_whose_drafts_never_fit_is_refused():
    engine = engine_of(Draft("ngram", (0.0,) * 7), block_size=4, blocks=5)
    with pytest.raises(InputError, match="needs 6 KV blocks and there are 5"):
        replayed(engine, Request(0, 0.0, 12, 4))
    # One token has no step with drafts.
    replayed(dataclasses.replace(engine, kv=KVStore((KVTier(3),), 4)), Request(0, 0.0, 12, 1))


def test_nothing_is_proposed_beyond_the_longest_context():
    engine = engine_of(CERTAIN, block_size=1, blocks=20)
    engine = dataclasses.replace(engine, sizes=Sizes(8, 2048, 20))
    assert replayed(engine, Request(0, 0.0, 10, 10)).counts()["completed"] == 1


def test_a_budget_without_room_for_drafts_is_refused():
    with pytest.raises(InputError, match="max_num_batched_tokens: 3 are fewer than the 4 tokens"):
        engine_of(CERTAIN, budget=3)
    # Where a pool computes prompts alone nothing is verified.
    assert engine_of(CERTAIN, budget=3, phases=(PREFILL,)).query_tokens == 1


def case_of(seed, draft, **layout):
    """An engine and requests of a few groups that share a prefix; blocks are often short."""
    rng = np.random.default_rng(seed)
    size, slots = int(rng.choice([1, 2, 4, 16])), int(rng.integers(1, 12))
    segments = [Segment(0, int(rng.integers(0, 90)), size) for _ in range(3)]
    requests = []
    for number, arrival in enumerate(np.sort(rng.uniform(0, 0.5, int(rng.integers(1, 40))))):
        segment = segments[number % 3]
        prompt = (segment.end * size) + int(rng.integers(1, 80))
        output = int(rng.integers(1, 60))
        requests.append(Request(number, float(arrival), prompt, output, path=[segment]))
    engine = engine_of(
        draft,
        slots=slots,
        budget=int(rng.integers(40, 200)),
        block_size=size,
        prefix_caching=bool(rng.random() < 0.7),
        parallelism=physim.Parallelism(**layout),
        policy={
            "admission": str(rng.choice(["chunk", "prompt", "request"])),
            "prompts_apart": bool(rng.random() < 0.3),
        },
    )
    least = max(engine.most_blocks(one.input_tokens, one.output_tokens) for one in requests)
    blocks = int(least * rng.choice([1, 1.3, 2, 5])) + int(rng.integers(0, 3))
    policy = dataclasses.replace(engine.policy, async_scheduling=bool(rng.random() < 0.5))
    store = KVStore((KVTier(blocks),), size)
    return dataclasses.replace(engine, kv=store, policy=policy), requests


@pytest.mark.parametrize(
    ("model", "gpu", "draft"),
    [("Qwen/Qwen3-14B", "h100_sxm", "ngram"), ("deepseek-ai/DeepSeek-V3", "h200_sxm", "mtp")],
)
@pytest.mark.slow
def test_tabulated_step_times_are_the_models(model, gpu, draft):
    options = {"draft": draft, "draft_tokens": 3, "draft_acceptance": 0.6}
    step = physim.step_model(model, gpu=gpu, tp=8, **options)
    times = ModelStepTimes(step, 128, 2048, 4000, query_tokens=4)
    rng = np.random.default_rng(0)
    for number in range(45):
        decodes, context = int(rng.integers(1, 120)), int(rng.integers(200, 3000))
        decodes, prompts = (0 if number % 3 == 0 else decodes), int(number % 3 < 2)
        chunk, cached = int(rng.integers(1, 1500)) * prompts, int(rng.integers(0, 1000)) * prompts
        batch = step.batch(
            decode_requests=float(decodes),
            context=float(context),
            prefill_requests=float(prompts),
            chunk=float(chunk),
            cached=float(cached),
            query_tokens=4.0,
        )
        found = times.step(
            decode_requests=decodes,
            decode_context=decodes * context,
            prefill_requests=prompts,
            prefill_tokens=chunk,
            prefill_squares=chunk**2,
            cached_tokens=cached,
            cached_products=chunk * cached,
        )
        exact = float(step(batch).latency)
        assert found == pytest.approx(exact, rel=1.5e-3)
        if not prompts:
            _, seconds, _ = times.decode(decodes, decodes * context, 1, 1e9)
            assert (found, seconds) == pytest.approx((exact, exact), rel=1e-4)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    acceptance=st.lists(st.floats(0, 1), min_size=1, max_size=7),
    layout=st.sampled_from([{}, {}, {"dp": 2}, {"pp": 2}]),
    timeout=st.one_of(st.none(), st.floats(0.05, 1)),
)
@settings(max_examples=300)
def test_what_holds_for_any_requests(seed, acceptance, layout, timeout):
    draft = Draft("ngram", tuple(sorted(acceptance, reverse=True)))
    engine, requests = case_of(seed, draft, **layout)
    budget, verified = engine.sizes.max_num_batched_tokens, draft.tokens + 1

    def seconds(decode_requests, prefill_tokens, **_):
        tokens = decode_requests * verified
        assert decode_requests <= engine.sizes.max_num_seqs
        if engine.policy.prompts_apart:
            assert not (tokens and prefill_tokens)
            assert prefill_tokens <= budget
        else:
            assert tokens + prefill_tokens <= budget
        return 5e-3 + 2e-5 * (tokens + prefill_tokens)

    server = ReplayServer(WalkedStepTimes(seconds), engine, timeout, seed)
    Cluster(Workload(requests, 10_000), [[server]]).run()
    samples = np.reshape(server.samples, (-1, 4))
    assert (samples[:, 3] >= 0).all()
    assert (samples[:, 3] <= engine.kv_blocks).all()
    assert server.kv_blocks == 0
    for request in requests:
        assert (request.finished_s is None) != (request.dropped_s is None)
        assert timeout is not None or request.dropped_s is None
        assert request.generated <= request.output_tokens
        if request.finished_s is not None:
            assert request.generated == request.output_tokens
            assert request.arrival_s <= request.scheduled_s < request.first_token_s
            least = -(-(request.output_tokens - 1) // verified)
            assert request.finished_s >= request.first_token_s + 5e-3 * least - 1e-9
    if timeout is None:
        # Each token after the first is a gap, which together are the time in which they came.
        time_s, gap_s, tokens = np.reshape(server.gaps, (-1, 3)).T
        assert tokens.sum() == sum(request.output_tokens - 1 for request in requests)
        if engine.parallelism.pp == 1:
            decoding = sum(request.finished_s - request.first_token_s for request in requests)
            assert gap_s @ tokens == pytest.approx(decoding)
        assert (np.diff(time_s) >= 0).all()


def test_blocks_are_short_in_some_of_these_cases():
    preemptions = 0
    for seed in range(60):
        engine, requests = case_of(seed, LIKELY)
        replay(Workload(requests, 10_000), CONSTANT, engine)
        preemptions += sum(request.preemptions for request in requests)
    assert preemptions > 100


@given(seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_a_repetition_is_the_same_to_the_last_byte(seed):
    def frame(draws):
        engine, requests = case_of(seed, LIKELY)
        result = replay(Workload(requests, 10_000), CONSTANT, engine, seed=draws)
        return result.to_frame().to_csv(), result.gaps.gap_s.tobytes()

    assert frame(3) == frame(3)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_jumping_is_walking(seed):
    frames = []
    for most_steps in (DraftedTokens.most_steps, lambda *_: 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DraftedTokens, "most_steps", most_steps)
            engine, requests = case_of(seed, LIKELY)
            result = replay(Workload(requests, 10_000), GROWING, engine)
            frames.append((result.steps, result.gaps.tokens.sum(), result.to_frame()))
    (*jumped, one), (*walked, other) = frames
    assert jumped == walked
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        assert one[name].to_numpy() == pytest.approx(other[name].to_numpy(), rel=1e-9)


def test_another_seed_draws_others():
    def frame(seed):
        requests = [Request(n, 0.0, 10, 100) for n in range(8)]
        return replayed(engine_of(LIKELY), *requests, seed=seed).to_frame().to_csv()

    assert frame(3) != frame(4)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_a_draft_that_nobody_accepts_gives_the_steps_of_no_draft(seed):
    frames = []
    for draft in (REFUSED, None):
        engine, requests = case_of(seed, draft)
        # Room for all tokens that are verified, of which it would have fewer without.
        sizes = dataclasses.replace(engine.sizes, max_num_batched_tokens=10**6)
        store = KVStore((KVTier(10**6),), engine.kv.block_size)
        engine = dataclasses.replace(engine, kv=store, sizes=sizes)
        result = replay(Workload(requests, 10_000), CONSTANT, engine)
        frames.append((result.steps, result.to_frame()))
    (steps, drafted), (others, plain) = frames
    assert steps == others
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        assert drafted[name].to_numpy() == pytest.approx(plain[name].to_numpy())


def test_drafts_where_prompts_are_computed_by_others():
    pools = [
        [ReplayServer(CONSTANT, engine_of(CERTAIN, phases=(phase,)), None)]
        for phase in (PREFILL, DECODE)
    ]
    requests = [Request(n, 0.1 * n, 100, 14) for n in range(3)]
    Cluster(Workload(requests, 10_000), pools, [Transfer(1e-5)]).run()
    for request in requests:
        # The decoders compute the last token they were given, then three steps give twelve more.
        took = request.finished_s - request.first_token_s
        assert took == pytest.approx(4 * STEP_S)
    assert pools[1][0].kv_blocks == 0
