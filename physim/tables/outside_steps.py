"""What a request spends outside of steps, for whoever makes TTFT and E2E of a table."""

from __future__ import annotations

from physim.corrections.fields import Corrections
from physim.service.server import Server
from physim.step.front_end import (
    handover_beyond_steps,
    output_s,
    outside_s,
    tokens_outside_s,
)


def outside_steps(server: Server, corrections: Corrections) -> dict[str, float]:
    """The front end, the output of tokens and the handover of a request, once each.

    TTFT is ``front_end_s``, ``front_end_s_each_prompt_token`` for each token of the prompt, the
    wait until the next step is formed, ``steps_ahead`` and ``handover_steps`` steps of the mean
    time when the request arrives, the steps of its prompt, and ``output_s_each_request`` for each
    request of the last of them. A simulator that starts a request with the step after the one that
    runs counts the half step of an even arrival itself.

    Args:
        server: What is served.
        corrections: Corrections of the constants.
    """
    ahead, token_s = server.policy.async_scheduling, server.profile.prompt_token_s
    told = {
        "front_end_s": outside_s(corrections),
        "front_end_s_each_prompt_token": tokens_outside_s(corrections, token_s),
        "output_s_each_request": output_s(corrections, 1.0),
        "steps_ahead": ahead,
        "handover_steps": handover_beyond_steps(corrections, ahead),
    }
    return {name: float(f"{float(value):.6g}") for name, value in told.items()}
