"""Loads many versions at a steady rate, whether they keep up or not: a connection for each.

    python -m loadtests.bench.load_clients.steady_client URL TARGETS BODIES RATE SECONDS

TARGETS is a file with a path on each line, BODIES one with a body on each. RATE is that of all requests
together, per second. What comes late because the answer before it did counts from when it was due. It prints
one line of JSON, with the microseconds of every request.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from loadtests.bench.load_clients.python_client import LoadConnection, LoadOutcome, RequestRotation

_GRACE_SECONDS = 20.0


class SteadyConnection(LoadConnection):
    """Sends a request every `interval` seconds from the time `first` on, on `time.perf_counter`."""

    def __init__(
        self, requests: RequestRotation, outcome: LoadOutcome, end: float, *, first: float, interval: float
    ) -> None:
        super().__init__(requests, outcome, end)
        self._due = first
        self._interval = interval

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._schedule_request()

    def _send_next(self, now: float) -> None:
        self._due += self._interval
        if now < self._due:
            self._schedule_request()
        else:
            self._send_request()
            self._sent = self._due

    def _schedule_request(self) -> None:
        asyncio.get_running_loop().call_later(self._due - time.perf_counter(), self._send_request)


async def run_steady_load(
    url: str, paths: Sequence[str], bodies: Sequence[bytes], rate: float, seconds: float
) -> LoadOutcome:
    """Ends at most 20 s after `seconds`."""
    loop, outcome, address = asyncio.get_running_loop(), LoadOutcome(), urlsplit(url)
    begin = time.perf_counter() + 0.1
    opened = []
    for number, path in enumerate(paths):
        make = partial(
            SteadyConnection,
            RequestRotation(f"{url}{path}", bodies),
            outcome,
            begin + seconds,
            first=begin + number / rate,
            interval=len(paths) / rate,
        )
        _, connection = await loop.create_connection(make, address.hostname or "", address.port or 80)
        opened.append(connection)
    _, late = await asyncio.wait([one.done for one in opened], timeout=seconds + _GRACE_SECONDS)
    outcome.errors["err_timeout"] += len(late)
    return outcome


def main(url: str, targets: Path, bodies: Path, rate: float, seconds: float) -> None:
    paths, lines = targets.read_text().splitlines(), bodies.read_bytes().splitlines()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run_steady_load(url, paths, lines, rate, seconds))
    micros = [round(1e6 * one, 1) for one in outcome.seconds]
    print(json.dumps({"micros": micros, "errors": outcome.errors.total()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
