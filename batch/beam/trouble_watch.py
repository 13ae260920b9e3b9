"""Tells of what keeps a pipeline from going on: no slot, no worker, a worker that cannot work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from batch.engines.engine import Engine, EngineState
from batch.worker_signs import WorkerSign

logger = logging.getLogger(__name__)

# Seconds between two questions to the engine.
_ASK_EVERY = 5.0
# A worker may take as long as so many starts of this process: several begin at the same time.
_OWN_STARTS = 4.0


class TroubleWatch:
    """To be asked often while a pipeline runs.

    `read_signs` finds the workers that have begun. `report` gets a sentence when trouble has lasted for two
    questions, or has changed, and "" when it is over. `own_start` is how many seconds this process took from
    its start to the submission of the pipeline: a worker imports as much, perhaps on as busy a machine.
    """

    def __init__(
        self,
        engine: Engine,
        read_signs: Callable[[], Sequence[WorkerSign]],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        own_start: float = 0.0,
    ) -> None:
        self._engine = engine
        self._read_signs = read_signs
        self._report = report
        self._clock = clock
        self._start_within = max(engine.worker_start_seconds, _OWN_STARTS * own_start)
        self._next = clock() + _ASK_EVERY
        self._state = EngineState.UNKNOWN
        self._state_since = clock()
        self._seen = self._told = ""
        self._has_workers = False

    def check(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _ASK_EVERY
        trouble = self._find_trouble(now)
        if trouble == self._seen and trouble != self._told:
            self._told = trouble
            self._report(trouble)
        self._seen = trouble

    def find_worker_trouble(self) -> str:
        """Why a worker cannot work, as it has said itself; "" if none has."""
        return next((sign.trouble for sign in self._read_signs() if sign.trouble), "")

    def _find_trouble(self, now: float) -> str:
        if trouble := self._engine.find_trouble():
            return trouble
        if self._has_workers:
            return ""
        if trouble := self.find_worker_trouble():
            return trouble
        self._has_workers = bool(self._read_signs())
        return "" if self._has_workers else self._find_late_start(now)

    def _find_late_start(self, now: float) -> str:
        state = self._engine.find_state()
        if state is not self._state:
            self._state, self._state_since = state, now
        if state is EngineState.WAITING or now - self._state_since < self._start_within:
            return ""
        if state is EngineState.ABSENT:
            return (
                f"{self._engine.name} has not been given the pipeline within "
                f"{self._start_within:.0f} s: the log of the job server says why."
            )
        return (
            f"No worker has begun within {self._start_within:.0f} s, although "
            f"{self._engine.name} has the pipeline. If none can be started, the log of what starts it says "
            "why (TaskManager, executor, worker pool), and docs/batch.md what a worker needs."
        )
