"""What a row of measured runs holds: types, units, ranges, and what must agree with what.

Tables of runs and the readers of reports go through the one check here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from physim import records
from physim.errors import InputError
from physim.inputs.deployment import Deployment
from physim.inputs.fleet import pool_options
from physim.measured.histogram import bins_in
from physim.models.parallelism import Parallelism
from physim.options import options_of
from physim.records import (
    Amount,
    Count,
    Length,
    Positive,
    Record,
    Share,
    Spread,
    Text,
    Whole,
    disagreement,
    required,
)
from physim.service.phases import decode_steps
from physim.service.routers import ROUTERS

# No server takes a second for each token: such times are milliseconds, or another column's.
_LONGEST_ITL_S = 1.0
_ARRIVALS = ("constant", "poisson", "gamma")


def _arrival(text: str) -> str:
    kind, _, path = text.partition(":")
    if text in _ARRIVALS or (kind == "trace" and path):
        return text
    known = ", ".join(map(repr, _ARRIVALS))
    raise disagreement(
        "", f"{text[:40]} is unknown; use one of {known} or trace:PATH", "correct it"
    )


def _pool(text: str) -> str:
    try:
        pool_options("", text)
    except InputError as error:
        where = error.where.removeprefix(": ")
        raise disagreement("", f"{where} {error.what}".strip(), error.remedy) from None
    return text


def _router(text: str) -> str:
    if text in ROUTERS:
        return text
    known = ", ".join(ROUTERS)
    raise disagreement("", f"{text[:40]} is unknown; use one of {known}", "correct it")


def _bins(text: str) -> str:
    try:
        bins_in(text)
    except InputError as error:
        raise disagreement("", error.what, error.remedy) from None
    return text


class _Subject(Record):
    experiment: Text
    stage: Annotated[int, Field(ge=-1)]
    model: Text
    hardware: Text


# What a column of an option holds, by the option's type: a number that need not be whole is a share
# of memory, unless it is an amount of it, or an exponent.
_KINDS: Mapping[type, Any] = {int: Whole, str: Text, bool: bool, float: Share}
_OTHER_KINDS: Mapping[str, Any] = {
    "kv_host_bytes": Amount,
    "kv_host_bandwidth": Amount,
    "kv_disk_bytes": Amount,
    "kv_disk_bandwidth": Amount,
    "kv_disk_write_bandwidth": Amount,
    "kv_disk_latency_s": Amount,
    "expert_load": Spread,
}


def _columns(record: type) -> Iterator[tuple[str, Any]]:
    """The columns of a record's options, as pydantic takes fields."""
    for name, option in options_of(record).items():
        kind = next(known for kind, known in _KINDS.items() if option.kind in (kind, kind | None))
        kind = _OTHER_KINDS.get(name, kind)
        if option.column != "none":
            yield name, (kind, ...) if option.column == "required" else (kind | None, None)


DEGREES, ENGINE_COLUMNS = (
    tuple(name for name, _ in _columns(record)) for record in (Parallelism, Deployment)
)
_Server: Any = create_model(
    "_Server", __base__=_Subject, **dict([*_columns(Parallelism), *_columns(Deployment)])
)


Bins = Annotated[Text, AfterValidator(_bins)]


def _unless_given(default: Any) -> BeforeValidator:
    """What an empty cell means."""
    return BeforeValidator(lambda value: default if value is None else value)


