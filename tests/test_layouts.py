"""Layouts beyond tensor parallelism: their rows by hand, and what holds of any of them."""

import dataclasses
import math

import laws
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_by_hand import config_of

import physim
from physim import roofline
from physim.batching.limits import Limits
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.grids.store import load_grid
from physim.prediction.arrays import step_model_of
from physim.prediction.checked import checked
from physim.replay.cluster import replay
from physim.replay.request import Request
from physim.replay.step_times import LinearStepTimes, ModelStepTimes, WalkedStepTimes
from physim.replay.workload import Workload
from physim.step.batch import Batch
from physim.step.component import Placement
from physim.step.components.all_reduce import SKEW_S
from physim.step.components.pipeline import SEND_S
from physim.step.curves import TOKENS
from physim.step.lowering import assumptions, rows_of
from physim.step.nodes import between_nodes
from physim.step.sizes import KNOTS

MIXTURE, DENSE = "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-14B"
LOAD = {"input_tokens": 500, "output_tokens": 100, "max_model_len": 4096}


def case_of(model=MIXTURE, **options):
    return physim.Case.from_options(
        model, **{"gpu": "h100_sxm", "concurrency": 32, **LOAD, **options}
    )


def row_of(case, name):
    (row,) = [r for r in rows_of(case.server) if r.name == name]
    return row


def step_of(case):
    return step_model_of(case, Corrections())


def decoding(model, requests, **layout):
    return model.batch(decode_requests=requests, context=1000.0, **layout)


def test_experts_of_a_rank_by_hand():
    # 128 experts of which a token visits 8, each 768 wide, over 4 GPUs that hold whole ones.
    row = row_of(case_of(dp=4, ep=4), "experts")
    assert (row.experts, row.experts_per_token) == (32, 2)
    assert row.flops == 2 * 3 * 2 * 2048 * 768
    assert row.expert_bytes == 3 * 2048 * 768 * 2
    # Shared out in width, each GPU has a quarter of every expert.
    row = row_of(case_of(dp=4), "experts")
    assert (row.experts, row.experts_per_token) == (128, 8)
    assert row.flops == 2 * 3 * 8 * 2048 * 768 / 4


def test_an_exchange_between_ranks_by_hand():
    # Of four ranks three quarters of every message come over the link, at 450 GB/s: hidden states
    # of 2,048 numbers of 16 bit, to the experts and back.
    case = case_of(dp=4, ep=4)
    row = row_of(case, "expert_exchange")
    assert row.count == 48
    assert row.bytes == 2 * 2 * 2048 * 3 / 4
    # At 1,024 tokens each way is a message of 4 MiB, at the efficiency that was measured.
    measured = 2 * SKEW_S
    for name in ("all_gather", "reduce_scatter"):
        grid = load_grid("h100_sxm", name).sliced(gpus=4)
        (efficiency,) = np.exp(grid.resampled(message_bytes=np.array([2.0**22])))
        measured += 2**22 * 3 / 4 / case.server.gpu.link_bandwidth / efficiency
    at = np.exp(np.interp(math.log(1024), np.log(TOKENS), row.log_seconds))
    assert at == pytest.approx(measured, rel=0.02)


def exchange_s(case, tokens: float) -> float:
    """Time of an exchange of so many tokens of all ranks, without waiting for the slowest."""
    logs = row_of(case, "expert_exchange").log_seconds
    return float(np.exp(np.interp(math.log(tokens), np.log(TOKENS), logs))) - 2 * SKEW_S


