"""Takes in what other servers commit to the database, some milliseconds after they do."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.thread_pool import ThreadPool

if TYPE_CHECKING:
    from serving.gateway.state.shared.change_listener import ChangeListener

logger = logging.getLogger(__name__)

# Seconds after which the database is asked although nothing was heard, and between tries to reach it.
_POLL_SECONDS, _RETRY_SECONDS = 0.5, 0.5
_ROUND_SECONDS = 60.0


class StateFollower:
    """While the database is away, the state stays as it is known: that is no trouble of this server."""

    def __init__(self, catalog: SharedCatalog, listener: ChangeListener) -> None:
        self._catalog = catalog
        self._listener = listener
        self._thread = ThreadPool("changes", 1)
        self._is_away = False

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        return supervisor.start_loop("changes", self._wait, self._refresh, within=_ROUND_SECONDS)

    async def close(self) -> None:
        """Call it when the loop is stopped."""
        await self._thread.run(self._listener.close)

    async def _wait(self) -> None:
        """Until there is something that is not known here, or there may be."""
        look_at = time.monotonic() + _POLL_SECONDS
        while True:
            try:
                told = await self._thread.run(self._listener.wait, max(0.0, look_at - time.monotonic()))
            except ServingError as error:
                self._note_trouble(error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                if told is None or told > self._catalog.revision or time.monotonic() >= look_at:
                    return

    async def _refresh(self) -> None:
        try:
            await self._catalog.refresh()
        except ServingError as error:
            self._note_trouble(error)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        if self._is_away:
            logger.warning("the database of the state is back")
        self._is_away = False

    def _note_trouble(self, error: ServingError) -> None:
        if not self._is_away:
            logger.error("%s What is known of the state stays in use; changes are refused.", error.message)
        self._is_away = True
