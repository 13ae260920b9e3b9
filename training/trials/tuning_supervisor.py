"""The supervisor of a tuning job: prepares its program once, and runs trials as it is ordered to.

Each of the trials that run at a time has a supervisor of its cluster, a fork that runs others after it. So
trials share nothing but the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from serving.errors import ServingError
from training.liveness import SendReport, send_heartbeats, watch_lifeline
from training.logs.entries import SERVICE_TASK
from training.logs.severity import ERROR, INFO
from training.logs.writer import JobLogWriter
from training.messages import (
    CANCELLED,
    FinishTrials,
    ReplicaGroup,
    StartTrial,
    StopTrial,
    TrainingFailure,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrainingSuccess,
    TrialOrder,
    TrialReport,
    TrialSettings,
)
from training.preparation import Preparation
from training.program import Program
from training.replicas.event_loop import EventLoop
from training.replicas.job_processes import JobProcesses, RunningProcess
from training.replicas.replica_output import LineReader
from training.trials.trial_process import TrialRequest, run_trials

HandleReport = Callable[["_Slot", TrialReport], None]
WriteNote = Callable[[str, str], None]

# Beyond the time that the processes of a trial have after SIGTERM.
_TRIAL_GRACE_SECONDS = 3.0
# Looks at the processes of trials in the time that one may be silent.
_WATCHES = 36
# Bytes that one trial's log may take, unless the job's share allows more.
_LEAST_LOG_BYTES = 4 << 20
# Characters of a line of a trial's supervisor that is no report.
_MAX_TROUBLE_LENGTH = 1000
# Room for orders that are not read yet: one may have 32 KiB.
_PIPE_BYTES = 1 << 20
_ORDERS = msgspec.json.Decoder(TrialOrder)
_REPORTS = msgspec.json.Decoder(TrialReport)


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for one trial at a time, with the process that runs those of this place.

    `requests` is where it reads what to run, `heard_at` when it last reported, `trial` the one that it runs,
    `replica_seconds` those of its replicas by the last heartbeat, `is_stopped` whether an order has ended it.
    """

    groups: tuple[ReplicaGroup, ...]
    process: RunningProcess | None = None
    requests: int = -1
    heard_at: float = 0.0
    trial: int = 0
    replica_seconds: float = 0.0
    is_stopped: bool = False

    def send(self, run: TrialRequest) -> None:
        """Raises OSError."""
        data = msgspec.json.encode(run) + b"\n"
        while data:
            data = data[os.write(self.requests, data) :]

    def close(self) -> None:
        """The process ends once it has nothing to do."""
        if self.requests >= 0:
            os.close(self.requests)
            self.requests = -1


