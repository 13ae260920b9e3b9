"""Runs training jobs as the server does: a supervisor process, a lifeline, reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, Self

import msgspec

from training.logs.entries import LogEntry
from training.logs.reader import LogQuery, read_entries
from training.messages import ReplicaEvent, ReplicaReport, TrainingReport, TrainingRequest

ROOT = Path(__file__).parents[2]
MODULE = "trainer"


class JobRun:
    """One attempt at a job whose program has the given source text. Use as a context manager."""

    def __init__(self, folder: Path, source: str, **fields: Any) -> None:
        self.folder = folder
        self.job_dir = folder / "out"
        self.log_dir = folder / "log"
        modules = folder / "modules"
        modules.mkdir(exist_ok=True)
        (modules / f"{MODULE}.py").write_text(dedent(source))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), "HOME": str(folder)}
        defaults: dict[str, Any] = {
            "module": MODULE,
            "job_dir": str(self.job_dir),
            "environment": environment,
            "scratch_dir": str(folder / "scratch"),
            "log_dir": str(self.log_dir),
            "cache_dir": str(folder / "cache"),
            "cache_bytes": 1 << 30,
            "grace_seconds": 5.0,
        }
        self.request = TrainingRequest(job="job_1", uid="1", **defaults | fields)
        lifeline, self._lifeline = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training", str(lifeline)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[lifeline],
            start_new_session=True,
        )
        os.close(lifeline)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self.request))
        self.process.stdin.close()
        self._reports = self._read_reports()
        self.seen: list[TrainingReport] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_lifeline()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def cut_lifeline(self) -> None:
        """What happens when the server is killed."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def cancel(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait_for(self, is_wanted: Callable[[TrainingReport], Any]) -> TrainingReport:
        return next(report for report in self._reports if is_wanted(report))

    def wait_for_replica(self, event: ReplicaEvent, task: str = "master-replica-0") -> ReplicaReport:
        def is_wanted(report: TrainingReport) -> bool:
            return report.replica is not None and (report.replica.event, report.replica.task) == (event, task)

        found = self.wait_for(is_wanted).replica
        assert found is not None
        return found

    def finish(self) -> TrainingReport:
        """Wait for the end of the job; returns the last report."""
        last = self.wait_for(lambda report: report.done or report.failed)
        assert self.process.wait(20) == 0
        return last

    def replica_events(self, task: str = "master-replica-0") -> list[ReplicaEvent]:
        found = (report.replica for report in self.seen if report.replica is not None)
        return [report.event for report in found if report.task == task]

    def lines(self, task: str = "master-replica-0") -> list[str]:
        """What a task has printed so far."""
        return [entry.text for entry in self.entries() if entry.task == task]

    def entries(self) -> list[LogEntry]:
        return read_log(self.log_dir)

    def _read_reports(self) -> Iterator[TrainingReport]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report = msgspec.json.decode(line, type=TrainingReport)
            self.seen.append(report)
            yield report


def read_log(folder: Path) -> list[LogEntry]:
    return read_entries(folder, LogQuery(limit=1 << 30))


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended, and is not reaped yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
