"""The entry of a supervisor that a pilot forks, with the one that fits its request."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from training.cluster_supervisor import ClusterSupervisor
from training.liveness import SendReport
from training.messages import TrainingFailure, TrainingReport, TrainingRequest
from training.trials.tuning_supervisor import TuningSupervisor

ReportMessage = Callable[[Mapping[str, Any]], None]


def start(arguments: Mapping[str, Any], listener: socket.socket, report: ReportMessage, _: object) -> int:
    """The entry of a supervisor that a pilot forks; see `autoscaler.node_process`.

    `arguments` are "request", a TrainingRequest, and "lifeline". Reports are TrainingReports.
    """
    listener.close()
    request = msgspec.convert(arguments["request"], TrainingRequest)

    def send_report(message: TrainingReport) -> None:
        report(msgspec.to_builtins(message))

    run_request(request, send_report, arguments["lifeline"], from_pilot=True)
    return 0


def run_request(
    request: TrainingRequest, send_report: SendReport, lifeline: int, *, from_pilot: bool = False
) -> None:
    """Run a request to its end, which the last report tells; when this returns, no process is left.

    `lifeline`: when its other end is closed, all processes are killed at once. `from_pilot`: this process has
    imported what programs need.
    """
    if request.trials is None:
        result = ClusterSupervisor(request, send_report, lifeline, from_pilot=from_pilot).run()
    else:
        tuning = TuningSupervisor(request, request.trials, send_report, lifeline, from_pilot=from_pilot)
        result = tuning.run()
    if isinstance(result, TrainingFailure):
        send_report(TrainingReport(failed=result))
    else:
        send_report(TrainingReport(done=result))
