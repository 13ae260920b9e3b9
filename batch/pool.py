"""`python -m batch.pool`: starts Beam workers of this interpreter for an engine, as `EXTERNAL` environment.

An engine asks for them by gRPC, without a proof of who it is: whoever starts a worker runs code as this
process's user. So the pool listens on loopback, as beside each TaskManager or executor; elsewhere only with a
token, which jobs have among the parameters of their environment.
"""

from __future__ import annotations

import argparse
import hmac
import ipaddress
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from serving.scratch_folders import sweep_scratch

logger = logging.getLogger("batch.pool")

_DEFAULT_HOST, _DEFAULT_PORT, _DEFAULT_WORKERS = "127.0.0.1", 50000, 64
# Seconds for a worker to import all it needs, and to end.
_START_WITHIN, _END_WITHIN = 120.0, 5.0
_TAIL_LINES, _LINE_BYTES = 5, 1 << 16
# The name of the token among the parameters of an EXTERNAL environment, and the shortest that is taken.
TOKEN_PARAMETER = "token"  # noqa: S105  no secret
_SHORTEST_TOKEN = 16
_THREADS = 16


class Worker(Protocol):
    def is_alive(self) -> bool: ...

    def wait_until_ready(self) -> str:
        """Why it cannot work, "" if it can."""

    def end(self) -> None: ...


@dataclass(frozen=True, eq=False, slots=True)
class _StartedWorker:
    worker_id: str
    caller: str
    worker: Worker


class WorkerPool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """At most `limit` workers, which `start` starts, for those who know `token`; "" is no token. Called by
    several threads.

    Several TaskManagers of one machine may share a pool, and each counts its workers from 1-1.
    """

    def __init__(
        self,
        limit: int = _DEFAULT_WORKERS,
        start: Callable[[Any], Worker] | None = None,
        token: str = "",
    ) -> None:
        self._limit = limit
        self._start = start or BootProcess
        self._token = token.encode()
        self._workers: list[_StartedWorker] = []
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802  gRPC's name
        """Returns when the worker is ready; the error has its last words when it is not."""
        given = request.params.get(TOKEN_PARAMETER, "").encode()
        if self._token and not hmac.compare_digest(given, self._token):
            logger.error(
                "worker %s: refused, the token is %s", request.worker_id, "wrong" if given else "missing"
            )
            return _answer(
                "This worker pool takes only jobs that know its token (--token-file): "
                '--environment_config={"url":"HOST:PORT","params":{"token":"..."}}, in single quotes.'
            )
        with self._lock:
            self._forget_ended()
            if len(self._workers) >= self._limit:
                return _answer(f"This pool runs {self._limit} workers already, its --max-workers.")
            worker = self._start(request)
            self._workers.append(_StartedWorker(request.worker_id, _find_caller(context), worker))
        error = worker.wait_until_ready()
        if error:
            logger.error("worker %s: %s", request.worker_id, error)
            worker.end()
        return _answer(error)

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: N802  gRPC's name
        with self._lock:
            self._forget_ended()
            # This request has no token, so it is taken only from the machine that asked for the worker.
            key = (request.worker_id, _find_caller(context))
            found = [one for one in self._workers if (one.worker_id, one.caller) == key]
            # Of several with this name, the one that is meant ends with its connection to the engine.
            ending = found if len(found) == 1 else []
            self._workers = [one for one in self._workers if one not in ending]
        _end_workers(ending)
        return beam_fn_api_pb2.StopWorkerResponse()

    def close(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, []
        _end_workers(workers)

    def _forget_ended(self) -> None:
        self._workers = [one for one in self._workers if one.worker.is_alive()]


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
        try:
            code = self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            return f"The worker gave up its start, and did not end within {_END_WITHIN:.0f} s."
        self._reader.join(_END_WITHIN)
        return f"The worker has ended with code {code}: {' '.join(self._tail) or 'it did not say why'}"

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join(_END_WITHIN)

    def _relay_log(self, stream: IO[bytes]) -> None:
        # Closed by this thread: what the worker has started may hold the pipe for longer than it lives.
        with stream:
            while line := stream.readline(_LINE_BYTES):
                self._tail.append(line.decode(errors="replace").strip())
                sys.stderr.buffer.write(line)
                sys.stderr.flush()


def _end_workers(workers: Sequence[_StartedWorker]) -> None:
    for one in workers:
        one.worker.end()
    # Their models and packages, and those of others that have ended; no other job may come for days.
    sweep_scratch()


def _find_caller(context: Any) -> str:
    """The address of the machine that calls, without its port."""
    return str(context.peer()).rpartition(":")[0]


def _answer(error: str) -> Any:
    return beam_fn_api_pb2.StartWorkerResponse(error=error)


def start_server(host: str, port: int, pool: WorkerPool) -> tuple[Any, int]:
    """A started gRPC server, and its port. Raises RuntimeError if it cannot listen."""
    # Without this option a second pool would share the port, and each would get some of the calls.
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=[("grpc.so_reuseport", 0)])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    server.start()
    return server, bound


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there. Raises OSError for an unknown name."""
    found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or Ctrl-C; the workers end too."""
    parser = argparse.ArgumentParser(prog="python -m batch.pool", description=__doc__)
    parser.add_argument("--host", default=_DEFAULT_HOST, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=_DEFAULT_PORT, help="0: any (%(default)s)")
    parser.add_argument(
        "--max-workers", type=int, default=_DEFAULT_WORKERS, help="at the same time (%(default)s)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with a secret that jobs must know; required unless --host is loopback",
    )
    given = parser.parse_args(arguments)
    token = _read_token(parser, given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    pool = WorkerPool(given.max_workers, token=token)
    try:
        server, port = start_server(given.host, given.port, pool)
    except RuntimeError:
        parser.exit(1, f"The pool cannot listen on {given.host}:{given.port}: is the port taken?\n")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    logger.info(
        "workers are started for whoever asks %s:%d%s", given.host, port, " with the token" * bool(token)
    )
    try:
        ended.wait()
    finally:
        server.stop(0)
        pool.close()


def _read_token(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """Ends the program if there is none where one is needed."""
    if given.token_file is None:
        try:
            is_safe = is_loopback(given.host)
        except OSError as error:
            parser.error(f"--host {given.host}: {error}")
        if not is_safe:
            parser.error(
                f"whoever reaches {given.host} could run code here: a --host that is not loopback needs "
                "--token-file=FILE."
            )
        return ""
    try:
        token: str = given.token_file.read_text().strip()
    except OSError as error:
        parser.error(f"--token-file cannot be read: {error}")
    if len(token) < _SHORTEST_TOKEN:
        parser.error(f"--token-file {given.token_file}: a token has {_SHORTEST_TOKEN} characters or more.")
    return token


if __name__ == "__main__":
    main()
