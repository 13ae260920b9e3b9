"""How many nodes start at a time: many versions that wake together would only slow each other down."""

from __future__ import annotations

import asyncio
import heapq
import itertools

# Seconds after which a node that still starts keeps others waiting no longer: it may be stuck.
_HELD_AT_MOST = 5.0


class StartSlot:
    """Permission for one node to start, until `release`, at most for some seconds."""

    def __init__(self, slots: StartSlots) -> None:
        self._slots: StartSlots | None = slots
        self._timer = asyncio.get_running_loop().call_later(_HELD_AT_MOST, self.release)

    def release(self) -> None:
        """May be called again."""
        self._timer.cancel()
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots.pass_on_slot()


class StartSlots:
    """So many nodes may start at a time. First nodes of versions go first, then those that wait longest."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def take(self, *, first: bool) -> StartSlot:
        """Wait for a slot; `first`: the version has no other node."""
        if self._free:
            self._free -= 1
            return StartSlot(self)
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (not first, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was handed on in this very moment
                self.pass_on_slot()
            raise
        return StartSlot(self)

    def pass_on_slot(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else it does not wait any more
                turn.set_result(None)
                return
        self._free += 1
