"""How much each parameter of a study matters; measured once for as many trials as are completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from serving.gateway.state.study_records import StudySnapshot

# Measuring takes seconds where there are a thousand trials.
_MAX_KEPT = 256

MeasureImportance = Callable[[StudySnapshot], Awaitable[Mapping[str, float]]]


class ParameterImportance:
    """Keeps the latest answers of `measure`, which is asked for one study at a time."""

    def __init__(self, measure: MeasureImportance) -> None:
        self._measure = measure
        self._kept: dict[str, tuple[int, Mapping[str, float]]] = {}
        self._lock = asyncio.Lock()

    async def get_shares(self, snapshot: StudySnapshot) -> Mapping[str, float]:
        """By name of the parameter, none while too few trials are completed. Raises what `measure` raises."""
        uid, completed = snapshot.record.study.uid, len(snapshot.packed_trials)
        async with self._lock:
            count, shares = self._kept.pop(uid, (-1, {}))
            if count != completed:
                shares = await self._measure(snapshot)
            self._kept[uid] = (completed, shares)
            while len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return shares
