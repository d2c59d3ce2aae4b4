"""How much a client may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from physim.errors import InputError


@dataclass(frozen=True)
class Bounds:
    """The most that a request may ask for, each with room above what people do ask.

    Attributes:
        body_bytes: Bytes of a body.
        cases: Cases of a batch.
        steps: Steps of a request.
        stages: Stages of a load, each number of which is compiled anew.
        replayed: Requests, or clients, of a load that is replayed.
        candidates: Servers that a recommendation searches, before replicas.
        gpus: GPUs of a recommendation in all.
        seconds: Seconds of a request's work, from when it is begun.
        arriving_s: Seconds until a body has arrived.
        waiting: Requests that wait for a worker.
        memory_bytes: Memory of a worker.
    """

    body_bytes: int = 2**20
    cases: int = 64
    steps: int = 10_000
    stages: int = 16
    replayed: int = 20_000
    candidates: int = 20_000
    gpus: int = 128
    seconds: float = 120.0
    arriving_s: float = 10.0
    waiting: int = 512
    memory_bytes: int = 6 * 2**30

    def check_load(self, options: Mapping[str, Any], replays: bool) -> None:
        """Refuses a load of which a prediction would take without end.

        Args:
            options: Options of a case by name, which are of the right kinds.
            replays: Whether it is replayed.

        Raises:
            InputError: It has too many stages or requests.
        """
        stages = options.get("stages", ())
        check_most("stages", len(stages), self.stages)
        if not replays:
            return
        coming = sum(rate * seconds for rate, seconds in stages)
        check_most("requests", max(options.get("requests", 0), coming), self.replayed)
        for name in ("concurrency", "prefixes"):
            check_most(name, options.get(name, 0), self.replayed)


def check_most(field: str, number: float, most: float) -> None:
    """Refuses a number beyond what this server takes in a request.

    Args:
        field: What it is of.
        number: The number.
        most: The most that is taken.

    Raises:
        InputError: It is more.
    """
    if number > most:
        problem = f"{float(min(number, 1e300)):g} are more than the {most:g} of a request"
        raise InputError(field, problem, "ask for less, or use physim from Python")
