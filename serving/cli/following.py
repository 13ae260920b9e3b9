"""Following a batch prediction job on the server."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from serving.cli import verbs
from serving.cli.client import Client
from serving.cli.standing import Standing, added, display
from serving.errors import Cancelled, Internal

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
EVERY = 1.0
_FIRST_PAUSE = 0.1


class Task(StrEnum):
    """Who writes to the log of a job: the prediction itself, and the server that runs it."""

    SERVICE = "service"
    SERVER = "server"


_OF_SERVER = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d SERVER ")


def task_of(line: str) -> Task:
    """Who wrote a line of a job's log."""
    return Task.SERVER if _OF_SERVER.match(line) else Task.SERVICE


def until_end(client: Client, name: str, *, every: float = EVERY, task: Task | None = None) -> dict[str, Any]:
    """The job once it has ended; tells meanwhile how far it is. `every` is in seconds.

    Of its log all lines are told, or those of one task.
    """
    pause = min(_FIRST_PAUSE, every)
    log: Sequence[str] = ()
    with display(f"Job {verbs.bare(name)}") as shown:
        while True:
            live = client.look(f"/jobs/{name}")
            for line in added(log, live.get("log", ())):
                if task in (None, task_of(line)):
                    shown.log(line)
            log = live.get("log", ())
            shown.show(standing(live))
            if live["state"] in ENDED:
                break
            time.sleep(pause)
            pause = min(pause * 1.5, every)
    return client.call("GET", name)


def standing(live: Mapping[str, Any]) -> Standing:
    """How far a job is, from what `GET /jobs/...` tells."""
    return Standing(
        state=live["state"],
        predictions=live.get("predictions", 0),
        errors=live.get("errors", 0),
        bytes=live.get("bytes", 0),
        bytes_total=live.get("bytesTotal", 0),
        rate=live.get("recordsPerSecond"),
        seconds_left=live.get("secondsLeft"),
    )


def check(job: Mapping[str, Any]) -> None:
    """Raise the error that a job has ended with, if it has not succeeded."""
    if job["state"] == "SUCCEEDED":
        return
    kind = Cancelled if job["state"] == "CANCELLED" else Internal
    reason = f": {job['errorMessage']}" if job.get("errorMessage") else "."
    raise kind(f"Job {job['jobId']} {job['state']}{reason}")
