"""CPU work of a step beside the GPU's: a floor for small models, hidden behind large ones."""

from __future__ import annotations

import jax.numpy as jnp

from physim.corrections.fields import Corrections
from physim.mixers.latent import LatentAttention
from physim.mixers.recurrent import StateSpace
from physim.pytree import Pytree
from physim.step.component import Part, Placement
from physim.types import Number, Scalar

PART = Part("host", "CPU time not hidden")

# CPU work of a step in the engine's process. An order of magnitude for a Python scheduler, not a
# measurement; a fit is expected to move it.
HOST_STEP_S = 2e-3

# Without asynchronous scheduling the GPU waits for this share of it, and for all that is done for
# each request: steps are formed, and their tokens handled, between one and the next. Half, by
# Qwen3-32B on H100 under vLLM 0.12 at tp 2, 4 and 8 (aiconfigurator-core 0.12.0,
# silicon_sample.csv), whose steps are some 1.0 ms + 20 us a request longer than their kernels and
# the sampler take, at any tp and prompt.
EXPOSED_SHARE = 0.5
HOST_REQUEST_S = 20e-6
# With it, step k + 1 is formed and launched while step k runs, once the tokens of step k - 1 are
# handled; the tokens of step k go from one to the other on the GPU. Nothing of it makes the GPU
# wait as long as it takes less than a step does, but for what an engine's version says
# (`EngineProfile.async_exposed_share`).

# At tp 1 the worker runs in the engine's process, and what it does for each request (inputs,
# sampling parameters, tokens that come back) is done there besides. An order of magnitude, not a
# measurement.
WORKER_REQUEST_S = 8e-6

# Sharpness of the smooth maximum of GPU and CPU time: where both are equal, the step is 9% longer
# than either.
HOST_SHARPNESS = 8.0


class Host(Pytree):
    """The CPU's work of an engine on a model, in numbers.

    Attributes:
        exposed: Share of a step's CPU time, whatever its batch, for which the GPU waits.
        request_s: CPU time for each request of a step, seconds.
        request_exposed: Share of that for which the GPU waits.
        output_s: CPU time for each request of a step in the process that hands out tokens, seconds,
            of as many ranks as it serves.
        launch_s: CPU time to launch all kernels of a step that is no CUDA graph, seconds.
        prompts_launch_s: CPU time to launch what no graph holds in a step with a prompt, seconds.
        captured: Tokens of the largest step that only decodes and is one,
        captured_prompts: and of the largest with a prompt.
    """

    exposed: Scalar
    request_s: Scalar
    request_exposed: Scalar
    output_s: Scalar
    launch_s: Scalar
    prompts_launch_s: Scalar
    captured: Scalar
    captured_prompts: Scalar

    @classmethod
    def from_placement(cls, placement: Placement) -> Host:
        """The CPU's work of a model in its place."""
        server, launches = placement.server, placement.server.profile.launches
        groups = placement.model.groups
        latent, states = (
            sum(group.layers for group in groups if isinstance(group.attention, mixer))
            for mixer in (LatentAttention, StateSpace)
        )
        experts = sum(group.layers for group in groups if group.experts)
        layers = placement.model.layers
        overlaps = server.policy.async_scheduling
        return cls(
            exposed=0.0 if overlaps else EXPOSED_SHARE,
            request_s=HOST_REQUEST_S
            + (WORKER_REQUEST_S if placement.tp == 1 else 0.0)
            + (server.profile.draft_request_s if server.draft else 0.0),
            request_exposed=server.profile.async_exposed_share if overlaps else 1.0,
            output_s=server.profile.output_request_s * placement.layout.dp / server.stream_interval,
            launch_s=launches.layer_s * layers
            + launches.experts_s * experts
            + launches.latent_s * latent,
            prompts_launch_s=launches.state_space_s * states,
            captured=float(server.captured[0]),
            captured_prompts=float(server.captured[1]),
        )

    def seconds(self, corrections: Corrections, requests: Number) -> tuple[Number, Number]:
        """CPU time of a step that the GPU's may hide, and the rest, for which the GPU waits.

        Args:
            corrections: Corrections of the constants.
            requests: Requests of the step.
        """
        step = HOST_STEP_S * jnp.exp(corrections.host_step)
        each = self.request_s * jnp.exp(corrections.host_request) * requests
        exposed = self.exposed * step + self.request_exposed * each
        return step + each - exposed, exposed

    def handing_out(self, corrections: Corrections, requests: Number) -> Number:
        """CPU time in which a step's tokens go to clients, seconds, beside engine and GPU.

        One process does it for all requests: where it takes longer than steps do, tokens queue up
        there, and clients get them as fast as it hands them out.

        Args:
            corrections: Corrections of the constants.
            requests: Requests of the step.
        """
        return self.output_s * jnp.exp(corrections.output_handling) * requests

    def launching(self, corrections: Corrections, tokens: Number, prompts: Number) -> Number:
        """CPU time to launch the kernels of a step one by one, seconds; none of a CUDA graph's.

        Args:
            corrections: Corrections of the constants.
            tokens: Tokens of the step.
            prompts: Prompts in it.
        """
        always, of_no_graph = self.launch_seconds(corrections, prompts)
        return always + self.without_graph(tokens, prompts) * of_no_graph

    def launch_seconds(self, corrections: Corrections, prompts: Number) -> tuple[Number, Number]:
        """CPU time to launch what no graph holds, and what a step that is no graph has besides.

        Args:
            corrections: Corrections of the constants.
            prompts: Prompts of the step.
        """
        factor = jnp.exp(corrections.host_step)
        has_prompt = jnp.asarray(prompts) > 0
        return has_prompt * self.prompts_launch_s * factor, self.launch_s * factor

    def without_graph(self, tokens: Number, prompts: Number, spread: Number = 1.0) -> Number:
        """Share of steps that are too large for a CUDA graph.

        Args:
            tokens: Tokens of the steps, mean.
            prompts: Prompts of each.
            spread: Width of the range that the tokens are spread over evenly; 1 for one step.
        """
        has_prompt = jnp.asarray(prompts) > 0
        captured = jnp.where(has_prompt, self.captured_prompts, self.captured)
        return jnp.clip((tokens - captured + (spread - 1.0) / 2) / spread, 0.0, 1.0)


def host_sharpness(corrections: Corrections) -> Scalar:
    """Sharpness of the smooth maximum of GPU and CPU time."""
    return HOST_SHARPNESS * jnp.exp(corrections.host_sharpness)


def beside_host(gpu: Number, host: Number, sharpness: Number) -> Number:
    """Time of a step whose GPU and CPU work side by side, seconds.

    A smooth maximum: the p-norm, never below the larger of the two, and at a sharpness of one
    their sum.
    """
    return gpu * (1 + (host / gpu) ** sharpness) ** (1 / sharpness)