class RunRow(_Server):
    """A load stage of a measured run. Times in seconds, rates per second, lengths in tokens.

    Attributes:
        experiment: Name of the run.
        stage: Its number in the run; -1 for the run as a whole.
        model: Name or hub id of the model.
        hardware: Key of the GPU.
        tp: GPUs that share every layer, as in `physim.Parallelism`.
        pp: Stages of layers; 1 if not there.
        dp: Ranks of attention; 1 if not there.
        ep: GPUs over which experts are spread whole; 1 if not there.
        engine: The engine; the default one if not there.
        engine_version: Its version; the newest that is known if not there.
        max_num_seqs: Requests that run at once; the engine's default if not there.
        max_num_batched_tokens: Tokens of a step, likewise.
        max_model_len: Longest context, likewise.
        gpu_memory_utilization: Share of the memory that the engine may use, likewise.
        kv_cache_dtype: Number format of the KV cache; what the checkpoint says if not there.
        kv_blocks: KV blocks as the engine reported them; computed if not there.
        moe_kernel: Kernel of expert layers; what the engine prefers if not there.
        moe_activations: Activations beside mxfp4 experts; see `physim.Deployment`.
        expert_load: How unevenly tokens choose experts, likewise.
        all2all: How tokens reach the experts of other ranks, likewise.
        sampling: How tokens are drawn; see `physim.inputs.deployment.SAMPLINGS`.
        async_scheduling: Whether a step is scheduled while the one before it runs.
        stream_interval: Tokens of a message to a client; 1 if not there.
        receive_every: Steps that only decode between two looks at what has arrived; 1 if not there.
        mixed_chunk: Whether SGLang was told that prompts share steps; false if not there.
        draft: What proposes tokens, where decoding is speculative; see `physim.Deployment`.
        draft_tokens: Tokens that it proposes in each step.
        draft_acceptance: How many are accepted, likewise.
        draft_model: The draft's configuration, likewise.
        captured_tokens: Tokens of the largest step that is a CUDA graph; see `physim.Deployment`.
        prefill: The servers that compute prompts, where others decode: options that differ from
            those of the columns, and ``replicas``, as `physim.inputs.fleet.pool_text` writes them.
        decode: The servers that decode, likewise.
        replicas: Servers that are alike, behind a router, where there are several.
        router: How requests were spread over them, or over the servers of each kind; one of
            `physim.service.routers.ROUTERS`, in turn if not there.
        kv_host_bytes: The host's memory for KV blocks, of the whole server; none if not there.
        kv_host_bandwidth: At which they come up to each GPU, bytes/s; see `physim.Deployment`.
        kv_disk_bytes: A disk for them below it, of the whole server; none if not there.
        kv_disk_bandwidth: At which the whole of it is read, bytes/s; see `physim.Deployment`.
        kv_disk_write_bandwidth: At which it is written, likewise; no matter if not there.
        kv_disk_latency_s: Time until the first block is read, seconds; none if not there.
        prefix_caching: Whether prefixes are cached; they are if not there.
        prompt_groups: Groups of prompts that are sent again and again; 0 if all differ, or if not
            there.
        prompts_per_group: Different prompts of a group.
        arrival: How requests arrive: ``constant``, ``poisson``, ``gamma``, or ``trace:PATH`` as
            those of a trace, run faster or slower to come at the rate; means nothing of clients.
        burstiness: Shape of the times between ``gamma`` arrivals; see `physim.Load`.
        rate_rps: Requests per second; of clients what they achieved.
        duration_s: How long requests were sent.
        concurrency: Clients that send the next request when the last is answered.
        requests: Requests that the clients send.
        warm_up_s: Time that the first of them wait for the engine to warm up.
        lengths: A preset of `physim.RequestLengths` or the path of a trace or a table of requests,
            whose prompts, cached parts and outputs go together; they are then taken from it, the
            means below must be within a twentieth of its own, and spreads are not looked at. Paths,
            here and of ``arrival``, go from the folder of the table on.
        input_len_mean: Mean prompt.
        input_len_std: Standard deviation of the prompts.
        cached_len_mean: Mean tokens of a prompt that are found in the prefix cache; what the groups
            of prompts say if not there.
        output_len: Mean number of generated tokens.
        output_len_std: Standard deviation of the generated tokens.
        ttft_mean: Mean time to first token.
        e2e_mean: Mean time of a request.
        itl_mean: Mean time between tokens.
        ttft_bins: How many requests had a TTFT up to each of some ends, as
            `physim.measured.histogram.bins_in` reads them,
        itl_bins: likewise for the time from a token to the next,
        e2e_bins: and for that of a request.
        left_out: Why fits and errors leave the row out, if they do.
        n_success: Requests that were answered.
        n_failed: Requests that were not.
    """

    prefill: Annotated[Text, AfterValidator(_pool)] | None = None
    decode: Annotated[Text, AfterValidator(_pool)] | None = None
    replicas: Whole | None = None
    router: Annotated[Text, AfterValidator(_router)] | None = None
    prefix_caching: Annotated[bool, _unless_given(True)] = True
    prompt_groups: Annotated[Count, _unless_given(0)] = 0
    prompts_per_group: Whole | None = None
    arrival: Annotated[Text, AfterValidator(_arrival)]
    burstiness: Positive | None = None
    rate_rps: Positive
    duration_s: Positive
    concurrency: Length | None = None
    requests: Whole | None = None
    warm_up_s: Spread | None = None
    lengths: Text | None = None
    input_len_mean: Length
    input_len_std: Spread | None = None
    cached_len_mean: Spread | None = None
    output_len: Length
    output_len_std: Spread | None = None
    ttft_mean: Positive | None = None
    e2e_mean: Positive | None = None
    itl_mean: Positive | None = None
    ttft_bins: Bins | None = None
    itl_bins: Bins | None = None
    e2e_bins: Bins | None = None
    left_out: Text | None = None
    n_success: Count | None = None
    n_failed: Count | None = None

    @model_validator(mode="after")
    def _agrees(self) -> RunRow:
        ttft, e2e, itl = self.ttft_mean, self.e2e_mean, self.itl_mean
        if itl is None and (ttft is None or e2e is None) and not self.left_out:
            missing = "e2e_mean" if ttft is not None else "ttft_mean"
            raise disagreement(missing, "is empty", "give ttft_mean and e2e_mean, or itl_mean")
        if ttft is not None and e2e is not None:
            if e2e < ttft:
                raise disagreement(
                    "e2e_mean", f"{e2e:g} s is less than ttft_mean, {ttft:g} s", "correct them"
                )
            if e2e == ttft and self.output_len > 1:
                raise disagreement(
                    "e2e_mean", f"leaves no time for {self.output_len:g} tokens", "correct it"
                )
            if itl is None and self.output_len > 1:
                itl = (e2e - ttft) / decode_steps(self.output_len)
        if itl is not None and itl > _LONGEST_ITL_S:
            column = "itl_mean" if self.itl_mean is not None else "e2e_mean"
            raise disagreement(
                column,
                f"makes {itl:.3g} s a token",
                "times are in seconds, not milliseconds",
            )
        if self.n_success == 0:
            raise disagreement("n_success", "is 0 of a row with times", "correct it")
        if self.arrival == "gamma" and self.burstiness is None and self.concurrency is None:
            raise disagreement("burstiness", "is empty", "give the shape of the gamma arrivals")
        if self.arrival != "gamma" and self.burstiness is not None:
            raise disagreement(
                "burstiness",
                f"has no meaning for {self.arrival} arrivals",
                "leave it empty, or make them gamma",
            )
        if (self.prefill is None) != (self.decode is None):
            missing = "prefill" if self.prefill is None else "decode"
            raise disagreement(missing, "is empty", "say which servers there are of both kinds")
        if self.cached_len_mean is not None:
            if self.cached_len_mean >= self.input_len_mean:
                raise disagreement(
                    "cached_len_mean",
                    f"{self.cached_len_mean:g} leaves nothing of {self.input_len_mean:g} tokens",
                    "correct it",
                )
            if self.prompt_groups:
                raise disagreement(
                    "prompt_groups", "say what is cached, as cached_len_mean does", "set them to 0"
                )
        if self.prefill is not None and self.replicas is not None:
            problem = "are of servers that do both, and prefill and decode are given"
            raise disagreement("replicas", problem, "give them in each: tp=2,replicas=4")
        if self.lengths is not None and self.prompt_groups:
            raise disagreement(
                "prompt_groups", "say what is cached, as lengths do", "set them to 0"
            )
        return self


# What the stages of one run share: whatever does not say how much came, or what was measured.
_OF_A_STAGE = (
    *("stage", "rate_rps", "duration_s", "concurrency", "requests", "warm_up_s"),
    *("ttft_mean", "e2e_mean", "itl_mean", "ttft_bins", "itl_bins", "e2e_bins"),
    *("left_out", "n_success", "n_failed"),
)
COLUMNS = tuple(RunRow.model_fields)
REQUIRED = required(RunRow)
SHARED = tuple(name for name in COLUMNS if name not in _OF_A_STAGE)


def checked(rows: Sequence[Mapping[Any, Any]], place: Callable[[int], str]) -> list[RunRow]:
    """Rows with their values as they are meant: numbers, flags and text.

    Args:
        rows: Rows as they were read; what is not of `RunRow` is not looked at.
        place: Says where a row is, by its number.

    Raises:
        InputError: A value is missing, of another type or out of range, or contradicts another.
    """
    return [records.checked(RunRow, row, place(number)) for number, row in enumerate(rows)]
