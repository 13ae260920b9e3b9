"""The supervisor of a training job: prepares it, runs its replicas, starts lost ones again, ends everything.

It has one thread and never imports the user's code, so that replicas can be forked from it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from training.cluster import Replica, list_replicas
from training.liveness import SendReport, send_heartbeats, watch_lifeline
from training.logs.entries import SERVICE_TASK
from training.logs.severity import ERROR, INFO
from training.logs.writer import JobLogWriter
from training.messages import (
    CANCELLED,
    ReplicaEvent,
    ReplicaReport,
    ReplicaRole,
    TrainingFailure,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrainingSuccess,
)
from training.preparation import Preparation
from training.program import Program, explain_missing_module
from training.replicas.event_loop import EventLoop
from training.replicas.job_processes import JobProcesses, RunningProcess
from training.replicas.replica_launcher import ReplicaLauncher
from training.replicas.restart_policy import Action, RestartHistory, decide_after_exit, describe_exit, is_loss

_MEMORY_POLL_SECONDS = 0.5
_TRACEBACK = "Traceback (most recent call last):"
# Lines of standard error that stand for the reason where there is no traceback; characters of each line, and
# of all. The log has the rest.
_REASON_LINES = 5
_LINE_LENGTH, _REASON_LENGTH = 1000, 6000


class ClusterSupervisor:
    """Runs one request. `lifeline`: when its other end is closed, all processes are killed at once.

    `from_pilot`: this process has imported what programs need, so replicas are forked where that is safe.
    `program` is that of a trial; without one it is prepared first.
    """

    def __init__(
        self,
        request: TrainingRequest,
        send_report: SendReport,
        lifeline: int,
        *,
        from_pilot: bool = False,
        program: Program | None = None,
    ) -> None:
        self._request = request
        self._program = program
        self._send_report = send_report
        self._log = JobLogWriter(Path(request.log_dir), request.attempt, request.log_bytes, request.trial)
        self.loop = EventLoop()
        self.loop.add_signal_handler(signal.SIGTERM, self._cancel)
        self.loop.add_signal_handler(signal.SIGINT, self._cancel)
        self.processes = JobProcesses(self.loop, self._log, runs_containers=request.engine is not None)
        watch_lifeline(lifeline, self.loop, self.processes)
        self._replicas = list_replicas(request.groups)
        self._launcher = ReplicaLauncher(request, self.processes, from_pilot=from_pilot)
        self._running: dict[Replica, RunningProcess] = {}
        self._history = RestartHistory()
        self._restarts: dict[Replica, int] = {}
        self._ending = False
        self._first_start: float | None = None
        self._replica_seconds = 0.0
        self._has_ended = False
        self._failure: TrainingFailure | None = None
        self._is_over = False

    def run(self) -> TrainingSuccess | TrainingFailure:
        """Run to the end; when this returns, no process is left."""
        Path(self._request.scratch_dir).mkdir(parents=True, exist_ok=True)
        try:
            self._begin()
            self.loop.run_until(lambda: self._is_over)
        except BaseException:
            self.processes.kill_all()
            raise
        self._log.close()
        self.loop.close()
        self._launcher.close()
        return self._build_result()

    @property
    def log_bytes(self) -> int:
        """The size of the log."""
        return self._log.size

    def count_replica_seconds(self) -> float:
        """Those of all replicas so far, in sum."""
        now = time.monotonic()
        return self._replica_seconds + sum(now - one.started_at for one in self._running.values())

    def _begin(self) -> None:
        if self._program is not None:
            self._run_program(self._program)
            return
        send_heartbeats(self.loop, self._send_report, self.count_replica_seconds)
        self._send_report(TrainingReport(phase=TrainingPhase.PREPARING))
        self._write_note("Job is preparing.")
        Preparation(
            self._request,
            self.processes,
            write_note=self._write_note,
            on_ready=self._run_prepared,
            on_failure=self._end_with_failure,
        ).begin()

    def _run_prepared(self, program: Program) -> None:
        """Unless the job was cancelled meanwhile."""
        if not self._ending:
            self._run_program(program)

    def _run_program(self, program: Program) -> None:
        self._program = program
        # Those of trials have been written once for all.
        for warning in () if self._request.trial else program.installed.warnings:
            self._write_note(warning, "WARNING")
        if obstacle := self._launcher.set_program(program):
            self._write_note(f"Replicas start cold: {obstacle}.")
        if self._request.memory_bytes:
            self._check_memory()
        self._start_replicas(ReplicaEvent.STARTED)
        if not self._ending and not self._request.trial:
            self._send_report(TrainingReport(phase=TrainingPhase.RUNNING))
            self._write_note("Job is running.")

    def _start_replicas(self, event: ReplicaEvent) -> None:
        """Start all; the master is the last, as it needs the others first."""
        try:
            self._launcher.reserve_ports(self._replicas)
            for replica in sorted(self._replicas, key=lambda one: one.role is ReplicaRole.MASTER):
                self._start_replica(replica, event)
        except OSError as error:
            self._fail("UNAVAILABLE", f"The replicas cannot be started: {error.strerror or error}.")

    def _start_replica(self, replica: Replica, event: ReplicaEvent) -> None:
        """Raises OSError."""
        restarts = self._restarts.get(replica, 0)
        process = self._launcher.start(replica, restarts, lambda code: self._handle_exit(replica, code))
        self._running[replica] = process
        self._first_start = self._first_start or process.started_at
        self._report_replica(replica, event, process.pid)

    def _handle_exit(self, replica: Replica, exit_code: int) -> None:
        process = self._running.pop(replica)
        now = time.monotonic()
        self._replica_seconds += now - process.started_at
        self._report_replica(replica, ReplicaEvent.ENDED, process.pid, exit_code)
        if self._ending:
            return
        action = decide_after_exit(replica, exit_code, self._history, self._request.restarts, now)
        if is_loss(exit_code):
            self._history = self._history.add_loss(replica, now)
        match action:
            case Action.GO_ON:
                self._write_note(f"{replica.task_name} has ended.")
            case Action.SUCCEED:
                self._succeed()
            case Action.RESTART_REPLICA:
                self._restart_replica(replica, exit_code)
            case Action.RESTART_JOB:
                self._restart_job(replica, exit_code)
            case Action.FAIL:
                self._write_note(describe_exit(replica, exit_code), ERROR)
                # The reason is in the log already, where the replica has written it.
                message = self._describe_failure(replica, exit_code, list(process.tail))
                self._end(TrainingFailure("FAILED_PRECONDITION", message))

    def _restart_replica(self, replica: Replica, exit_code: int) -> None:
        self._history = self._history.add_restart(replica)
        self._restarts[replica] = self._restarts.get(replica, 0) + 1
        self._write_note(f"{describe_exit(replica, exit_code)} It is started again.", "WARNING")
        try:
            self._start_replica(replica, ReplicaEvent.RESTARTED)
        except OSError as error:
            self._fail("UNAVAILABLE", f"A replica cannot be started again: {error.strerror or error}.")

    def _restart_job(self, replica: Replica, exit_code: int) -> None:
        """Start all again, at other addresses, once all have ended."""
        self._write_note(f"{describe_exit(replica, exit_code)} All replicas are started again.", "WARNING")
        self._history = self._history.add_job_restart()
        self._restarts = {one: self._restarts.get(one, 0) + 1 for one in self._replicas}
        self._end_processes()

    def _end_processes(self) -> None:
        if not self._ending:
            self._ending = True
            self.processes.end_all(self._request.grace_seconds, self._handle_all_gone)

    def _handle_all_gone(self) -> None:
        self._ending = False
        if self._has_ended:
            self._is_over = True
        else:
            self._start_replicas(ReplicaEvent.RESTARTED)

    def _report_replica(
        self, replica: Replica, event: ReplicaEvent, pid: int, exit_code: int | None = None
    ) -> None:
        restarts = self._restarts.get(replica, 0)
        report = ReplicaReport(replica.task_name, event, pid, exit_code, restarts, self._history.whole_job)
        self._send_report(TrainingReport(replica=report))

    # ---- the end

    def _succeed(self) -> None:
        self._write_note("Job completed successfully.")
        self._end(None)

    def _fail(self, status: str, message: str) -> None:
        self._end_with_failure(TrainingFailure(status, message))

    def _end_with_failure(self, failure: TrainingFailure) -> None:
        if not self._has_ended:
            self._write_note(failure.message, ERROR)
        self._end(failure)

    def _cancel(self) -> None:
        """The server says why: it may as well be stopping, and go on with the job later."""
        self._end(TrainingFailure(CANCELLED, "The job was cancelled."))

    def _end(self, failure: TrainingFailure | None) -> None:
        """End all processes; of several ends the first counts."""
        if not self._has_ended:
            self._has_ended, self._failure = True, failure
        self._end_processes()

    def _describe_failure(self, replica: Replica, exit_code: int, tail: Sequence[str]) -> str:
        """How it ended, with its last traceback, or the last lines that it wrote to standard error."""
        starts = [number for number, line in enumerate(tail) if line.startswith(_TRACEBACK)]
        lines = tail[starts[-1] :] if starts else tail[-_REASON_LINES:]
        reason = "\n".join(
            line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} ..." for line in lines
        )
        if len(reason) > _REASON_LENGTH:
            reason = f"... {reason[-_REASON_LENGTH:]}"
        advice = ""
        if lines and not starts and self._program is not None:
            folders = self._program.installed.folders
            advice = explain_missing_module(self._request.module, lines[-1], folders)
        return "\n".join(filter(None, [describe_exit(replica, exit_code), reason, advice]))

    def _build_result(self) -> TrainingSuccess | TrainingFailure:
        if self._failure is not None:
            return msgspec.structs.replace(self._failure, replica_seconds=self._replica_seconds)
        seconds = time.monotonic() - self._first_start if self._first_start is not None else 0.0
        return TrainingSuccess(seconds, self._replica_seconds)

    def _check_memory(self) -> None:
        """End a job that takes more than it may, before the machine runs out of it."""
        most = self._request.memory_bytes
        taken = self.processes.measure_memory(most)
        if taken > most and not self._has_ended:
            self._fail(
                "RESOURCE_EXHAUSTED",
                f"The job took {taken >> 20} MiB of memory, and may take {most >> 20} MiB.",
            )
        self.loop.call_later(_MEMORY_POLL_SECONDS, self._check_memory)

    def _write_note(self, text: str, severity: str = INFO) -> None:
        if self._request.trial and severity == INFO:  # what is usual is said once, of the job
            return
        self._log.write(SERVICE_TASK, [(severity, line) for line in text.splitlines()])
