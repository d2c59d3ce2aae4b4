"""Traces predicted by the fluid: as requests of so many tokens that come as they were recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from physim.corrections.calibration import Calibration
from physim.errors import InputError
from physim.inputs.arrivals import ArrivalDispersion
from physim.inputs.case import Case
from physim.inputs.load import Load
from physim.inputs.request_lengths import RequestLengths
from physim.inputs.request_traces import read_turns
from physim.inputs.reuse import Reuse
from physim.prediction.intervals import predict_with_interval
from physim.prediction.results import Prediction


def fluid_trace(case: Case, trace: Path, known: Calibration, timeout_s: float | None) -> Prediction:
    """A recorded trace by the fluid; see `physim.predict_trace`.

    What prompts find in the prefix cache follows from its size and from when their blocks come
    again (`physim.inputs.reuse`); where a trace names no blocks, it is what it says.

    Args:
        case: What is served.
        trace: The trace.
        known: What a fit says of the case.
        timeout_s: Time after which clients give up, seconds; None for never.

    Raises:
        InputError: The trace cannot be read, its requests wait for answers or would not fit, or
            several servers or data-parallel ranks would share them.
    """
    if not case.service.is_single:
        problem = "fluid predicts a trace on one server, not on several"
        raise InputError("method", problem, "use --method replay")
    found = read_turns(trace, arrivals=True)
    if found.turns is not None:
        problem = "is of conversations, whose turns wait for answers"
        raise InputError(str(trace), problem, "use --method replay")
    server = case.server
    cached = found.cached_tokens
    if found.blocks is not None:
        if server.parallelism.dp > 1:
            problem = "have caches of their own, of which the fluid of a trace knows one"
            raise InputError("dp", f"ranks {problem}", "use --method replay")
        cached = Reuse.from_trace(found).found_tokens(server.kv.tokens)
    longest, most = server.sizes.max_model_len, found.input_tokens + found.output_tokens
    if most.max() > longest:
        raise InputError(
            str(trace),
            f"has a request of {most.max():.0f} tokens, beyond max_model_len {longest}",
            "remove it or raise max_model_len",
        )
    assert found.arrival_s is not None
    lengths = RequestLengths.from_columns(
        found.input_tokens, found.output_tokens, cached, trace.name, recorded=True
    )
    arrivals = ArrivalDispersion.from_arrivals(found.arrival_s)
    load = Load.of_requests(
        lengths, rate=arrivals.rate, arrival="trace", dispersion=arrivals, timeout_s=timeout_s
    )
    prediction = predict_with_interval(case.under(load), known)
    # Its requests are as they are in the trace.
    return dataclasses.replace(prediction, load=None, scenario=case.taken)
