"""The case that a prediction is not of where it is not known how GPUs exchange."""

from __future__ import annotations

from dataclasses import replace

from physim.inputs.case import Case


def without_peer_access(case: Case) -> Case | None:
    """The case on GPUs that exchange all through the host's memory, if it is not known they do not.

    Args:
        case: A case of one server.
    """
    if not case.service.is_single:
        return None
    server = case.server
    if server.parallelism.gpus == 1 or server.gpu.peer_access is not None:
        return None
    hosted = replace(server, gpu=replace(server.gpu, peer_access=False))
    return case.with_server(hosted)
