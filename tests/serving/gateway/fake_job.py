"""A job's process that does what its input paths say, one after the other, and leaves traces of itself.

A path that is a file stands for the paths in its lines.

In the output folder: `started.N` (with its pid) and `request.N` for attempt N, `cleaned` for a removal, and
`overlap` if two were ever at work at once.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from batch.messages import FailureStatus, JobCounts, JobOutcome, JobPhase, JobReport, JobRequest


def say(**fields: object) -> None:
    os.write(1, msgspec.json.encode(JobReport(**fields)) + b"\n")  # type: ignore[arg-type]


def done(counts: JobCounts) -> NoReturn:
    say(done=JobOutcome(counts.predictions, counts.errors, seconds=18.0, worker_seconds=36.0))
    sys.exit()


def list_steps(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        yield from Path(path).read_text().splitlines() if Path(path).is_file() else [path]


def act(request: JobRequest, out: Path) -> None:
    """Verbs, with their arguments behind a slash."""
    counts = JobCounts()
    for path in list_steps(request.input_paths):
        verb, *arguments = path.strip("/").split("/")
        match verb, arguments:
            case "run", []:
                say(phase=JobPhase.RUNNING)
            case "publish", []:
                say(phase=JobPhase.PUBLISHING)
            case "count", [predictions, errors]:
                counts = JobCounts(int(predictions), int(errors), int(predictions), 100, 2)
                say(counts=counts)
            case "wait", [name]:
                while not (out / name).exists():
                    say(counts=counts)
                    time.sleep(0.02)
            case "hush", []:
                time.sleep(600)
            case "deaf", []:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "late", []:
                signal.signal(signal.SIGTERM, lambda *_, said=counts: done(said))
            case "mark", [name]:
                (out / name).touch()
            case "chatter", []:
                os.write(1, b'not a report\n{"phase": "DANCING"}\n' + b"x" * (3 << 20) + b"\n")
            case "log", [text]:
                print(text, file=sys.stderr, flush=True)
            case "helper", []:
                helper = subprocess.Popen(["sleep", "600"])
                (out / "helper.new").write_text(str(helper.pid))
                (out / "helper.new").rename(out / "helper")
            case "die", [attempts] if request.attempt <= int(attempts):
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit", [code]:
                sys.exit(int(code))
            case "fail", [text]:
                say(failed=FailureStatus("NOT_FOUND", text, counts.predictions, counts.errors))
                sys.exit()
    done(counts)


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=JobRequest)
    out = Path(request.output_path)
    lock = (Path(request.scratch_dir) / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (out / "overlap").touch()
    if request.clean:
        if "/stains" in request.input_paths:
            say(failed=FailureStatus("PERMISSION_DENIED", "Not yours."))
            sys.exit()
        (out / "cleaned").touch()
        done(JobCounts())
    (out / f"request.{request.attempt}").write_bytes(msgspec.json.encode(request))
    say(phase=JobPhase.PREPARING)
    (out / f"started.{request.attempt}.new").write_text(str(os.getpid()))
    (out / f"started.{request.attempt}.new").rename(out / f"started.{request.attempt}")
    act(request, out)


if __name__ == "__main__":
    main()