def test_deepep_sends_tokens_to_their_experts():
    # Of eight ranks 7 (1 - (7/8)^8) others, 4.6, have an expert of a token that visits eight, and
    # six of its experts are on the three other ranks of four.
    assert roofline.copies_for_ranks(8, 8) == pytest.approx(7 * (1 - (7 / 8) ** 8))
    assert roofline.copies_for_experts(8, 4) == 6
    assert roofline.all_to_all(1.0, 2048, 6) == 6 * 3 * 2048
    # Measured rows: 1,024 tokens a rank on H200, 403 + 393 us with 256 experts, 405 + 468 with 384.
    layout = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "h200_sxm", "dp": 8, "ep": 8}
    deepep = case_of(**layout, all2all="deepep_high_throughput")
    assert exchange_s(deepep, 8 * 1024) == pytest.approx(834.5e-6, rel=0.01)
    # For small batches the kernels of low latency are faster.
    low = case_of(**layout, all2all="deepep_low_latency")
    assert exchange_s(low, 64) < exchange_s(deepep, 64)
    with pytest.raises(
        InputError, match="all2all: deepep_low_latency is for experts that are spread"
    ):
        case_of(dp=8, all2all="deepep_low_latency")


def test_more_ranks_send_more_and_start_as_soon():
    # Measured on four GB300: 8 tokens a rank 17.7 + 17.2 us with 256 experts, 18.4 + 19.9 with 384;
    # of 32 ranks each sends 7.75 copies of a token, not six, which few tokens do not show.
    layout = {"model": "deepseek-ai/DeepSeek-V3", "gpu": "gb300", "all2all": "deepep_low_latency"}
    four, many = (case_of(**layout, dp=n, ep=n) for n in (4, 32))
    assert exchange_s(four, 4 * 8) == pytest.approx(36.6e-6, rel=0.02)
    assert exchange_s(many, 32 * 8) == pytest.approx(exchange_s(four, 4 * 8), rel=0.03)
    grown = exchange_s(many, 32 * 256) / exchange_s(four, 4 * 256)
    assert 1.1 < grown < 7.75 / 6


def test_trtllm_writes_into_the_memory_of_others():
    # Measured on 32 GB200 with nvfp4: 384 tokens a rank 41.7 + 96.7 us.
    spread = {"dp": 32, "ep": 32}
    model = {"model": "nvidia/DeepSeek-V3.1-NVFP4", "gpu": "gb200", "engine": "trtllm"}
    case = case_of(**model, **spread)
    assert case.server.all2all == "nvlink_one_sided"
    assert exchange_s(case, 32 * 384) == pytest.approx(138.4e-6, rel=0.02)
    # One that shares the width of experts gathers, and is not asked to do what it cannot.
    assert case_of(**model, dp=4).server.all2all == "allgather"
    assert case_of("deepseek-ai/DeepSeek-V3", gpu="gb200", **spread).server.all2all == "allgather"
    with pytest.raises(InputError, match="all2all: deepep_low_latency is nothing that trtllm does"):
        case_of(**model, **spread, all2all="deepep_low_latency")


def test_a_pipeline_sends_hidden_states_between_stages():
    row = row_of(case_of(DENSE, tp=2, pp=4), "pipeline_send")
    # The residual stream and the layer's output, of 5,120 numbers, half from each of two GPUs.
    assert (row.count, row.bytes, row.fixed_seconds) == (3, 2 * 2 * 5120 / 2, SEND_S)
    assert not [
        r for r in rows_of(case_of(DENSE).server) if r.part in ("pipeline", "expert_exchange")
    ]


def test_an_exchange_between_nodes_by_hand():
    # Of 16 MiB on two nodes each gets the other's half, an eighth over each network interface of
    # 50 GB/s, 10 us after it was asked for.
    one, two = (case_of("deepseek-ai/DeepSeek-V3", gpu="h200_sxm", dp=n, ep=n) for n in (8, 16))
    placement = Placement(two.server)
    assert between_nodes(placement, 16, 2.0**24) == pytest.approx(10e-6 + 2**24 / 2 / 8 / 50e9)
    assert between_nodes(Placement(one.server), 8, 2.0**24) == 0.0
    assert np.all(
        row_of(two, "expert_exchange").log_seconds > row_of(one, "expert_exchange").log_seconds
    )


