"""Hands out trials of studies: those there are, and new ones, committed before anybody hears of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from serving.errors import ResourceExhausted, Unavailable
from serving.gateway.catalog import Catalog, studies, trials
from serving.gateway.state.study_records import StudyOperationRecord, StudySnapshot
from serving.gateway.studies.suggestion_service import SuggestionService
from serving.names import StudyName
from tuning.messages import SuggestionAnswer

# How many may wait for one study: each waits for all before it.
_MAX_WAITING = 64
_RETRY_AFTER = 1.0
# How often points are made anew while other servers take them.
_TRIES = 10


@dataclass(slots=True)
class _StudyLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class TrialSuggester:
    """Makes suggestions, for each study one at a time.

    Other servers may do so at the same time: points that they take meanwhile are made anew.
    """

    def __init__(self, catalog: Catalog, service: SuggestionService) -> None:
        self._catalog = catalog
        self._service = service
        self._locks: dict[StudyName, _StudyLock] = {}

    async def suggest(self, name: StudyName, client_id: str, count: int) -> StudyOperationRecord:
        """Raises ResourceExhausted where the space is used up, and what the rules and the service raise."""
        started_at = time.time()
        async with self._hold_study(name):
            uid = studies.get_writable_study(self._catalog.state, name, "").record.study.uid
            for _ in range(_TRIES):
                with contextlib.suppress(trials.OutdatedPoints):
                    return await self._suggest_once(name, client_id, count, uid, started_at)
            raise Unavailable(
                f'Other servers have taken the points for "{name}" {_TRIES} times. Try again.',
                retry_after=_RETRY_AFTER,
            )

    async def _suggest_once(
        self, name: StudyName, client_id: str, count: int, uid: str, started_at: float
    ) -> StudyOperationRecord:
        """Raises OutdatedPoints if the state is a newer one now."""
        before = studies.get_writable_study(self._catalog.state, name, "", uid=uid)
        answer = await self._find_points(before, client_id, count)
        snapshot = studies.get_study(self._catalog.state, name, uid=uid)
        has_any = trials.list_assignable_trials(snapshot, client_id, 1)
        if answer.exhausted and not answer.points and not has_any:
            await self._catalog.change(trials.mark_used_up, name, uid=uid)
            raise ResourceExhausted(
                f'Every point of the search space of "{name}" has been a trial: there is nothing new to '
                "suggest."
            )
        return await self._catalog.change(
            trials.suggest_trials,
            name,
            client_id,
            count,
            uid=uid,
            last_trial=before.record.last_trial,
            points=answer.points,
            started_at=started_at,
            used_up=answer.exhausted,
        )

    async def _find_points(self, snapshot: StudySnapshot, client_id: str, count: int) -> SuggestionAnswer:
        """Points for the trials that have to be new; none if there are enough."""
        missing = trials.count_trials_to_suggest(snapshot, client_id, count)
        return await self._service.suggest_points(snapshot, missing) if missing > 0 else SuggestionAnswer(())

    @contextlib.asynccontextmanager
    async def _hold_study(self, name: StudyName) -> AsyncGenerator[None]:
        waiting = self._locks.setdefault(name, _StudyLock())
        if waiting.users > _MAX_WAITING:
            raise Unavailable(
                f'{_MAX_WAITING} requests for suggestions wait for "{name}" already. Try again.',
                retry_after=_RETRY_AFTER,
            )
        waiting.users += 1
        try:
            async with waiting.lock:
                yield
        finally:
            waiting.users -= 1
            if not waiting.users:
                self._locks.pop(name, None)
