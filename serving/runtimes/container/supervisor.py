"""Runs one container, and removes it when whoever needs it ends, however that ends.

    python supervisor.py LIFELINE REPORT NAME ENGINE run ...

The descriptor LIFELINE is closed when who needs it (a node, the supervisor of a training job) is gone. To
the descriptor REPORT goes how the container ended, as JSON. An engine's containers are no children of its
command: killing that leaves them running, so they are removed by name.

With `-` in place of REPORT the container is a program that ends by itself: its output and its exit code are
ours, and SIGTERM is passed on to it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

_LAST_LINES, _LINE_LETTERS = 5, 300
_TRIES, _PAUSE = 20, 0.25
# In place of the descriptor REPORT.
_NO_REPORT = "-"
# An engine that does not answer is given up, so that its container's end does not wait for it.
_ENGINE_SECONDS = 10.0
_CHUNK = 65536


def main() -> None:
    """Run a container until it ends or is not needed any more."""
    lifeline, report, name, *command = sys.argv[1:]
    engine = command[0]
    is_program = report == _NO_REPORT
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    output = None if is_program else subprocess.PIPE
    try:
        container = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            restore_signals=True,
            start_new_session=True,
        )
    except OSError as error:
        problem = f"Cannot run {engine}: {error.strerror}."
        if is_program:
            sys.exit(problem)
        _report_exit(int(report), -1, [problem])
        sys.exit(1)
    if is_program:
        signal.signal(signal.SIGTERM, lambda *_: _start_thread(_terminate_container, container, engine, name))
    tail: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    pumps = [
        _start_thread(_copy_output, pipe.fileno(), target, tail)
        for pipe, target in ((container.stdout, 1), (container.stderr, 2))
        if pipe is not None
    ]
    _start_thread(_watch_lifeline, int(lifeline), container, engine, name)
    code = container.wait()
    for pump in pumps:
        pump.join(timeout=1)
    if not is_program:
        _report_exit(int(report), code, list(tail))
    # The engine's command may have ended without its container.
    _remove_container(engine, name)
    if is_program:
        sys.exit(code if code >= 0 else 128 - code)


def _start_thread(run: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


def _terminate_container(container: subprocess.Popen[bytes], engine: str, name: str) -> None:
    """Send it SIGTERM, also when it is only about to be made."""
    pause = threading.Event()
    for _ in range(_TRIES):
        if _run_engine(engine, "kill", "--signal", "TERM", name)[0] or container.poll() is not None:
            return
        pause.wait(_PAUSE)


def _watch_lifeline(lifeline: int, container: subprocess.Popen[bytes], engine: str, name: str) -> None:
    """Remove the container once nobody holds the other end of the pipe."""
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    pause = threading.Event()
    for _ in range(_TRIES):
        # What is about to be made cannot be removed yet.
        if _remove_container(engine, name) or container.poll() is not None:
            break
        pause.wait(_PAUSE)
    if container.poll() is None:
        container.kill()
    pause.wait(_PAUSE)
    _remove_container(engine, name)
    os._exit(0)


def _remove_container(engine: str, name: str) -> bool:
    """Whether there was such a container; there is none now."""
    # Killed first: podman gives one that it removes ten seconds to end by itself.
    killed, _ = _run_engine(engine, "kill", name)
    removed, said = _run_engine(engine, "rm", "--force", name)
    # Engines differ in whether one that is not there is an error; none of them prints its name then.
    return killed or (removed and name in said)


def _run_engine(engine: str, *words: str) -> tuple[bool, str]:
    """Whether the engine does it, and what it prints."""
    try:
        done = subprocess.run(
            (engine, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ENGINE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout.decode(errors="replace")


def _copy_output(source: int, target: int, tail: collections.deque[str]) -> None:
    """Pass on what is printed, and remember the last lines."""
    rest = ""
    while data := os.read(source, _CHUNK):
        with contextlib.suppress(OSError):
            os.write(target, data)
        *lines, rest = (rest + data.decode(errors="replace")).split("\n")
        tail.extend(line[:_LINE_LETTERS] for line in lines if line.strip())
        rest = rest[-_CHUNK:]
    if rest.strip():
        tail.append(rest[:_LINE_LETTERS])


def _report_exit(report: int, code: int, lines: list[str]) -> None:
    with contextlib.suppress(OSError):
        os.write(report, json.dumps({"code": code, "lines": lines}).encode())


if __name__ == "__main__":
    main()
