"""Predictions keep the laws, whatever the engine, layout, model and GPU.

`benchmarks/check_laws.py` tries many more.
"""

import dataclasses

import laws
import numpy as np
import pytest

import physim

pytestmark = pytest.mark.slow

# As many of each engine, so that batches have few sizes.
CASES = 48


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    engines = laws.ENGINES * (CASES // len(laws.ENGINES))
    return [laws.valid_case(rng, engine=engine) for engine in engines]


def test_what_is_predicted_keeps_the_laws(cases):
    laws.check_predictions(cases)
    laws.check_monotone(cases)


def test_a_case_is_predicted_alike_whatever_is_beside_it(cases):
    case = next(one for one in cases if one.demanded.concurrency is not None)
    laws.check_alone([case])


def test_derivatives_are_differences(cases):
    slopes = laws.slopes([case for case in cases if case.composition != "apart"][:2])
    assert slopes.notable().sum() > 40
    assert not slopes.off(0.05).any()


def test_derivatives_of_real_loads_are_differences():
    every = []
    for name in ("azure-conversation-2023", "mooncake-conversation", "sharegpt"):
        requests = physim.RequestLengths.read(name).uncached()
        load = physim.Load.of_requests(requests, rate=0.1, arrival="poisson")
        case = physim.Case.from_options(
            "Qwen/Qwen3-14B", gpu="h100_sxm", max_model_len=131_072
        ).under(load)
        (alone,) = laws.predicted([case])
        every += [
            case.under(dataclasses.replace(load, rate=share * alone.saturation_rps, **arrivals))
            for share, arrivals in (
                (0.3, {}),
                (0.6, {"arrival": "gamma", "burstiness": 0.5}),
                (0.8, {}),
            )
        ]
    lengths = physim.Lengths.lognormal(1200, 1800), physim.Lengths.lognormal(250, 375)
    drawn = physim.Load(input_tokens=lengths[0], output_tokens=lengths[1], rate=3.0)
    slopes = laws.slopes([*every, every[0].under(drawn)])
    assert slopes.notable().sum() > 400
    assert not slopes.off(0.01).any()


def test_slots_beyond_the_kv_cache_cost_as_much_as_in_a_replay():
    def case(slots):
        return physim.Case.from_options(
            "Qwen/Qwen3-14B",
            gpu="h100_sxm",
            max_num_seqs=slots,
            input_tokens=16,
            output_tokens=877,
            rate=1.0,
        )

    few, many = case(512), case(1024)
    found = [one.saturation_rps for one in laws.predicted([few, many])]
    exact = [laws.replayed_overload(one, 20.0, 8000) for one in (few, many)]
    assert found == pytest.approx(exact, rel=0.06)
    assert found[1] / found[0] == pytest.approx(exact[1] / exact[0], abs=0.05)


def test_a_broken_law_is_found(cases):
    found, *_ = laws.predicted(cases)
    laws.check_parts(found, "as it is")
    pool = found.pool
    parts = {**pool.step_parts_s, "mlp": 2 * pool.step_parts_s["mlp"] + pool.step_s}
    twice = dataclasses.replace(pool, step_parts_s=parts)
    with pytest.raises(AssertionError, match="twice"):
        laws.check_parts(dataclasses.replace(found, pools=(twice,)), "twice")
