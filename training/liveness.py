"""What a supervisor tells the server while it lives, and what it does when the server does not."""

from __future__ import annotations

import os
from collections.abc import Callable

from training.messages import Heartbeat, TrainingReport
from training.replicas.event_loop import EventLoop
from training.replicas.job_processes import JobProcesses

SendReport = Callable[[TrainingReport], None]

_HEARTBEAT_SECONDS = 5.0


def send_heartbeats(
    loop: EventLoop, send_report: SendReport, count_replica_seconds: Callable[[], float]
) -> None:
    """One now, and then regularly."""
    send_report(TrainingReport(heartbeat=Heartbeat(count_replica_seconds())))
    loop.call_later(_HEARTBEAT_SECONDS, lambda: send_heartbeats(loop, send_report, count_replica_seconds))


def watch_lifeline(lifeline: int, loop: EventLoop, processes: JobProcesses) -> None:
    """Kill everything once the other end is closed: with the server has gone who could end this job."""

    def die() -> None:
        processes.kill_all()
        os._exit(1)

    loop.add_reader(lifeline, die)
