"""Composition of the step time, and exact against summarised batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import physim
from physim.corrections.fields import CORRECTIONS, Corrections
from physim.corrections.residual import LIMIT, Residual
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.step.batch import MAX_REQUESTS, Batch
from physim.step.components import COMPONENTS
from physim.step.host import EXPOSED_SHARE, HOST_REQUEST_S, HOST_STEP_S, WORKER_REQUEST_S
from physim.step.lowering import PART_NAMES, PARTS, lower, rows_of
from physim.step.mixed_steps import MIXINGS
from physim.step.model import StepModel

H100 = load_hardware("h100_sxm")
SCOUT = "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic"


def ops_of(model, tp=1, **deployment):
    arch = load_model(model)
    return lower(Deployment(Parallelism(tp), **deployment).resolved(arch, H100))


LLAMA = StepModel(ops_of("meta-llama/Llama-3.1-70B-Instruct", tp=4), Corrections())
TINY = StepModel(ops_of("Qwen/Qwen2.5-0.5B-Instruct"), Corrections())
STEP = jax.jit(lambda model, batch: model(batch))
ZERO = Corrections()


def exact(new_tokens, cached):
    places = MAX_REQUESTS - len(new_tokens)
    return Batch.exact(
        jnp.asarray([*map(float, new_tokens), *[0.0] * places]),
        jnp.asarray([*map(float, cached), *[0.0] * places]),
    )


def test_parts_sum_to_the_total():
    step = STEP(LLAMA, Batch.summarised(32.0, 800.0, 1.0, 200.0, 500.0))
    assert tuple(step.parts) == PART_NAMES
    assert sum(step.parts.values()) == pytest.approx(float(step.latency))
    assert min(step.parts.values()) >= 0


def test_equal_requests_summarise_exactly():
    batch = exact([1] * 8 + [100] * 2, [700] * 8 + [50] * 2)
    summarised = Batch.summarised(8.0, 701.0, 2.0, 100.0, 50.0)
    for name in (field.name for field in dataclasses.fields(Batch)):
        assert np.asarray(getattr(batch, name)) == pytest.approx(getattr(summarised, name))
    assert STEP(LLAMA, batch).latency == pytest.approx(float(STEP(LLAMA, summarised).latency))


def test_unequal_contexts_cost_as_their_sum():
    even = STEP(LLAMA, exact([1] * 4, [1000] * 4)).latency
    uneven = STEP(LLAMA, exact([1] * 4, [500, 1500, 100, 1900])).latency
    assert uneven == pytest.approx(float(even))


def test_order_and_empty_places_do_not_matter():
    forward = STEP(LLAMA, exact([1, 300, 1], [10, 20, 30])).latency
    backward = STEP(LLAMA, exact([1, 0, 300, 1], [30, 0, 20, 10])).latency
    assert forward == backward


@given(
    st.floats(1, 500), st.floats(1, 3000), st.floats(1, 8), st.floats(2, 2000), st.floats(0, 3000)
)
@settings(max_examples=50)
def test_a_step_is_longer_than_its_weights_take_to_read(decode, context, prefill, chunk, cached):
    arch = load_model("meta-llama/Llama-3.1-70B-Instruct")
    deployment = Deployment(Parallelism(4)).resolved(arch, H100)
    weights = sum(
        row.count * row.fixed_bytes for row in rows_of(deployment) if getattr(row, "gemm", None)
    )
    step = STEP(LLAMA, Batch.summarised(decode, context, prefill, chunk, cached))
    assert step.latency > weights / H100.memory_bandwidth
    assert np.isfinite(step.latency)


def test_the_host_is_a_floor():
    step = STEP(TINY, Batch.summarised(1.0, 100.0))
    host = HOST_STEP_S + HOST_REQUEST_S + WORKER_REQUEST_S
    gpu = step.latency - step.parts["host"]
    assert gpu < host
    assert step.latency == pytest.approx(float((gpu**8 + host**8) ** (1 / 8)))
    assert step.latency > host


def test_the_host_hides_behind_a_long_step():
    step = STEP(LLAMA, Batch.summarised(8.0, 100.0))
    assert 0 <= step.parts["host"] < 1e-6 * step.latency


MODES = ("additive", "weighted-average", "smooth-weighted")


@pytest.mark.parametrize("mixed", MODES)
@pytest.mark.parametrize("batch", [(20.0, 800.0, 0.0, 0.0, 0.0), (0.0, 0.0, 2.0, 500.0, 100.0)])
def test_batches_of_one_kind_do_not_depend_on_the_mode(mixed, batch):
    model = StepModel(LLAMA.ops, Corrections(), MIXINGS[mixed])
    expected = STEP(LLAMA, Batch.summarised(*batch)).latency
    assert STEP(model, Batch.summarised(*batch)).latency == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("decode", "prefill_tokens", "weight"),
    [(10.0, 500.0, 0.75), (100.0, 20.0, 0.35), (40.0, 60.0, 0.6)],
)
def test_weighted_average_by_hand(decode, prefill_tokens, weight):
    batch = Batch.summarised(decode, 800.0, 1.0, prefill_tokens, 0.0)
    prefill = STEP(LLAMA, batch.prefill_only()).latency
    alone = STEP(LLAMA, batch.decode_only()).latency
    blended = STEP(StepModel(LLAMA.ops, Corrections(), MIXINGS["weighted-average"]), batch)
    assert blended.latency == pytest.approx(float(weight * prefill + (1 - weight) * alone))
    assert sum(blended.parts.values()) == pytest.approx(float(blended.latency))


def test_smooth_weighted_approaches_the_regimes_and_has_no_jump():
    def total(tokens):
        batch = Batch.summarised(20.0, 800.0, 1.0, tokens, 0.0)
        return STEP(StepModel(LLAMA.ops, Corrections(), MIXINGS["smooth-weighted"]), batch).latency

    hard = StepModel(LLAMA.ops, Corrections(), MIXINGS["weighted-average"])
    far = Batch.summarised(20.0, 800.0, 1.0, 4000.0, 0.0)
    assert total(4000.0) == pytest.approx(float(STEP(hard, far).latency), rel=0.01)
    # Across the border at 100 prefill tokens.
    assert total(100.001) == pytest.approx(float(total(99.999)), rel=1e-3)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="use one of additive, weighted-average, smooth-weighted"):
        physim.Case.from_options("Qwen/Qwen3-8B", gpu="h100_sxm", mixed="average")


@pytest.mark.parametrize(
    ("correction", "part"),
    [
        ("decode_attention", "decode_attention"),
        ("all_reduce", "all_reduce"),
        ("elementwise", "elementwise"),
    ],
)
def test_a_correction_multiplies_its_part(correction, part):
    batch = Batch.summarised(8.0, 500.0, 1.0, 20.0, 100.0)
    corrected = StepModel(LLAMA.ops, Corrections(**{correction: float(np.log(1.5))}))
    ratio = STEP(corrected, batch).parts[part] / STEP(LLAMA, batch).parts[part]
    assert ratio == pytest.approx(1.5)


def test_corrections_of_the_output_and_of_the_gaps():
    batch = Batch.summarised(8.0, 500.0)
    log = float(np.log(1.5))
    logs = dict.fromkeys(("lm_head", "sampling", "all_reduce", "step_overhead"), log)
    corrected = StepModel(LLAMA.ops, Corrections(**logs))
    parts, bare = STEP(corrected, batch).parts, STEP(LLAMA, batch).parts
    assert parts["lm_head"] / bare["lm_head"] == pytest.approx(1.5)
    assert parts["step_overhead"] / bare["step_overhead"] == pytest.approx(1.5)


def test_corrections_of_gemms_share_them_by_what_bounds_them():
    both = Corrections(gemm_memory=float(np.log(1.5)), gemm_compute=float(np.log(1.5)))
    memory = Corrections(gemm_memory=float(np.log(1.5)))

    def ratio(corrections, tokens):
        batch = Batch.summarised(prefill_requests=1.0, chunk=tokens)
        corrected = STEP(StepModel(LLAMA.ops, corrections), batch).parts["mlp"]
        return corrected / STEP(LLAMA, batch).parts["mlp"]

    assert ratio(both, 500.0) == pytest.approx(1.5)
    # Eight tokens: 8 FLOP for each byte; an H100 computes as long as it reads at 295.
    assert ratio(memory, 8.0) == pytest.approx(1.5, rel=1e-4)
    assert ratio(memory, 8000.0) < 1.01


def test_steps_with_prefill_wait_at_each_layer():
    decode, mixed = Batch.summarised(8.0, 500.0), Batch.summarised(8.0, 500.0, 1.0, 20.0)
    longer = STEP(LLAMA, mixed).parts["step_overhead"] - STEP(LLAMA, decode).parts["step_overhead"]
    assert longer == pytest.approx(80 * 5e-6, rel=1e-3)


def test_the_residual_is_silent_at_first_and_bounded():
    loud = Residual.silent()
    loud = Residual(loud.hidden, loud.bias, 100 * np.ones_like(loud.output))
    batch = Batch.summarised(8.0, 500.0, 1.0, 20.0, 100.0)
    bare, bent = (
        STEP(StepModel(LLAMA.ops, Corrections(residual=residual)), batch).parts
        for residual in (Residual.silent(), loud)
    )
    assert bare == STEP(LLAMA, batch).parts
    for part in ("mlp", "elementwise"):
        assert abs(np.log(bent[part] / bare[part])) <= LIMIT * 1.0001
    assert bent["mlp"] != bare["mlp"]
    assert bent["decode_attention"] == bare["decode_attention"]


def test_without_asynchronous_scheduling_the_gpu_waits():
    sync = StepModel(ops_of("meta-llama/Llama-3.1-70B-Instruct", 4, async_scheduling=False), ZERO)
    batch = Batch.summarised(64.0, 500.0)
    waited = float(STEP(sync, batch).latency - STEP(LLAMA, batch).latency)
    exposed = EXPOSED_SHARE * HOST_STEP_S + 64 * HOST_REQUEST_S
    assert waited == pytest.approx(exposed, rel=1e-3)


def test_what_asynchronous_scheduling_hides_by_a_timeline():
    # Steps of 20 ms on the GPU, one after the other. The CPU handles the tokens of step k - 1 from
    # 0 ms on, when the GPU begins step k, and has formed and launched step k + 1 at 2 ms + 100 x
    # 28 us = 4.8 ms: the GPU does not wait. Where the share 0.5 of each request's work is exposed,
    # it waits for 100 x 14 us.
    gpu, requests, step, each = 20e-3, 100, HOST_STEP_S, HOST_REQUEST_S + WORKER_REQUEST_S
    launched = step + requests * each
    assert launched == pytest.approx(4.8e-3)
    assert launched < gpu
    for version, waited in (("0.15.1", 0.0), ("0.11.1", 1.4e-3)):
        host = ops_of("Qwen/Qwen3-14B", engine_version=version, async_scheduling=True).host
        hidden, exposed = host.seconds(ZERO, float(requests))
        assert float(exposed) == pytest.approx(waited)
        assert float(hidden + exposed) == pytest.approx(launched)


def test_steps_beyond_the_largest_graph_launch_their_kernels():
    host = TINY.ops.host
    assert float(host.launching(ZERO, 512.0, 1.0)) == 0.0
    # 24 layers at 300 us.
    assert float(host.launching(ZERO, 513.0, 0.0)) == pytest.approx(24 * 300e-6)


def test_a_share_of_many_steps_is_beyond_the_largest_graph():
    # 412 to 812 tokens about a mean of 612: three in four are above 512.
    host = TINY.ops.host
    assert float(host.without_graph(612.0, 1.0, 400.0)) == pytest.approx(0.75, abs=2e-3)
    batch = TINY.batch(prefill_requests=1.0, chunk=612.0)
    small, large, mixed = (
        float(TINY(dataclasses.replace(batch, without_graph=share)).latency)
        for share in (0.0, 1.0, 0.75)
    )
    assert float(TINY(batch).latency) == large > small
    assert mixed == pytest.approx(0.25 * small + 0.75 * large, rel=1e-6)


def test_steps_with_prompts_launch_what_no_graph_holds():
    # TensorRT-LLM has no graphs of prompts: 36 layers with experts, at 400 and 300 us.
    host = ops_of("openai/gpt-oss-120b", engine="trtllm").host
    assert float(host.launching(ZERO, 600.0, 0.0)) == 0.0
    assert float(host.launching(ZERO, 10.0, 1.0)) == pytest.approx(36 * 700e-6)
    # DeepSeek-V3 has latent attention in each of its 61 layers, and experts in 58.
    on_eight = Deployment(Parallelism(8), engine="trtllm")
    latent = lower(
        on_eight.resolved(load_model("deepseek-ai/DeepSeek-V3"), load_hardware("b200_sxm"))
    ).host
    launched = 61 * 700e-6 + 58 * 300e-6
    assert float(latent.launching(ZERO, 10.0, 1.0)) == pytest.approx(launched)
    # Prompts of a Mamba layer are in no graph, however few tokens there are: 23 at 1.7 ms.
    states = ops_of("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16").host
    assert float(states.launching(ZERO, 10.0, 0.0)) == 0.0
    assert float(states.launching(ZERO, 10.0, 1.0)) == pytest.approx(23 * 1.7e-3)


def test_at_a_sharpness_of_one_the_host_adds():
    batch = Batch.summarised(8.0, 500.0)
    additive = STEP(StepModel(LLAMA.ops, Corrections(host_sharpness=float(np.log(1 / 8)))), batch)
    assert additive.parts["host"] == pytest.approx(2e-3 + 8 * 20e-6, rel=1e-3)


@pytest.mark.parametrize(
    "mixed",
    [
        "additive",
        pytest.param("weighted-average", marks=pytest.mark.slow),
        pytest.param("smooth-weighted", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_finite_for_an_empty_prefill(mixed):
    def total(prefill, corrections):
        model = StepModel(LLAMA.ops, corrections, MIXINGS[mixed])
        return model(Batch.summarised(4.0, 100.0, prefill, 10.0, 5.0)).latency

    zero = jax.tree.map(jnp.asarray, Corrections())
    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(0.0, zero)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


# Corrections that multiply no row: of the CPU's time beside the GPU's, with their direction, and of
# what a request spends outside of steps.
ON_HOST = {"host_step": +1, "host_request": +1, "host_sharpness": -1}
OUTSIDE_OF_STEPS = ("front_end", "handover", "output_handling", "warm_up")
# And those of which experts a step's tokens visit, which is no factor either.
ON_ROUTING = ("expert_spread", "expert_independence")


def corrections_of(row):
    names = ("correction", "compute_correction", "exponent", "cached_correction")
    return {getattr(row, name, None) for name in names}


def everything():
    """A deployment in which every component works: experts, penalties, several GPUs."""
    arch = load_model(SCOUT)
    engine = Deployment(Parallelism(2), max_num_seqs=64, sampling="penalised")
    return engine.resolved(arch, H100)


@pytest.mark.parametrize(
    "name", [n for n in CORRECTIONS if n not in (*OUTSIDE_OF_STEPS, *ON_ROUTING)]
)
def test_a_correction_moves_its_parts_and_no_others(name):
    """With experts and shared ones, prefill on what is cached, penalties and tp, all parts are."""
    bare = StepModel(lower(everything()), Corrections())
    batch = bare.batch(
        decode_requests=32.0, context=3000.0, prefill_requests=2.0, chunk=400.0, cached=2000.0
    )
    own = {row.part for row in rows_of(everything()) if name in corrections_of(row)}
    own |= {"host"} if name in ON_HOST else set()
    assert own, f"{name} is connected to nothing"
    sign = ON_HOST.get(name, +1)
    moved = StepModel(bare.ops, Corrections(**{name: 0.1}))
    before, after = STEP(bare, batch), STEP(moved, batch)
    assert min(float(before.parts[part]) for part in (*own, "host")) > 0
    for part in PART_NAMES:
        change = float(after.parts[part] - before.parts[part])
        if part in own:
            assert sign * change > 1e-4 * float(before.parts[part]), part
        # What the CPU adds to a step depends on how long the GPU takes.
        elif part != "host":
            assert change == 0, part
    if own != {"host"}:
        assert float(after.latency) > float(before.latency)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_ROUTING)
@pytest.mark.parametrize("model", [SCOUT, "meta-llama/Llama-3.1-8B-Instruct"])
def test_routing_moves_experts_alone(name, model):
    arch = load_model(model)
    ops = lower(Deployment(Parallelism(2), max_num_seqs=64).resolved(arch, H100))

    def parts(shift, requests):
        step = StepModel(ops, Corrections(**{name: shift}))
        return step(step.batch(decode_requests=requests, context=500.0)).parts

    before, after = parts(0.0, 8.0), parts(0.05, 8.0)
    changed = {part for part in before if before[part] != after[part]} - {"host"}
    assert changed == ({"experts"} if arch.experts else set())
    # One token is alone, and no spread makes it visit more experts than it does.
    assert parts(0.05, 1.0)["experts"] == pytest.approx(float(parts(0.0, 1.0)["experts"]), rel=0.01)
    slope = jax.grad(lambda shift: parts(shift, 8.0)["experts"])
    change = float(parts(0.0501, 8.0)["experts"] - parts(0.0499, 8.0)["experts"]) / 2e-4
    assert float(slope(0.05)) == pytest.approx(change, rel=1e-3, abs=1e-9)


@pytest.mark.slow
def test_the_slope_of_the_spread_at_an_even_load_is_that_towards_uneven_ones():
    arch = load_model("mistralai/Mixtral-8x7B-v0.1")
    ops = lower(Deployment(Parallelism(2), max_num_seqs=64).resolved(arch, H100))
    assert ops.expert_load == 0

    def experts(shift):
        step = StepModel(ops, Corrections(expert_spread=shift))
        return step(step.batch(decode_requests=64.0, context=500.0)).parts["experts"]

    change = float(experts(1e-5) - experts(0.0)) / 1e-5
    assert abs(change) > 1e-6
    assert float(jax.grad(experts)(0.0)) == pytest.approx(change, rel=1e-3)
    assert float(experts(-0.1)) == float(experts(0.0))


@pytest.mark.parametrize(
    "name",
    # Clients who come in steps need an executable of their own.
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "warm_up")) for n in OUTSIDE_OF_STEPS],
)
def test_a_correction_outside_of_steps_moves_the_first_token_alone(name):
    from physim.prediction.many import predict_cases

    load = {"rate": 40.0}
    if name == "warm_up":
        load = {"concurrency": 16, "requests": 160, "warm_up_s": 1.0}
    case = physim.Case.from_options(
        "Qwen/Qwen3-8B", gpu="h100_sxm", input_tokens=500, output_tokens=100, **load
    )
    bare, moved = predict_cases([case] * 2, [Corrections(), Corrections(**{name: 0.3})])
    assert moved.ttft_s > 1.001 * bare.ttft_s
    assert moved.itl_s == pytest.approx(bare.itl_s, rel=1e-12)


def test_rows_name_parts_and_corrections_that_there_are():
    layouts = ((4, 2, 1, 1), (2, 2, 2, 4))
    for model, layout in zip(("meta-llama/Llama-3.1-70B-Instruct", SCOUT), layouts, strict=True):
        arch = load_model(model)
        engine = Deployment(Parallelism(*layout), max_num_seqs=64, sampling="penalised")
        rows = rows_of(engine.resolved(arch, H100))
        assert {row.part for row in rows} <= set(PARTS)
        assert {row.correction for row in rows} <= set(CORRECTIONS)
        assert all(row.count > 0 for row in rows)
    assert {row.part for row in rows} == set(PART_NAMES) - {"draft", "host"}


def test_each_part_belongs_to_one_component():
    owned = [part.name for component in COMPONENTS for part in component.parts]
    assert len(set(owned)) == len(owned)
    assert (*owned, "draft", "host") == PART_NAMES


def test_speculated_tokens_are_worked_on_like_others():
    one = Batch.summarised(8.0, 500.0)
    three = Batch.summarised(8.0, 500.0, query_tokens=3.0)
    assert (one.tokens, one.sampled, one.requests) == (8.0, 8.0, 8.0)
    assert (three.tokens, three.sampled, three.requests) == (24.0, 24.0, 8.0)
    # As many tokens in as many requests: only attention tells them apart.
    parts, more = STEP(LLAMA, three).parts, STEP(LLAMA, Batch.summarised(24.0, 500.0)).parts
    for part in ("qkv", "mlp", "lm_head", "all_reduce", "elementwise"):
        assert parts[part] == pytest.approx(float(more[part]))
    assert parts["decode_attention"] < more["decode_attention"]


def test_latency_and_interval_are_one_without_a_pipeline():
    step = STEP(LLAMA, Batch.summarised(8.0, 500.0))
    assert step.latency == step.interval


def test_a_step_that_verifies_tokens_is_a_batch_like_any_other():
    """Two requests that decode with three tokens each, and a chunk of one token that does not."""
    new, cached = jnp.array([3.0, 3.0, 1.0]), jnp.array([100.0, 200.0, 50.0])
    decodes = jnp.array([True, True, False])
    batch = Batch.exact(new, cached, decodes=decodes)
    assert (batch.decode_requests, batch.query_tokens) == (2, 3)
    assert batch.attended == 103 + 203
    assert (batch.prefill_requests, batch.prefill_tokens, batch.cached_tokens) == (1, 1, 50)
    assert batch.tokens == 7
    usual = Batch.exact(jnp.array([1.0, 1.0, 8.0]), cached)
    assert (usual.decode_requests, usual.query_tokens, usual.prefill_tokens) == (2, 1, 8)


def test_a_rank_has_no_more_prompts_than_fill_its_step():
    # Five prompts of 100 tokens on two ranks: three and two, but for a step of 250 tokens.
    full = Batch.summarised(prefill_requests=5.0, chunk=100.0, cached=10.0, ranks=2)
    assert (full.prefill_tokens, full.prompts_elsewhere) == (300, 200)
    within = full.within(250.0)
    assert (within.prefill_tokens, within.prompts_elsewhere) == (250, 250)
    assert within.routed == full.routed == 500
    assert within.prefill_requests == 2.5
    assert (within.prefill_squares, within.cached_products) == (25_000, 2_500)
    assert full.within(300.0).prefill_tokens == 300
    none = Batch.summarised(4.0, 50.0, ranks=2).within(1.0)
    assert (none.prefill_tokens, none.prompts_elsewhere) == (0, 0)


def test_a_batch_is_that_of_one_of_ranks_that_are_alike():
    model = physim.step_model("Qwen/Qwen3-30B-A3B", gpu="h100_sxm", dp=4, ep=4, fit="none")
    assert "4 data-parallel ranks with the same batch" in repr(model)
    batch = model.batch(decode_requests=8.0, context=900.0)
    told = model.of_alike_ranks(1)
    theirs = dataclasses.replace(batch, elsewhere=24.0)
    assert float(model(batch).latency) == pytest.approx(float(told(theirs).latency), rel=1e-5)


@pytest.mark.parametrize(
    ("means", "says"),
    [
        ({"prefill_requests": 1.0}, "chunk: is missing"),
        ({"decode_requests": -3.0}, "decode_requests: -3.0 is negative or no number"),
        ({"decode_requests": float("nan")}, "decode_requests: nan is negative or no number"),
    ],
)
def test_what_no_batch_has(means, says):
    model = physim.step_model("Qwen/Qwen3-8B", gpu="h100_sxm", fit="none")
    with pytest.raises(InputError, match=says):
        model.batch(**means)
