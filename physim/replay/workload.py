"""Requests for a replay: drawn from a load, made of conversations, or read from a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from physim.errors import InputError
from physim.inputs.lengths import Tokens, lengths
from physim.inputs.load import Load
from physim.inputs.popularity import Popularity
from physim.inputs.request_traces import (
    BLOCK_TOKENS,
    ArrivedRequest,
    RecordedTurns,
    RequestTrace,
    is_own,
    prefix_lengths,
    read_turns,
)
from physim.printable import shown_fields
from physim.records import read_rows
from physim.replay.config import ReplayConfig
from physim.replay.conversations import first_turns, turn_prompts
from physim.replay.request import Request
from physim.replay.segment import Segment
from physim.service.phases import decode_steps
from physim.service.server import Server

# Of a request that is done, and the time: the request that follows from it, if any.
Follow = Callable[[Request, float], Request | None]


def _none(request: Request, now_s: float) -> None:  # noqa: ARG001
    return None


@dataclass
class Workload:
    """Requests, and those that follow when one is done.

    Attributes:
        requests: Those whose arrival is known from the start.
        follow: Called with each request that is done; what it returns arrives too.
        longest: Most tokens, prompt and output together, that a request may have.
    """

    requests: list[Request]
    longest: int
    follow: Follow = field(default=_none)

    @property
    def follows(self) -> bool:
        """Whether any request may follow from another."""
        return self.follow is not _none


def check_seed(seed: int) -> None:
    """Refuses a seed that no generator takes.

    Args:
        seed: Seed of a replay's requests.

    Raises:
        InputError: It is negative.
    """
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "use 0 or more")


def _generator(seed: int) -> np.random.Generator:
    check_seed(seed)
    return np.random.default_rng(seed)


# Segments of prefixes, by how many tokens they have and the prefix's number.
Prefixes = dict[tuple[int, int], tuple[Segment, ...]]


def drawn(
    load: Load, server: Server | ReplayConfig, seed: int, known: Prefixes | None = None
) -> Workload:
    """The requests of a load: arrivals and lengths drawn from a seeded generator.

    Of joint lengths each request is drawn as a whole, and its cached part is a prefix of its own
    that is in the cache whenever it starts: it takes KV blocks like the rest of the prompt, but no
    time. Recorded arrivals come as they were recorded, whatever the seed, and start over when they
    end, as they do with each stage. Where their lengths are of the same trace, each comes with its
    own; else what requests are drawn does not go by when they come. Neither goes by which prefix
    each has. Of conversations, a turn comes when the one before it was answered and the client has
    thought.

    Args:
        load: The load; it says how many requests there are.
        server: What serves them: requests that reach its max_model_len end there.
        seed: Seed of the generator; equal seeds give equal requests.
        known: Prefixes that other requests have, which these have too; theirs are added.

    Raises:
        InputError: The seed is negative.
    """
    max_model_len, block_size = server.sizes.max_model_len, server.kv.block_size
    rng = _generator(seed)
    if load.conversing:
        return _drawn_turns(load, max_model_len, block_size, rng)
    times, stages = _arrivals(load, rng)
    count = len(times)
    if load.lengths is not None:
        chosen = _numbers(stages) if load.recorded else None
        inputs, found, outputs = load.lengths.sample(rng, count, chosen)
        shared = 0
    else:
        outputs = lengths(load.output_tokens).sample(rng, count)
        shared, found = int(load.cached_tokens), np.zeros(count, np.int64)
        inputs = np.maximum(lengths(load.input_tokens).sample(rng, count), shared + 1)
    inputs = np.minimum(inputs, max_model_len - 1)
    outputs = np.minimum(outputs, max_model_len - inputs)
    which = Popularity.parse(load.popularity).drawn(rng, load.prefixes, count)
    known = {} if known is None else known
    for one in np.unique(which).tolist():
        if (shared, one) not in known:
            known[shared, one] = (Segment(0, shared, block_size),) if shared else ()
    columns = (own.tolist() for own in (times, inputs, outputs, stages, which, found))
    requests = [
        Request(number, arrival, prompt, output, stage, known[shared, prefix], None, own)
        for number, (arrival, prompt, output, stage, prefix, own) in enumerate(
            zip(*columns, strict=True)
        )
    ]
    longest = int(np.max(inputs + outputs, initial=0))
    if load.concurrency is None:
        return Workload(requests, longest)
    # A mean number of clients is about as many.
    clients = max(math.floor(load.concurrency + 0.5), 1)
    rest = iter(requests[clients:])
    thinks = _thinks(load, rng, count)

    def next_of_client(_: Request, now_s: float) -> Request | None:
        following = next(rest, None)
        if following is not None:
            following.arrival_s = now_s + thinks[following.number]
        return following

    return Workload(requests[:clients], longest, next_of_client)


def drawn_windows(
    windows: Sequence[tuple[float, Load]], server: Server | ReplayConfig, seed: int
) -> Workload:
    """The requests of loads that follow one another, with the window that each is of as its stage.

    Prefixes that loads have in common are the same.

    Args:
        windows: When each load begins, seconds, and the load.
        server: See `drawn`.
        seed: Likewise.

    Raises:
        InputError: The seed is negative.
    """
    check_seed(seed)
    known: Prefixes = {}
    requests: list[Request] = []
    for place, (start_s, load) in enumerate(windows):
        # Windows that are alike have different requests.
        (word,) = np.random.SeedSequence((seed, place)).generate_state(1).tolist()
        for one in drawn(load, server, word, known).requests:
            one.number, one.stage = len(requests), place
            one.arrival_s += start_s
            requests.append(one)
    longest = max((one.input_tokens + one.output_tokens for one in requests), default=0)
    return Workload(requests, longest)


def _thinks(load: Load, rng: np.random.Generator, count: int) -> list[float]:
    """How long is thought before each request that follows another, seconds."""
    thinks: list[float] = rng.exponential(load.think_s, count).tolist()
    return thinks


def _drawn_turns(
    load: Load, max_model_len: int, block_size: int, rng: np.random.Generator
) -> Workload:
    """The turns of conversations; see `drawn`.

    Each turn is sent when the one before it was answered and the client has thought. Conversations
    begin as the load says, so that in the long run as many turns come as its rate; clients have one
    after the other.

    Args:
        load: The load.
        max_model_len: Tokens that a request has at most.
        block_size: Tokens of a KV block.
        rng: Where chance comes from.
    """
    count = load.requests or int(load.concurrency or 0)
    firsts = first_turns(rng, load.turns, count)
    outputs = lengths(load.output_tokens).sample(rng, count)
    shared = int(load.cached_tokens)
    new = np.maximum(lengths(load.input_tokens).sample(rng, count) - shared, 1)
    thinks = _thinks(load, rng, count)
    begins = np.zeros(len(firsts))
    if load.rate is not None:
        rate = load.rate / load.turn_sample.mean_turns
        own = replace(load, turns=1.0, think_s=0.0, rate=rate, requests=len(firsts))
        begins, _ = _arrivals(own, rng)
    system = (Segment(0, shared, block_size),) if shared else ()
    both, ends = list(zip(new.tolist(), outputs.tolist(), strict=True)), [*firsts[1:], count]
    requests: list[Request] = []
    for talk, (first, end) in enumerate(zip(firsts.tolist(), ends, strict=True)):
        turns = turn_prompts(system, shared, both[first:end], max_model_len, block_size)
        requests += [
            Request(number, 0.0, prompt, answer, path=path, conversation=talk)
            for number, (prompt, answer, path) in enumerate(turns, first)
        ]
    for first, begin in zip(firsts.tolist(), begins.tolist(), strict=True):
        requests[first].arrival_s = begin
    clients = len(firsts) if load.concurrency is None else int(load.concurrency)
    rest = iter(firsts[clients:].tolist())

    def next_turn(request: Request, now_s: float) -> Request | None:
        place = request.number + 1
        if place == count or requests[place].conversation != request.conversation:
            place = next(rest, -1)
        if place < 0:
            return None
        following = requests[place]
        following.arrival_s = now_s + thinks[place]
        return following

    longest = max(request.input_tokens + request.output_tokens for request in requests)
    return Workload([requests[first] for first in firsts[:clients]], longest, next_turn)


def _arrivals(load: Load, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Times of arrival, seconds, and the stage of each; all at once in a closed loop."""
    if load.concurrency is not None:
        count = load.requests or int(load.concurrency)
        return np.zeros(count), np.zeros(count, np.int64)
    times, stages, start = [], [], 0.0
    for number, stage in enumerate(load.schedule()):
        if load.dispersion is not None:
            own = load.dispersion.at_rate(stage.rate)
            ends = own.first(load.requests) if load.requests else own.before(stage.duration_s)
        elif load.arrival == "constant":
            count = round(stage.rate * stage.duration_s)
            gaps = np.full(count, 1 / stage.rate)
            ends = np.cumsum(gaps) - 1 / stage.rate
        else:
            shape = 1.0 if load.arrival == "poisson" else load.burstiness
            mean = stage.rate * stage.duration_s
            enough = math.ceil(mean + 10 * math.sqrt(mean / shape) + 10 / shape + 10)
            ends = np.cumsum(rng.gamma(shape, 1 / (stage.rate * shape), enough))
            # A finite count is sent in full, however long that takes.
            ends = ends[: load.requests] if load.requests else ends[ends < stage.duration_s]
        times.append(start + ends)
        stages.append(np.full(len(ends), number))
        start += stage.duration_s
    return np.concatenate(times), np.concatenate(stages)


