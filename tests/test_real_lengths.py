"""The fluid beside the replay where lengths vary as those of a real service do."""

import pytest

import physim

SERVER = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "fit": "none"}
parse = physim.Lengths.parse


@pytest.mark.slow
def test_clients_who_wait_for_kv_blocks_have_tokens_computed_again():
    # Room for 24,000 tokens, and 120 clients.
    load = {"concurrency": 120, "input_tokens": parse("lognormal:200:200")}
    load["output_tokens"] = parse("lognormal:800:500")
    small = {**SERVER, **load, "kv_blocks": 1500}
    fluid = physim.predict(**small)
    exact = physim.predict(**small, method="replay", requests=3000)
    assert fluid.requests_per_s == pytest.approx(exact.requests_per_s, rel=0.05)
    plenty = physim.predict(**{**small, "kv_blocks": 15000})
    assert fluid.itl_s > plenty.itl_s * 40 / 120


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "within"), [(11.0, 0.1), (13.5, 0.2)])
def test_a_long_prompt_begins_another_batch_of_a_pipeline(rate, within):
    load = {"rate": rate, "arrival": "poisson", "input_tokens": parse("lognormal:1500:1500")}
    load["output_tokens"] = parse("lognormal:250:250")
    fluid = physim.predict(**SERVER, **load, pp=2)
    exact = physim.predict(**SERVER, **load, pp=2, method="replay", requests=6000)
    assert fluid.itl_s == pytest.approx(exact.itl_s, rel=within)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "tokens", "rate"),
    [("vllm", 1500, 20.0), ("vllm", 3000, 5.0), ("vllm", 3000, 12.0), ("sglang", 3000, 12.0)],
)
def test_chunks_follow_each_other_in_the_batches_of_a_pipeline(engine, tokens, rate):
    case = {"gpu": "h100_sxm", "engine": engine, "pp": 4, "max_num_batched_tokens": 1024}
    load = {"rate": rate, "arrival": "poisson", "input_tokens": tokens, "output_tokens": 300}
    fluid = physim.predict("Qwen/Qwen3-14B", **case, **load)
    exact = physim.predict("Qwen/Qwen3-14B", **case, **load, method="replay", requests=2000)
    # Were a round to compute but one, TTFT would be 2.4 times as long at the highest rate.
    assert fluid.ttft_s == pytest.approx(exact.ttft_s, rel=0.1)
    assert fluid.itl_s == pytest.approx(exact.itl_s, rel=0.12)
