"""Keeps the autoscaler in step with the catalog, and the catalog with what the autoscaler learns."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

from autoscaler.loop import Autoscaler
from autoscaler.pools import PilotSpec
from autoscaler.pools.local import LocalPool
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import versions as version_rules
from serving.gateway.deployment import Deployment
from serving.gateway.records import State, Use, VersionRecord
from serving.resources import VersionState, timestamp

logger = logging.getLogger(__name__)

# How many seconds of use a kill may lose of `lastUseTime`.
_NOTED_EVERY = 60.0


class _Known(NamedTuple):
    """A READY version; what ended until then (on `time.monotonic`) was no use of it.

    `trouble` is why its nodes cannot be started, as was last told to the catalog.
    """

    record: VersionRecord
    unused_until: float
    trouble: str


class Fleet:
    """All versions as the autoscaler and the pool are to see them."""

    def __init__(self, deployment: Deployment, autoscaler: Autoscaler, pool: LocalPool) -> None:
        self._deployment = deployment
        self._autoscaler = autoscaler
        self._pool = pool
        self._known: dict[str, _Known] = {}
        self._changes: set[asyncio.Task[None]] = set()

    def follow(self, state: State) -> None:
        """Take note of a new state; to be called once the pool is open."""
        pilots: dict[str, PilotSpec] = {}
        known: dict[str, _Known] = {}
        for record in state.versions.values():
            if record.version.state not in (VersionState.READY, VersionState.CREATING):
                continue
            pilot = self._deployment.pilot(record)
            pilots[pilot.key] = pilot
            if record.version.state is VersionState.READY:
                known[record.uid] = self._follow(record)
        self._known = known
        self._pool.light(list(pilots.values()))

    def fresh(self, state: State) -> State:
        """The state with the times of use as they are now."""
        uses = self._uses()
        if not uses:
            return state
        versions = {
            name: version_rules.used(record, uses[record.uid]) if record.uid in uses else record
            for name, record in state.versions.items()
        }
        return dataclasses.replace(state, versions=versions)

    async def run(self, catalog: Catalog) -> None:
        """Write down, now and then, what would be lost with the process."""
        while True:
            await asyncio.sleep(_NOTED_EVERY)
            await self.note(catalog)

    async def note(self, catalog: Catalog) -> None:
        """Write down when versions were last used, and what was measured of their nodes, if it can be."""
        uses = self._uses()
        if uses:
            try:
                await catalog.change(version_rules.note_use, uses)
            except Exception:
                # It is not worth ending the server, nor keeping it from its end.
                logger.exception("the use of versions cannot be written down")

    def trouble(self, catalog: Catalog, uid: str, reason: str) -> None:
        """Show on a version why its nodes cannot be started; "" once one could."""

        async def change() -> None:
            try:
                await catalog.change(version_rules.note_trouble, uid, reason)
            except Exception:
                logger.exception("the trouble of a version cannot be written down: %s", reason)

        known = self._known.get(uid)
        if known is not None and known.trouble != reason:
            self._known[uid] = known._replace(trouble=reason)
            task = asyncio.get_running_loop().create_task(change())
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)

    def _follow(self, record: VersionRecord) -> _Known:
        known = self._known.get(record.uid)
        if known is not None and known.record is record:
            return known
        self._deployment.track(record)
        if known is not None:
            return known._replace(record=record)
        # The request that creation made does not count.
        last_end = self._autoscaler.versions[record.uid].meter.last_end
        return _Known(record, last_end, record.version.error_message)

    def _uses(self) -> Mapping[str, Use]:
        """The versions used since that was written down, by uid."""
        offset = time.time() - time.monotonic()
        found = {}
        for uid, known in self._known.items():
            tracked = self._autoscaler.versions[uid]
            if tracked.meter.last_end > known.unused_until:
                moment = datetime.datetime.fromtimestamp(tracked.meter.last_end + offset, datetime.UTC)
                last = timestamp(moment)
                if last > known.record.version.last_use_time:
                    # Cold starts are not kept: who is told of one may find a pilot lit.
                    found[uid] = Use(last, tracked.memory, tracked.start_seconds(forked=True) or 0.0)
        return found
