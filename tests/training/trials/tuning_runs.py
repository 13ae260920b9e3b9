"""Runs tuning jobs as the server does: a supervisor process, orders through its pipe, reports."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bounds import HANG_SECONDS
from tests.training.jobs import JobRun
from training.messages import (
    FinishTrials,
    ReplicaGroup,
    ReplicaRole,
    StartTrial,
    StopTrial,
    TrainingPhase,
    TrialOrder,
    TrialReport,
    TrialSettings,
)

TAG = "accuracy"
MASTER = (ReplicaGroup(ReplicaRole.MASTER),)


def write_order(path: Path, order: TrialOrder) -> None:
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, msgspec.json.encode(order) + b"\n")
    os.close(pipe)


class TuningRun(JobRun):
    """One attempt at a tuning job with the given program, which waits for orders."""

    def __init__(
        self,
        folder: Path,
        source: str,
        *,
        slots: Sequence[Any] = (MASTER,),
        silence_seconds: float = HANG_SECONDS,
        **fields: Any,
    ) -> None:
        self.orders = folder / "orders"
        settings = TrialSettings(
            metric_tag=TAG, slots=tuple(slots), orders=str(self.orders), silence_seconds=silence_seconds
        )
        super().__init__(folder, source, trials=settings, **fields)
        self.wait_for(lambda report: report.phase is TrainingPhase.RUNNING)

    def order(self, order: TrialOrder) -> None:
        write_order(self.orders, order)

    def start_trial(self, number: int, *args: str) -> None:
        self.order(StartTrial(number, args))

    def stop_trial(self, number: int) -> None:
        self.order(StopTrial(number))

    def finish_trials(self, failure: str = "") -> None:
        self.order(FinishTrials(failure))

    def wait_for_points(self, number: int) -> TrialReport:
        return self._wait_for_trial(number, ended=False)

    def wait_for_end(self, number: int) -> TrialReport:
        return self._wait_for_trial(number, ended=True)

    def wait_for_pids(self, count: int) -> set[int]:
        """Of programs that print them, as `pid N`: their lines may come later than their metrics."""
        bound = time.monotonic() + HANG_SECONDS
        while len(pids := {int(line.split()[1]) for line in self.lines()}) < count:
            assert time.monotonic() < bound, f"only {pids} are in the log"
            time.sleep(0.05)
        return pids

    def _wait_for_trial(self, number: int, *, ended: bool) -> TrialReport:
        found = self.wait_for(
            lambda one: one.trial is not None and one.trial.trial == number and one.trial.ended == ended
        ).trial
        assert found is not None
        return found
