"""A model's container: its start, its address, its health checks and its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from serving.config import environment_without_settings
from serving.container_engine import SUPERVISOR, ContainerRunConfig
from serving.errors import LoadFailed

_POLL_INTERVAL = 0.1
# The contract's timeout and interval of health checks (docs/containers.md), in seconds.
_HEALTH_TIMEOUT, HEALTH_INTERVAL = 10.0, 10.0
# This many failures in a row make a container unhealthy.
MAX_FAILURES = 4
_HEALTHY = b"200"
# What may precede the body of an answer to a health check, interim answers included.
_MOST_HEAD_BYTES = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_END_SECONDS = 10.0
_REPORT_BYTES = 1 << 20


class RunningContainer:
    """A container from its start to its end. Raises LoadFailed when it cannot be started.

    `on_start` gets the pid of its first process, if that runs here as the same user.
    """

    def __init__(
        self, container: ContainerRunConfig, model_dir: Path, on_start: Callable[[int], None] | None = None
    ) -> None:
        self.container = container
        self.name = f"pilotlight-{os.getpid()}-{secrets.token_hex(6)}"
        self._on_start = on_start
        self._closed = False
        self._shared_fate = False
        self._failures = 0
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._exit_description = "unknown exit status"
        lifeline, self._lifeline = os.pipe()
        self._report, report = os.pipe()
        try:
            self._supervisor = subprocess.Popen(
                (
                    sys.executable,
                    "-I",
                    str(SUPERVISOR),
                    str(lifeline),
                    str(report),
                    self.name,
                    *container.build_run_command(self.name, model_dir),
                ),
                pass_fds=(lifeline, report),
                stdin=subprocess.DEVNULL,
                env=environment_without_settings(),
                start_new_session=True,
            )
        finally:
            os.close(lifeline)
            os.close(report)
        self._exit_watcher = threading.Thread(target=self._watch_exit, name="container", daemon=True)
        self._exit_watcher.start()
        try:
            self.address = self._await_address()
            self._await_health()
        except BaseException:
            self.close()
            raise

    def connect(self, timeout: float | None = None) -> http.client.HTTPConnection:
        """A connection to it, not open yet."""
        return http.client.HTTPConnection(*self.address, timeout=timeout)

    @property
    def is_healthy(self) -> bool:
        """Whether the last health checks did not all fail."""
        return self._failures < MAX_FAILURES

    def start_monitoring(self, *, shared_fate: bool) -> None:
        """Check its health from now on; with `shared_fate` this process ends as the container ends."""
        threading.Thread(target=self._monitor_health, name="health", daemon=True).start()
        self._shared_fate = shared_fate
        if self._ended.is_set():
            self._exit_with_container()

    def wait_for_exit(self, seconds: float) -> bool:
        """Whether it has ended, or does within so many seconds."""
        return self._ended.wait(seconds)

    def close(self) -> None:
        """End the container, and wait until it is gone."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        os.close(self._lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(_END_SECONDS)
        self._exit_watcher.join(_END_SECONDS)

    def _await_address(self) -> tuple[str, int]:
        """The address from the engine, once it runs."""
        while True:
            self._check_running()
            found = self._run_engine("port", self.name, f"{self.container.port}/tcp").splitlines()
            host, _, port = found[0].rpartition(":") if found else ("", "", "")
            if port.isdecimal():
                return host.strip("[]"), int(port)
            time.sleep(_POLL_INTERVAL)

    def _await_health(self) -> None:
        while not self._answers_health_check():
            self._check_running()
            time.sleep(_POLL_INTERVAL)
        if self._on_start is not None and (pid := self._find_pid()) is not None:
            self._on_start(pid)

    def _answers_health_check(self) -> bool:
        return is_healthy_at(self.address, self.container.health)

    def _monitor_health(self) -> None:
        while not self._stop.wait(HEALTH_INTERVAL):
            self._failures = 0 if self._answers_health_check() else self._failures + 1
            if self._failures == MAX_FAILURES:
                print(
                    f"{self._describe_unhealthy()} Requests are refused until it is healthy.",
                    file=sys.stderr,
                    flush=True,
                )

    def _describe_unhealthy(self) -> str:
        return f"The container is not healthy: GET {self.container.health} was not answered with 200."

    def _find_pid(self) -> int | None:
        """The process that it runs in; None where it is somebody else's, or on another machine."""
        text = self._run_engine("inspect", "--format", "{{.State.Pid}}", self.name).strip()
        if not text.isdecimal():
            return None
        try:
            Path(f"/proc/{text}/smaps_rollup").read_bytes()
        except OSError:
            return None
        return int(text)

    def _run_engine(self, *words: str) -> str:
        """What the engine prints, "" if it refuses."""
        done = subprocess.run(
            (self.container.engine, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return "" if done.returncode else done.stdout

    def _check_running(self) -> None:
        if self._ended.is_set():
            raise LoadFailed(f"The container ended before it was healthy ({self._exit_description}).")

    def _watch_exit(self) -> None:
        """Wait for the supervisor's report: the exit code and the last lines of output."""
        try:
            found = json.loads(os.read(self._report, _REPORT_BYTES))
            said = " / ".join(found["lines"])
            self._exit_description = f"exit code {found['code']}" + (f"; it said: {said}" if said else "")
        except ValueError:
            pass  # the supervisor was killed
        finally:
            os.close(self._report)
        self._ended.set()
        self._exit_with_container()

    def _exit_with_container(self) -> None:
        if self._closed or not self._shared_fate:
            return
        print(f"The container of the model ended ({self._exit_description}).", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)


def is_healthy_at(address: tuple[str, int], path: str, seconds: float = _HEALTH_TIMEOUT) -> bool:
    """Whether GET is answered with 200; the whole head of the answer has so many seconds, its body none."""
    host, port = address
    host = f"[{host}]" if ":" in host else host
    end = time.monotonic() + seconds
    try:
        with socket.create_connection(address, seconds) as connection:
            head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            return _read_status(connection, end) == _HEALTHY
    except OSError:
        return False


def _read_status(connection: socket.socket, end: float) -> bytes:
    """The status of the answer that follows interim ones. Raises OSError when there is none in time."""
    head = b""
    left = _MOST_HEAD_BYTES
    while left:
        connection.settimeout(max(0.001, end - time.monotonic()))
        received = connection.recv(left)
        if not received or time.monotonic() > end:
            break
        left -= len(received)
        head += received
        while ended := _END_OF_HEAD.search(head):
            status = _STATUS.match(head)
            if status is None or not status[1].startswith(b"1"):
                return status[1] if status else b""
            head = head[ended.end() :]
    raise TimeoutError


def is_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has hung up on a connection that nothing is expected on."""
    if connection.sock is None:
        return True
    try:
        connection.sock.setblocking(False)
        connection.sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    else:
        return True  # its end, or unexpected data
    finally:
        connection.sock.setblocking(True)
