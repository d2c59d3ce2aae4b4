"""Processes that answer: what takes too long or too much memory ends with its process."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from physim.errors import InputError
from physim.http.bounds import Bounds
from physim.http.replies import BUSY, Reply, refusal, reply

_SPAWN = multiprocessing.get_context("spawn")


def _work(pipe: Connection, bounds: Bounds) -> None:
    """Answers what comes through a pipe until it is closed."""
    # Whoever stops the server from a terminal has it stop the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (bounds.memory_bytes, bounds.memory_bytes))
    # A name that ships with physim is no folder of where the server was started.
    os.chdir("/")
    # What is imported now need not be when somebody waits.
    import physim.http.verbs  # noqa: F401

    pipe.send((0, b""))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            place, body = pipe.recv()
            pipe.send(tuple(reply(place, body, bounds)))


class _Worker:
    """A process that answers one body after the other."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds, self._is_stopped = bounds, False
        self._start()

    def _start(self) -> None:
        self._pipe, other = _SPAWN.Pipe()
        self._process: BaseProcess = _SPAWN.Process(
            target=_work, args=(other, self._bounds), daemon=True
        )
        self._process.start()
        other.close()
        self._is_ready = False

    def answer(self, place: str, body: bytes) -> Reply:
        """The answer to a body; waits for it.

        Args:
            place: Where it was sent.
            body: The body.
        """
        try:
            if not self._is_ready:
                # It is still importing, which is no part of the work.
                self._pipe.recv()
                self._is_ready = True
            self._pipe.send((place, body))
            if self._pipe.poll(self._bounds.seconds):
                return Reply(*self._pipe.recv())
            problem = f"takes more than {self._bounds.seconds:g} s"
        except (EOFError, OSError):
            problem = "asks for more than a worker has"
        if self._is_stopped:
            return refusal(BUSY, InputError("server", "is stopping", "ask another"))
        self._end()
        self._start()
        return refusal(BUSY, InputError("body", problem, "ask for less"))

    def stop(self) -> None:
        """Ends the process for good, whatever it works on."""
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Workers:
    """Processes that answer, and a line of those who wait for them.

    Attributes:
        bounds: How much may be asked for.
        waiting: Requests that wait or are worked on.
    """

    def __init__(self, number: int, bounds: Bounds) -> None:
        """Starts them.

        Args:
            number: How many.
            bounds: How much may be asked for.
        """
        self.bounds, self.waiting = bounds, 0
        self._workers = [_Worker(bounds) for _ in range(number)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._threads = ThreadPoolExecutor(number)

    async def answer(self, place: str, body: bytes) -> Reply:
        """The answer to a body, once a worker is idle.

        Args:
            place: Where it was sent.
            body: The body.
        """
        if self.waiting >= self.bounds.waiting:
            error = InputError("server", "is busy", "try again in a second")
            return refusal(BUSY, error)
        self.waiting += 1
        try:
            worker = await self._idle.get()
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, worker.answer, place, body)
            # A client that goes away leaves a worker that is still busy.
            work.add_done_callback(lambda _: self._idle.put_nowait(worker))
            return await asyncio.shield(work)
        finally:
            self.waiting -= 1

    def stop(self) -> None:
        """Ends the processes."""
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
