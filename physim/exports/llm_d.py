"""llm-d: what its autoscaler, its router and its fake vLLM take.

Sources: llm-d/workload-variant-autoscaler, the guide to its queueing model (equations of an
iteration, fields of ``wva-queueing-model-config``, targets from a multiplier); llm-d/llm-d,
``guides/recipes/router/calibration`` (``peakPrefillThroughput``, the router's ``costModel``);
llm-d/llm-d-inference-sim, its configuration and latency calculators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from physim.errors import InputError
from physim.exports.form_error import Steps, Walk
from physim.exports.subject import Subject
from physim.step.front_end import output_s, outside_s
from physim.step.many_batches import total_seconds
from physim.tables.linear_models import nonnegative

# The autoscaler's default: a utilisation of 1 - 1/k.
SLO_MULTIPLIER = 3.0
_KNOTS = 32
_MS, _US = 1e3, 1e6


@dataclass(frozen=True)
class Iteration:
    """The autoscaler's iteration time, milliseconds.

    ``alpha + n (beta (in + out) / (out + 1) + gamma (in + out / 2))`` of n requests on average,
    which is a step of ``alpha + beta x tokens + gamma x (tokens attended to + prompt tokens)``.

    Attributes:
        alpha: Of every iteration, ms.
        beta: Of a token that is computed, ms.
        gamma: Of a token that is attended to, ms.
    """

    alpha: float
    beta: float
    gamma: float

    def seconds(self, decodes: Steps, attended: Steps, prompts: Steps, tokens: Steps) -> Steps:
        """Time of steps.

        Args:
            decodes: Requests that decode.
            attended: Tokens that they attend to, summed.
            prompts: Prompts, of no account.
            tokens: Their new tokens, summed.
        """
        del prompts
        ms = self.alpha + self.beta * (decodes + tokens) + self.gamma * (attended + tokens)
        return ms / _MS

    def mean_ms(self, requests: float, inputs: float, outputs: float) -> float:
        """Time of a mean iteration, milliseconds.

        Args:
            requests: Requests that run.
            inputs: Tokens of a prompt.
            outputs: Tokens of an output.
        """
        of_one = self.beta * (inputs + outputs) / (outputs + 1)
        return self.alpha + requests * (of_one + self.gamma * (inputs + outputs / 2))

    def targets_ms(self, inputs: float, outputs: float) -> tuple[float, float]:
        """TTFT and ITL that the autoscaler derives with its default multiplier, milliseconds.

        Args:
            inputs: Tokens of a prompt.
            outputs: Tokens of an output.
        """
        idle = SLO_MULTIPLIER * self.alpha
        ttft = idle + (self.beta + self.gamma) * inputs
        return ttft, idle + self.beta + self.gamma * (inputs + (outputs + 1) / 2)


@dataclass(frozen=True)
class FakeServer:
    """The five numbers of llm-d-inference-sim, and how far they are off physim's steps.

    A token takes ``inter_token_s (1 + (factor - 1)(n - 1)/(N - 1))`` beside n - 1 other requests
    of at most N; a prompt ``prefill_overhead_s + prefill_token_s x tokens``, with the same factor.

    Attributes:
        inter_token_s: A token of one request that decodes, seconds.
        factor: By how much N requests are slower.
        max_num_seqs: N.
        prefill_overhead_s: Of a prompt, seconds.
        prefill_token_s: Of each of its tokens, seconds.
        decode_pct: Largest error of steps that only decode.
        prefill_pct: Largest error of prompts alone.
    """

    inter_token_s: float
    factor: float
    max_num_seqs: int
    prefill_overhead_s: float
    prefill_token_s: float
    decode_pct: float
    prefill_pct: float


def iteration_of(walk: Walk) -> Iteration:
    """The autoscaler's three numbers, by least squares of the relative error of steps.

    Args:
        walk: The steps of the three loads.
    """
    computed = walk.decodes + walk.tokens
    basis = np.stack([np.ones_like(computed), computed, walk.attended + walk.tokens], axis=1)
    found = nonnegative(basis, walk.seconds, walk.share, walk.seconds)
    return Iteration(*(float(f"{_MS * one:.6g}") for one in found))


def peak_prefill_tokens_per_s(subject: Subject) -> float:
    """``peakPrefillThroughput``: a full step's tokens over the TTFT of such a prompt, idle.

    As the router's calibration measures it: ``max_num_batched_tokens`` over the median TTFT of
    prompts as long, one after another. A prompt that the model's context cannot hold is as long as
    that.

    Args:
        subject: What is exported.
    """
    sizes, corrections = subject.case.server.sizes, subject.corrections
    tokens = min(sizes.max_num_batched_tokens, sizes.max_model_len - 1)
    step = float(_prompts_s(subject, np.array([float(tokens)]))[0])
    outside = outside_s(corrections, subject.case.server.profile.prompt_token_s * tokens)
    return tokens / (float(outside) + float(output_s(corrections, 1.0)) + step)


def prefill_us_per_token(subject: Subject) -> float:
    """``prefillMicrosecondsPerToken``: the slope of prompts' time, which the router fits as a line.

    Args:
        subject: What is exported.
    """
    return _US * _prefill_line(subject)[1]


def transfer_us_per_token(subject: Subject, link_bytes_per_s: float) -> float:
    """``transferMicrosecondsPerToken``: KV of a token over the link of a GPU.

    Args:
        subject: What is exported.
        link_bytes_per_s: Bandwidth of each GPU's link.

    Raises:
        InputError: It is not positive.
    """
    if not 0 < link_bytes_per_s < np.inf:
        raise InputError(
            "link", f"{link_bytes_per_s / 1e9:g} GB/s is no bandwidth", "give GB/s of a GPU"
        )
    kv = subject.case.server.kv
    return _US * kv.block_bytes / kv.block_size / link_bytes_per_s


def fake_server(subject: Subject) -> FakeServer:
    """The numbers of llm-d-inference-sim.

    Args:
        subject: What is exported.
    """
    server, load = subject.case.server, subject.case.demanded
    context, most = load.mean_input + load.mean_output / 2, server.sizes.max_num_seqs
    reach = float(np.clip(server.kv.tokens // (load.mean_input + load.mean_output), 1, most))
    counts = np.unique(np.rint(np.geomspace(1, reach, _KNOTS)))
    batches = subject.steps.batch(decode_requests=counts, context=context)
    seconds = total_seconds(subject.steps, batches)
    fuller = (counts - 1) / max(most - 1, 1)
    basis = np.stack([np.ones_like(counts), fuller], axis=1)
    base, more = _line(basis, seconds)
    overhead, token, prefill_pct = _prefill_line(subject)
    return FakeServer(
        base,
        1 + more / base,
        most,
        overhead,
        token,
        _worst_pct(basis @ np.array([base, more]), seconds),
        prefill_pct,
    )


def config_map(
    subject: Subject, iteration: Iteration, namespace: str, about: Mapping[str, Any]
) -> str:
    """The autoscaler's ConfigMap: targets from the three numbers, which it states.

    The ConfigMap has no field for the numbers themselves, which the autoscaler keeps in its
    store; targets are those that it would derive from them.

    Args:
        subject: What is exported.
        iteration: The three numbers.
        namespace: Namespace of the model's servers.
        about: Where they are from.
    """
    load, name = subject.case.demanded, subject.case.model.name
    ttft, itl = iteration.targets_ms(load.mean_input, load.mean_output)
    key = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    three = ", ".join(f"{one:g}" for one in vars(iteration).values())
    return f"""{_comment(about)}# alpha, beta, gamma, ms: {three}
