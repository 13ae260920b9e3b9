"""`python -m batch.pool`: starts Beam workers of this interpreter for an engine, as `EXTERNAL` environment.

An engine asks for them by gRPC, so the port must be reached by nobody else: by default that is loopback, as
for a process beside each TaskManager or executor.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Protocol

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

logger = logging.getLogger("batch.pool")

_DEFAULT_HOST, _DEFAULT_PORT, _DEFAULT_WORKERS = "127.0.0.1", 50000, 64
# Seconds for a worker to import all it needs, and to end.
_START_WITHIN, _END_WITHIN = 120.0, 5.0
_TAIL_LINES = 5
_THREADS = 16


class Worker(Protocol):
    def is_alive(self) -> bool: ...

    def wait_until_ready(self) -> str:
        """Why it cannot work, "" if it can."""

    def end(self) -> None: ...


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """At most `limit` workers, which `start` starts. Called by several threads.

    Several TaskManagers of one machine may share a pool, and each counts its workers from 1-1.
    """

    def __init__(self, limit: int = _DEFAULT_WORKERS, start: Callable[[Any], Worker] | None = None) -> None:
        self._limit = limit
        self._start = start or BootProcess
        self._workers: list[tuple[str, Worker]] = []
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802  gRPC's name
        """Returns when the worker is ready; the error has its last words when it is not."""
        with self._lock:
            self._forget_ended()
            if len(self._workers) >= self._limit:
                return _answer(f"This pool runs {self._limit} workers already, its --max-workers.")
            worker = self._start(request)
            self._workers.append((request.worker_id, worker))
        error = worker.wait_until_ready()
        if error:
            logger.error("worker %s: %s", request.worker_id, error)
            worker.end()
        return _answer(error)

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: N802  gRPC's name
        with self._lock:
            self._forget_ended()
            found = [one for one in self._workers if one[0] == request.worker_id]
            # Of several with this name, the one that is meant ends with its connection to the engine.
            ending = found if len(found) == 1 else []
            self._workers = [one for one in self._workers if one not in ending]
        for _, worker in ending:
            worker.end()
        return beam_fn_api_pb2.StopWorkerResponse()

    def close(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, []
        for _, worker in workers:
            worker.end()

    def _forget_ended(self) -> None:
        self._workers = [one for one in self._workers if one[1].is_alive()]


class BootProcess:
    """A process of `python -m batch.boot`. It ends when this one does: it has the other end of its stdin."""

    def __init__(self, request: Any) -> None:
        self._ready, ready = os.pipe()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        endpoints = {
            "logging": request.logging_endpoint.url,
            "artifact": request.artifact_endpoint.url,
            "provision": request.provision_endpoint.url,
            "control": request.control_endpoint.url,
        }
        command = [
            *(sys.executable, "-m", "batch.boot", f"--id={request.worker_id}", f"--ready-fd={ready}"),
            *(f"--{name}_endpoint={url}" for name, url in endpoints.items()),
        ]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(ready,)
            )
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(ready)
        self._reader = threading.Thread(target=self._relay_log, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> str:
        try:
            if not select.select([self._ready], [], [], _START_WITHIN)[0]:
                return f"The worker was not ready within {_START_WITHIN:.0f} s."
            if os.read(self._ready, 1):
                return ""
        finally:
            os.close(self._ready)
        code = self._process.wait()
        self._reader.join(_END_WITHIN)
        return f"The worker has ended with code {code}: {' '.join(self._tail) or 'it did not say why'}"

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_WITHIN)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _relay_log(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._tail.append(line.decode(errors="replace").strip())
            sys.stderr.buffer.write(line)
            sys.stderr.flush()


def _answer(error: str) -> Any:
    return beam_fn_api_pb2.StartWorkerResponse(error=error)


def serve(host: str, port: int, pool: WorkerPool) -> tuple[Any, int]:
    """A started gRPC server, and its port. Raises RuntimeError if it cannot listen."""
    server = grpc.server(ThreadPoolExecutor(_THREADS))
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, bound


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or Ctrl-C; the workers end too."""
    parser = argparse.ArgumentParser(prog="python -m batch.pool", description=__doc__)
    parser.add_argument("--host", default=_DEFAULT_HOST, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=_DEFAULT_PORT, help="0: any (%(default)s)")
    parser.add_argument(
        "--max-workers", type=int, default=_DEFAULT_WORKERS, help="at the same time (%(default)s)"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    pool = WorkerPool(given.max_workers)
    server, port = serve(given.host, given.port, pool)
    logger.info("workers are started for whoever asks %s:%d", given.host, port)
    try:
        ended.wait()
    finally:
        server.stop(0)
        pool.close()


if __name__ == "__main__":
    main()