class TuningSupervisor:
    """Runs the trials of one request. `lifeline`: when its other end is closed, everything is killed."""

    def __init__(
        self,
        request: TrainingRequest,
        settings: TrialSettings,
        send_report: SendReport,
        lifeline: int,
        *,
        from_pilot: bool,
    ) -> None:
        self._request = request
        self._settings = settings
        self._send_report = send_report
        self._from_pilot = from_pilot
        self._log = JobLogWriter(Path(request.log_dir), request.attempt, request.log_bytes)
        self._loop = EventLoop()
        self._loop.add_signal_handler(signal.SIGTERM, self._cancel)
        self._loop.add_signal_handler(signal.SIGINT, self._cancel)
        self._processes = JobProcesses(self._loop, self._log, runs_containers=request.engine is not None)
        watch_lifeline(lifeline, self._loop, self._processes)
        self._preparation = Preparation(
            request,
            self._processes,
            write_note=self._write_note,
            on_ready=self._begin_trials,
            on_failure=self._end,
        )
        self._program = Program(())
        self._slots = [_Slot(groups) for groups in settings.slots]
        self._started_at = time.monotonic()
        self._replica_seconds = 0.0
        self._failed_trials = 0
        self._has_ended = False
        self._failure: TrainingFailure | None = None
        self._is_over = False

    def run(self) -> TrainingSuccess | TrainingFailure:
        """Run to the end; when this returns, no process is left."""
        Path(self._request.scratch_dir).mkdir(parents=True, exist_ok=True)
        send_heartbeats(self._loop, self._send_report, self._count_replica_seconds)
        self._send_report(TrainingReport(phase=TrainingPhase.PREPARING))
        self._write_note("Job is preparing.")
        try:
            self._preparation.begin()
            self._loop.run_until(lambda: self._is_over)
        except BaseException:
            self._processes.kill_all()
            raise
        self._log.close()
        self._loop.close()
        self._program.close()
        if self._failure is not None:
            return msgspec.structs.replace(self._failure, replica_seconds=self._replica_seconds)
        return TrainingSuccess(time.monotonic() - self._started_at, self._replica_seconds)

    def _begin_trials(self, program: Program) -> None:
        if self._has_ended:
            return
        for warning in program.installed.warnings:
            self._write_note(warning, "WARNING")
        self._program = program
        reader = LineReader(_open_pipe(Path(self._settings.orders)))
        self._loop.add_reader(reader.fd, lambda: self._read_orders(reader))
        self._kill_silent_processes()
        self._send_report(TrainingReport(phase=TrainingPhase.RUNNING))
        self._write_note("Job is running.")

    # ---- orders

    def _read_orders(self, reader: LineReader) -> None:
        for line in reader.read_lines() or ():
            self.handle_order(_ORDERS.decode(line))

    def handle_order(self, order: TrialOrder) -> None:
        if self._has_ended:
            return
        match order:
            case StartTrial(number, args):
                self._start_trial(number, args)
            case StopTrial(number):
                self._stop_trial(number)
            case FinishTrials(failure):
                self._end(TrainingFailure("FAILED_PRECONDITION", failure) if failure else None)

    def _start_trial(self, number: int, args: tuple[str, ...]) -> None:
        slot = next(slot for slot in self._slots if not slot.trial)
        slot.trial, slot.is_stopped, slot.heard_at = number, False, time.monotonic()
        self._write_note(f"Trial {number} starts: {' '.join(args)}")
        try:
            run = self._build_trial_request(slot, args)
            if slot.process is None:
                self._start_process(slot)
            slot.send(run)
        except ServingError as error:
            self._conclude_trial(slot, TrialReport(number, ended=True, failure=error.message))
        except OSError as error:
            self._write_note(f"Trial {number} cannot be started: {error.strerror or error}.", ERROR)
            self._conclude_trial(slot, TrialReport(number, ended=True, lost=True))

    def _start_process(self, slot: _Slot) -> None:
        """Raises OSError."""
        reading, slot.requests = os.pipe2(os.O_CLOEXEC)
        try:
            slot.process = self._processes.start(
                partial(run_trials, self._program, from_pilot=self._from_pilot),
                SERVICE_TASK,
                lambda _: self._handle_process_exit(slot),
                log=_SlotOutput(slot, self._handle_report, self._write_note),
                stdin=reading,
            )
        except OSError:
            slot.close()
            raise
        finally:
            os.close(reading)

    def _build_trial_request(self, slot: _Slot, args: tuple[str, ...]) -> TrialRequest:
        """Raises ServingError, OSError."""
        request = self._build_request(slot, args)
        everything = (*self._request.args, *args)
        return TrialRequest(
            request, *self._preparation.builder.prepare_arguments(everything, request.job_dir)
        )

    def _build_request(self, slot: _Slot, args: tuple[str, ...]) -> TrainingRequest:
        """The request of a trial's own run."""
        request, number = self._request, slot.trial
        scratch = Path(request.scratch_dir, "trials", str(number))
        metric_file = scratch / "metrics" / "output.metrics"
        metric_file.parent.mkdir(parents=True, exist_ok=True)
        # What an attempt before this one has reported is not this one's.
        metric_file.unlink(missing_ok=True)
        size = sum(group.count for group in slot.groups) * len(self._slots)
        return msgspec.structs.replace(
            request,
            trials=None,
            trial=str(number),
            metric_tag=self._settings.metric_tag,
            metric_file=str(metric_file),
            groups=tuple(_add_arguments(group, args) for group in slot.groups),
            job_dir=f"{request.job_dir.rstrip('/')}/{number}" if request.job_dir else "",
            scratch_dir=str(scratch),
            threads=request.threads or max(1, len(os.sched_getaffinity(0)) // size),
            log_bytes=max(_LEAST_LOG_BYTES, request.log_bytes // (2 * len(self._slots))),
        )

    def _stop_trial(self, number: int) -> None:
        for slot in self._slots:
            if slot.trial == number and slot.process is not None:
                slot.is_stopped = True
                self._write_note(f"Trial {number} is stopped early.")
                slot.process.terminate_group()

    # ---- trials

    def _handle_report(self, slot: _Slot, report: TrialReport) -> None:
        slot.heard_at = time.monotonic()
        if not report.ended:
            if report.points:
                self._send_report(TrainingReport(trial=report))
            else:  # a heartbeat
                slot.replica_seconds = report.replica_seconds
        elif report.cancelled and not slot.is_stopped:
            self._conclude_trial(slot, msgspec.structs.replace(report, final=None, failure="", lost=True))
        else:
            self._conclude_trial(slot, report)

    def _kill_silent_processes(self) -> None:
        """End those that hang: their trials are lost."""
        silence_seconds = self._settings.silence_seconds
        silent = time.monotonic() - silence_seconds
        for slot in self._slots:
            if slot.trial and slot.process is not None and slot.heard_at < silent:
                self._write_note(f"The supervisor of trial {slot.trial} hangs and is ended.", ERROR)
                slot.process.kill_group()
        self._loop.call_later(silence_seconds / _WATCHES, self._kill_silent_processes)

    def _handle_process_exit(self, slot: _Slot) -> None:
        slot.process = None
        slot.close()
        if slot.trial:
            self._conclude_trial(slot, TrialReport(slot.trial, ended=True, lost=True))

    def _count_replica_seconds(self) -> float:
        return self._replica_seconds + sum(slot.replica_seconds for slot in self._slots)

    def _conclude_trial(self, slot: _Slot, report: TrialReport) -> None:
        # One that was lost does not tell.
        self._replica_seconds += report.replica_seconds or slot.replica_seconds
        slot.trial, slot.replica_seconds = 0, 0.0
        self._failed_trials += report.final is None and not report.lost
        self._log.add_trial_bytes(report.log_bytes)
        # With the job end the trials that still run, which is no end of their own.
        if not (self._has_ended and report.lost):
            severity = INFO if report.final is not None else ERROR
            self._write_note(_describe_end(report, self._settings.metric_tag), severity)
            self._send_report(TrainingReport(trial=report))

    # ---- the end

    def _cancel(self) -> None:
        """The server says why: it may as well be stopping, and go on with the job later."""
        self._end(TrainingFailure(CANCELLED, "The job was cancelled."))

    def _end(self, failure: TrainingFailure | None) -> None:
        """End all processes; of several ends the first counts."""
        if self._has_ended:
            return
        self._has_ended, self._failure = True, failure
        if failure is None:
            self._write_note("Job completed successfully.")
            if self._failed_trials:
                self._write_note(
                    f"Trials that failed: {self._failed_trials}. `pilotlight jobs trials` has their reasons.",
                    "WARNING",
                )
        elif failure.status != CANCELLED:
            self._write_note(failure.message, ERROR)
        for slot in self._slots:
            slot.close()
        grace = self._request.grace_seconds + _TRIAL_GRACE_SECONDS
        self._processes.end_all(grace, self._handle_all_gone)

    def _handle_all_gone(self) -> None:
        self._is_over = True

    def _write_note(self, text: str, severity: str = INFO) -> None:
        self._log.write(SERVICE_TASK, [(severity, line) for line in text.splitlines()])


class _SlotOutput:
    """What the process of a slot prints: reports, and on standard error troubles of its own.

    These, and reports that cannot be read, are for the job's log.
    """

    def __init__(self, slot: _Slot, handle_report: HandleReport, write_note: WriteNote) -> None:
        self._slot = slot
        self._handle_report = handle_report
        self._write_note = write_note

    def write(self, task: str, lines: Iterable[tuple[str, str]]) -> None:
        for _, line in lines:
            try:
                report = _REPORTS.decode(line)
            except msgspec.DecodeError:
                text = f"The supervisor of trial {self._slot.trial}: {line[:_MAX_TROUBLE_LENGTH]}"
                self._write_note(text, ERROR)
            else:
                self._handle_report(self._slot, report)


def _add_arguments(group: ReplicaGroup, args: tuple[str, ...]) -> ReplicaGroup:
    """Containers with words of their own get a trial's arguments behind these."""
    container = group.container
    if container is None or not (container.entrypoint or container.arguments):
        return group
    container = msgspec.structs.replace(container, arguments=(*container.arguments, *args))
    return msgspec.structs.replace(group, container=container)


def _open_pipe(path: Path) -> int:
    """Make a named pipe; opened for writing too, it never ends."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # the least that there is, 64 KiB, holds one order of any length
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return pipe


def _describe_end(report: TrialReport, tag: str) -> str:
    if report.final is not None:
        return f"Trial {report.trial} has ended: {tag} = {report.final.value:g} at step {report.final.step}."
    if report.lost:
        return f"Trial {report.trial} was lost: its supervisor has gone."
    # What follows the first line has been written by the trial's replicas.
    reason, _, _ = report.failure.partition("\n")
    return f"Trial {report.trial} failed. {reason}"
