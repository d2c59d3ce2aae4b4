"""A server: one engine with a model on its GPUs, every figure known."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from physim.engines.profile import EVERY_STEP, GRAPHS, EngineProfile
from physim.models.architecture import ModelArch
from physim.models.formats import KV_BYTES
from physim.models.parallelism import ALLGATHER, Parallelism
from physim.printable import shown
from physim.service.draft import Draft, drafted
from physim.service.hardware import Hardware
from physim.service.kv_store import KVStore, KVTier
from physim.service.phases import DECODE
from physim.service.policy import Policy
from physim.service.sizes import Sizes

GIB = 2**30
# Loads of experts that were measured: exponents of their power laws, and their tables' names.
EXPERT_LOADS = {0.0: "balanced", 1.01: "power_law_1.01", 1.2: "power_law_1.2"}


@dataclass(frozen=True)
class Memory:
    """What the memory of a GPU is for, bytes.

    Attributes:
        share: Share of the GPU's memory that the engine uses.
        usable: That memory.
        weights: What weights take of it.
        graphs: What CUDA graphs take.
        activations: What activations take, with what else the engine keeps.
        kv_block: A block of the KV cache.
        kv_cache: All blocks of it.
        kept_share: Share of what the others leave that the KV cache takes.
    """

    share: float
    usable: float
    weights: float
    graphs: float
    activations: float
    kv_block: float
    kv_cache: float = 0.0
    kept_share: float = 1.0


_NO_MEMORY = Memory(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Server:
    """One engine with a model on its GPUs.

    Attributes:
        model: The model.
        gpu: The GPU.
        parallelism: How GPUs share the model.
        profile: The engine.
        sizes: What the engine allows each of its data-parallel ranks.
        policy: How it schedules.
        kv: The KV cache of each rank.
        memory: What each GPU's memory is for.
        kv_cache_dtype: Format of the KV cache, ``bfloat16`` or ``fp8``.
        moe_kernel: Kernel of expert layers that was asked for; None for what the engine prefers.
        captured_tokens: Tokens of the largest step that was asked to be a CUDA graph; None for what
            the engine does.
        casts_mxfp4: Whether activations beside mxfp4 weights are cast to mxfp8 where the GPU
            multiplies it.
        expert_load: How tokens spread over experts, an exponent.
        sampling: ``greedy``, ``plain``, ``truncated`` or ``penalised``.
        sampling_is_known: Whether that is known, or taken for what it may be.
        all2all: How ranks exchange tokens with experts, of `physim.models.parallelism.ALL2ALL`.
        stream_interval: Tokens of a message to a client, but for the first and the last.
        draft: What proposes tokens; None where each step makes a token.
    """

    model: ModelArch
    gpu: Hardware
    parallelism: Parallelism
    profile: EngineProfile
    sizes: Sizes
    policy: Policy
    kv: KVStore
    memory: Memory
    kv_cache_dtype: str
    moe_kernel: str | None
    expert_load: float
    sampling: str
    captured_tokens: int | None = None
    casts_mxfp4: bool = False
    sampling_is_known: bool = True
    all2all: str = ALLGATHER
    stream_interval: int = 1
    draft: Draft | None = None

    @property
    def where(self) -> str:
        """What the model runs on, such as ``4 x h100_sxm (tp 2, pp 2)``."""
        return self.parallelism.on(self.gpu.key)

    @property
    def captured(self) -> tuple[int, int]:
        """Tokens of the largest step that only decodes and of one with a prompt that are graphs."""
        decoding, prompts = self.profile.captured_tokens, self.profile.captured_prompt_tokens
        asked = self.captured_tokens or decoding
        # An engine whose graphs are for both has one limit for both.
        return asked, asked if prompts == decoding else prompts

    @property
    def padded_tokens(self) -> float:
        """Tokens of the largest step in which all ranks compute as many tokens as the fullest."""
        limits = {EVERY_STEP: math.inf, GRAPHS: float(self.captured[1])}
        return limits.get(self.profile.padded_ranks, 0.0)

    @property
    def kv_cache_bytes(self) -> float:
        """Bytes of an element of the KV cache."""
        return KV_BYTES[self.kv_cache_dtype]

    @property
    def draft_tokens(self) -> int:
        """Tokens that are proposed in each step for each request."""
        return drafted(self.draft)

    @property
    def query_tokens(self) -> int:
        """Tokens of each decoding request that a step computes."""
        return self.draft_tokens + 1

    def lower_bytes(self, tier: KVTier | None) -> float | None:
        """Bytes of a tier below the GPU's memory, for all GPUs together; None for none.

        Args:
            tier: The tier, if there is one.
        """
        return None if tier is None else tier.size_bytes * self.parallelism.gpus

    def _tiers(self) -> dict[str, Any]:
        """What there is to say of the KV cache's lower tiers, of a GPU, if it has some."""
        found: dict[str, Any] = {}
        for name, tier in zip(("host", "disk"), self.kv.tiers[1:], strict=False):
            found |= {
                f"kv_{name}_blocks": tier.blocks,
                f"kv_{name}_bandwidth": tier.bandwidth,
                f"kv_{name}_latency_s": tier.latency_s,
            }
        return found

    def _drafts(self) -> dict[str, Any]:
        """What there is to say of drafts, if there are any."""
        draft = self.draft
        if draft is None:
            return {}
        return {
            "draft": draft.method,
            "draft_tokens": draft.tokens,
            "draft_acceptance": draft.acceptance,
            "accepted_length": draft.accepted_length,
        }

    def of_phase(self, phase: str) -> Server:
        """The server where it runs one phase alone, so that no prompt comes before what decodes.

        A request that comes with its keys and values computes one token at first, as it does in all
        steps that follow: its first step is as those that only decode are.

        Args:
            phase: The phase, of `physim.service.phases.PHASES`.
        """
        one = replace(self, policy=replace(self.policy, prompts_apart=False))
        if phase != DECODE:
            return one
        captured = one.profile.captured_tokens
        return replace(one, profile=replace(one.profile, captured_prompt_tokens=captured))

    def without_limits(self) -> Server:
        """What of it the time of a step depends on, and of the rest whatever is the same for all.

        Servers that differ in slots, budgets and memory alone share their lowered models.
        """
        return replace(
            self,
            sizes=Sizes(1, 1, self.sizes.max_model_len),
            policy=Policy(async_scheduling=self.policy.async_scheduling),
            kv=KVStore((KVTier(1),)),
            memory=_NO_MEMORY,
            sampling_is_known=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it but the model and the GPU as plain values, on one level.

        Of the engine there are its name and its version.
        """
        memory, kv = self.memory, self.kv
        return {
            **asdict(self.parallelism),
            "engine": self.profile.engine,
            "engine_version": self.profile.version,
            **asdict(self.sizes),
            **asdict(self.policy),
            "kv_blocks": kv.blocks,
            "block_size": kv.block_size,
            "window_share": kv.window_share,
            "window": kv.window,
            "state_blocks": kv.state_blocks,
            "kv_cache_dtype": self.kv_cache_dtype,
            "moe_kernel": self.moe_kernel or self.profile.expert_kernels[0],
            "captured_tokens": self.captured[0],
            "casts_mxfp4": self.casts_mxfp4,
            "expert_load": self.expert_load,
            "sampling": self.sampling,
            "sampling_is_known": self.sampling_is_known,
            "all2all": self.all2all,
            "stream_interval": self.stream_interval,
            **self._drafts(),
            **self._tiers(),
            "gpu_memory_utilization": memory.share,
            "usable_bytes": memory.usable,
            "weight_bytes": memory.weights,
            "graph_bytes": memory.graphs,
            "activation_bytes": memory.activations,
            "kv_block_bytes": memory.kv_block,
            "kv_cache_bytes": memory.kv_cache,
        }

    def __repr__(self) -> str:
        engine = f"{self.profile.engine} {self.profile.version}"
        return shown(self, f"{self.model.name} on {self.where}, {engine}")
