"""What was not said of a scenario, and what is taken for it.

An interval is of a server and a load as they are described. What was left open may move a
prediction further than that, but it can be looked up and said; what is unknown of the hardware
cannot.
"""

from __future__ import annotations

from physim.inputs.deployment import Deployment
from physim.inputs.load import Load
from physim.service.server import Server

_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


def taken_of_server(asked: Deployment, server: Server) -> tuple[str, ...]:
    """What is taken of an engine, a few words each.

    Args:
        asked: The deployment as it was asked for.
        server: What was made of it.
    """
    found = []
    if asked.engine_version is None:
        found.append(f"{server.profile.engine} {server.profile.version}")
    found += [
        f"{name} {getattr(server.sizes, name)}" for name in _LIMITS if getattr(asked, name) is None
    ]
    if asked.sampling in ("model", "unknown"):
        found.append(f"{server.sampling} sampling")
    if asked.expert_load is None and server.model.experts:
        found.append(f"expert load {server.expert_load:g}")
    if server.kv.host is not None and asked.kv_host_bandwidth is None:
        found.append(f"host memory at {server.kv.host.bandwidth / 1e9:.3g} GB/s a GPU")
    return tuple(found)


def taken_of_load(load: Load) -> tuple[str, ...]:
    """What is taken of a load, a few words each.

    Args:
        load: The load.
    """
    found = []
    if load.lengths is None:
        if not load.cached_tokens:
            found.append("no prompt tokens cached")
        lengths = (("prompts", load.input_tokens), ("outputs", load.output_tokens))
        found += [f"{what} of one length" for what, one in lengths if isinstance(one, int | float)]
    if load.concurrency is None and load.arrival == "poisson":
        found.append("Poisson arrivals")
    return tuple(found)
