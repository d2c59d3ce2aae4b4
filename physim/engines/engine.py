"""What physim knows of a serving engine whatever its version: a record, which one file each fills.

No other room knows an engine's name: it asks the engine's record.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from physim.engines.host_memory import HostMemory
from physim.engines.profile import DEFAULT_ENGINE, shipped_engines
from physim.errors import InputError
from physim.models.formats import WeightFormat
from physim.models.parallelism import ALL2ALL, Parallelism


@dataclass(frozen=True)
class Launch:
    """A server as its engine is told to start it.

    Attributes:
        model: The model's name.
        parallelism: How GPUs share the model.
        max_num_seqs: Requests that each data-parallel rank may run at once.
        max_num_batched_tokens: Tokens of one step of a rank.
        max_model_len: Longest context, tokens.
        gpu_memory_utilization: Share of the GPU's memory that the engine may use.
        block_size: Tokens of a KV block.
        kv_cache_dtype: Format of the KV cache; None for the checkpoint's.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        all2all: How ranks exchange tokens with experts, of `physim.models.parallelism.ALL2ALL`.
        receive_every: Steps that only decode between two looks at what has arrived.
        stream_interval: Tokens of a message to a client.
        mixed_chunk: Whether prompts share steps though the engine gives them steps of their own.
        draft: What proposes tokens, of `physim.models.drafts.METHODS`; None for nothing.
        draft_tokens: Tokens that it proposes in each step.
        draft_model: The draft's name; None where it has none.
        phase: What requests do there, ``prefill`` or ``decode``; None for both.
        captured_tokens: Tokens of the largest step that is a CUDA graph; None for the engine's
            default.
        kv_host_bytes: The host's memory for KV blocks of all GPUs together, bytes; None for none.
        kv_disk_bytes: Its disk for them, bytes; None for none.
        quantization: What 16-bit weights become as it starts; None for what they are.
    """

    model: str
    parallelism: Parallelism
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    block_size: int
    kv_cache_dtype: str | None
    async_scheduling: bool
    all2all: str
    receive_every: int
    stream_interval: int
    captured_tokens: int | None
    kv_host_bytes: float | None = None
    kv_disk_bytes: float | None = None
    draft: str | None = None
    draft_tokens: int = 0
    draft_model: str | None = None
    phase: str | None = None
    quantization: str | None = None
    mixed_chunk: bool = False


@dataclass(frozen=True)
class LaunchCommand:
    """The command that starts a server.

    Attributes:
        words: Its words.
        file_option: The option that names a file of further settings; empty where there is none.
        file_lines: The lines of that file.
    """

    words: Sequence[str]
    file_option: str = ""
    file_lines: Sequence[str] = ()


def words_of(flags: Mapping[str, object]) -> list[str]:
    """Flags with their values as words of a command.

    Args:
        flags: The value of each flag; those of None are left out.
    """
    told = {flag: value for flag, value in flags.items() if value is not None}
    return [word for flag, value in told.items() for word in (flag, str(value))]


@dataclass(frozen=True)
class Counters:
    """Names of the counters and histograms that an engine shows to Prometheus.

    Attributes:
        requests: Requests that were answered.
        prompt: Prompt tokens.
        output: Generated tokens.
        cached: Prompt tokens that were found in the prefix cache.
        prompt_lengths: Buckets of the prompts' lengths; empty where there are none.
        output_lengths: Buckets of the outputs' lengths; empty where there are none.
        failed: Requests that were not answered, where ``requests`` leaves them out.
        failed_reasons: Where it counts them, their values of the label ``finished_reason``.
        looked_up: Tokens that were looked up in the prefix cache; empty where it is all of prompts.
        preempted: How often a request lost its KV cache.
        sources: Prompt tokens by where they came from, by the label ``source``.
        kv_usage: Share of the KV cache in use, a gauge.
        running: Requests that run, a gauge; empty where there is none.
        waiting: Requests that wait, likewise.
        drafts: How often tokens were proposed for a request.
        accepted: How many of the proposed tokens were accepted.
        accepted_by_position: The same by the label ``position``.
        accepted_length: Tokens that a request gets from a step that verifies drafts, a gauge.
        times: Histograms of seconds, by what of a request they are of, of `REQUEST_TIMES`; of
            several names the first that there is.
        settings: A gauge whose labels say how the engine was started.
        setting_labels: Those of its labels that are read, by the fields of
            `physim.measured.server_log`.
        kv_tokens: Tokens that the KV cache holds, a gauge.
    """

    requests: str
    prompt: str
    output: str
    cached: str
    prompt_lengths: str = ""
    output_lengths: str = ""
    failed: str = ""
    failed_reasons: tuple[str, ...] = ()
    looked_up: str = ""
    preempted: str = ""
    sources: str = ""
    kv_usage: tuple[str, ...] = ()
    running: str = ""
    waiting: str = ""
    drafts: str = ""
    accepted: str = ""
    accepted_by_position: str = ""
    accepted_length: str = ""
    times: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: str = ""
    setting_labels: Mapping[str, str] = field(default_factory=dict)
    kv_tokens: str = ""


# What of a request engines time: until its first token, between tokens, until its answer, until it
# is scheduled, until its prompt is computed from then on, and from then to its last token.
REQUEST_TIMES = ("ttft", "itl", "e2e", "queue", "prefill", "decode")
# The engine with which GEMMs in fp8 were measured as cuBLAS runs them.
MEASURED_CUBLAS_FP8 = "trtllm"
# Those with which DeepEP's kernels and exchanges over NVLink were timed by themselves.
MEASURED_DEEPEP, MEASURED_NVLINK_EXCHANGE = "sglang", "trtllm"


@dataclass(frozen=True)
class ExpertTable:
    """A table of measured kernels of experts.

    Attributes:
        form: Format of the experts' weights.
        names: What NVIDIA calls that format.
        kernels: A regular expression of the kernels' names.
        measured_with: The engine whose rows are read; empty for the engine itself.
    """

    form: WeightFormat
    names: tuple[str, ...]
    kernels: str
    measured_with: str = ""


@dataclass(frozen=True)
class KernelTables:
    """What of NVIDIA's kernel tables is an engine's own; the rest is as the default engine has it.

    Attributes:
        experts: Tables of experts, by name.
        gemms: Formats of GEMMs that are read, as NVIDIA calls them and as they are.
        cublas_fp8_from: Compute capability from which GEMMs in fp8 are cuBLAS's, as those of 16 bit
            are; None where they are as the engine's own table has them.
        fuses_casts: Whether what is before a GEMM in 8 or 4 bit writes its input, so that no kernel
            of its own casts it.
        mixers: Folders of measured layers of attention that are read; None for all.
        uncompiled_mixers: GPUs whose layers of latent attention were measured without compiling
            what is between their projections.
        complete_version: The version whose tables are complete where newer ones hold a few.
    """

    experts: Mapping[str, ExpertTable]
    gemms: tuple[tuple[str, WeightFormat], ...]
    cublas_fp8_from: float | None = None
    fuses_casts: bool = False
    mixers: tuple[str, ...] | None = None
    uncompiled_mixers: tuple[str, ...] = ()
    complete_version: str = ""

    def has_cublas_fp8(self, capability: float | None) -> bool:
        """Whether GEMMs in fp8 are cuBLAS's on a GPU.

        Args:
            capability: The GPU's compute capability; None where it has none.
        """
        least = self.cublas_fp8_from
        return least is not None and capability is not None and capability >= least


@dataclass(frozen=True)
class ExpertPadding:
    """What a kernel pads experts in mxfp4 to.

    Attributes:
        kernel: The kernel.
        from_capability: The least compute capability of GPUs on which the engine takes it unless it
            is told.
        multiples: What the hidden size and the width of experts are padded to a multiple of.
    """

    kernel: str
    from_capability: float
    multiples: tuple[int, int]


def _any_layout(_: Parallelism) -> None:
    """Refuses nothing."""


@dataclass(frozen=True)
class Engine:
    """A serving engine.

    Attributes:
        name: Its name, as in its profiles.
        launch: Makes the command that starts a server.
        image: Its container image, with ``{}`` for the version.
        rocm_image: The same for AMD's GPUs, with another ``{}`` for their series where it goes by
            that, such as ``mi30x``; empty where it does not run on them.
        port: The port that it listens on by default.
        kernels: Its measured kernels.
        check_layout: Refuses degrees of parallelism that it does not offer, by an `InputError`.
        has_receive_interval: Whether it can be told to look at what has arrived every so many
            steps.
        splits_budget: Whether data-parallel ranks get equal parts of the default token budget, else
            each the whole.
        slots_within_budget: Whether it refuses to run more requests at once than a step has tokens,
            and by default runs no more.
        hands_first_token: Whether a server that computes prompts for another hands their first
            tokens on with the KV blocks; see `physim.service.policy.Policy`.
        reserved_tokens: Tokens that a server that decodes keeps free for each of its requests when
            it makes room before prompts are computed elsewhere; see the same.
        exchanges: How it can exchange tokens with experts, of `physim.models.parallelism.ALL2ALL`;
            the first is what it does between GPUs that NVLink connects unless it is told.
        handover_s: What a request waits between a server that computes prompts and one that
            generates beside the time of its KV blocks, seconds.
        counters: What it shows to Prometheus; None where physim does not know.
        mxfp4_paddings: What its kernels of experts in mxfp4 pad them to, those of newer GPUs first.
        norms_in_sums: Families of models whose all-reduces add the residual and normalise, with the
            least hidden size from which they do.
        log: Where its log says how it was started: regular expressions with one group, by the
            fields of `physim.measured.server_log`; empty where physim does not read its log.
        step_line: What its log writes of a step: a regular expression with the groups ``index``,
            ``prefill_requests``, ``prefill_tokens``, ``decode_requests``, ``decode_tokens`` and
            ``milliseconds``, and those of ``rank``, ``dummy`` and ``kv_percent`` that it may
            write; empty where physim reads none.
        host_memory: How it keeps KV blocks in the host's memory; None where it cannot.
        quantizes: Whether it quantises weights as it starts.
        times_batches: Whether it comes with a benchmark of single steps, ``vllm bench forward``.
    """

    name: str
    launch: Callable[[Launch], LaunchCommand]
    image: str
    port: int
    kernels: KernelTables
    rocm_image: str = ""
    check_layout: Callable[[Parallelism], None] = _any_layout
    has_receive_interval: bool = False
    splits_budget: bool = False
    slots_within_budget: bool = False
    hands_first_token: bool = True
    reserved_tokens: int | None = None
    exchanges: tuple[str, ...] = ALL2ALL
    # Of rows of the fit, TensorRT-LLM with a few clients (docs/accuracy.md).
    handover_s: float = 0.05
    counters: Counters | None = None
    # What vLLM's widest kernel does, where it is not known.
    mxfp4_paddings: tuple[ExpertPadding, ...] = (ExpertPadding("flashinfer", 0.0, (256, 256)),)
    norms_in_sums: Mapping[str, int] = field(default_factory=dict)
    log: Mapping[str, str] = field(default_factory=dict)
    step_line: str = ""
    host_memory: HostMemory | None = None
    quantizes: bool = False
    times_batches: bool = False

    def image_for(self, version: str, gpu: str, maker: str) -> str:
        """The container image of a version for a GPU.

        Args:
            version: The version, of three numbers.
            gpu: The key of the GPU.
            maker: Who made it; AMD only where ``rocm_image`` is not empty.
        """
        if maker != "amd":
            return self.image.format(version)
        # Of MI300X and MI325X (gfx942), and of MI350X and MI355X (gfx950).
        return self.rocm_image.format(version, "mi35x" if gpu.startswith("mi35") else "mi30x")

    def padding(self, capability: float | None, kernel: str | None) -> tuple[int, int]:
        """What the hidden size and the width of experts in mxfp4 are padded to a multiple of.

        Args:
            capability: The GPU's compute capability; None where it has none, for which the most is
                taken that any kernel pads to.
            kernel: The kernel that the engine is told to take, if any.
        """
        told = [one.multiples for one in self.mxfp4_paddings if one.kernel == kernel]
        if told:
            return told[0]
        if capability is None:
            return max(one.multiples for one in self.mxfp4_paddings)
        return next(
            one.multiples for one in self.mxfp4_paddings if one.from_capability <= capability
        )


@functools.lru_cache
def engine_named(name: str) -> Engine:
    """The record of an engine.

    Args:
        name: Its name.

    Raises:
        InputError: The engine has profiles, but no file in ``physim/engines``.
    """
    module = f"physim.engines.{name}"
    try:
        found: Engine = importlib.import_module(module).ENGINE
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        problem = "has profiles, but nothing says how it is started"
        raise InputError(f"engine {name}", problem, f"add physim/engines/{name}.py") from error
    return found


def engines() -> tuple[Engine, ...]:
    """Every engine that ships with physim, the default one first."""
    names = sorted(shipped_engines(), key=lambda name: name != DEFAULT_ENGINE)
    return tuple(map(engine_named, names))
