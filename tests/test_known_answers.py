"""Queues with closed forms, and the linear engine of studies (docs/lab/known_answers.md)."""

import numpy as np
import pytest
from limits_by_hand import config_of

from physim.batching.limits import Limits
from physim.inputs.lengths import Lengths
from physim.inputs.load import Load
from physim.replay.cluster import replay
from physim.replay.request import Request
from physim.replay.step_times import LinearStepTimes
from physim.replay.workload import Workload, drawn

BETA = (6910.42e-6, 17.67e-6, 2.84e-6)
ALPHA = (1601.35e-6, 3.51e-6, 1805.54e-6)
# The studies' engine generates the first token and then as many as the output says.
FIRST = 1


def run(beta, alpha, requests, longest, slots=1):
    engine = config_of(
        Limits(slots, 8192, 1_000_000, 100_000, async_scheduling=False),
        front_end_s=alpha[0],
        front_end_per_token_s=alpha[1],
        output_per_token_s=alpha[2],
    )
    return replay(Workload(requests, longest), LinearStepTimes(*beta), engine).to_frame()


def service_s(outputs, scale=1.0):
    """Time for which a request holds the server: its prompt of one token, then its decode steps."""
    return scale * (BETA[0] + BETA[1] + (outputs - 1) * (BETA[0] + BETA[2]))


@pytest.mark.slow
@pytest.mark.parametrize(("utilisation", "count"), [(0.3, 5e3), (0.5, 5e3), (0.7, 1e4), (0.9, 1e4)])
def test_mean_wait_is_that_of_the_queue(utilisation, count):
    """M/G/1 for the real service distribution, with Lindley's waits of many more as a control.

    The replay's waits must be Lindley's to rounding; over as many requests as were drawn, the mean
    of those is then compared with Pollaczek and Khinchine's, a 95% interval within 3%.
    """
    rng = np.random.default_rng(7)
    outputs = Lengths.exponential(128).sample(rng, int(count)) + FIRST
    service = service_s(outputs)
    whole = service_s(Lengths.exponential(128).sample(rng, 2_000_000) + FIRST)
    mean, second = whole.mean(), (whole**2).mean()
    rate = utilisation / mean
    arrivals = np.cumsum(rng.exponential(1 / rate, len(outputs)))
    requests = [
        Request(n, arrival, 1, output)
        for n, (arrival, output) in enumerate(zip(arrivals.tolist(), outputs.tolist(), strict=True))
    ]
    waits = run(BETA, (0.0, 0.0, 0.0), requests, int(outputs.max()) + 2)["wait_s"].to_numpy()

    def lindley(arrivals, service):
        # W = S_k - min of S up to k, with S the sums of service less the times between arrivals.
        steps = np.append(0.0, np.cumsum(service[:-1] - np.diff(arrivals)))
        return steps - np.minimum.accumulate(steps)

    assert waits == pytest.approx(lindley(arrivals, service), abs=1e-6)
    expected = rate * second / (2 * (1 - utilisation))
    batches = []
    for _ in range(40):
        more = service_s(Lengths.exponential(128).sample(rng, 250_000) + FIRST)
        times = np.cumsum(rng.exponential(1 / rate, len(more)))
        batches.append(lindley(times, more)[2_000:].mean())
    interval = 1.96 * np.std(batches) / np.sqrt(len(batches))
    assert interval < 0.03 * expected
    assert np.mean(batches) == pytest.approx(expected, rel=0.03)
    # An output of one token and a bit more than exponential: M/M/1 is close.
    markov = utilisation / (1 - utilisation) * mean
    assert expected == pytest.approx(markov, rel=0.03)


@pytest.mark.parametrize(("scale", "expected_ms"), [(1.0, 1126.2), (0.1, 323.6), (0.01, 243.3)])
def test_service_times_of_the_studies(scale, expected_ms):
    beta = tuple(scale * value for value in BETA)
    # Far apart, so that none waits; the mean output, for all is linear in it.
    requests = [Request(n, 10.0 * n, 1, 128 + FIRST) for n in range(20)]
    frame = run(beta, ALPHA, requests, 200)
    assert 1e3 * frame["e2e_s"].mean() == pytest.approx(expected_ms, rel=1e-3)


@pytest.mark.slow
def test_tokens_that_are_handled_do_not_hold_the_server():
    held = service_s(128 + FIRST)
    assert held / 1.1262 == pytest.approx(0.792, abs=5e-4)
    # At 0.7 of the rate that E2E would allow, M/M/1 of E2E says far longer waits than there are.
    requests = drawn(
        Load(1, Lengths.exponential(128), rate=0.7 / 1.1262, requests=40_000, arrival="poisson"),
        config_of(Limits(200, 2048, 100_000, 1_000_000)),
        1,
    ).requests
    for request in requests:
        request.output_tokens += FIRST
    wait = run(BETA, ALPHA, requests, 4000)["wait_s"].mean()
    markov = 0.7 / 0.3 * 1.1262
    assert wait / markov - 1 == pytest.approx(-0.58, abs=0.03)


def test_slopes_of_the_studies():
    beta, alpha = (7051.8e-6, 19.54e-6, 25.43e-6), (4680.3e-6, 0.0, 0.0)
    rng = np.random.default_rng(0)
    inputs, outputs = rng.integers(1, 2000, 200), rng.integers(1, 500, 200)
    requests = [
        Request(n, 20.0 * n, int(i), int(o))
        for n, (i, o) in enumerate(zip(inputs, outputs, strict=True))
    ]
    frame = run(beta, alpha, requests, 3000)
    columns = np.stack([inputs, np.ones(200)], axis=1)
    (slope, offset), *_ = np.linalg.lstsq(columns, frame["ttft_s"].to_numpy())
    assert 1e3 * slope == pytest.approx(0.01954, rel=1e-6)
    assert 1e3 * offset == pytest.approx(4.6803 + 7.0518, rel=1e-6)
    decode = (frame["e2e_s"] - frame["ttft_s"]).to_numpy()
    columns = np.stack([outputs - 1, np.ones(200)], axis=1)
    (slope, _), residual, *_ = np.linalg.lstsq(columns, decode)
    assert 1e3 * slope == pytest.approx(7.077, abs=5e-4)
    assert 1 - residual[0] / ((decode - decode.mean()) ** 2).sum() > 0.999999
    alone = run(beta, alpha, [Request(0, 0.0, 1, 128 + FIRST)], 200)
    assert 1e3 * alone["e2e_s"][0] == pytest.approx(917, rel=0.01)
