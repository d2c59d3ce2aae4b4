"""A vLLM V1 engine walked step by step, every KV block and its content spelled out.

Written apart from the replay, as plainly as possible, to hold the replay against.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Job:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    content: tuple[int, ...]  # what each token of prompt and output is
    computed: int = 0
    generated: int = 0
    decodes: bool = False
    target: int = 0
    blocks: list[int] = field(default_factory=list)
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    preemptions: int = 0
    cached_tokens: int = 0


class Pool:
    """KV blocks by number, the unused ones in the order in which they are taken."""

    def __init__(self, count, size):
        self.size = size
        self.unused = deque(range(count))
        self.users = [0] * count
        self.content = [None] * count  # the tokens up to a block's end, once it is full
        self.block_of = {}

    def find(self, content, most):
        found = []
        for number in range(most):
            block = self.block_of.get(content[: (number + 1) * self.size])
            if block is None:
                break
            found.append(block)
        return found

    def touch(self, blocks):
        for block in blocks:
            if not self.users[block]:
                self.unused.remove(block)
            self.users[block] += 1

    def take(self, count):
        taken = [self.unused.popleft() for _ in range(count)]
        for block in taken:
            if self.block_of.get(self.content[block]) == block:
                del self.block_of[self.content[block]]
            self.content[block] = None
            self.users[block] = 1
        return taken

    def fill(self, job, tokens, caching):
        for number in range(tokens // self.size):
            block, content = job.blocks[number], job.content[: (number + 1) * self.size]
            if caching and self.content[block] is None and content not in self.block_of:
                self.content[block] = content
                self.block_of[content] = block

    def give_up(self, blocks):
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.unused.append(block)


def walk(jobs, seconds, slots, budget, blocks, size, ahead, caching, whole=False):
    """Runs jobs; ``seconds`` takes new and cached tokens of a step's jobs, and if they decode."""
    pool = Pool(blocks, size)
    coming = deque(sorted(jobs, key=lambda job: job.arrival_s))
    waiting, running, done = deque(), [], []
    now, began = 0.0, None

    def blocks_for(tokens):
        return -(-tokens // size)

    def preempt():
        job = running.pop()
        pool.give_up(job.blocks)
        job.blocks, job.computed = [], 0
        job.target = job.input_tokens + job.generated
        job.preemptions += 1
        job.decodes = False
        waiting.appendleft(job)
        return job

    def release():
        for job in done:
            pool.give_up(job.blocks)
        done.clear()

    while True:
        known = began if ahead and began is not None else now
        while coming and coming[0].arrival_s <= known:
            waiting.append(coming.popleft())
            waiting[-1].target = waiting[-1].input_tokens
        if known == now:
            release()
        left, step, preempted = budget, [], False
        index = 0
        while index < len(running) and left > 0:
            job = running[index]
            new = min(job.target - job.computed, left)
            need = blocks_for(job.computed + new) - len(job.blocks)
            lost = None
            while need > len(pool.unused) and lost is not job:
                lost, preempted = preempt(), True
            if lost is job:
                break
            job.blocks += pool.take(need)
            pool.fill(job, job.computed + new, caching)
            step.append((job, new))
            left -= new
            index += 1
        while waiting and left > 0 and not preempted and len(running) + len(done) < slots:
            job = waiting[0]
            most = (job.target - 1) // size
            found = pool.find(job.content[: job.target], most) if caching else []
            new = min(job.target - len(found) * size, left)
            need = blocks_for(len(found) * size + new) - len(found)
            fresh = sum(not pool.users[block] for block in found)
            asked = blocks_for(job.target) - len(found) if whole else need
            if asked + fresh > len(pool.unused):
                break
            waiting.popleft()
            running.append(job)
            pool.touch(found)
            job.computed = len(found) * size
            job.blocks = found + pool.take(need)
            pool.fill(job, job.computed + new, caching)
            if job.scheduled_s is None:
                job.scheduled_s, job.cached_tokens = now, job.computed
            step.append((job, new))
            left -= new
        pending = bool(done)
        release()
        if not step:
            if waiting and pending:
                began = None
                continue
            if not coming:
                return now
            now, began = max(now, coming[0].arrival_s), None
            continue
        began = now
        now += seconds([(new, job.computed, job.decodes) for job, new in step])
        for job, new in step:
            job.computed += new
            if job.computed == job.target:
                job.generated += 1
                job.decodes = True
                job.target += 1
                if job.first_token_s is None:
                    job.first_token_s = now
                if job.generated == job.output_tokens:
                    job.finished_s = now
                    running.remove(job)
                    done.append(job)
