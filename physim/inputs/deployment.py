"""How a model is deployed on GPUs: parallelism, the engine's limits, and the memory they leave."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any

from physim.engines.engine import Engine, engine_named, engines
from physim.engines.profile import DEFAULT_ENGINE, EngineProfile, load_engine
from physim.errors import InputError
from physim.inputs.hardware import Hardware
from physim.models.architecture import ModelArch
from physim.models.formats import KV_BYTES
from physim.models.kv_layout import CacheLayout
from physim.models.parallelism import Parallelism

GIB = 2**30
MOE_KERNELS = ("triton", "flashinfer", "cutlass", "min_latency", "deepgemm")
# Loads of experts that were measured: exponents of their power laws, and their tables' names.
EXPERT_LOADS = {0.0: "balanced", 1.01: "power_law_1.01", 1.2: "power_law_1.2"}
ALL2ALL = ("allgather", "deepep_high_throughput", "deepep_low_latency")
KV_CACHE_DTYPES = ("auto", *KV_BYTES)
_UNLIMITED = 2**62
# Whole numbers up to here are exact in floating point.
_EXACT = 2**53
_SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks")
SAMPLINGS = ("model", "unknown", "greedy", "plain", "truncated", "penalised")


@dataclass(frozen=True)
class Limits:
    """What an engine allows.

    Attributes:
        max_num_seqs: Requests that may run at once.
        max_num_batched_tokens: Tokens of one step.
        max_model_len: Longest context, tokens.
        kv_blocks: KV blocks of the layers whose keys and values grow with the context.
        block_size: Tokens of a KV block.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        whole_prompts: Whether a prompt starts only if all of it has KV blocks, not just its first
            chunk,
        whole_requests: or only if its answer has them too, which then are kept for it.
        prompts_apart: Whether prompts have steps of their own, in which nothing decodes.
        receive_every: Steps that only decode between two looks at what has arrived.
        window_share: KV blocks that layers with a window fill for each that the others do, up to
        window: so many tokens; no window if 0.
        state_blocks: KV blocks that a request holds whatever its length, such as those of layers
            that keep a state in the place of keys and values.
        ranks: Ranks with batches of their own of which the limits are, together,
        stages: and stages of layers between which requests are shared out.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_blocks: int
    block_size: int = 16
    async_scheduling: bool = True
    whole_prompts: bool = False
    whole_requests: bool = False
    prompts_apart: bool = False
    receive_every: int = 1
    window_share: float = 0.0
    window: float = 0.0
    state_blocks: float = 0.0
    ranks: int = 1
    stages: int = 1

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds of the layers that grow."""
        return self.kv_blocks * self.block_size

    @property
    def reported_blocks(self) -> int:
        """KV blocks as an engine reports them: of all layers, as if none had a window."""
        return round(self.kv_blocks / (1 + self.window_share))

    def fixed_blocks(self, tokens: int) -> int:
        """Blocks that a request of a length holds beside those that grow with each token.

        Args:
            tokens: Tokens of its prompt and of its answer.
        """
        if not (self.window_share or self.state_blocks):
            return 0
        # A window is as many whole blocks as its tokens touch.
        seen = min(tokens, self.window + self.block_size) / self.block_size
        return math.ceil(self.window_share * seen + self.state_blocks)

    def of_all(self, parallelism: Parallelism) -> Limits:
        """The limits of all ranks and stages together, where these are of one.

        Args:
            parallelism: How GPUs share the model.
        """
        dp, pp = parallelism.dp, parallelism.pp
        return replace(
            self,
            max_num_seqs=dp * self.max_num_seqs,
            max_num_batched_tokens=dp * pp * self.max_num_batched_tokens,
            kv_blocks=dp * self.kv_blocks,
            ranks=dp * self.ranks,
            stages=pp * self.stages,
        )


@dataclass(frozen=True)
class Deployment:
    """One engine, as it is asked for.

    Attributes:
        parallelism: How GPUs share the model.
        engine: Name of the engine (`physim.engines.profile.load_engine`).
        engine_version: Its version; None for the newest that is known.
        max_num_seqs: Requests that may run at once; None for the engine's default on the GPU.
        max_num_batched_tokens: Tokens of one step; None for the engine's default on the GPU.
        max_model_len: Longest context, tokens; None for what the model was made for.
        gpu_memory_utilization: Share of the GPU's memory that the engine may use; None for its
            default.
        block_size: Tokens of a KV block.
        kv_blocks: KV blocks as the engine reports them; None to compute them from memory.
        kv_cache_dtype: Format of the KV cache: ``bfloat16`` (any of 16 bit), ``fp8``, or ``auto``
            for what the checkpoint says.
        moe_kernel: Kernel of expert layers, where it was measured; None for what the engine
            prefers.
        expert_load: How tokens spread over experts: the exponent of a power law, from 0, an even
            load, to 1.2; None for what runs of the model's family showed.
        async_scheduling: Whether the engine schedules a step while the one before it runs; None for
            its default.
        all2all: How data-parallel ranks exchange tokens with experts, of `ALL2ALL`: ``allgather``,
            or DeepEP's kernels of high throughput or low latency.
        receive_every: Steps that only decode between two looks at what has arrived: 1, or more
            where the engine can be told so (`physim.engines.engine.Engine`).
        sampling: How tokens are drawn: ``greedy`` (temperature 0), ``plain``, ``truncated`` (top-k,
            top-p) or ``penalised`` (a repetition, frequency or presence penalty, truncated too);
            ``model`` for the default that the model comes with, which the engine takes where
            requests say nothing else; ``unknown`` for a measured run that does not say: the model's
            default is taken, and what greedy requests would give is said.

    Raises:
        InputError: A figure is out of range, or a name is unknown.
    """

    parallelism: Parallelism = field(default_factory=Parallelism)
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    kv_cache_dtype: str = "auto"
    moe_kernel: str | None = None
    expert_load: float | None = None
    async_scheduling: bool | None = None
    all2all: str = ALL2ALL[0]
    receive_every: int = 1
    sampling: str = "model"

    def __post_init__(self) -> None:
        for name, kind, what in (
            ("engine", str, "not text"),
            ("engine_version", str | None, "not text"),
            ("gpu_memory_utilization", Real | None, "not a number"),
            ("expert_load", Real | None, "not a number"),
            ("async_scheduling", bool | None, "not True or False"),
        ):
            value = getattr(self, name)
            # A flag is a number to Python.
            if not isinstance(value, kind) or (isinstance(value, bool) and kind == Real | None):
                raise InputError(name, f"{repr(value)[:80]} is {what}", "correct it")
        self._check_positive("block_size", self.block_size)
        self._check_positive("receive_every", self.receive_every)
        for name in _SIZES:
            if getattr(self, name) is not None:
                self._check_positive(name, getattr(self, name))
        for name in ("block_size", *_SIZES):
            if (getattr(self, name) or 0) > _EXACT:
                raise InputError(name, "is more than any engine takes", "correct it")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise InputError(
                "gpu_memory_utilization",
                f"{self.gpu_memory_utilization} is not a share of memory",
                "use 0 to 1",
            )
        load = self.expert_load
        if load is not None and not min(EXPERT_LOADS) <= load <= max(EXPERT_LOADS):
            raise InputError(
                "expert_load",
                f"{load} is not an exponent that was measured",
                f"use {min(EXPERT_LOADS):g} to {max(EXPERT_LOADS):g}",
            )
        for name, known in (
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("moe_kernel", (None, *MOE_KERNELS)),
            ("sampling", SAMPLINGS),
            ("all2all", ALL2ALL),
        ):
            if getattr(self, name) not in known:
                raise InputError(
                    name,
                    f"{repr(getattr(self, name))[:80]} is unknown",
                    f"use one of {', '.join(filter(None, known))}",
                )

    @staticmethod
    def _check_positive(name: str, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(name, f"{repr(value)[:80]} is not a positive integer", "correct it")

    def resolved(self, model: ModelArch, gpu: Hardware) -> ResolvedDeployment:
        """The deployment with every limit known, checked against the model and the GPU.

        Raises:
            InputError: The parallelism does not divide the model, attention is in chunks that the
                context exceeds, or the model, or the KV cache of one request of
                ``max_model_len``, does not fit in memory.
        """
        profile = load_engine(self.engine, self.engine_version)
        self._check_tp(model)
        self._check_layout(model, engine_named(profile.engine))
        # Layers that attend in chunks were made for contexts of many of them, which take more than
        # a node's memory: by default one chunk is served.
        max_model_len = self.max_model_len or min(model.max_position, model.chunk or _UNLIMITED)
        default = profile.limits_on(gpu.key, gpu.memory_bytes / GIB)
        max_num_seqs = self.max_num_seqs or default.max_num_seqs
        is_async = self.async_scheduling
        kv_bytes = KV_BYTES[self._kv_cache_dtype(model)]
        stage = model.fullest_stage(self.parallelism.pp)
        layers = {mixer: count * stage for mixer, count in model.attention_layers.items()}
        cache = CacheLayout.of(layers, self.parallelism.tp, kv_bytes, max_model_len)
        memory = self._memory(model, gpu, profile, max_num_seqs, cache)
        limits = Limits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens or default.max_num_batched_tokens,
            max_model_len=max_model_len,
            kv_blocks=self._kv_blocks(model, gpu, profile, memory)
            if self.kv_blocks is None
            else round(self.kv_blocks * (1 + cache.window_share)),
            block_size=self.block_size,
            # A pipeline has other batches under way instead of one that is formed ahead.
            async_scheduling=self.parallelism.pp == 1
            and (profile.async_scheduling if is_async is None else is_async),
            whole_prompts=profile.admission == "prompt",
            whole_requests=profile.admission == "request",
            prompts_apart=profile.prompts_apart,
            receive_every=self.receive_every,
            window_share=cache.window_share,
            window=cache.window,
            state_blocks=cache.state_bytes / memory.kv_block,
        )
        if self.kv_blocks is None:
            self._check_one_fits(model, gpu, limits)
        return ResolvedDeployment(
            parallelism=self.parallelism,
            profile=profile,
            limits=limits,
            memory=replace(memory, kv_cache=limits.kv_blocks * memory.kv_block),
            kv_cache_dtype=self._kv_cache_dtype(model),
            moe_kernel=self.moe_kernel or profile.expert_kernels[0],
            expert_load=self._expert_load(model),
            all2all=self.all2all,
            sampling=self._sampling(model),
            sampling_is_known=self.sampling != "unknown",
        )

    def _expert_load(self, model: ModelArch) -> float:
        if self.expert_load is not None:
            return self.expert_load
        return model.experts.load if model.experts else 0.0

    def _kv_cache_dtype(self, model: ModelArch) -> str:
        asked = self.kv_cache_dtype
        return model.kv_cache_dtype if asked == "auto" else asked

    def _sampling(self, model: ModelArch) -> str:
        if self.sampling not in ("model", "unknown"):
            return self.sampling
        return "penalised" if model.penalises else "truncated" if model.truncation else "plain"

    def _memory(
        self,
        model: ModelArch,
        gpu: Hardware,
        profile: EngineProfile,
        max_num_seqs: int,
        cache: CacheLayout,
    ) -> Memory:
        """What a GPU's memory is for, without the KV cache."""
        layout, kept = self.parallelism, profile.kv_reserve
        share = self.gpu_memory_utilization or profile.gpu_memory_utilization
        return Memory(
            share=share,
            usable=gpu.memory_bytes if profile.memory_left else share * gpu.memory_bytes,
            kept_share=share if profile.memory_left else 1.0,
            weights=model.weight_bytes(layout.tp, layout.dp, layout.ep, layout.pp),
            graphs=kept.graph_bytes
            + kept.graph_bytes_per_layer * model.layers * model.fullest_stage(layout.pp),
            activations=kept.fixed_bytes
            + (kept.tensor_parallel_bytes if layout.stage_gpus > 1 else 0.0)
            + (kept.vision_bytes if model.vision_parameters else 0.0)
            + kept.bytes_per_logit * max_num_seqs * model.vocab_size,
            kv_block=cache.token_bytes * self.block_size,
        )

    def _check_sizes(self, model: ModelArch, profile: EngineProfile, memory: Memory) -> None:
        """Refuses an option for whose size alone the model does not fit, with the most that does.

        Raises:
            InputError: The model fits with fewer requests at once, or with smaller KV blocks.
        """
        requests = self.max_num_seqs or 0
        logits = profile.kv_reserve.bytes_per_logit * model.vocab_size
        token = memory.kv_block / self.block_size
        left = memory.usable - memory.weights - memory.activations - memory.graphs
        beside = left + requests * logits - memory.kv_block / memory.kept_share
        for name, value, each, room in (
            ("max_num_seqs", requests, logits, beside),
            ("block_size", self.block_size, token, memory.kept_share * left),
        ):
            if each <= room < value * each:
                raise InputError(
                    name,
                    f"{value} would take {value * each / GIB:.3g} GiB a GPU, where "
                    f"{room / GIB:.3g} GiB are left",
                    f"use at most {math.floor(room / each)}",
                )

    def _kv_blocks(
        self, model: ModelArch, gpu: Hardware, profile: EngineProfile, memory: Memory
    ) -> int:
        """KV blocks that fit beside the weights and the engine's own memory."""
        taken = memory.weights + memory.activations + memory.graphs
        blocks = math.floor(memory.kept_share * (memory.usable - taken) / memory.kv_block)
        if blocks < 1:
            self._check_sizes(model, profile, memory)
            needed = (taken + memory.kv_block) / GIB
            raise InputError(
                f"{model.name} on {self.parallelism.gpus} x {gpu.key}",
                f"needs {needed:.1f} GiB a GPU ({memory.weights / GIB:.1f} of weights) and may use "
                f"{memory.usable / GIB:.1f} GiB",
                "raise tp or gpu_memory_utilization, lower max_num_seqs, or take a larger GPU",
            )
        return blocks

    def _check_one_fits(self, model: ModelArch, gpu: Hardware, limits: Limits) -> None:
        """Refuses a KV cache too small for one request of ``max_model_len``, as engines do."""
        max_model_len = limits.max_model_len
        fixed = limits.fixed_blocks(max_model_len)
        held = max(limits.kv_blocks - fixed, 0) * self.block_size
        if held < max_model_len:
            raise InputError(
                "max_model_len",
                f"{max_model_len} tokens do not fit in the KV cache of {held} tokens that "
                f"{model.name} has on {self.parallelism.gpus} x {gpu.key}, and {self.engine} would "
                "not start",
                f"use at most {held} (--max-model-len), or raise tp or gpu_memory_utilization",
            )

    def _check_layout(self, model: ModelArch, engine: Engine) -> None:
        """Refuses degrees that the model has nothing for, or that the engine does not offer."""
        layout, experts = self.parallelism, model.experts
        if self.all2all != ALL2ALL[0] and layout.ep < layout.stage_gpus:
            raise InputError(
                "all2all",
                f"{self.all2all} is for experts that are spread whole over all GPUs",
                f"give ep {layout.stage_gpus}, or leave it out",
            )
        if self.receive_every > 1 and not engine.has_receive_interval:
            able = " and ".join(one.name for one in engines() if one.has_receive_interval)
            problem = f"{self.receive_every} is for {able}, not {self.engine}"
            raise InputError("receive_every", problem, "use 1")
        if layout.pp > model.layers:
            raise InputError(
                "pp",
                f"{layout.pp} stages for the {model.layers} layers of {model.name}",
                "use fewer",
            )
        for degree in ("dp", "ep"):
            if getattr(layout, degree) > 1 and experts is None:
                remedy = "divide the load by it, and use 1" if degree == "dp" else "use 1"
                raise InputError(
                    degree,
                    f"{getattr(layout, degree)} shares experts, and {model.name} has none",
                    remedy,
                )
        if experts and experts.count % layout.ep:
            raise InputError(
                "ep",
                f"{layout.ep} does not divide the {experts.count} experts of {model.name}",
                "use a divisor",
            )
        engine.check_layout(layout)

    def _check_tp(self, model: ModelArch) -> None:
        tp = self.parallelism.tp
        for attention in model.attention_layers:
            if attention.heads % tp:
                raise InputError(
                    "tp",
                    f"{tp} does not divide the {attention.heads} attention heads of {model.name}",
                    "use a divisor",
                )
            if max(attention.kv_heads, tp) % min(attention.kv_heads, tp):
                raise InputError(
                    "tp",
                    f"{tp} neither divides nor is a multiple of the {attention.kv_heads} KV heads "
                    f"of {model.name}",
                    "use one that does",
                )


