"""Many clients at once of ``physim serve``: answers, times, and memory from beginning to end.

Usage: python benchmarks/serve.py --clients 200 --seconds 60 --workers 2; prints Markdown tables.
Each client asks again when it is answered: a prediction, steps, or something that cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

CASE = {"model": "Qwen/Qwen3-14B", "gpu": "h100_sxm", "tp": 2}
LOAD = {"input_tokens": 786, "output_tokens": 251}
BATCHES = {"decode_requests": [1 + row % 256 for row in range(1000)], "context": 800}


class Question(NamedTuple):
    """What a client asks, and the status that is right."""

    name: str
    place: str
    body: str
    status: int


def question(number: int) -> Question:
    """One of four kinds, by turns."""
    kind = number % 4
    if kind == 0:
        body = {**CASE, **LOAD, "rate": 1 + number % 50 / 10}
        return Question("a prediction", "/predict", json.dumps(body), 200)
    if kind == 1:
        body = {**CASE, **LOAD, "rate": -1}
        return Question("a rate below zero", "/predict", json.dumps(body), 422)
    body = {**CASE, "batches": BATCHES}
    return Question("1,000 steps", "/step", json.dumps(body), 200)


class Connection:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Connection:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, place: str, body: str) -> int:
        """The status of the answer."""
        head = f"POST {place} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())
        said = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(said.partition("content-length: ")[2].partition("\r")[0])
        await self.reader.readexactly(length)
        return int(said.split()[1])


def memory(process: int) -> float:
    """Memory of a process and of those that it started, MB."""
    found = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(process) in (fields["Pid"], fields["PPid"]) and "VmRSS" in fields:
            found += int(fields["VmRSS"].split()[0]) / 1e3
    return found


async def under_load(port: int, process: int, clients: int, seconds: float) -> None:
    """Prints what clients see in some seconds."""
    times: dict[str, list[float]] = defaultdict(list)
    wrong = 0
    async with Connection(port) as one:
        for number in range(4):
            await one.ask(*question(number)[1:3])
        alone = []
        for _ in range(50):
            begun = time.perf_counter()
            await one.ask(*question(2)[1:3])
            alone.append(time.perf_counter() - begun)
    end = time.monotonic() + seconds

    async def client(own: int) -> None:
        nonlocal wrong
        async with Connection(port) as connection:
            number = own
            while time.monotonic() < end:
                asked = question(number)
                begun = time.perf_counter()
                wrong += await connection.ask(asked.place, asked.body) != asked.status
                times[asked.name].append(time.perf_counter() - begun)
                number += clients + 1

    async def watch() -> list[float]:
        found = []
        while time.monotonic() < end:
            await asyncio.sleep(seconds / 6)
            found.append(memory(process))
        return found

    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(client, range(clients)))
    watched = await watching
    print(f"1,000 steps to one client: {1e3 * statistics.median(alone):.1f} ms (median of 50)\n")
    print("| asked | answers | 1/s | median, s | 99%, s |\n| --- | --- | --- | --- | --- |")
    for name, own in times.items():
        middle, last = statistics.median(own), statistics.quantiles(own, n=100)[-1]
        print(f"| {name} | {len(own)} | {len(own) / seconds:.1f} | {middle:.2f} | {last:.2f} |")
    print(f"\nWrong answers: {wrong}. Memory of all processes, MB: ", end="")
    print(", ".join(f"{one:.0f}" for one in watched))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    told = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = "from physim.cli import main; main()"
    words = ["serve", "--port", str(port), "--workers", str(told.workers)]
    with subprocess.Popen([sys.executable, "-c", program, *words]) as server:
        time.sleep(2)
        asyncio.run(under_load(port, server.pid, told.clients, told.seconds))
        server.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