def test_several_nodes_are_said():
    case = case_of("deepseek-ai/DeepSeek-V3", gpu="h200_sxm", dp=16, ep=16)
    notes = assumptions(case.server)
    assert any("dp 16 spans 2 nodes of 8 GPUs" in note for note in notes)


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 16),
    decodes=st.floats(0, 500),
    prompts=st.floats(0, 50),
    chunk=st.floats(1, 4000),
)
def test_ranks_sum_to_the_whole_load(ranks, decodes, prompts, chunk):
    batch = Batch.summarised(decodes, 100.0, prompts, chunk, ranks=ranks)
    assert batch.routed == pytest.approx(decodes + prompts * chunk)
    # The fullest rank has its share at least, and at most one request of each kind more.
    assert decodes / ranks <= batch.decode_requests * (1 + 1e-12)
    assert batch.decode_requests <= decodes / ranks + 1
    assert batch.decode_requests <= decodes


@settings(max_examples=15, deadline=None)
@given(requests=st.floats(1, 400))
def test_one_rank_and_one_stage_are_what_they_always_were(requests):
    plain = Batch.summarised(requests, 700.0, 2.0, 300.0)
    spread = Batch.summarised(requests, 700.0, 2.0, 300.0, ranks=1, stages=1)
    for field in dataclasses.fields(Batch):
        assert np.all(getattr(plain, field.name) == getattr(spread, field.name))


def test_more_ranks_of_experts_never_raise_the_work_of_one():
    tokens = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])
    for layouts in (
        [{"dp": n, "ep": n} for n in (2, 4, 8)],
        [{"tp": n, "ep": n} for n in (2, 4)],
    ):
        bounds = []
        for layout in layouts:
            rows = step_of(case_of(**layout)).ops.over_sizes
            of_experts = np.flatnonzero(rows.expert.sum(axis=1))
            bounds.append(
                [
                    [float(np.asarray(x)[of_experts].sum()) for x in rows.work(sizes(one))]
                    for one in tokens
                ]
            )
        for more, fewer in zip(bounds[1:], bounds, strict=False):
            assert np.all(np.array(more) <= np.array(fewer) * (1 + 1e-6))


def sizes(tokens):
    return dict.fromkeys(KNOTS, tokens)


@pytest.mark.slow
def test_a_pipeline_has_the_latency_of_its_stages_and_at_most_their_throughput():
    one, four = (step_of(case_of(DENSE, pp=pp, async_scheduling=False)) for pp in (1, 4))
    batch = decoding(one, 16.0)
    sends = float(four(batch).parts["pipeline"])
    assert float(four(batch).latency) == pytest.approx(float(one(batch).latency) + sends, rel=1e-6)
    alone, piped = (
        physim.predict(case_of(DENSE, pp=pp, concurrency=256), fit="none") for pp in (1, 4)
    )
    assert piped.requests_per_s <= 4 * alone.requests_per_s
    assert piped.requests_per_s > 1.5 * alone.requests_per_s


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": DENSE, "dp": 2}, "dp: 2 shares experts, and Qwen/Qwen3-14B has none"),
        ({"model": DENSE, "tp": 2, "ep": 2}, "ep: 2 shares experts"),
        ({"tp": 2, "dp": 2, "ep": 2}, "ep: 2 of 4 GPUs cannot be served by vllm"),
        ({"ep": 3}, "ep: 3 does not divide the 1 GPUs"),
        ({"dp": 3, "ep": 3}, "ep: 3 does not divide the 128 experts"),
        ({"pp": 49}, "pp: 49 stages for the 48 layers"),
    ],
)
def test_layouts_that_cannot_be_are_refused(options, complaint):
    with pytest.raises(InputError) as caught:
        case_of(**options)
    assert str(caught.value).startswith(complaint)


# Ten milliseconds a step and one for each request.
LINEAR = LinearStepTimes(10e-3, 0.0, 1e-3)


def limits_of(**options):
    limits = Limits.from_server(case_of(DENSE, async_scheduling=False).server)
    return dataclasses.replace(limits, async_scheduling=False, **options)


def finished(engine, requests, times=LINEAR):
    return replay(Workload(requests, longest=4000), times, engine).to_frame().set_index("number")


