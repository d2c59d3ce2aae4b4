"""A case of pools apart as arrays, whose latencies are differentiable."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from physim.batching.demand import Demand
from physim.batching.prompt_caches import PromptCaches
from physim.batching.prompt_chunks import Chunks
from physim.batching.room_ahead import RoomAhead
from physim.corrections.fields import Corrections
from physim.errors import InputError
from physim.fluid.passage import ALONE_RPS, Passage
from physim.fluid.pools import (
    Evictions,
    PoolsState,
    Replicas,
    ReturningClients,
    pools_state,
)
from physim.fluid.prompt_queue import KnownSteps
from physim.inputs.case import Case
from physim.prediction.arrays import CaseArrays, row_of
from physim.pytree import Pytree
from physim.service.phases import DECODE, PREFILL
from physim.service.server import Server
from physim.service.service import Pool
from physim.step.batch import Batch
from physim.step.lowering import lower
from physim.types import Scalar

# Slots for each client at which none waits for one, though they come by chance.
_MORE_SLOTS = 16


def known_steps(case: Case) -> KnownSteps | None:
    """Steps of a server that computes prompts, from one for each rank to as many as have room.

    Of a prompt of ``n`` tokens that the end of a full step cuts anywhere, a sixth of ``n ** 2`` is
    the mean product of what is computed and what was before; as much twice is missing of the
    squares.

    Args:
        case: The server and its prompts.

    Returns:
        None where prompts fill several steps, or several steps are under way, or a step may not
        have as many prompts as it has room for.
    """
    server, moments = case.server, case.demanded.moments()
    budget, ranks = float(server.sizes.max_num_batched_tokens), server.parallelism.dp
    count, square = budget / moments.new, moments.new**2 * (1.0 + moments.new_cv2)
    # A request holds its slot until the step after is formed.
    slots = server.sizes.max_num_seqs / (1 + server.policy.async_scheduling)
    if count < 1.0 or server.parallelism.pp > 1 or slots < count:
        return None
    # A step lasts as long as that of the rank that has most to compute: the longest prompt, or of
    # the sums of several the largest. In a full step all ranks compute as much.
    parts = Demand.from_load(case.demanded, server.kv.block_size).parts
    (longest,) = Chunks.in_room(parts, budget).longest_of(np.array([float(ranks)])).tolist()
    each = np.array([1.0, math.sqrt(count)])
    more = (longest - moments.new) * np.sqrt(each)
    tokens = np.append(np.minimum(each * moments.new + more, budget), budget)
    squares = np.append(each * square * (tokens[:2] / each / moments.new) ** 2, count * square)
    steps = np.append(each, count)
    # Its last prompt is cut.
    cut = np.array([0.0, 0.0, 1.0])
    batches = Batch(
        decode_requests=np.zeros(3),
        query_tokens=np.ones(3),
        attended=np.zeros((3, len(lower(server).windows))),
        prefill_requests=steps + cut,
        prefill_tokens=tokens,
        prefill_squares=squares - cut * square / 3.0,
        cached_tokens=steps * moments.cached + cut * moments.new / 2.0,
        cached_products=tokens * moments.cached + cut * square / 6.0,
        elsewhere=np.zeros(3),
        prompts_elsewhere=(ranks - 1) * steps * moments.new,
    )
    return KnownSteps(ranks * steps, batches)


def clients_of_rank(case: Case, pool: Pool) -> int:
    """Clients of a data-parallel rank of a pool, were all of them there at once.

    Args:
        case: The case.
        pool: The pool.
    """
    return math.ceil(
        (case.demanded.concurrency or 0.0) / pool.replicas / pool.server.parallelism.dp
    )


def with_slots(server: Server, requests: int) -> Server:
    """A server whose ranks have slots for so many requests, however these come.

    Args:
        server: The server.
        requests: How many of each rank.
    """
    slots = max(server.sizes.max_num_seqs, _MORE_SLOTS * requests)
    return replace(server, sizes=replace(server.sizes, max_num_seqs=slots))


def slots_of(pool: Pool) -> int:
    """Requests that all servers of a pool let run.

    Args:
        pool: The pool.
    """
    server = pool.server
    return pool.replicas * server.parallelism.dp * server.sizes.max_num_seqs


class MissedTurns(Pytree):
    """Turns of conversations whose prompts before may be evicted, as numbers.

    Attributes:
        prompts: A server that computes prompts, and turns that find none of those before.
        known_steps: Steps of it; None where none is known.
        caches: What servers keep.
        cv2: Squared coefficient of variation of the tokens that are computed of prompts.
        longer: How many times as many these are as where all is found, mean.
    """

    prompts: CaseArrays
    known_steps: KnownSteps | None
    caches: PromptCaches
    cv2: Scalar
    longer: Scalar


class ApartArrays(Pytree):
    """A case of pools apart as numbers.

    Attributes:
        prompts: A server that computes prompts, and its requests.
        answers: A server that generates, and its requests.
        servers: Servers that compute prompts, and that generate.
        passage: What is between them.
        rate: Requests per second that come.
        known_steps: Steps of a server that computes prompts; None where none is known.
        clients: Who sends the requests, if they come at no rate.
        missed: What becomes of turns of conversations, if they are.
        room: What the second pool makes room in before prompts are computed, if it does.
    """

    prompts: CaseArrays
    answers: CaseArrays
    servers: tuple[Scalar, Scalar]
    passage: Passage
    rate: Scalar
    known_steps: KnownSteps | None
    clients: ReturningClients | None
    missed: MissedTurns | None = None
    room: RoomAhead | None = None

    @classmethod
    def from_case(cls, case: Case) -> ApartArrays:
        """The case as numbers.

        Args:
            case: Pools apart, and a load that stays: a rate without end, or clients.

        Raises:
            InputError: Its service has one pool.
        """
        service, load = case.service, case.demanded
        if service.link is None or len(service.pools) == 1:
            raise InputError(
                "service", "has one pool", "give one that computes prompts for another"
            )
        first, second = (service.pool_of(phase) for phase in (PREFILL, DECODE))
        opened = replace(case, load=load.in_open_loop(ALONE_RPS))
        prompts, answers = opened.of_pool(first), opened.of_pool(second)
        if load.concurrency is not None:
            many = with_slots(second.server, clients_of_rank(case, second))
            answers = answers.with_server(many)
        transfer, moments = service.link.transfer(first.server, second.server), load.moments()
        computed = prompts.demanded
        passage = Passage(
            tokens=load.mean_input,
            token_s=transfer.per_token_s,
            latency_s=transfer.latency_s,
            while_computed=transfer.while_computed,
            first_token_comes=float(second.server.policy.hands_first_token),
            arrival_cv2=computed.arrival_cv2,
            prompt_cv2=computed.moments().new_cv2,
        )
        clients = None
        if load.concurrency is not None:
            clients = ReturningClients(
                count=float(load.concurrency),
                think_s=load.think_s,
                first_share=min(load.concurrency / (load.requests or math.inf), 1.0),
                answer_cv2=moments.output_cv2,
                slots=float(slots_of(second)),
                turns=load.turn_sample.mean_turns if load.conversing else 1.0,
            )
        own = [prompts, answers]
        if load.conversing:
            own.append(opened.of_pool(first, 0.0))
        if prompts.structure == answers.structure:
            # Of one shape, so that all are compiled once.
            every = CaseArrays.from_cases(own)
            arrays = [row_of(every, row) for row in range(len(own))]
        else:
            arrays = [row_of(CaseArrays.from_cases([one]), 0) for one in own]
        missed = None
        if load.conversing:
            most, least = own[2].demanded.moments(), computed.moments()
            missed = MissedTurns(
                prompts=arrays[2],
                known_steps=known_steps(own[2]),
                caches=PromptCaches.of_pool(first, load, service.router),
                cv2=most.new_cv2,
                longer=most.new / least.new,
            )
        return cls(
            prompts=arrays[0],
            answers=arrays[1],
            servers=(float(first.replicas), float(second.replicas)),
            passage=passage,
            rate=float(load.rate or ALONE_RPS),
            known_steps=known_steps(prompts),
            clients=clients,
            missed=missed,
            room=RoomAhead.of_pool(second, load),
        )

    def state(self, corrections: Corrections) -> PoolsState:
        """The steady state, under corrections that both pools have.

        Args:
            corrections: Corrections of the components.
        """
        prompts, answers = (
            Replicas(one.model(corrections), one.demand, one.limits, count)
            for one, count in zip((self.prompts, self.answers), self.servers, strict=True)
        )
        evictions = None
        if self.missed is not None:
            own = self.missed.prompts
            evictions = Evictions(
                missed=Replicas(own.model(corrections), own.demand, own.limits, self.servers[0]),
                known_steps=self.missed.known_steps,
                caches=self.missed.caches,
                missed_cv2=self.missed.cv2,
                longer=self.missed.longer,
            )
        return pools_state(
            prompts,
            answers,
            self.passage,
            self.rate,
            self.known_steps,
            self.clients,
            evictions,
            self.room,
        )
