"""How a model is deployed on GPUs: parallelism, the engine's limits, and the memory they leave."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real

from physim.engines.engine import Engine, engine_named, engines
from physim.engines.host_memory import HostMemory
from physim.engines.profile import EngineProfile, load_engine, shipped_engines
from physim.errors import InputError
from physim.inputs.acceptance import MOST_DRAFTS, acceptance_of_family, by_position
from physim.inputs.engine_request import EngineRequest
from physim.inputs.layouts import check_layout
from physim.inputs.lower_tiers import disk_tier, host_tier
from physim.inputs.what_fits import TooLargeError
from physim.inputs.working_memory import working_bytes
from physim.models.architecture import ModelArch
from physim.models.drafts import METHODS, drafting_layers
from physim.models.formats import KV_BYTES
from physim.models.kv_layout import CacheLayout
from physim.models.parallelism import ALL2ALL, ALLGATHER
from physim.printable import shown_fields
from physim.service.draft import Draft
from physim.service.hardware import Hardware
from physim.service.kv_store import KVStore, KVTier
from physim.service.policy import Policy
from physim.service.server import EXPERT_LOADS, GIB, Memory, Server
from physim.service.sizes import Sizes

MOE_KERNELS = ("triton", "flashinfer", "marlin", "cutlass", "min_latency", "deepgemm")
MOE_ACTIVATIONS = ("auto", "bfloat16", "mxfp8")
KV_CACHE_DTYPES = ("auto", *KV_BYTES)
_UNLIMITED = 2**62
# Whole numbers up to here are exact in floating point.
_EXACT = 2**53
_RATES_OF_DISKS = ("kv_disk_bandwidth", "kv_disk_write_bandwidth")
# Longer than any disk, or store behind a network, takes to begin.
_SLOWEST_DISK_S = 60.0
_SIZES = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "kv_blocks",
    "captured_tokens",
    "draft_tokens",
)
SAMPLINGS = ("model", "unknown", "greedy", "plain", "truncated", "penalised")


@dataclass(frozen=True)
class Deployment(EngineRequest):
    """One engine, as it is asked for.

    Attributes:
        parallelism: How GPUs share the model.
        engine: Name of the engine (`physim.engines.profile.load_engine`).
        engine_version: Its version; None for the newest that is known.
        max_num_seqs: Requests that may run at once; None for the engine's default on the GPU.
        max_num_batched_tokens: Tokens of one step of a data-parallel rank; None for the engine's
            default on the GPU.
        max_model_len: Longest context, tokens; None for what the model was made for.
        gpu_memory_utilization: Share of the GPU's memory that the engine may use; None for its
            default.
        block_size: Tokens of a KV block.
        kv_blocks: KV blocks as the engine reports them, such as the KV tokens of its log by
            ``block_size``; None to compute them from memory.
        kv_cache_dtype: Format of the KV cache: ``bfloat16`` (any of 16 bit), ``fp8``, or ``auto``
            for what the checkpoint says.
        moe_kernel: Kernel of expert layers, where it was measured; None for what the engine
            prefers.
        moe_activations: What activations are cast to beside mxfp4 weights of experts, where the
            GPU multiplies it: ``mxfp8``, ``bfloat16`` for no cast, or ``auto`` for what the engine
            does unless it is told.
        expert_load: How tokens spread over experts: the exponent of a power law, from 0, an even
            load, to 1.2; None for what runs of the model's family showed.
        async_scheduling: Whether the engine schedules a step while the one before it runs; None for
            its default.
        all2all: How data-parallel ranks exchange tokens with experts, of `ALL2ALL`: ``allgather``,
            DeepEP's kernels of high throughput or low latency, or those that write into the memory
            of others over NVLink; None for what the engine does.
        receive_every: Steps that only decode between two looks at what has arrived: 1, or more
            where the engine can be told so (`physim.engines.engine.Engine`).
        stream_interval: Tokens of a message to a client, but for its first and last token, which
            are sent at once. The one process that hands out tokens has as much less to do;
            latencies are of tokens, as if each came as it is made.
        mixed_chunk: Whether prompts share steps with requests that decode, where an engine that
            gives them steps of their own is told so (SGLang's ``--enable-mixed-chunk``).
        draft: What proposes tokens that a step verifies (speculative decoding): ``mtp`` for the
            model's own layers for it, ``eagle3``, ``draft_model`` or ``ngram``; None for nothing.
        draft_tokens: Tokens that it proposes in each step.
        draft_acceptance: How many are accepted, which depends on what is written: the chance that
            one is whose predecessors are (0.7), the mean tokens of a step with the model's own
            (2.4), or chances that all up to each are, by position (``"0.8,0.6,0.4"`` or a
            sequence); None for what was measured of the model's family (`acceptance`).
        draft_model: The draft's configuration, as `physim.load_model` takes it: of ``draft_model``,
            and of ``eagle3`` unless its layer is like a dense model's own.
        captured_tokens: Tokens of the largest step that is a CUDA graph, of those that only decode
            where the engine has others for prompts; None for its default.
        kv_host_bytes: Memory of the host for KV blocks, of all GPUs of the server together, bytes;
            None for none.
        kv_host_bandwidth: At which they come up to each GPU, bytes/s; None for what was measured of
            such a link (`physim.inputs.lower_tiers`).
        kv_disk_bytes: A disk below the host's memory for KV blocks, of all GPUs of the server
            together, bytes; None for none.
        kv_disk_bandwidth: At which it is read for all of them together, bytes/s, of which each has
            an equal share.
        kv_disk_write_bandwidth: At which it is written, likewise; None if that is no matter.
        kv_disk_latency_s: Time until the first block is read, seconds; None for none.
        sampling: How tokens are drawn: ``greedy`` (temperature 0), ``plain``, ``truncated`` (top-k,
            top-p) or ``penalised`` (a repetition, frequency or presence penalty, truncated too);
            ``model`` for the default that the model comes with, which the engine takes where
            requests say nothing else; ``unknown`` for a measured run that does not say: the model's
            default is taken, and what greedy requests would give is said.

    Raises:
        InputError: A figure is out of range, or a name is unknown.
    """

    def __post_init__(self) -> None:
        for name, kind, what in (
            ("engine", str, "not text"),
            ("engine_version", str | None, "not text"),
            ("gpu_memory_utilization", Real | None, "not a number"),
            ("expert_load", Real | None, "not a number"),
            ("kv_host_bytes", Real | None, "not a number"),
            ("kv_host_bandwidth", Real | None, "not a number"),
            ("kv_disk_bytes", Real | None, "not a number"),
            ("kv_disk_bandwidth", Real | None, "not a number"),
            ("kv_disk_write_bandwidth", Real | None, "not a number"),
            ("kv_disk_latency_s", Real | None, "not a number"),
            ("async_scheduling", bool | None, "not True or False"),
            ("draft_model", str | None, "not text"),
        ):
            value = getattr(self, name)
            # A flag is a number to Python.
            if not isinstance(value, kind) or (isinstance(value, bool) and kind == Real | None):
                raise InputError(name, f"{repr(value)[:80]} is {what}", "correct it")
        self._check_positive("block_size", self.block_size)
        self._check_positive("receive_every", self.receive_every)
        self._check_positive("stream_interval", self.stream_interval)
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
        for name in ("kv_host_bytes", "kv_host_bandwidth", "kv_disk_bytes", *_RATES_OF_DISKS):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _EXACT:
                raise InputError(name, f"{value:g} is no number of bytes", "correct it")
        latency_s = self.kv_disk_latency_s
        if latency_s is not None and not 0 <= latency_s <= _SLOWEST_DISK_S:
            problem = f"{latency_s:g} s is no time until a disk gives a block"
            raise InputError("kv_disk_latency_s", problem, f"use 0 to {_SLOWEST_DISK_S:g}")
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
            ("moe_activations", MOE_ACTIVATIONS),
            ("sampling", SAMPLINGS),
            ("all2all", (None, *ALL2ALL)),
            ("draft", (None, *METHODS)),
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

    def resolved(self, model: ModelArch, gpu: Hardware) -> Server:
        """The server that it makes of a model and a GPU, checked against both.

        Raises:
            InputError: The parallelism does not divide the model, attention is in chunks that the
                context exceeds, or the model, or the KV cache of one request of
                ``max_model_len``, does not fit in memory.
        """
        profile = load_engine(self.engine, self.engine_version)
        engine = engine_named(profile.engine)
        if gpu.maker == "amd" and not engine.rocm_image:
            problem = f"{engine.name} does not run on AMD's GPUs, of which {gpu.key} is one"
            others = [one for one in shipped_engines() if engine_named(one).rocm_image]
            raise InputError("engine", problem, f"use {' or '.join(others)}")
        if model.quantized_to and not engine.quantizes:
            problem = f"{engine.name} does not quantise weights as it starts"
            raise InputError("quantization", problem, "name a checkpoint that is quantised")
        check_layout(model, self.parallelism, engine)
        self._check_options(engine, profile)
        # Layers that attend in chunks were made for contexts of many of them, which take more than
        # a node's memory: by default one chunk is served.
        max_model_len = self.max_model_len or min(model.max_position, model.chunk or _UNLIMITED)
        sizes = self._sizes(engine, profile, gpu, max_model_len)
        draft = self._draft(model)
        is_async = self.async_scheduling
        if is_async is None:
            is_async = profile.async_scheduling
            if draft is not None:
                is_async = draft.method in profile.async_drafts
        policy = Policy(
            admission=profile.admission,
            # SGLang does not mix where steps verify drafts.
            prompts_apart=profile.prompts_apart and (draft is not None or not self.mixed_chunk),
            receive_every=self.receive_every,
            # A pipeline has other batches under way instead of one that is formed ahead.
            async_scheduling=self.parallelism.pp == 1 and is_async,
            hands_first_token=engine.hands_first_token,
            reserved_tokens=engine.reserved_tokens,
        )
        kv_bytes = KV_BYTES[self._kv_cache_dtype(model)]
        stage = model.fullest_stage(self.parallelism.pp)
        layers = {mixer: count * stage for mixer, count in model.attention_layers.items()}
        # Of a draft the keys and values stand beside the model's.
        for mixer, count in (draft.layers if draft else {}).items():
            layers[mixer] = layers.get(mixer, 0.0) + count
        cache = CacheLayout.from_layers(layers, self.parallelism.tp, kv_bytes, max_model_len)
        memory = self._memory(model, draft, gpu, profile, sizes, cache)
        state_blocks = cache.state_bytes / memory.kv_block
        reported = self._reported_share(profile, policy, sizes, cache, state_blocks)
        if self.kv_blocks is None:
            blocks = self._kv_blocks(model, gpu, profile, sizes, memory)
        else:
            blocks = round(self.kv_blocks / reported)
        server = Server(
            model=model,
            gpu=gpu,
            parallelism=self.parallelism,
            profile=profile,
            sizes=sizes,
            policy=policy,
            kv=KVStore(
                (KVTier(blocks), *self._lower_tiers(engine, gpu, blocks, memory)),
                block_size=self.block_size,
                window_share=cache.window_share,
                window=cache.window,
                state_blocks=state_blocks,
                reported_share=reported,
                block_bytes=memory.kv_block,
                host_memory=engine.host_memory or HostMemory(),
            ),
            memory=replace(memory, kv_cache=blocks * memory.kv_block),
            kv_cache_dtype=self._kv_cache_dtype(model),
            captured_tokens=self.captured_tokens,
            moe_kernel=self.moe_kernel,
            casts_mxfp4=self.moe_activations == "mxfp8"
            or (self.moe_activations == "auto" and profile.casts_mxfp4),
            expert_load=self._expert_load(model),
            all2all=self._exchange(engine, gpu),
            stream_interval=self.stream_interval,
            draft=draft,
            sampling=self._sampling(model),
            sampling_is_known=self.sampling != "unknown",
        )
        if self.kv_blocks is None:
            self._check_one_fits(server)
        self._check_slots(engine, sizes)
        return server

    def _exchange(self, engine: Engine, gpu: Hardware) -> str:
        """How ranks exchange tokens with experts."""
        if self.all2all is not None:
            return self.all2all
        is_spread = self.parallelism.ep == self.parallelism.stage_gpus
        return engine.exchanges[0] if is_spread and gpu.link == "nvlink" else ALLGATHER

    def _lower_tiers(
        self, engine: Engine, gpu: Hardware, blocks: int, memory: Memory
    ) -> tuple[KVTier, ...]:
        """The host's memory below the GPU's, and a disk below that, as far as asked for."""
        for size, others in (
            ("kv_host_bytes", ("kv_host_bandwidth", "kv_disk_bytes")),
            ("kv_disk_bytes", (*_RATES_OF_DISKS, "kv_disk_latency_s")),
        ):
            for name in others:
                if getattr(self, size) is None and getattr(self, name) is not None:
                    raise InputError(name, f"is given without {size}", "give both")
        if self.kv_host_bytes is None:
            return ()
        gpus = self.parallelism.gpus
        size_bytes = self.kv_host_bytes / gpus
        bandwidth = self.kv_host_bandwidth
        host = host_tier(engine, gpu, blocks, memory.kv_block, size_bytes, bandwidth)
        if self.kv_disk_bytes is None:
            return (host,)
        reads, writes = self.kv_disk_bandwidth, self.kv_disk_write_bandwidth
        disk = disk_tier(
            engine,
            memory.kv_block,
            self.kv_disk_bytes / gpus,
            bandwidth=None if reads is None else reads / gpus,
            write_bandwidth=None if writes is None else writes / gpus,
            latency_s=self.kv_disk_latency_s,
        )
        return host, disk

    def _reported_share(
        self,
        profile: EngineProfile,
        policy: Policy,
        sizes: Sizes,
        cache: CacheLayout,
        state_blocks: float,
    ) -> float:
        """KV blocks that the engine reports for each that it has."""
        if not profile.counts_requests:
            return 1 / (1 + cache.window_share)
        steps = 1
        if profile.counts_steps_under_way:
            steps = max(self.parallelism.pp, 1 + policy.async_scheduling)
        kept = cache.window - 1 + steps * sizes.max_num_batched_tokens
        # A window touches a block more, since it need not begin with one (vLLM, SlidingWindowSpec).
        window = math.ceil(min(kept, sizes.max_model_len) / self.block_size) + 1
        grown = sizes.max_model_len / self.block_size
        return grown / (grown + cache.window_share * window + state_blocks)

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

    def _draft(self, model: ModelArch) -> Draft | None:
        """What proposes tokens.

        Raises:
            InputError: Options of a draft are missing or left over, or nothing is known of it.
        """
        if self.draft is None:
            for name in ("draft_tokens", "draft_acceptance", "draft_model"):
                if getattr(self, name) is not None:
                    known = ", ".join(METHODS)
                    raise InputError(name, "is given without draft", f"give draft: {known}")
            return None
        if self.draft_tokens is None:
            raise InputError(
                "draft_tokens", "is not given", "say how many tokens are proposed in each step"
            )
        if self.draft_tokens > MOST_DRAFTS:
            problem = f"{self.draft_tokens} are more than pay"
            raise InputError("draft_tokens", problem, f"use at most {MOST_DRAFTS}")
        if self.parallelism.pp > 1:
            raise InputError("draft", "is not predicted over a pipeline", "use pp 1")
        content = ""
        if self.draft_acceptance is None:
            acceptance, content = acceptance_of_family(model.family, self.draft, self.draft_tokens)
        else:
            acceptance = by_position(self.draft_acceptance, self.draft_tokens)
        layers = drafting_layers(model, self.draft, self.draft_model)
        return Draft(
            self.draft, acceptance, content, layers, shares_embeddings=self.draft_model is None
        )

    def _memory(
        self,
        model: ModelArch,
        draft: Draft | None,
        gpu: Hardware,
        profile: EngineProfile,
        sizes: Sizes,
        cache: CacheLayout,
    ) -> Memory:
        """What a GPU's memory is for, without the KV cache."""
        layout, kept = self.parallelism, profile.kv_reserve

        def weights(model: ModelArch) -> float:
            pads = engine_named(profile.engine).padding(gpu.compute_capability, self.moe_kernel)
            return model.weight_bytes(layout.tp, layout.dp, layout.ep, layout.pp, multiples=pads)

        share = self.gpu_memory_utilization or profile.gpu_memory_utilization
        return Memory(
            share=share,
            usable=gpu.memory_bytes if profile.memory_left else share * gpu.memory_bytes,
            kept_share=share if profile.memory_left else 1.0,
            weights=weights(model) + (draft.added_bytes(weights, layout.tp) if draft else 0.0),
            graphs=kept.graph_bytes
            + kept.graph_bytes_per_layer * model.layers * model.fullest_stage(layout.pp),
            activations=working_bytes(kept, model, layout, sizes),
            kv_block=cache.token_bytes * self.block_size,
        )

    def _sizes(
        self, engine: Engine, profile: EngineProfile, gpu: Hardware, max_model_len: int
    ) -> Sizes:
        """The engine's limits: as asked for, else its defaults on the GPU."""
        default = profile.limits_on(gpu.key, gpu.memory_bytes / GIB)
        budget = default.max_num_batched_tokens
        budget //= self.parallelism.dp if engine.splits_budget else 1
        budget = self.max_num_batched_tokens or max(budget, 1)
        slots = default.max_num_seqs
        if engine.slots_within_budget:
            slots = min(slots, budget)
        return Sizes(self.max_num_seqs or slots, budget, max_model_len)

    @staticmethod
    def _check_slots(engine: Engine, sizes: Sizes) -> None:
        """Refuses more requests at once than a step has tokens, where the engine does."""
        slots, budget = sizes.max_num_seqs, sizes.max_num_batched_tokens
        if engine.slots_within_budget and slots > budget:
            raise InputError(
                "max_num_batched_tokens",
                f"{budget} tokens a step are fewer than the {slots} requests that may run at once, "
                f"which {engine.name} refuses",
                f"give at least {slots}, or lower max_num_seqs",
            )

    def _check_sizes(
        self, model: ModelArch, profile: EngineProfile, sizes: Sizes, memory: Memory
    ) -> None:
        """Refuses an option for whose size alone the model does not fit, with the most that does.

        Raises:
            InputError: The model fits with fewer requests at once, with fewer tokens in a step, or
                with smaller KV blocks.
        """
        kept, layout = profile.kv_reserve, self.parallelism

        def more(name: str, value: int) -> float:
            """Bytes that an option takes more than at its least."""
            some = (replace(sizes, **{name: size}) for size in (value, 0))
            more, least = (working_bytes(kept, model, layout, each) for each in some)
            return more - least

        left = memory.usable - memory.weights - memory.activations - memory.graphs
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            # Only what was asked for is named.
            value = getattr(self, name) or 0
            room = left + more(name, value) - memory.kv_block / memory.kept_share
            self._check_size(name, value, partial(more, name), room)
        token = memory.kv_block / self.block_size
        room = memory.kept_share * left
        self._check_size("block_size", self.block_size, lambda tokens: token * tokens, room)

    @staticmethod
    def _check_size(name: str, value: int, taken: Callable[[int], float], room: float) -> None:
        """Refuses a size that takes more bytes than there is room for, where a smaller does not."""
        if not taken(1) <= room < taken(value):
            return
        raise InputError(
            name,
            f"{value} would take {taken(value) / GIB:.3g} GiB a GPU, where {room / GIB:.3g} GiB "
            "are left",
            f"use at most {bisect_right(range(value), room, key=taken) - 1}",
        )

    def _kv_blocks(
        self,
        model: ModelArch,
        gpu: Hardware,
        profile: EngineProfile,
        sizes: Sizes,
        memory: Memory,
    ) -> int:
        """KV blocks that fit beside the weights and the engine's own memory."""
        taken = memory.weights + memory.activations + memory.graphs
        blocks = math.floor(memory.kept_share * (memory.usable - taken) / memory.kv_block)
        if blocks < 1:
            self._check_sizes(model, profile, sizes, memory)
            needed = (taken + memory.kv_block) / GIB
            raise TooLargeError(
                f"{model.name} on {self.parallelism.on(gpu.key)}",
                f"needs {needed:.1f} GiB a GPU ({memory.weights / GIB:.1f} of weights) and may use "
                f"{memory.usable / GIB:.1f} GiB",
                "raise tp or gpu_memory_utilization, lower max_num_seqs, or take a larger GPU",
            )
        return blocks

    def _check_one_fits(self, server: Server) -> None:
        """Refuses a KV cache too small for one request of ``max_model_len``, as engines do."""
        longest, kv = server.sizes.max_model_len, server.kv
        held = max(kv.blocks - kv.fixed_blocks(longest), 0) * self.block_size
        if held < longest:
            raise TooLargeError(
                "max_model_len",
                f"{longest} tokens do not fit in the KV cache of {held} tokens that "
                f"{server.model.name} has on {server.where}, and {self.engine} would not start",
                f"use at most {held} (--max-model-len), or raise tp or gpu_memory_utilization",
            )

    def _check_options(self, engine: Engine, profile: EngineProfile) -> None:
        """Refuses options that do not go with the layout or with the engine."""
        layout = self.parallelism
        if self.all2all not in (None, *engine.exchanges):
            raise InputError(
                "all2all",
                f"{self.all2all} is nothing that {self.engine} does",
                f"use one of {', '.join(engine.exchanges)}",
            )
        if self.all2all not in (None, ALLGATHER) and layout.ep < layout.stage_gpus:
            raise InputError(
                "all2all",
                f"{self.all2all} is for experts that are spread whole over all GPUs",
                f"give ep {layout.stage_gpus}, or leave it out",
            )
        if self.receive_every > 1 and not engine.has_receive_interval:
            able = " and ".join(one.name for one in engines() if one.has_receive_interval)
            problem = f"{self.receive_every} is for {able}, not {self.engine}"
            raise InputError("receive_every", problem, "use 1")
        if self.mixed_chunk and not profile.prompts_apart:
            problem = f"is for engines that give prompts steps of their own, not {self.engine}"
            raise InputError("mixed_chunk", problem, "leave it out")

    def __repr__(self) -> str:
        return shown_fields(self)