@dataclass(frozen=True)
class Memory:
    """What the memory of a GPU is for, bytes.

    Attributes:
        share: Share of the GPU's memory that the engine uses.
        usable: That memory.
        weights: Of it, weights,
        graphs: CUDA graphs,
        activations: activations, with what else the engine keeps,
        kv_block: a block of the KV cache,
        kv_cache: and all blocks.
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
class ResolvedDeployment:
    """A deployment whose every limit is known.

    Attributes:
        parallelism: How GPUs share the model.
        profile: The engine.
        limits: What the engine allows each of its data-parallel ranks.
        memory: What each GPU's memory is for.
        kv_cache_dtype: Format of the KV cache, ``bfloat16`` or ``fp8``.
        moe_kernel: Kernel of fp8 expert layers.
        expert_load: How tokens spread over experts, an exponent.
        all2all: How ranks exchange tokens with experts, of `ALL2ALL`.
        sampling: ``greedy``, ``plain``, ``truncated`` or ``penalised``.
        sampling_is_known: Whether that is known, or taken for what it may be.
    """

    parallelism: Parallelism
    profile: EngineProfile
    limits: Limits
    memory: Memory
    kv_cache_dtype: str
    moe_kernel: str
    expert_load: float
    sampling: str
    sampling_is_known: bool = True
    all2all: str = ALL2ALL[0]

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights on each GPU."""
        return self.memory.weights

    @property
    def shared_limits(self) -> Limits:
        """What the engine allows all its ranks and stages together."""
        return self.limits.of_all(self.parallelism)

    @property
    def of_steps(self) -> ResolvedDeployment:
        """What of it the time of a step depends on, and of the rest whatever is the same for all.

        Deployments that differ in slots, budgets and memory alone share their lowered models.
        """
        limits = Limits(1, 1, self.limits.max_model_len, 1)
        limits = replace(limits, async_scheduling=self.limits.async_scheduling)
        return replace(self, limits=limits, memory=_NO_MEMORY, sampling_is_known=True)

    @property
    def kv_cache_bytes(self) -> float:
        """Bytes of an element of the KV cache."""
        return KV_BYTES[self.kv_cache_dtype]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, on one level; of the engine its name and version."""
        content = asdict(self)
        profile = content.pop("profile")
        engine = {"engine": profile["engine"], "engine_version": profile["version"]}
        memory = content.pop("memory")
        content |= {
            "gpu_memory_utilization": memory["share"],
            "usable_bytes": memory["usable"],
            "weight_bytes": memory["weights"],
            "graph_bytes": memory["graphs"],
            "activation_bytes": memory["activations"],
            "kv_block_bytes": memory["kv_block"],
            "kv_cache_bytes": memory["kv_cache"],
        }
        return {**content.pop("parallelism"), **engine, **content.pop("limits"), **content}
