"""How an engine keeps KV blocks in the memory of the host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostMemory:
    """How an engine keeps KV blocks in the memory of the host.

    Attributes:
        copies: Whether it has copies of what was computed, whether the GPU still has it or not;
            else what the GPU evicts moves there, and back when it is asked for.
        outputs: Whether it has generated tokens too, or prompts alone.
        above_gpu: Whether the engine starts only with more of it than the GPU has for KV blocks.
        apart: Whether a request's blocks come up while steps of others run, before its first; else
            with that step, a layer ahead or all at once.
    """

    copies: bool = True
    outputs: bool = False
    above_gpu: bool = False
    apart: bool = True
