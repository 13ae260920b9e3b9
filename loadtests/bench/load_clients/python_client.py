"""A load program in Python, for machines without wrk and oha: each connection has one request in flight.

    python -m loadtests.bench.load_clients.python_client URL BODIES CONNECTIONS SECONDS

prints one line of JSON. Per request it takes several times the CPU time of wrk, so it cannot saturate a fast
server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import cast
from urllib.parse import urlsplit

import uvloop

_TIMEOUT_SECONDS = 20.0
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass
class LoadOutcome:
    """The results of a load; errors by the names that wrk gives them."""

    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class RequestRotation:
    """Encoded requests in rotation."""

    def __init__(self, url: str, bodies: Sequence[bytes]) -> None:
        address = urlsplit(url)
        head = f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        self._all = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        self._at = -1

    def next(self) -> bytes:
        self._at = (self._at + 1) % len(self._all)
        return self._all[self._at]


class LoadConnection(asyncio.Protocol):
    """One connection, which sends requests until the time `end`, on `time.perf_counter`."""

    def __init__(self, requests: RequestRotation, outcome: LoadOutcome, end: float) -> None:
        self._requests = requests
        self._outcome = outcome
        self._end = end
        self._received = bytearray()
        self._needed = 0
        self._sent = 0.0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send_request()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed:
            self._read_head()
        if self._needed and len(self._received) >= self._needed:
            self._finish_request()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._outcome.errors["err_read"] += 1
            self.done.set_result(None)

    def _send_request(self) -> None:
        self._received.clear()
        self._needed = 0
        self._sent = time.perf_counter()
        self._transport.write(self._requests.next())

    def _read_head(self) -> None:
        end = self._received.find(_HEAD_END)
        if end >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(_LENGTH)[2].partition(b"\r\n")[0] or 0)
            self._needed = end + len(_HEAD_END) + length

    def _finish_request(self) -> None:
        now = time.perf_counter()
        self._outcome.seconds.append(now - self._sent)
        if not self._received.startswith(b"HTTP/1.1 2"):
            self._outcome.errors["err_status"] += 1
        if now < self._end:
            self._send_next(now)
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send_next(self, now: float) -> None:
        """Called when an answer has come."""
        self._send_request()


async def run_load(url: str, bodies: Sequence[bytes], connections: int, seconds: float) -> LoadOutcome:
    """Ends at most 20 s after `seconds`."""
    loop = asyncio.get_running_loop()
    outcome, requests = LoadOutcome(), RequestRotation(url, bodies)
    end = time.perf_counter() + seconds
    address = urlsplit(url)
    opened: list[LoadConnection] = []
    for _ in range(connections):
        try:
            _, connection = await loop.create_connection(
                lambda: LoadConnection(requests, outcome, end), address.hostname or "", address.port or 80
            )
        except OSError:
            outcome.errors["err_connect"] += 1
        else:
            opened.append(connection)
    if opened:
        _, late = await asyncio.wait(
            [connection.done for connection in opened], timeout=seconds + _TIMEOUT_SECONDS
        )
        outcome.errors["err_timeout"] += len(late)
    return outcome


def main(url: str, bodies: Path, connections: int, seconds: float) -> None:
    lines = bodies.read_bytes().splitlines()
    start = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run_load(url, lines, connections, seconds))
    passed = time.perf_counter() - start
    micros = sorted(1e6 * one for one in outcome.seconds) or [0.0]
    latency = {f"p{part}_us": micros[part * (len(micros) - 1) // 100] for part in (50, 90, 99)}
    latency |= {"max_us": micros[-1], "mean_us": fmean(micros)}
    print(json.dumps({"requests": len(outcome.seconds), "seconds": passed, **latency, **outcome.errors}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