def test_ranks_share_requests_and_wait_for_the_fullest():
    engine = config_of(limits_of(), parallelism=physim.Parallelism(dp=2))
    frame = finished(engine, [Request(n, 0.0, 10, 11) for n in range(3)])
    # A step that prefills all; then one rank decodes two requests, ten steps of 12 ms.
    assert frame["ttft_s"].tolist() == pytest.approx([10e-3] * 3)
    assert frame["e2e_s"].tolist() == pytest.approx([10e-3 + 10 * 12e-3] * 3)


def test_experts_see_the_tokens_of_all_ranks():
    seen = []

    def seconds(**sums):
        seen.append((sums["decode_requests"] + sums["prefill_tokens"], sums["elsewhere"]))
        return 10e-3

    engine = config_of(limits_of(), parallelism=physim.Parallelism(dp=2))
    finished(engine, [Request(n, 0.0, 10 * (n + 1), 2) for n in range(3)], WalkedStepTimes(seconds))
    assert set(seen) == {(40, 20), (20, 40), (2, 1), (1, 2)}


@pytest.mark.parametrize(
    ("limit", "prompts", "decodes"),
    [
        # Two prompts of 40 tokens together on one rank, one of 20 on the other.
        (math.inf, {(40, 40), (20, 60)}, {(2, 2), (1, 3)}),
        # A graph holds two requests that decode, and no prompt.
        (2.0, {(40, 20), (20, 40)}, {(2, 2), (1, 3)}),
        (1.0, {(40, 20), (20, 40)}, {(2, 1), (1, 2)}),
    ],
)
def test_experts_see_what_ranks_are_padded_to(limit, prompts, decodes):
    seen = []

    def seconds(**sums):
        seen.append((sums["decode_requests"] + sums["prefill_tokens"], sums["elsewhere"]))
        return 10e-3

    layout = physim.Parallelism(dp=2)
    engine = config_of(limits_of(), parallelism=layout, padded_tokens=limit)
    finished(engine, [Request(n, 0.0, 10 * (n + 1), 2) for n in range(3)], WalkedStepTimes(seconds))
    assert set(seen) == prompts | decodes


@pytest.mark.parametrize(
    ("version", "decode", "prompt"),
    # Four ranks as full as the fullest in all steps, in CUDA graphs, in none.
    [("0.15.1", 24.0, 4000.0), ("0.19.0", 24.0, 1600.0), ("0.33.0", 16.0, 1600.0)],
)
def test_tokens_that_experts_work_on_by_version_by_hand(version, decode, prompt):
    model = step_of(case_of(dp=4, ep=4, engine_version=version))
    decodes = dataclasses.replace(decoding(model, 6.0), elsewhere=10.0)
    assert float(model.sizes(decodes)["routed"]) == decode
    prompts = dataclasses.replace(
        model.batch(prefill_requests=1.0, chunk=1000.0), prompts_elsewhere=600.0
    )
    assert float(model.sizes(prompts)["routed"]) == prompt
    assert float(model.sizes(prompts)["tokens"]) == 1000.0
    assert float(model.of_alike_ranks(4).sizes(decodes)["routed"]) == 4 * 16.0


def test_half_of_the_steps_are_graphs_and_padded():
    model = step_of(case_of(dp=4, ep=4, engine_version="0.19.0"))
    batch = dataclasses.replace(decoding(model, 6.0), elsewhere=10.0, without_graph=0.5)
    assert float(model.sizes(batch)["routed"]) == 20.0


def test_ranks_are_not_padded_without_other_ranks():
    model = step_of(case_of(tp=4, ep=4, engine_version="0.15.1"))
    assert float(model.sizes(decoding(model, 6.0))["routed"]) == 6.0


def test_tables_of_steps_count_padding_once():
    case = case_of(dp=2, ep=2, engine_version="0.15.1")
    model = step_of(case)
    times = ModelStepTimes(model, 64, 2048, 2000, ranks=2)
    # The fullest has 12 requests, the other 4 and padding.
    batch = dataclasses.replace(decoding(model, 12.0), elsewhere=4.0)
    _, seconds, _ = times.decode(12, 12 * 1000, 1, 1e9, elsewhere=12)
    assert seconds == pytest.approx(float(model(batch).latency), rel=1e-3)


