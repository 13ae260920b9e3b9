"""A real server process, as tests see it: its address, its files, and every process that belongs to it."""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.bounds import HANG_SECONDS

T = TypeVar("T")

# Every process of a server inherits it, so that none can hide.
_MARK = "TESTS_STATE_DIR"
_MAIN = "from serving.cli import main; main()"


def until(found: Callable[[], T | None], what: str, *, seconds: float = HANG_SECONDS) -> T:
    """What `found` returns once it is true; the test fails when that takes longer than `seconds`."""
    begin = time.monotonic()
    while not (result := found()):
        waited = time.monotonic() - begin
        assert waited < seconds, f"after {seconds} s still not: {what}"
        # Less often after a while: to ask a server takes it and the test time that others need.
        time.sleep(min(0.02 + waited / 20, 0.1))
    return result


class EndedAtStart(AssertionError):
    """A server ended before it told its address; `status` is its exit status."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"the server ended with status {status} before it told its address: {log}")
        self.status = status


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its JSON body, and its headers."""

    status: int
    json: Any
    headers: httpx.Headers

    @property
    def error(self) -> dict[str, Any]:
        """The error in Google's form; the test fails when it is in any other."""
        assert list(self.json) == ["error"], self.json
        error: dict[str, Any] = self.json["error"]
        assert error["code"] == self.status
        assert error.keys() - {"details"} == {"code", "message", "status"}
        assert error["message"].strip()
        return error


