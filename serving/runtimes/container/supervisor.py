"""Runs one container, and removes it when the node's process ends, however that ends.

    python supervisor.py LIFELINE REPORT NAME ENGINE run ...

The descriptor LIFELINE is closed when the node is gone; to REPORT goes how the container ended, as JSON. An
engine's containers are no children of its command: killing that leaves them running, so they are removed by
name.
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

_LAST_LINES, _LINE_LETTERS = 5, 300
_TRIES, _PAUSE = 20, 0.25
_CHUNK = 65536


def main() -> None:
    """Run a container until it ends or the node does."""
    lifeline, report, name, *command = sys.argv[1:]
    engine = command[0]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        container = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            restore_signals=True,
            start_new_session=True,
        )
    except OSError as error:
        _report_exit(int(report), -1, [f"Cannot run {engine}: {error.strerror}."])
        sys.exit(1)
    tail: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    pumps = [
        threading.Thread(target=_copy_output, args=(pipe.fileno(), target, tail), daemon=True)
        for pipe, target in ((container.stdout, 1), (container.stderr, 2))
        if pipe is not None
    ]
    for pump in pumps:
        pump.start()
    threading.Thread(
        target=_watch_lifeline, args=(int(lifeline), container, engine, name), daemon=True
    ).start()
    code = container.wait()
    for pump in pumps:
        pump.join(timeout=1)
    _report_exit(int(report), code, list(tail))
    # The engine's command may have ended without its container.
    _remove_container(engine, name)


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
        done = subprocess.run((engine, *words), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
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
