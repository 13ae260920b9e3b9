"""Keeps the autoscaler in step with the catalog, and the catalog with what the autoscaler learns."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import Counter
from typing import NamedTuple

from autoscaler.loop import Autoscaler
from autoscaler.pools import PilotSpec
from autoscaler.pools.local import LocalPool
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import versions as version_rules
from serving.gateway.deployment import Deployment
from serving.gateway.records import Commit, Use, VersionRecord
from serving.names import VersionName
from serving.resources import VersionState, format_timestamp

logger = logging.getLogger(__name__)

# How many seconds of use a kill may lose of `lastUseTime`.
_NOTED_EVERY = 60.0
# Seconds after which it is trouble that it could not be written down.
_NOTED_WITHIN = 60.0


class _Known(NamedTuple):
    """A READY version; what ended until then (on `time.monotonic`) was no use of it.

    `trouble` is why its nodes cannot be started, as was last told to the catalog.
    """

    record: VersionRecord
    unused_until: float
    trouble: str


class Fleet:
    """All versions as the autoscaler and the pool are to see them."""

    def __init__(
        self, deployment: Deployment, autoscaler: Autoscaler, pool: LocalPool, supervisor: Supervisor
    ) -> None:
        self._deployment = deployment
        self._autoscaler = autoscaler
        self._pool = pool
        self._supervisor = supervisor
        self._known: dict[str, _Known] = {}
        self._pilots: dict[str, PilotSpec] = {}
        self._needed: Counter[str] = Counter()  # versions by the key of their pilot
        self._stirred: set[str] = set()  # whose use may not be written down

    def follow(self, commit: Commit) -> None:
        """Take note of a change, at first of all there is; to be called once the pool is open."""
        for before, after in commit.versions():
            self._need(before, -1)
            self._need(after, 1)
            if after is not None and after.version.state is VersionState.READY:
                self._known[after.uid] = self._follow(after)
            elif before is not None:
                self._known.pop(before.uid, None)
        self._pool.start_pilots([self._pilots[key] for key, count in self._needed.items() if count > 0])

    def record(self, uid: str) -> VersionRecord | None:
        """The READY version with this uid."""
        known = self._known.get(uid)
        return None if known is None else known.record

    def fresh(self, record: VersionRecord) -> VersionRecord:
        """The version with its times of use as they are now."""
        use = self._use(record.uid)
        return record if use is None else version_rules.with_usage(record, use)

    def start(self, catalog: Catalog) -> BackgroundLoop:
        """Write down, now and then, what would be lost with the process."""

        async def wait_interval() -> None:
            await asyncio.sleep(_NOTED_EVERY)

        async def note() -> None:
            await self.note(catalog)

        return self._supervisor.start_loop("usage", wait_interval, note, within=_NOTED_WITHIN)

    async def note(self, catalog: Catalog) -> None:
        """Write down when versions were last used, and what was measured of their nodes, if it can be."""
        self._stirred |= self._autoscaler.recently_active()
        uses: dict[VersionName, tuple[str, Use]] = {}
        for uid in self._stirred & self._known.keys():
            use = self._use(uid)
            if use is not None:
                uses[self._known[uid].record.name] = uid, use
        if uses:
            try:
                await catalog.change(version_rules.record_usage, uses)
            except ServingError as error:  # they are written down next time
                logger.warning("the use of versions cannot be written down now: %s", error.message)
                return
        self._stirred.clear()

    def trouble(self, catalog: Catalog, uid: str, reason: str) -> None:
        """Show on a version why its nodes cannot be started; "" once one could."""
        known = self._known.get(uid)
        if known is None or known.trouble == reason:
            return
        name = known.record.name

        async def change() -> None:
            try:
                await catalog.change(version_rules.record_start_failure, name, uid, reason)
            except BaseException:
                if uid in self._known:  # the next time it is told, it is written down
                    self._known[uid] = self._known[uid]._replace(trouble=known.trouble)
                raise

        self._known[uid] = known._replace(trouble=reason)
        self._supervisor.start_task("trouble", change(), title=str(name))

    def _follow(self, record: VersionRecord) -> _Known:
        known = self._known.get(record.uid)
        if known is not None and known.record is record:
            return known
        self._deployment.track_version(record)
        if known is not None:
            return known._replace(record=record)
        # The request that creation made does not count.
        last_end = self._autoscaler.versions[record.uid].meter.last_end
        return _Known(record, last_end, record.version.error_message)

    def _need(self, record: VersionRecord | None, count: int) -> None:
        """So many more versions that may need a pilot."""
        if record is not None and record.version.state in (VersionState.READY, VersionState.CREATING):
            for pilot in self._deployment.list_pilots(record):
                self._pilots[pilot.key] = pilot
                self._needed[pilot.key] += count

    def _use(self, uid: str) -> Use | None:
        """How a version was used, if it was since that was written down."""
        known = self._known.get(uid)
        if known is None:
            return None
        tracked = self._autoscaler.versions[uid]
        if tracked.meter.last_end <= known.unused_until:
            return None
        moment = tracked.meter.last_end + time.time() - time.monotonic()
        last = format_timestamp(datetime.datetime.fromtimestamp(moment, datetime.UTC))
        if last <= known.record.version.last_use_time:
            return None
        # Cold starts are not kept: who is told of one may find a pilot lit.
        return Use(last, tracked.memory, tracked.quickest_start(forked=True) or 0.0)
