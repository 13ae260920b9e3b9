"""Predictions at a steady rate while a test does something to the cluster, and what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from tests.load import Answer, Client, drive

# A request that hangs longer is given up by its client.
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: when it was due, and when its answer came, in seconds since the load began."""

    due: float
    done: float
    status: int
    text: str


@dataclass
class LoadRecord:
    """What came of a load; filled when it has ended."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failed(self) -> Sequence[Outcome]:
        return [one for one in self.outcomes if one.status != 200]

    @property
    def longest_gap(self) -> float:
        """The longest time without a good answer."""
        times = sorted(one.done for one in self.outcomes if one.status == 200)
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def describe(self) -> str:
        """For the report: counts, latencies and the longest gap."""
        waits = sorted(one.done - one.due for one in self.outcomes if one.status == 200)
        middle, most = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
        return (
            f"{len(self.outcomes)} requests, {len(self.failed)} failed, p50 {1000 * middle:.1f} ms, p99 "
            f"{1000 * most:.0f} ms, longest gap {self.longest_gap:.2f} s"
        )


@dataclass(frozen=True)
class Load:
    """`connections` clients, which keep their connections, ask `rate` times a second in all."""

    url: str
    name: str
    rate: float
    headers: Mapping[str, str]


@contextlib.contextmanager
def under_load(load: Load) -> Iterator[LoadRecord]:
    """Ask for the time of the block, from a process of its own: a busy test must not delay it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(load, theirs), daemon=True)
    process.start()
    record = LoadRecord()
    try:
        assert ours.recv() == "asking"
        yield record
        ours.send("stop")
        record.outcomes += ours.recv()
    finally:
        process.kill()
        process.join()


def measure_capacity(load: Load, users: int = 16, seconds: float = 3.0) -> float:
    """Requests per second that are answered when as many are asked as possible."""

    async def main() -> float:
        client = Client(load.url, load.name, headers=load.headers)
        answers = await client.saturate(users, seconds, lambda number: [[float(number % 2)]])
        client.close()
        assert all(answer.status == 200 for answer in answers)
        return len(answers) / seconds

    rate: float = drive(main())
    return rate


def _run(load: Load, pipe: Connection) -> None:
    drive(_ask(load, pipe))


async def _ask(load: Load, pipe: Connection) -> None:
    client = Client(load.url, load.name, timeout=_TIMEOUT, headers=load.headers)
    outcomes: list[Outcome] = []
    start = time.perf_counter()

    async def ask(due: float) -> None:
        answer: Answer = await client.ask([[1.0]], start + due)
        text = "" if answer.status == 200 else answer.body.decode(errors="replace")
        outcomes.append(Outcome(due, time.perf_counter() - start, answer.status, text))

    pipe.send("asking")
    async with asyncio.TaskGroup() as tasks:
        number = 0
        while not pipe.poll():
            due = number / load.rate
            await asyncio.sleep(max(0.0, due - (time.perf_counter() - start)))
            tasks.create_task(ask(due))
            number += 1
    pipe.send(outcomes)