apiVersion: v1
kind: ConfigMap
metadata:
  name: wva-queueing-model-config
  namespace: workload-variant-autoscaler-system
data:
  default: |
    sloMultiplier: {SLO_MULTIPLIER}
    tuningEnabled: true
  {key}: |
    model_id: {json.dumps(name)}
    namespace: {json.dumps(namespace)}
    targetTTFT: {ttft:.6g}
    targetITL: {itl:.6g}
"""


def router_yaml(
    peak: float, prefill_us: float, transfer_us: float | None, about: Mapping[str, Any]
) -> str:
    """The parameters of the router's plugins.

    Args:
        peak: Tokens per second.
        prefill_us: Microseconds of a token.
        transfer_us: Microseconds of its transfer; None leaves the cost model out.
        about: Where they are from.
    """
    text = f"""{_comment(about)}plugins:
- type: prefix-cache-affinity-filter
  parameters:
    peakPrefillThroughput: {peak:.0f}
"""
    if transfer_us is None:
        return (
            text
            + f"# prefillMicrosecondsPerToken: {prefill_us:.4g} (no costModel without a link)\n"
        )
    return f"""{text}- type: p2p-source-producer
  parameters:
    costModel:
      prefillMicrosecondsPerToken: {prefill_us:.4g}
      transferMicrosecondsPerToken: {transfer_us:.4g}
"""


def fake_server_yaml(fake: FakeServer, transfer_us: float | None, about: Mapping[str, Any]) -> str:
    """The configuration of llm-d-inference-sim.

    Args:
        fake: Its numbers.
        transfer_us: Microseconds of the transfer of a token's KV; None leaves it out.
        about: Where they are from.
    """
    lines = {
        "latency-calculator": "per-token",
        "max-num-seqs": fake.max_num_seqs,
        "inter-token-latency": _duration(fake.inter_token_s),
        "time-factor-under-load": f"{fake.factor:.4g}",
        "prefill-overhead": _duration(fake.prefill_overhead_s),
        "prefill-time-per-token": _duration(fake.prefill_token_s),
    }
    if transfer_us is not None:
        lines["kv-cache-transfer-time-per-token"] = _duration(transfer_us / _US)
    return _comment(about) + "".join(f"{name}: {value}\n" for name, value in lines.items())


def _prefill_line(subject: Subject) -> tuple[float, float, float]:
    """Seconds of a prompt, of each of its tokens, and the largest error, percent."""
    tokens = np.linspace(1, subject.case.server.sizes.max_num_batched_tokens, _KNOTS)
    seconds, basis = _prompts_s(subject, tokens), np.stack([np.ones_like(tokens), tokens], axis=1)
    overhead, token = _line(basis, seconds)
    return overhead, token, _worst_pct(basis @ np.array([overhead, token]), seconds)


def _prompts_s(subject: Subject, tokens: Steps) -> Steps:
    """Seconds of steps of one prompt alone."""
    prompts = subject.steps.batch(prefill_requests=np.ones_like(tokens), chunk=tokens)
    return total_seconds(subject.steps, prompts)


def _line(basis: np.ndarray, seconds: Steps) -> tuple[float, float]:
    base, slope = nonnegative(basis, seconds, np.full_like(seconds, 1 / len(seconds)), seconds)
    return float(base), float(slope)


def _worst_pct(found: Steps, seconds: Steps) -> float:
    return round(float(100 * np.max(np.abs(found / seconds - 1))), 2)


def _duration(seconds: float) -> str:
    """A time as Go writes it: whole nanoseconds."""
    return f"{round(seconds * 1e9)}ns"


def _comment(about: Mapping[str, Any]) -> str:
    return "# " + json.dumps(about) + "\n"