def _numbers(stages: np.ndarray) -> np.ndarray:
    """The number of each request in its own stage, with which a record starts over."""
    return np.arange(len(stages)) - np.searchsorted(stages, stages)


@dataclass(frozen=True)
class Conversations:
    """Users in groups that share a system prompt and send turn after turn.

    The multi-turn chat of inference-perf's shared-prefix load: turns are sent at a rate, to each
    user in turn; a turn's prompt is all that was said before and the user's question; a turn that
    is due while its user's last one is still being answered waits for the answer.

    Attributes:
        groups: System prompts.
        users_per_group: Users of each.
        system_tokens: Length of a system prompt, tokens.
        question_tokens: Length of questions, tokens.
        output_tokens: Length of answers, tokens.
        rate: Turns per second.
        turns: Turns in all.
        max_model_len: A conversation whose next turn would be longer starts afresh.

    Raises:
        InputError: A figure is not positive, or a first turn is longer than ``max_model_len``.
    """

    groups: int
    users_per_group: int
    system_tokens: int
    question_tokens: Tokens
    output_tokens: Tokens
    rate: float
    turns: int
    max_model_len: int

    def __post_init__(self) -> None:
        for name in ("groups", "users_per_group", "rate", "turns", "max_model_len"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(name, f"{value} is not positive", "correct it")
        if self.system_tokens < 0:
            raise InputError("system_tokens", f"{self.system_tokens} is negative", "correct it")

    def workload(self, block_size: int, seed: int) -> Workload:
        """The turns as a workload.

        Raises:
            InputError: A first turn is longer than ``max_model_len``.
        """
        rng = _generator(seed)
        users = self.groups * self.users_per_group
        questions = lengths(self.question_tokens).sample(rng, users).tolist()
        outputs = lengths(self.output_tokens).sample(rng, self.turns).tolist()
        systems = [Segment(0, self.system_tokens, block_size) for _ in range(self.groups)]
        said = [[systems[user % self.groups]] for user in range(users)]
        tokens = [self.system_tokens] * users
        due: list[list[int]] = [[] for _ in range(users)]
        longest = 0

        def next_request(number: int, user: int, arrival_s: float) -> Request:
            nonlocal longest
            if tokens[user] + questions[user] + outputs[number] > self.max_model_len:
                said[user], tokens[user] = said[user][:1], self.system_tokens
            prompt, output = tokens[user] + questions[user], outputs[number]
            if prompt + output > self.max_model_len:
                raise InputError(
                    "conversations",
                    f"a first turn of {prompt + output} tokens exceeds {self.max_model_len}",
                    "shorten it or raise max_model_len",
                )
            longest = max(longest, prompt + output)
            # The last token of an answer is never computed, so its block may not be full.
            start = said[user][-1].end * block_size
            segment = Segment(start, prompt + decode_steps(output), block_size)
            said[user], tokens[user] = [*said[user], segment], prompt + output
            return Request(number, arrival_s, prompt, output, path=said[user], conversation=user)

        def following(request: Request, now_s: float) -> Request | None:
            user = request.conversation
            assert user is not None
            if not due[user]:
                return None
            number = due[user].pop(0)
            return next_request(number, user, max(number / self.rate, now_s))

        for number in range(self.turns):
            due[number % users].append(number)
        first = [next_request(due[u].pop(0), u, u / self.rate) for u in range(users) if due[u]]
        return Workload(first, self.max_model_len if self.turns > users else longest, following)

    def __repr__(self) -> str:
        return shown_fields(self)


def read_trace(path: Path, block_size: int) -> Workload:
    """The requests of a recorded trace.

    Args:
        path: A trace of the Azure public dataset or of Mooncake (see
            `physim.inputs.request_traces.read_requests`), or a CSV with the columns ``arrival_s``
            (seconds), ``input_tokens`` and ``output_tokens``; optional are ``prefix_group``
            (requests of a group share a prefix; empty for none) and ``prefix_tokens`` (its length;
            without this column, the shortest prompt of the group), or ``cached_tokens`` (found in
            the cache by this request alone).
        block_size: Tokens of a KV block.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds a value that cannot be used.
    """
    if not is_own(path):
        return _published(read_turns(path, arrivals=True), block_size)
    rows = sorted(
        (row for _, row in read_rows(ArrivedRequest, path)), key=lambda row: row.arrival_s
    )
    prefixes = {
        group: [Segment(0, tokens, block_size)]
        for group, tokens in prefix_lengths(rows, str(path)).items()
    }
    requests = [
        Request(
            number,
            row.arrival_s,
            row.input_tokens,
            row.output_tokens,
            path=[] if row.prefix_group is None else prefixes[row.prefix_group],
            prefix_tokens=row.cached_tokens or 0,
        )
        for number, row in enumerate(rows)
    ]
    return Workload(requests, max(r.input_tokens + r.output_tokens for r in requests))


def _published(trace: RequestTrace, block_size: int) -> Workload:
    """The requests of a trace; those whose prompts begin with the same blocks share these.

    A turn shares what the turn before it leaves, its answer included.
    """
    assert trace.arrival_s is not None
    known: dict[tuple[int, int], Segment] = {}
    columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens)
    requests: list[Request] = []
    for number, (arrival, prompt, output) in enumerate(zip(*columns, strict=True)):
        path: list[Segment] = []
        for place, block in enumerate(trace.blocks[number] if trace.blocks else ()):
            start = place * BLOCK_TOKENS
            if (place, block) not in known:
                end = min(start + BLOCK_TOKENS, int(prompt))
                known[place, block] = Segment(start, max(end, start), block_size)
            path.append(known[place, block])
        requests.append(Request(number, float(arrival), int(prompt), int(output), path=path))
    longest = max(one.input_tokens + one.output_tokens for one in requests)
    if trace.turns is None:
        return Workload(requests, longest)
    return _followed(requests, trace.turns, longest, block_size)