@pytest.mark.parametrize(
    "clients",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8],
)
def test_ranks_share_clients_evenly(clients):
    case = case_of(dp=4, ep=4, engine_version="0.15.1", concurrency=clients)
    fluid, replayed = (
        physim.predict(case, fit="none", method=method) for method in ("fluid", "replay")
    )
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.005)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.02)


def test_steps_beside_other_ranks_have_no_prompt_unless_they_do():
    case = case_of(dp=2, ep=2)
    model = step_of(case)
    times = ModelStepTimes(model, 64, 2048, 2000, ranks=2)
    batch = dataclasses.replace(decoding(model, 8.0), elsewhere=8.0)
    _, seconds, _ = times.decode(8, 8 * 1000, 1, 1e9, elsewhere=8)
    # Between the knots of tokens of all ranks lines are straight.
    assert seconds == pytest.approx(float(model(batch).latency), rel=1e-3)


def test_a_pipeline_has_batches_under_way_that_the_budget_parts():
    # Two prompts of a step's budget each: the second follows half a step behind the first.
    engine = config_of(limits_of(max_num_batched_tokens=10), parallelism=physim.Parallelism(pp=2))
    frame = finished(engine, [Request(n, 0.0, 10, 3) for n in range(2)])
    first, second = frame["ttft_s"].tolist()
    assert (first, second) == pytest.approx((10e-3, 15e-3))
    # Each then decodes alone, 11 ms a token, 5.5 of them in the first stage: there the second waits
    # for half a millisecond, as the first has begun at 10 ms.
    assert frame["e2e_s"].tolist() == pytest.approx([10e-3 + 22e-3, 15.5e-3 + 22e-3])


def test_who_waits_joins_the_batch_that_comes_out_next():
    # While one batch is under way, two requests arrive. There is room for both beside it.
    engine = config_of(limits_of(max_num_batched_tokens=100), parallelism=physim.Parallelism(pp=2))
    frame = finished(
        engine, [Request(0, 0.0, 10, 3), Request(1, 1e-3, 10, 1), Request(2, 2e-3, 10, 1)]
    )
    # The first's prompt takes 10 ms; its next step has both prompts in it, 11 ms.
    assert frame["ttft_s"].tolist() == pytest.approx([10e-3, 20e-3, 19e-3])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"dp": 2, "ep": 2}, {"pp": 2}, {"tp": 2, "ep": 2}])
def test_fluid_and_replay_agree(layout):
    load = {"concurrency": None, "rate": 6.0, "arrival": "poisson"}
    fluid, replayed = (
        physim.predict(case_of(**load, **layout), fit="none", method=method)
        for method in ("fluid", "replay")
    )
    assert fluid.itl_s == pytest.approx(replayed.itl_s, rel=0.055)
    assert fluid.ttft_s == pytest.approx(replayed.ttft_s, rel=0.1)


def errors_of_means(case):
    """By which share the fluid's mean TTFT and ITL exceed those of a long replay."""
    (fluid,) = physim.predict_cases([case], Corrections())
    rows = checked(fluid, case, Corrections(), seed=1).rows
    return {
        row.quantity: row.fluid / row.replay - 1
        for row in rows
        if row.statistic == "mean" and row.quantity in ("ttft", "itl")
    }


def ranks_of_sglang(model, gpu, ranks, **load):
    given = {"gpu": gpu, "engine": "sglang", "dp": ranks, "ep": ranks, "arrival": "poisson"}
    return physim.Case.from_options(model, **given, **load)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "tokens", "within"),
    [(30.0, (1500, 150), 0.03), (60.0, (1500, 150), 0.045), (80.0, (1000, 200), 0.1)],
)
def test_ranks_whose_prompts_have_steps_of_their_own(rate, tokens, within):
    # Each of four ranks has a quarter of the prompts, and decodes while another computes one: the
    # experts have the tokens of all.
    load = {"rate": rate, "input_tokens": tokens[0], "output_tokens": tokens[1]}
    case = ranks_of_sglang("Qwen/Qwen3-30B-A3B", "h100_sxm", 4, **load)
    assert errors_of_means(case) == pytest.approx({"ttft": 0.0, "itl": 0.0}, abs=within)


