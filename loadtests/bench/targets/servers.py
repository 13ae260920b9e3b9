"""The servers that are measured: two references, ours, ours behind proxies, and any others."""

from __future__ import annotations

import http.client
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadtests.bench import gateway
from loadtests.bench.load_clients.answers import HttpAsker
from loadtests.bench.targets.processes import ProcessGroup, ResourceUsage, cpu_seconds, run_group

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_PYTHON = shlex.quote(sys.executable)
_PILOTLIGHT = f"{_PYTHON} -c 'from serving.cli import main; main()'"
_OPTIONS = "--port {port} --model-dir {model_dir}"
_UVICORN = f"{_PYTHON} -m uvicorn --host 127.0.0.1 --port {{port}} --no-access-log --log-level warning"
_HOST = "127.0.0.1"
# A server is idle when it uses less than this part of a core for so many seconds.
_REST_CPU_SHARE, _LOOK_SECONDS = 0.1, 0.3


class ServerStartError(Exception):
    """A server ended, or did not answer in time; the text has its last output."""


@dataclass(frozen=True)
class ServerDefinition:
    """How a server is started and where it is asked.

    `command` and `path` are filled in with {port}, {model} and {model_dir}. A command that is a URL is a
    server that runs already. `constant` answers are not compared with the library's.
    """

    name: str
    command: str
    path: str = "/predict"
    constant: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


NODE_PATH = "/v1/models/{model}:predict"


def _behind_proxy(proxy: str) -> ServerDefinition:
    return ServerDefinition(
        proxy, f"{_PYTHON} -m loadtests.bench.targets.proxies {proxy} {_OPTIONS}", NODE_PATH
    )


SERVERS = {
    one.name: one
    for one in (
        ServerDefinition("echo", f"{_UVICORN} loadtests.bench.targets.references:echo", constant=True),
        ServerDefinition(
            "plain", f"{_UVICORN} --factory loadtests.bench.targets.references:plain", environment=_ONE_THREAD
        ),
        ServerDefinition(
            "node",
            f"{_PILOTLIGHT} node {_OPTIONS}",
            NODE_PATH,
        ),
        ServerDefinition(
            "gateway",
            f"{_PYTHON} -m loadtests.bench.gateway {_OPTIONS}",
            gateway.PREDICT_PATH,
        ),
        ServerDefinition(
            "apart",
            f"{_PYTHON} -m loadtests.bench.gateway {_OPTIONS} --node-core {max(os.sched_getaffinity(0))}",
            gateway.PREDICT_PATH,
        ),
    )
}
DEFAULT_SERVERS = ("echo", "plain", "node", "gateway")
PROXY_SERVERS = {one.name: one for one in map(_behind_proxy, ("nginx", "haproxy", "forwarder"))}


@dataclass(frozen=True)
class RunningServer:
    url: str
    start_seconds: float | None
    """From the start of its process to its first answer; None for one that ran already."""
    _group: ProcessGroup | None
    _front: tuple[int, ...]

    def measure_usage(self) -> ResourceUsage | None:
        """Of all its processes; None for a server that ran already."""
        return None if self._group is None else self._group.measure_usage()

    def wait_until_idle(self, most: float) -> None:
        """Wait until its processes are idle, at most so many seconds.

        What a server still does after its first answer, such as imports, would be measured as well.
        """
        end = time.monotonic() + most
        usage = self.measure_usage()
        while usage is not None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            later = self.measure_usage()
            if (
                later is None
                or sum(later.cpu.values()) - sum(usage.cpu.values()) < _REST_CPU_SHARE * _LOOK_SECONDS
            ):
                return
            usage = later

    def front_cpu_seconds(self) -> float:
        """CPU seconds used by the processes that clients are connected to."""
        return sum(cpu_seconds(pid) for pid in self._front)


@contextmanager
def run_server(
    server: ServerDefinition,
    model: str,
    model_dir: Path,
    body: bytes,
    *,
    core: int | None,
    limit: float,
    logs: Path,
) -> Iterator[RunningServer]:
    """A server from its first right answer to `body` on, until the end of the block.

    `limit` is in seconds until that answer; its output goes to a file in `logs`. Raises ServerStartError.
    """
    if server.command.startswith(("http://", "https://")):
        yield RunningServer(server.command.format(model=model), None, None, ())
        return
    port = find_free_port()
    filled = {"port": port, "model": model, "model_dir": shlex.quote(str(model_dir))}
    command = shlex.split(server.command.format(**filled))
    url = f"http://{_HOST}:{port}{server.path.format(model=model)}"
    log = logs / f"{server.name}.{model}.log"
    environment = {**_QUIET, **server.environment, "MODEL_DIR": str(model_dir)}
    with ExitStack() as stack:
        start = time.monotonic()
        processes = stack.enter_context(run_group(command, environment, core, log))
        _wait_for_answer(url, body, processes, start + limit, log)
        yield RunningServer(
            url, round(time.monotonic() - start, 3), processes, _listening_pids(processes, port)
        )


def _wait_for_answer(url: str, body: bytes, processes: ProcessGroup, end: float, log: Path) -> None:
    said = "no answer"
    while time.monotonic() < end and processes.process.poll() is None:
        asker = HttpAsker(url)
        try:
            status, answer = asker.post(body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            continue
        finally:
            asker.close()
        if status == 200:
            return
        said = f"{status} {answer[:200]!r}"
        time.sleep(0.02)
    raise ServerStartError(f"{said}; its log ends with: {log.read_text(errors='replace')[-600:]}")


def _listening_pids(processes: ProcessGroup, port: int) -> tuple[int, ...]:
    found = []
    for pid in processes.list_pids():
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
            found.append(pid)
    return tuple(found)


def find_free_port() -> int:
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port