def _followed(
    requests: Sequence[Request], turns: RecordedTurns, longest: int, block_size: int
) -> Workload:
    """Requests of which each comes after the answer to another, but for those that come first.

    Args:
        requests: The requests.
        turns: How they follow one another.
        longest: Most tokens of one of them.
        block_size: Tokens of a KV block.
    """
    following: dict[int, int] = {}
    for number, before in enumerate(turns.after.tolist()):
        request = requests[number]
        if before != number:
            following[before] = number
            earlier = requests[before]
            if request.path:
                # Its blocks tell what the answer before it is made of.
                earlier.path = request.path
            else:
                request.path = earlier.path
        start = request.path[-1].end * block_size if request.path else 0
        end = request.input_tokens + request.decode_steps
        request.path = (*request.path, Segment(start, max(start, end), block_size))
    delays, arrivals = turns.delay_s.tolist(), [one.arrival_s for one in requests]

    def next_turn(request: Request, now_s: float) -> Request | None:
        number = following.get(request.number)
        if number is None:
            return None
        delay, later = delays[number], requests[number]
        later.arrival_s = max(arrivals[number], now_s) if math.isnan(delay) else now_s + delay
        return later

    first = [own for own, before in zip(requests, turns.after, strict=True) if own.number == before]
    return Workload(first, longest, next_turn)
