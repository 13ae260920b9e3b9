"""Fetches files of versions ahead of their first requests, on the servers that the versions are placed on.

At 100,000 versions on 100 servers a look at all takes minutes, and so do the fetches: both go on in the
background, the newest versions first. What is not here by the time of a request is fetched for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.control.version_sharing import VersionSharing
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import VersionRecord
from serving.names import VersionName
from serving.resources import VersionState

logger = logging.getLogger(__name__)

# Seconds between two rounds, while versions are to be looked at and otherwise, and those that a round may
# look at them: it holds up requests.
_PAUSE_SECONDS, _IDLE_SECONDS, _LOOK_SECONDS = 0.1, 1.0, 0.001
# A fetch is followed by a pause of so many times its own time.
_PAUSE_FACTOR = 4.0
_ROUND_SECONDS = 3600.0


class Placement(Protocol):
    """Which versions are placed on this server; `serving.gateway.server_peers.ServerPeers` is one."""

    @property
    def owners_revision(self) -> int:
        """Changes with the owners of versions."""

    def is_owner(self, key: str) -> bool: ...


class VersionPrefetcher:
    """`fetch_files` has the files of a READY version on this server, or raises a ServingError."""

    def __init__(
        self,
        read_state: Callable[[], CatalogState],
        sharing: VersionSharing,
        placement: Placement,
        fetch_files: Callable[[VersionRecord], Awaitable[object]],
    ) -> None:
        self._read_state = read_state
        self._sharing = sharing
        self._placement = placement
        self._fetch_files = fetch_files
        self._due: dict[VersionName, None] = {}  # versions to look at; the last is the next
        self._seen_revision = -1
        self._pause = _IDLE_SECONDS
        self._is_failing = False

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        return supervisor.start_loop("prefetch", self._wait, self.run_round, within=_ROUND_SECONDS)

    def apply_commit(self, commit: Commit) -> None:
        """Look soon at the versions that have changed."""
        for _, after in commit.iter_changed_versions():
            if after is not None:
                self._due[after.name] = None

    async def run_round(self) -> None:
        """Look at some versions, and fetch the files of one at most."""
        state = self._read_state()
        # Not while a look at all goes on: where weights change each minute it would never end.
        if not self._due and self._seen_revision != self._placement.owners_revision:
            self._seen_revision = self._placement.owners_revision
            self._due = dict.fromkeys(state.versions)
        record = self._find_next(state)
        self._pause = _PAUSE_SECONDS if self._due else _IDLE_SECONDS
        if record is None:
            return
        if not await self._sharing.has_room_ahead():
            self._due.clear()
            return
        began = time.monotonic()
        await self._fetch(record)
        self._pause = max(_PAUSE_SECONDS, _PAUSE_FACTOR * (time.monotonic() - began))

    def _find_next(self, state: CatalogState) -> VersionRecord | None:
        end = time.monotonic() + _LOOK_SECONDS
        while self._due and time.monotonic() < end:
            record = state.versions.get(self._due.popitem()[0])
            if record is not None and self._is_missing(record):
                return record
        return None

    def _is_missing(self, record: VersionRecord) -> bool:
        """Whether files are to be fetched. An image is not: its size on the disk is not known."""
        version = record.version
        return (
            version.state is VersionState.READY
            and version.container is None
            and not self._sharing.is_here(record)
            and self._placement.is_owner(record.uid)
        )

    async def _fetch(self, record: VersionRecord) -> None:
        try:
            await self._fetch_files(record)
        except ServingError as error:
            if not self._is_failing:  # the storage may be away, and there may be many versions
                logger.warning("%s: its files cannot be fetched ahead: %s", record.name, error.message)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _wait(self) -> None:
        await asyncio.sleep(self._pause)
