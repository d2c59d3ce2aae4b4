"""Memory that an engine takes at its start, in hand-computed numbers."""

from dataclasses import replace

import pytest

from physim.engines.profile import load_engine
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.inputs.working_memory import working_bytes
from physim.models.lookup import load_model
from physim.models.parallelism import Parallelism
from physim.service.hardware import load_hardware
from physim.service.sizes import Sizes

LLAMA_70B = load_model("meta-llama/Llama-3.1-70B-Instruct")
# Reserves without what is the same at any size.
SORTS = replace(load_engine("vllm", "0.15.1").kv_reserve, fixed_bytes=0, tensor_parallel_bytes=0)
MIB = 2**20


def taken(kept=SORTS, model=LLAMA_70B, layout=None, slots=1024, tokens=8192):
    return working_bytes(kept, model, layout or Parallelism(2), Sizes(slots, tokens, 4096))


def test_many_slots_take_what_their_sorted_logits_take():
    # 38 bytes for each of 128,256 logits, beside 8,192 numbers of each token and its residual.
    stream = 2 * 2 * 8192 * 8192
    assert taken(slots=1024) == 38 * 1024 * 128256 + stream
    assert taken(slots=512) == 38 * 512 * 128256 + stream
    # Fewer rows than 128 are sorted as one, in 50 bytes a logit.
    assert taken(slots=64, tokens=2048) == 50 * 64 * 128256 + stream / 4
    # What 128 take so is taken up to 168, from where on more take more than that.
    assert taken(slots=168, tokens=2048) == 50 * 128 * 128256 + stream / 4
    assert taken(slots=169, tokens=2048) == 38 * 169 * 128256 + stream / 4
    # The logits are whole on every GPU.
    assert taken(layout=Parallelism(4)) == taken(layout=Parallelism(8))


def test_few_slots_take_what_the_largest_step_takes():
    # Each of 8,192 tokens holds its residual, 8,192 numbers, and gate, up and their product:
    # three times 28,672, of which each GPU has its part.
    for tp in (1, 2):
        numbers = 8192 * (8192 + 3 * 28672 / tp)
        assert taken(layout=Parallelism(tp), slots=8) == 2 * numbers
    # At tp 8 the query, key and value are wider: 10,240 / 8, with the 8,192 they are made of; and
    # so is the MLP: 7,168 for the gate and up, likewise.
    assert taken(layout=Parallelism(8), slots=8) == 2 * 8192 * (8192 + 8192 + 7168)


def test_buffers_of_experts_are_kept_where_the_engine_shares_them():
    mixtral = load_model("mistralai/Mixtral-8x7B-v0.1")
    # Two experts a token: 2 x 14,336 enter the activation of each and 14,336 leave it.
    buffers, stream = 2 * 8192 * 2 * 3 * 14336, 2 * 8192 * 2 * 4096
    sorted_logits = 38 * 1024 * 32000
    freed = load_engine("vllm", "0.11").kv_reserve
    freed = replace(freed, fixed_bytes=0, tensor_parallel_bytes=0)
    one = Parallelism()
    assert taken(SORTS, mixtral, one) == sorted_logits + stream + buffers
    assert taken(freed, mixtral, one) == max(sorted_logits, buffers) + stream
    # Half of each expert's width is on a GPU of two; or the experts are whole, and each GPU has
    # room for all that the tokens visit.
    half = 2 * 8192 * 2 * 3 * 7168
    assert taken(SORTS, mixtral, Parallelism(2)) == sorted_logits + stream + half
    assert taken(SORTS, mixtral, Parallelism(2, ep=2)) == sorted_logits + stream + buffers


def test_what_is_fixed_depends_on_the_layout_and_on_vision():
    kept = replace(SORTS, bytes_per_logit=0, bytes_per_logit_of_few=0, bytes_per_activation=0)
    kept = replace(kept, fixed_bytes=400 * MIB, tensor_parallel_bytes=150 * MIB, vision_bytes=MIB)
    assert taken(kept, layout=Parallelism()) == 400 * MIB
    assert taken(kept) == 550 * MIB
    scout = load_model("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic")
    assert taken(kept, scout) == 551 * MIB


@pytest.mark.parametrize("version", ["0.11", "0.15.1", "0.19.0"])
def test_a_70b_model_fits_on_two_gpus_of_80_gb(version):
    for gpu, slots, least in (
        # What the engine takes by default leaves little on an H100.
        ("h100_sxm", None, 512),
        ("h100_sxm", 512, 8192),
        ("a100_sxm", None, 16384),
    ):
        deployment = Deployment(
            Parallelism(2), engine_version=version, max_num_seqs=slots, max_model_len=512
        )
        kv = deployment.resolved(LLAMA_70B, load_hardware(gpu)).kv
        assert kv.blocks * kv.block_size >= least


def test_experts_in_mxfp4_are_padded_as_the_kernel_of_the_gpu_pads_them():
    model = load_model("openai/gpt-oss-120b")
    # 36 layers of 128 experts of three matrices, 2,880 by 2,880.
    each = 36 * 128 * 3 * (0.5 + 1 / 32)
    bare = model.weight_bytes(1) - each * 2880 * 2880
    for gpu, kernel, hidden, width in (
        # Triton's pads the width alone, to 64; Marlin's to 256 and 128, FlashInfer's to 256.
        ("h100_sxm", None, 2880, 2880),
        ("h100_sxm", "marlin", 3072, 2944),
        ("b200_sxm", None, 3072, 3072),
        ("rtx_pro_6000_server", None, 3072, 2944),
        ("a100_sxm", None, 3072, 2944),
        ("mi300x", None, 3072, 3072),
    ):
        options = {"engine_version": "0.33", "moe_kernel": kernel, "max_model_len": 1024}
        deployment = Deployment(**options, max_num_seqs=64)
        weights = deployment.resolved(model, load_hardware(gpu)).memory.weights
        assert weights == pytest.approx(bare + each * hidden * width)
    on_h100 = Deployment(engine_version="0.22").resolved(model, load_hardware("h100_sxm"))
    # Its 131,072 tokens of context fit as the engine is started by default.
    assert on_h100.kv.reported_blocks * on_h100.kv.block_size > 131_072


def test_a_step_that_takes_all_memory_is_named_with_the_most_that_fits():
    model, h100 = load_model("Qwen/Qwen3-8B"), load_hardware("h100_sxm")
    with pytest.raises(InputError, match=r"^max_num_batched_tokens: 10000000 would take") as caught:
        Deployment(max_num_batched_tokens=10_000_000).resolved(model, h100)
    most = int(caught.value.remedy.removeprefix("use at most "))
    options = {"max_model_len": 16}
    assert Deployment(max_num_batched_tokens=most, **options).resolved(model, h100).kv.blocks > 0
    with pytest.raises(InputError, match=f"use at most {most}"):
        Deployment(max_num_batched_tokens=most + 1, **options).resolved(model, h100)