@pytest.mark.slow
def test_long_prompts_of_ranks_with_steps_of_their_own():
    # Eight ranks with steps of 2,048 tokens: a third of the chunks are followed by others of the
    # same prompt, beside which other ranks begin theirs.
    prompts = physim.Lengths.lognormal(2000, 2500)
    load = {"rate": 10.0, "input_tokens": prompts, "output_tokens": 300}
    case = ranks_of_sglang("deepseek-ai/DeepSeek-R1", "b200_sxm", 8, **load)
    assert case.server.sizes.max_num_batched_tokens == 16384 // 8
    errors = errors_of_means(case)
    assert errors == pytest.approx({"ttft": 0.0, "itl": 0.0}, abs=0.1)


@pytest.mark.slow
def test_steps_of_many_lengths_within_and_beyond_a_graph():
    # Some prompts of a conversation fit into a graph and some do not, whose step is twice as long.
    case = physim.Case.from_options(
        "Qwen/Qwen3-30B-A3B",
        gpu="h100_sxm",
        tp=2,
        lengths=physim.RequestLengths.read("azure-conversation-2023"),
        rate=27.0,
        arrival="poisson",
    )
    assert errors_of_means(case) == pytest.approx({"ttft": 0.0, "itl": 0.0}, abs=0.05)


@pytest.mark.slow
def test_a_pipeline_is_as_slow_as_its_fullest_batch():
    # A step has room for 126 prompts of 65 tokens and 81 of 100. Of more that start at once the
    # others are another batch. Requests that come one by one stay in the first, which is as slow.
    def case(prompt, **load):
        return physim.Case.from_options(
            "Qwen/Qwen3.5-397B-A17B-FP8",
            gpu="l40s",
            tp=8,
            pp=4,
            max_num_seqs=128,
            max_num_batched_tokens=8192,
            input_tokens=prompt,
            output_tokens=physim.Lengths.normal(300, 90),
            **load,
        )

    cases = [case(prompt, rate=0.1) for prompt in (60, 65, 70, 100)]
    *found, clients = laws.predicted([*cases, case(100, concurrency=128)])
    most = [one.saturation_rps for one in found]
    assert most[:2] == pytest.approx(most[1:3], rel=0.03)
    for one, served in zip(cases[2:], most[2:], strict=True):
        assert served == pytest.approx(laws.replayed_overload(one, 1.2 * served, 4000), rel=0.03)
    # As many clients as there are slots go from batch to batch, until all batches are alike.
    replayed = laws.replayed_saturation(cases[3], 128, 600)
    assert clients.requests_per_s == pytest.approx(replayed, rel=0.08)


def test_the_command_names_the_layout():
    from physim.prediction.commands import serve_command

    words = serve_command(case_of(tp=2, dp=2, ep=4, pp=2))
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2" in words
    assert "--enable-expert-parallel" in words


def test_a_table_is_of_ranks_that_all_have_its_batch(tmp_path):
    from physim.tables.files import load
    from physim.tables.writer import write_table

    engine = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "max_model_len": 1024}
    case = physim.Case.from_options(MIXTURE, gpu="h100_sxm", dp=2, ep=2, **engine)
    write_table(case, tmp_path / "table", tolerance=0.03, fit="none")
    model = step_of(case)
    exact = model(decoding(model, 16.0, ranks=2))
    both = model(dataclasses.replace(decoding(model, 16.0), elsewhere=16.0))
    assert float(exact.latency) < float(both.latency)
    table = load(tmp_path / "table")
    found = table(16, 1000, 0, 0)
    assert found == pytest.approx(float(both.latency), rel=0.03)
    with pytest.raises(InputError, match="dp: 2 is not what BLIS can simulate"):
        write_table(case, tmp_path / "blis", kind="blis")
