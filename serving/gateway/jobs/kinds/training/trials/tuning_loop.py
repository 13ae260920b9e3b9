"""Runs the trials of one attempt at a tuning job: what was reported, what is next, what is ordered.

Every trial is on disk before it is started, and every end before the next step is decided: whatever a kill
interrupts is done again, and nothing else is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from serving.errors import ServingError
from serving.gateway.catalog import Catalog, trials
from serving.gateway.jobs.kinds.training.trials.trial_results import (
    apply_report,
    conclude_stopped,
    fail_trial,
    stop_trial,
)
from serving.gateway.state.study_records import StudySnapshot
from serving.names import StudyName
from training.messages import FinishTrials, StartTrial, StopTrial, TrialOrder, TrialReport
from tuning.decide import Action, Fail, Finish, Start, Stop, Suggest, TuningPlan, decide
from tuning.messages import SuggestionAnswer
from tuning.space import format_value
from tuning.stopping import EarlyStopping
from tuning.study import Trial, TrialState

logger = logging.getLogger(__name__)

SuggestPoints = Callable[[StudySnapshot, int], Awaitable[SuggestionAnswer]]
SendOrder = Callable[[TrialOrder], None]

# Seconds before suggestions that failed are asked for again, and how often that is done.
_RETRY_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0, 10.0)


class TuningLoop:
    """`add_report` may be called at any time; the rest is done by `run`."""

    def __init__(
        self,
        catalog: Catalog,
        suggest_points: SuggestPoints,
        send_order: SendOrder,
        *,
        study: StudyName,
        job: str,
        plan: TuningPlan,
    ) -> None:
        self._catalog = catalog
        self._suggest_points = suggest_points
        self._send_order = send_order
        self._name = study
        self._job = job
        self._plan = plan
        self._tag = self._snapshot.record.study.metrics[0].name
        self._reports: list[TrialReport] = []
        self._arrival = asyncio.Event()
        self._running: set[int] = set()
        self._completed: dict[int, Trial] = {}
        self._stopping = EarlyStopping(self._snapshot.record.study)
        self._suggestion: asyncio.Task[SuggestionAnswer] | None = None
        self._suggesting = 0
        self._exhausted = False
        self._failure = ""

    def add_report(self, report: TrialReport) -> None:
        self._reports.append(report)
        self._arrival.set()

    async def run(self) -> None:
        """Until the end of the job is ordered. Raises OSError if the supervisor takes no orders."""
        try:
            await self._put([conclude_stopped(trial, time.time()) for trial in self._list_stopping()])
            while not await self._step():
                await self._arrival.wait()
        finally:
            if self._suggestion is not None:
                self._suggestion.cancel()

    @property
    def _snapshot(self) -> StudySnapshot:
        return self._catalog.state.studies[self._name]

    async def _step(self) -> bool:
        """Record what has happened, and do what follows; returns whether that was the end."""
        self._arrival.clear()
        await self._record_reports()
        await self._record_suggestion()
        while actions := self._decide():
            if await self._act(actions):
                return True
            if all(isinstance(action, Suggest | Start) for action in actions):
                break  # nothing in the state has changed by them
        return False

    def _decide(self) -> Sequence[Action]:
        if self._failure:
            return [Finish(False, self._failure)]
        return decide(
            self._snapshot.record.study,
            self._plan,
            self._list_trials(),
            self._running,
            suggesting=self._suggesting,
            exhausted=self._exhausted,
            stopping=self._stopping,
        )

    async def _act(self, actions: Iterable[Action]) -> bool:
        changed: list[Trial] = []
        orders: list[TrialOrder] = []
        for action in actions:
            match action:
                case Finish(succeeded, message):
                    self._send_order(FinishTrials("" if succeeded else message))
                    return True
                case Suggest(count):
                    self._begin_suggestion(count)
                case Start(number):
                    orders.append(StartTrial(number, _format_arguments(self._snapshot.open_trials[number])))
                    self._running.add(number)
                case Stop(number):
                    changed.append(stop_trial(self._snapshot.open_trials[number]))
                    orders.append(StopTrial(number))
                case Fail(number, reason):
                    changed.append(fail_trial(self._snapshot.open_trials[number], reason, time.time()))
        await self._put(changed)
        for order in orders:
            self._send_order(order)
        return False

    # ---- trials

    def _list_trials(self) -> list[Trial]:
        """All trials; completed ones do not change any more, and are unpacked once."""
        snapshot = self._snapshot
        if len(self._completed) + len(snapshot.open_trials) != snapshot.trial_count:
            for number in snapshot.packed_trials.keys() - self._completed.keys():
                trial = snapshot.find_trial(number)
                if trial is not None:
                    self._stopping.add(trial)
                    self._completed[number] = msgspec.structs.replace(trial, measurements=())
        return [*self._completed.values(), *snapshot.open_trials.values()]

    def _list_stopping(self) -> list[Trial]:
        return [one for one in self._snapshot.open_trials.values() if one.state is TrialState.STOPPING]

    async def _record_reports(self) -> None:
        """Commit all reports that have come; the commit of one batch is the time for the next to gather."""
        reports, self._reports = self._reports, []
        open_trials, now = self._snapshot.open_trials, time.time()
        changed: dict[int, Trial] = {}
        for report in reports:
            trial = changed.get(report.trial) or open_trials.get(report.trial)
            if trial is not None:
                changed[report.trial] = apply_report(trial, report, self._tag, now)
        await self._put([trial for number, trial in changed.items() if trial != open_trials[number]])
        self._running -= {report.trial for report in reports if report.ended}

    async def _put(self, changed: Sequence[Trial]) -> None:
        if changed:
            await self._catalog.change_with_retry(trials.replace_trials, self._name, changed, job=self._job)

    # ---- suggestions

    def _begin_suggestion(self, count: int) -> None:
        self._suggesting = count
        self._suggestion = asyncio.create_task(self._ask(count))
        self._suggestion.add_done_callback(lambda _: self._arrival.set())

    async def _ask(self, count: int) -> SuggestionAnswer:
        """Ask until there is an answer. Raises ServingError."""
        for delay in _RETRY_DELAYS:
            try:
                return await self._suggest_points(self._snapshot, count)
            except ServingError as error:
                logger.warning("%s: asking again in %g s: %s", self._name, delay, error.message)
                await asyncio.sleep(delay)
        return await self._suggest_points(self._snapshot, count)

    async def _record_suggestion(self) -> None:
        """Commit the trials that were suggested: only then they can be started."""
        task = self._suggestion
        if task is None or not task.done():
            return
        self._suggestion, self._suggesting = None, 0
        try:
            answer = task.result()
        except ServingError as error:
            self._failure = f"No further trials could be suggested. {error.message}"
            return
        self._exhausted = answer.exhausted
        if answer.points:
            await self._catalog.change_with_retry(trials.add_trials, self._name, answer.points, job=self._job)


def _format_arguments(trial: Trial) -> tuple[str, ...]:
    return tuple(f"--{name}={format_value(value)}" for name, value in trial.parameters.items())
