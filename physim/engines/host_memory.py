"""How an engine keeps KV blocks in the memory of the host, and below it on a disk."""

from __future__ import annotations

from dataclasses import dataclass

# Blocks come up while steps of others run, and the request waits; with its first step, a layer's
# while the one before is computed; or before that step begins, for which all in it wait.
ASYNCHRONOUS, LAYERED, SERIAL = "asynchronous", "layered", "serial"


@dataclass(frozen=True)
class HostMemory:
    """How an engine keeps KV blocks in the memory of the host, and below it on a disk.

    What is on the disk alone comes up to the host's memory first, while steps go on. A request that
    waits for it holds no slot yet, and others go before it.

    Attributes:
        copies: Whether it has copies of what was computed, whether the GPU still has it or not;
            else what the GPU evicts moves there, and back when it is asked for.
        outputs: Whether it has generated tokens too, or prompts alone.
        above_gpu: Whether the engine starts only with more of it than the GPU has for KV blocks.
        loads: How a request's blocks come up, of `ASYNCHRONOUS`, `LAYERED` and `SERIAL`.
        disk: Whether it keeps copies of what is in the host's memory on a disk, too.
        fetches_early: Whether blocks begin to come up from the disk as a request comes; else when
            it would run.
    """

    copies: bool = True
    outputs: bool = False
    above_gpu: bool = False
    loads: str = ASYNCHRONOUS
    disk: bool = False
    fetches_early: bool = False
