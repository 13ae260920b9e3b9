"""Runs one batch prediction in a process, `python -m batch`, which ends when this process does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO

import msgspec

from batch.messages import EXIT_WORKERS_LOST, JobOutcome, JobReport, JobRequest
from serving.cli.api_client import create_error
from serving.cli.console import interrupt_on_sigterm, print_note
from serving.config import FRAMEWORK_ENVIRONMENT, environment_without_settings
from serving.errors import Internal

# Seconds: without a report for so long the process hangs; after its last one, or when it is told to end, it
# may take so long: it cancels what it has started on a cluster.
_SILENCE_SECONDS, _GRACE_SECONDS = 60.0, 20.0
_POLL_SECONDS = 0.5
_TAIL_LINES = 20
# As many as the server makes.
_MOST_ATTEMPTS = 4

JobReportCallback = Callable[[JobReport], None]
LogLineCallback = Callable[[str], None]


def run_batch_process(
    request: JobRequest, on_report: JobReportCallback, on_log_line: LogLineCallback
) -> JobOutcome:
    """Run the job; `on_report` gets its reports, `on_log_line` the lines of its log (in another thread).

    Raises the error it fails with. After lost workers it is tried again. Interrupted or terminated, it leaves
    nothing in the output folder.
    """
    try:
        with interrupt_on_sigterm():
            last, code, end = _run_process(request, on_report, on_log_line)
            for attempt in range(2, _MOST_ATTEMPTS + 1):
                if code != EXIT_WORKERS_LOST:
                    break
                print_note(f"Workers were lost. Attempt {attempt} of {_MOST_ATTEMPTS} begins.")
                again = msgspec.structs.replace(request, attempt=attempt)
                last, code, end = _run_process(again, on_report, on_log_line)
    except BaseException:
        _remove_temporary_files(request)
        raise
    if last.done is not None:
        return last.done
    if last.failed is not None:
        raise create_error(last.failed.status, last.failed.message)
    _remove_temporary_files(request)
    raise Internal(f"The job's process {end}")


def _remove_temporary_files(request: JobRequest) -> None:
    print_note("Removing temporary files ...")
    with interrupt_on_sigterm():
        _run_process(msgspec.structs.replace(request, clean=True), lambda _: None, lambda _: None)


def _run_process(
    request: JobRequest, on_report: JobReportCallback, on_log_line: LogLineCallback
) -> tuple[JobReport, int | None, str]:
    """The last report of the process, its exit code, and how it ended; its process group is gone on return.

    Not by `autoscaler.child_launcher`, as the server does it: a command has no event loop, and relays the log
    in a thread while a report is printed.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    remote_lifeline, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "autoscaler.module_process", str(remote_lifeline), "batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(remote_lifeline,),
            env=environment_without_settings() | FRAMEWORK_ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(remote_lifeline)
    with process:
        reader = threading.Thread(target=_relay_log, args=(process.stderr, tail, on_log_line), daemon=True)
        reader.start()
        try:
            _send_request(process, request)
            last = _relay_reports(process, on_report)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                return last, None, f"said nothing for {_SILENCE_SECONDS:.0f} s and was ended."
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
            raise
        finally:
            os.close(lifeline)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(_GRACE_SECONDS)
    from autoscaler.processes import describe_exit  # noqa: PLC0415  start-up time

    return last, process.returncode, describe_exit(process.returncode, tail)


def _send_request(process: subprocess.Popen[bytes], request: JobRequest) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; the exit status is reported later
            process.stdin.write(msgspec.json.encode(request))
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _relay_reports(process: subprocess.Popen[bytes], on_report: JobReportCallback) -> JobReport:
    """Relay the reports until the last one, the end of the process, or too long a silence."""
    last = JobReport()
    for line in _read_lines(process):
        last = msgspec.json.decode(line, type=JobReport)
        on_report(last)
        if last.done is not None or last.failed is not None:
            break
    return last


def _read_lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines of its standard output. A worker may hold the pipe open when the process itself is gone."""
    if process.stdout is None:
        return
    rest = b""
    last_read = time.monotonic()
    while time.monotonic() - last_read < _SILENCE_SECONDS:
        ended = process.poll() is not None
        if select.select([process.stdout], [], [], 0 if ended else _POLL_SECONDS)[0]:
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return
            last_read = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        elif ended:
            return


def _relay_log(stream: IO[bytes], tail: deque[str], on_log_line: LogLineCallback) -> None:
    for line in stream:
        text = line.decode(errors="replace").rstrip()
        tail.append(text)
        on_log_line(text)
