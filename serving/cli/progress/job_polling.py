"""Follows a batch prediction job on the server."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from serving.cli.api_client import ApiClient
from serving.cli.commands import resource_commands
from serving.cli.progress.job_progress import ProgressSnapshot, find_new_lines, open_progress_display
from serving.cli.reconnection import Reconnector
from serving.errors import Cancelled, Internal

FINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
POLL_SECONDS = 1.0
_FIRST_PAUSE = 0.1


class JobLogSource(StrEnum):
    """Who writes to the log of a job: the prediction itself, and the server that runs it."""

    SERVICE = "service"
    SERVER = "server"


_SERVER_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d SERVER ")


def find_line_source(line: str) -> JobLogSource:
    """Who wrote a line of a job's log."""
    return JobLogSource.SERVER if _SERVER_LINE.match(line) else JobLogSource.SERVICE


def follow_job(
    client: ApiClient, name: str, *, poll_seconds: float = POLL_SECONDS, task: JobLogSource | None = None
) -> dict[str, Any]:
    """The job once it has ended; shows its progress while it waits, and prints its log.

    With `task`, only the log lines of that source are printed.
    """
    pause = min(_FIRST_PAUSE, poll_seconds)
    reconnector = Reconnector()
    log: Sequence[str] = ()
    with open_progress_display(f"Job {resource_commands.extract_id(name)}") as shown:
        while True:
            live = reconnector.call(lambda: client.get_unversioned(f"/jobs/{name}"))
            for line in find_new_lines(log, live.get("log", ())):
                if task in (None, find_line_source(line)):
                    shown.log(line)
            # None while the server that runs the job cannot be reached.
            log = live.get("log") or log
            shown.show(parse_job_progress(live))
            if live["state"] in FINAL_STATES:
                break
            time.sleep(pause)
            pause = min(pause * 1.5, poll_seconds)
    return reconnector.call(lambda: client.call("GET", name))


def parse_job_progress(live: Mapping[str, Any]) -> ProgressSnapshot:
    """The progress in an answer of `GET /jobs/...`."""
    return ProgressSnapshot(
        state=live["state"],
        predictions=live.get("predictions", 0),
        errors=live.get("errors", 0),
        bytes=live.get("bytes", 0),
        bytes_total=live.get("bytesTotal", 0),
        rate=live.get("recordsPerSecond"),
        seconds_left=live.get("secondsLeft"),
    )


def raise_job_error(job: Mapping[str, Any]) -> None:
    if job["state"] == "SUCCEEDED":
        return
    kind = Cancelled if job["state"] == "CANCELLED" else Internal
    reason = f": {job['errorMessage']}" if job.get("errorMessage") else "."
    raise kind(f"Job {job['jobId']} {job['state']}{reason}")
