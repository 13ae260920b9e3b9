"""A process that runs trials: the supervisor of the cluster of each, which reads its metric too."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from autoscaler import linux
from serving.scratch_folders import remove_folder
from training.cluster_supervisor import ClusterSupervisor
from training.messages import (
    CANCELLED,
    TrainingFailure,
    TrainingReport,
    TrainingRequest,
    TrainingSuccess,
    TrialReport,
)
from training.program import Program
from training.replicas.child import LIFELINE
from training.trials.trial_metrics import TrialMetrics

_STDIN, _STDOUT = 0, 1
# Seconds between two looks at the metric; looks that take long are rarer. Buckets are asked less often.
_POLL_SECONDS, _BUCKET_POLL_SECONDS = 1.0, 10.0
_BUSY_SHARE = 0.05
_HEARTBEAT_SECONDS = 5.0
# With it and all points a report stays below the 64 KiB at which its line would be cut.
_MAX_MESSAGE_LENGTH = 6000


class TrialRequest(msgspec.Struct, frozen=True):
    """A trial, with all arguments of its program, and its folder as the program is told it."""

    request: TrainingRequest
    arguments: tuple[str, ...]
    job_dir: str


def run_trials(program: Program, *, from_pilot: bool) -> NoReturn:
    """Run trials, one after the other, in this process, which a tuning supervisor has forked.

    Their requests come as lines on standard input, until its end; reports go to standard output.
    """
    linux.name_process("pilotlight-trial")
    # The entry of the cache is held by the parent.
    program = dataclasses.replace(program, entry=None)
    for line in os.fdopen(_STDIN, "rb"):
        order = msgspec.json.decode(line, type=TrialRequest)
        os.environ.update(order.request.environment)  # buckets are read with what the program gets for that
        own = dataclasses.replace(program, arguments=order.arguments, job_dir=order.job_dir)
        _write_report(run_trial(order.request, own, from_pilot=from_pilot))
        # After the report: it takes a while, in which the next trial is chosen.
        remove_folder(Path(order.request.scratch_dir))
    os._exit(0)


def run_trial(request: TrainingRequest, program: Program, *, from_pilot: bool) -> TrialReport:
    """Run a trial to its end; returns its last report."""
    metrics, trial = TrialMetrics(request), int(request.trial)
    supervisor = ClusterSupervisor(request, _ignore_report, LIFELINE, from_pilot=from_pilot, program=program)
    MetricPoll(supervisor, metrics, trial).begin()
    result = supervisor.run()
    # Until the next one begins nobody is to be ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report = _build_last_report(result, metrics, trial)
    return msgspec.structs.replace(report, log_bytes=supervisor.log_bytes)


class MetricPoll:
    """Looks at the metric of a trial while it runs. A process of its own looks into a bucket."""

    def __init__(
        self,
        supervisor: ClusterSupervisor,
        metrics: TrialMetrics,
        trial: int,
    ) -> None:
        self._supervisor = supervisor
        self._metrics = metrics
        self._trial = trial

    def begin(self) -> None:
        self._supervisor.loop.call_later(_HEARTBEAT_SECONDS, self._send_heartbeats)
        self._supervisor.loop.call_later(_POLL_SECONDS, self._look)
        if self._metrics.is_in_bucket:
            self._supervisor.loop.call_later(_BUCKET_POLL_SECONDS, self._watch_bucket)

    def write(self, task: str, lines: Iterable[tuple[str, str]]) -> None:
        """Pass on the reports of the process that looks into the bucket."""
        for _, line in lines:
            os.write(_STDOUT, f"{line}\n".encode())

    def _send_heartbeats(self) -> None:
        """A process that is stopped sends none."""
        seconds = self._supervisor.count_replica_seconds()
        _write_report(TrialReport(self._trial, replica_seconds=seconds))
        self._supervisor.loop.call_later(_HEARTBEAT_SECONDS, self._send_heartbeats)

    def _look(self) -> None:
        begin = time.monotonic()
        if points := self._metrics.read():
            _write_report(TrialReport(self._trial, points))
        pause = max(_POLL_SECONDS, (time.monotonic() - begin) / _BUSY_SHARE)
        self._supervisor.loop.call_later(pause, self._look)

    def _watch_bucket(self) -> None:
        if not self._metrics.has_reports():
            self._supervisor.processes.start(self._follow_bucket, "metrics", lambda _: None, log=self)

    def _follow_bucket(self) -> NoReturn:
        """In a process that ends with the cluster's."""
        while True:
            if points := self._metrics.read_event_points():
                _write_report(TrialReport(self._trial, points))
            time.sleep(_BUCKET_POLL_SECONDS)


def _build_last_report(
    result: TrainingSuccess | TrainingFailure, metrics: TrialMetrics, trial: int
) -> TrialReport:
    """Of a trial that was ended by an order, the last value counts."""
    is_cancelled = isinstance(result, TrainingFailure) and result.status == CANCELLED
    if isinstance(result, TrainingFailure) and not is_cancelled:
        report = TrialReport(trial, metrics.read(), ended=True, failure=result.message)
    else:
        report = metrics.build_last_report(trial)
    return msgspec.structs.replace(report, cancelled=is_cancelled, replica_seconds=result.replica_seconds)


def _write_report(report: TrialReport) -> None:
    # Tags and names of files may have what UTF-8 cannot say.
    failure = report.failure.encode(errors="backslashreplace").decode()[:_MAX_MESSAGE_LENGTH]
    data = msgspec.json.encode(msgspec.structs.replace(report, failure=failure)) + b"\n"
    while data:
        data = data[os.write(_STDOUT, data) :]


def _ignore_report(report: TrainingReport) -> None:
    """The tuning supervisor sees to its processes itself."""