@dataclass
class Server:
    """A running `pilotlight serve` or `pilotlight node`."""

    url: str
    process: subprocess.Popen[str]
    state_dir: Path
    log: Path
    lines: queue.SimpleQueue[str]
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    @functools.cached_property
    def grpc(self) -> str:
        """The address of gRPC, which it tells if that is switched on."""
        return _address(self.lines, self.log, "grpc://", "grpcs://").partition("://")[2]

    def call(self, method: str, path: str, **details: Any) -> Reply:
        """One request; `path` starts below /v1/ unless it begins with a slash."""
        url = f"{self.url}{path}" if path.startswith("/") else f"{self.url}/v1/{path}"
        response = self.http.request(method, url, **details)
        return Reply(response.status_code, response.json(), response.headers)

    def predict(self, name: str, instances: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask a model or a version."""
        return self.call("POST", f"{name}:predict", json={"instances": instances}, headers=headers)

    def create_model(self, name: str, **details: Any) -> None:
        """Make a model; `name` is the full one."""
        parent, _, model = name.rpartition("/")
        reply = self.call("POST", parent, json={"name": model, **details})
        assert reply.status == 200, reply.json

    def begin_version(self, name: str, **version: Any) -> str:
        """Ask for a version and return the name of the operation; `name` is the full one."""
        parent, _, last = name.rpartition("/")
        reply = self.call("POST", parent, json={"name": last, **version})
        assert reply.status == 200, reply.json
        operation: str = reply.json["name"]
        return operation

    def create_version(self, name: str, **version: Any) -> dict[str, Any]:
        """Make a version and wait until it is READY."""
        operation = self.wait(self.begin_version(name, **version))
        assert "error" not in operation, operation
        response: dict[str, Any] = operation["response"]
        return response

    def delete(self, name: str) -> None:
        """Delete a model or a version and wait until it is gone."""
        reply = self.call("DELETE", name)
        assert reply.status == 200, reply.json
        operation = self.wait(reply.json["name"])
        assert "error" not in operation, operation

    def wait(self, operation: str, *, seconds: float = HANG_SECONDS) -> dict[str, Any]:
        """The operation once it is done."""

        def done() -> dict[str, Any] | None:
            found: dict[str, Any] = self.call("GET", operation).json
            return found if found.get("done") else None

        return until(done, f"{operation} is done", seconds=seconds)

    def processes(self) -> dict[int, str]:
        """The command lines of all processes of this server, its own among them, by pid."""
        return processes_of(self.state_dir)

    def get_status(self) -> dict[str, Any]:
        """What `GET /nodes` tells."""
        found: dict[str, Any] = self.call("GET", "/nodes").json
        return found

    def nodes(self, version: str = "") -> list[int]:
        """The pids of node processes, those of one version when its full name is given."""
        return sorted(
            node["pid"]
            for found in self.get_status()["versions"]
            if version in ("", found["version"])
            for node in found["nodes"]
            if node["pid"]
        )

    def uid(self, name: str) -> str:
        """The uid of a version, which names the folder of its files."""
        file = f"file:{self.state_dir / 'state.db'}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as database:
            query = "SELECT document FROM versions WHERE name = ?"
            (document,) = database.execute(query, (name,)).fetchone()
        uid: str = json.loads(document)["uid"]
        return uid

    def kill(self) -> None:
        """End the server's own process with no chance to clean up."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End the server the orderly way and wait until all its processes are gone; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=HANG_SECONDS)
        self.wait_for_end()
        return code

    def wait_for_end(self) -> None:
        """Wait until no process of the server is left."""
        until(lambda: not self.processes(), f"no process is left of {self.processes()}")


def processes_of(state_dir: Path) -> dict[int, str]:
    """Command lines of the processes of the servers that used a state folder, by pid."""
    mark = f"{_MARK}={state_dir}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # another user's, or gone meanwhile
            continue
    return found


@contextmanager
def running_server(
    state_dir: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    prefix: tuple[str, ...] = (),
) -> Iterator[Server]:
    """`pilotlight serve` on a free port; whatever is left of it at the end of the block is killed.

    `prefix` is a command that runs it.
    """
    arguments = ("serve", "--port", "0", "--state-dir", str(state_dir), *flags)
    with running(arguments, state_dir, environment or {}, prefix) as server:
        yield server


@contextmanager
def running_node(model_dir: Path, *flags: str) -> Iterator[Server]:
    """`pilotlight node` on a free port."""
    with running(("node", "--port", "0", "--model-dir", str(model_dir), *flags), model_dir, {}) as server:
        yield server


@contextmanager
def running(
    arguments: tuple[str, ...], state_dir: Path, environment: Mapping[str, str], prefix: tuple[str, ...] = ()
) -> Iterator[Server]:
    """A command that serves, from the line that tells its address on."""
    log = state_dir.parent / f"{state_dir.name}.log"
    with log.open("a") as stderr:
        process = start(arguments, state_dir, environment, stderr, prefix)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process, lines))
        reader.start()
        server = None
        try:
            try:
                url = _address(lines, log, "http://", "https://")
            except AssertionError as error:
                raise EndedAtStart(process.wait(timeout=HANG_SECONDS), log.read_text()) from error
            server = Server(url, process, state_dir, log, lines)
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=HANG_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()
            for pid in processes_of(state_dir):
                with suppress(ProcessLookupError):  # those of a killed server end by themselves
                    os.kill(pid, signal.SIGKILL)
            reader.join()
            if process.stdout is not None:
                process.stdout.close()
            if server is not None:
                server.http.close()


def start(
    arguments: tuple[str, ...],
    state_dir: Path,
    environment: Mapping[str, str],
    stderr: Any,
    prefix: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """A process of the command, marked as using the state folder."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", _MAIN, *arguments],
        env={
            **os.environ,
            "PILOTLIGHT_NODE_ENVIRONMENT": _MARK,
            "PILOTLIGHT_CACHE_DIR": str(state_dir.parent / "cache"),
            **environment,
            _MARK: str(state_dir),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Keep the pipe empty; an empty line is its end."""
    for line in process.stdout or ():
        lines.put(line)
    lines.put("")


def _address(lines: queue.SimpleQueue[str], log: Path, *schemes: str) -> str:
    """The address in the next line that tells one; lines before it come again after the last."""
    passed: list[str] = []
    while line := lines.get(timeout=HANG_SECONDS):
        for word in line.split():
            if word.startswith(schemes):
                for other in passed:
                    lines.put(other)
                return word.rstrip(":")
        passed.append(line)
    raise AssertionError(f"the server did not start: {log.read_text()}")
