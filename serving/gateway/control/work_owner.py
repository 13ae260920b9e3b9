"""Decides whether this server does the work: operations, jobs, tuning and retention have one owner at a time.

The owner renews a lease in the database. A server that cannot renew it begins to end its work before another
one may take it over; what it would still write is refused by the number of its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 60.0
_RELEASE_SECONDS = 5.0


class OwnedWork(Protocol):
    """Work that one server does for all."""

    def resume(self) -> None:
        """Begin all that is unfinished."""

    async def hand_over(self) -> None:
        """End all that runs, without a change of state: another server goes on with it."""


class Lease(Protocol):
    """See `serving.gateway.state.shared.work_lease`. Both calls block, and raise Unavailable."""

    def take_or_renew(self, holder: str, seconds: float) -> int | None: ...

    def release(self, holder: str) -> None: ...


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """In seconds: how long a lease lasts, and how often it is renewed, or tried to get."""

    lasts: float = 7.0
    interval: float = 1.0


class WorkOwner:
    """Begins and ends works with the lease."""

    def __init__(
        self,
        catalog: SharedCatalog,
        lease: Lease,
        works: Sequence[OwnedWork],
        timing: LeaseTiming = LeaseTiming(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._lease = lease
        self._works = works
        self._timing = timing
        self._clock = clock
        self._thread = ThreadPool("lease", 1)
        self._holder = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        self._ends_at = 0.0  # of the lease, as far as this server may count on it
        self._is_first = True
        self._is_closing = False

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        return supervisor.start_loop("lease", self._wait, self.renew, within=_ROUND_SECONDS)

    async def renew(self) -> None:
        """Take or renew the lease, and begin or end the work accordingly."""
        asked_at = self._clock()
        give_up_at = self._ends_at - self._timing.interval
        seconds = give_up_at - asked_at if self._catalog.owns_work else self._timing.lasts
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                fence = await self._thread.run(self._lease.take_or_renew, self._holder, self._timing.lasts)
        except (ServingError, TimeoutError):
            if self._catalog.owns_work and self._clock() >= give_up_at:
                await self._end_work("its lease could not be renewed")
            return
        if fence is None:
            if self._catalog.owns_work:
                await self._end_work("another server has taken it over")
            return
        self._ends_at = asked_at + self._timing.lasts
        if fence != self._catalog.fence and not self._is_closing:
            await self._begin_work(fence)

    def begin_nothing(self) -> None:
        """Only keep what this server has: it is stopping."""
        self._is_closing = True

    async def release(self) -> None:
        """Let another server go on at once. Call it when the loop is stopped and the work has ended."""
        self._catalog.fence = None
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._thread.run(self._lease.release, self._holder)
        except (ServingError, TimeoutError) as error:
            logger.warning("the lease of the work ends by itself: %s", error)

    async def _wait(self) -> None:
        if not self._is_first:
            await asyncio.sleep(self._timing.interval)
        self._is_first = False

    async def _begin_work(self, fence: int) -> None:
        try:
            # The last that the owner before has written.
            await self._catalog.refresh()
        except ServingError:
            return  # the next round tries again
        if self._clock() >= self._ends_at:
            return
        logger.info("this server does the work of all that share its database (lease %d)", fence)
        self._catalog.fence = fence
        for work in self._works:
            work.resume()

    async def _end_work(self, reason: str) -> None:
        logger.warning("this server ends its operations and jobs, another goes on with them: %s", reason)
        self._catalog.fence = None
        for work in self._works:
            await work.hand_over()
