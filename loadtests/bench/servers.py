"""The servers that are measured: two references, ours, ours behind proxies, whatever is put beside them."""

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
from loadtests.bench.answers import Asker
from loadtests.bench.processes import Group, Usage, cpu_seconds, group

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_PYTHON = shlex.quote(sys.executable)
_PILOTLIGHT = f"{_PYTHON} -c 'from serving.cli import main; main()'"
_OPTIONS = "--port {port} --model-dir {model_dir}"
_UVICORN = f"{_PYTHON} -m uvicorn --host 127.0.0.1 --port {{port}} --no-access-log --log-level warning"
_HOST = "127.0.0.1"
# A server rests when it uses less than this part of a core for as long as this.
_REST, _LOOK_SECONDS = 0.1, 0.3


class StartFailed(Exception):
    """A server ended, or did not answer in time; with what it said last."""


@dataclass(frozen=True)
class Server:
    """How a server is started and asked.

    `command` and `path` are filled in with {port}, {model} and {model_dir}. A command that is a URL is a
    server that runs already. `constant` answers are not compared with the library's.
    """

    name: str
    command: str
    path: str = "/predict"
    constant: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


NODE_PATH = "/v1/models/{model}:predict"


def _behind(proxy: str) -> Server:
    return Server(proxy, f"{_PYTHON} -m loadtests.bench.proxies {proxy} {_OPTIONS}", NODE_PATH)


SERVERS = {
    one.name: one
    for one in (
        Server("echo", f"{_UVICORN} loadtests.bench.references:echo", constant=True),
        Server("plain", f"{_UVICORN} --factory loadtests.bench.references:plain", environment=_ONE_THREAD),
        Server(
            "node",
            f"{_PILOTLIGHT} node {_OPTIONS}",
            NODE_PATH,
        ),
        Server(
            "gateway",
            f"{_PYTHON} -m loadtests.bench.gateway {_OPTIONS}",
            gateway.PATH,
        ),
        Server(
            "apart",
            f"{_PYTHON} -m loadtests.bench.gateway {_OPTIONS} --node-core {max(os.sched_getaffinity(0))}",
            gateway.PATH,
        ),
    )
}
USUAL = ("echo", "plain", "node", "gateway")
PROXIES = {one.name: one for one in map(_behind, ("nginx", "haproxy", "forwarder"))}


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    start_seconds: float | None
    """From the start of its process to its first answer; None for one that ran already."""
    _group: Group | None
    _front: tuple[int, ...]

    def usage(self) -> Usage | None:
        """What its processes hold and have used; None for a server that ran already."""
        return None if self._group is None else self._group.usage()

    def rest(self, most: float) -> None:
        """Wait until its processes have nothing to do, at most so many seconds.

        What a server still does after its first answer, importing or trying out, would be measured as well.
        """
        end = time.monotonic() + most
        usage = self.usage()
        while usage is not None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            later = self.usage()
            if later is None or sum(later.cpu.values()) - sum(usage.cpu.values()) < _REST * _LOOK_SECONDS:
                return
            usage = later

    def front_cpu(self) -> float:
        """Seconds used by the processes that clients are connected to."""
        return sum(cpu_seconds(pid) for pid in self._front)


@contextmanager
def started(
    server: Server, model: str, model_dir: Path, body: bytes, *, core: int | None, limit: float, logs: Path
) -> Iterator[Running]:
    """A server from its first right answer to `body` on, until the block ends.

    `limit` is how many seconds that may take; what it prints goes to a file in `logs`. Raises StartFailed.
    """
    if server.command.startswith(("http://", "https://")):
        yield Running(server.command.format(model=model), None, None, ())
        return
    port = free_port()
    filled = {"port": port, "model": model, "model_dir": shlex.quote(str(model_dir))}
    command = shlex.split(server.command.format(**filled))
    url = f"http://{_HOST}:{port}{server.path.format(model=model)}"
    log = logs / f"{server.name}.{model}.log"
    environment = {**_QUIET, **server.environment, "MODEL_DIR": str(model_dir)}
    with ExitStack() as stack:
        start = time.monotonic()
        processes = stack.enter_context(group(command, environment, core, log))
        _wait(url, body, processes, start + limit, log)
        yield Running(url, round(time.monotonic() - start, 3), processes, _listening(processes, port))


def _wait(url: str, body: bytes, processes: Group, end: float, log: Path) -> None:
    said = "no answer"
    while time.monotonic() < end and processes.process.poll() is None:
        asker = Asker(url)
        try:
            status, answer = asker.ask(body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            continue
        finally:
            asker.close()
        if status == 200:
            return
        said = f"{status} {answer[:200]!r}"
        time.sleep(0.02)
    raise StartFailed(f"{said}; its log ends with: {log.read_text(errors='replace')[-600:]}")


def _listening(processes: Group, port: int) -> tuple[int, ...]:
    found = []
    for pid in processes.pids():
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
            found.append(pid)
    return tuple(found)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server((_HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port
