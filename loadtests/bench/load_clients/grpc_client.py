"""A load over gRPC: each connection has one request in flight. Messages are sent and received as bytes.

    python -m loadtests.bench.load_clients.grpc_client HOST:PORT/SERVICE/METHOD BODIES CONNECTIONS SECONDS

prints one line of JSON, as load.lua does. It is Python: per request it takes no less CPU time than the server
does, so that rates of small requests depend on both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import fmean

import grpc
import grpc.aio
import uvloop

from loadtests.bench.load_clients.payload_formats import read_framed

_TIMEOUT_SECONDS = 20.0
# One connection each, and answers of any size.
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


def grpc_load_command(url: str, bodies: Path, connections: int, seconds: float) -> list[str]:
    """The command of a `LoadProgram`."""
    return [sys.executable, "-m", __name__, url, str(bodies), str(connections), str(seconds)]


class GrpcLoad:
    """The requests of a load in rotation, and its results; errors by the names that wrk gives them."""

    def __init__(self, url: str, bodies: Path, end: float) -> None:
        self._target, _, method = url.partition("/")
        self._method = f"/{method}"
        self._bodies = itertools.cycle(read_framed(bodies))
        self._end = end
        self.micros: list[float] = []
        self.errors: Counter[str] = Counter()

    async def run_connection(self) -> None:
        """Run one connection until `end`, on `time.perf_counter`."""
        async with grpc.aio.insecure_channel(self._target, options=OPTIONS) as channel:
            call = channel.unary_unary(self._method)
            while (begin := time.perf_counter()) < self._end:
                try:
                    await call(next(self._bodies), timeout=_TIMEOUT_SECONDS)
                except grpc.aio.AioRpcError as error:
                    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    self.errors["err_timeout" if late else "err_status"] += 1
                self.micros.append(1e6 * (time.perf_counter() - begin))


async def run_load(url: str, bodies: Path, connections: int, seconds: float) -> None:
    begin = time.perf_counter()
    load = GrpcLoad(url, bodies, begin + seconds)
    await asyncio.gather(*(load.run_connection() for _ in range(connections)))
    passed, micros = time.perf_counter() - begin, sorted(load.micros)
    latency = {f"p{part}_us": micros[part * (len(micros) - 1) // 100] for part in (50, 90, 99)}
    latency |= {"max_us": micros[-1], "mean_us": fmean(micros)}
    print(json.dumps({"requests": len(micros), "seconds": passed, **latency, **load.errors}))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_load(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
