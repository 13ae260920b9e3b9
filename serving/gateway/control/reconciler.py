"""Keeps the autoscaler in step with the catalog, and the catalog with what the autoscaler learns."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import Counter
from typing import NamedTuple

from autoscaler.pools import PilotSpec
from autoscaler.pools.local_pool import LocalPool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import versions as version_rules
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.state.records import Commit, VersionRecord, VersionUsage
from serving.names import VersionName
from serving.resources import VersionState, format_timestamp

logger = logging.getLogger(__name__)

# How many seconds of use a kill may lose of `lastUseTime`.
_NOTED_EVERY = 60.0
# Seconds after which it is trouble that it could not be written down.
_NOTED_WITHIN = 60.0


class _ReadyVersion(NamedTuple):
    """A READY version; what ended until then (on `time.monotonic`) was no use of it.

    `trouble` is why its nodes cannot be started, as was last told to the catalog.
    """

    record: VersionRecord
    unused_until: float
    trouble: str


class Reconciler:
    """All versions as the autoscaler and the pool are to see them."""

    def __init__(
        self, deployment: VersionDeployer, autoscaler: Autoscaler, pool: LocalPool, supervisor: Supervisor
    ) -> None:
        self._deployment = deployment
        self._autoscaler = autoscaler
        self._pool = pool
        self._supervisor = supervisor
        self._ready_versions: dict[str, _ReadyVersion] = {}
        self._pilots: dict[str, PilotSpec] = {}
        self._pilot_needs: Counter[str] = Counter()  # versions by the key of their pilot
        self._recently_used: set[str] = set()  # whose use may not be written down

    def apply_commit(self, commit: Commit) -> None:
        """Take note of a change, at first of all there is; to be called once the pool is open."""
        for before, after in commit.iter_changed_versions():
            self._count_pilot_need(before, -1)
            self._count_pilot_need(after, 1)
            if after is not None and after.version.state is VersionState.READY:
                self._ready_versions[after.uid] = self._track_version(after)
            elif before is not None:
                self._ready_versions.pop(before.uid, None)
        self._pool.start_pilots([self._pilots[key] for key, count in self._pilot_needs.items() if count > 0])

    def find_record(self, uid: str) -> VersionRecord | None:
        """The READY version with this uid."""
        known = self._ready_versions.get(uid)
        return None if known is None else known.record

    def with_usage(self, record: VersionRecord) -> VersionRecord:
        """The version with its times of use as they are now."""
        use = self._get_unsaved_usage(record.uid)
        return record if use is None else version_rules.with_usage(record, use)

    def start(self, catalog: Catalog) -> BackgroundLoop:
        """Write down, now and then, what would be lost with the process."""

        async def wait_interval() -> None:
            await asyncio.sleep(_NOTED_EVERY)

        async def persist() -> None:
            await self.persist_usage(catalog)

        return self._supervisor.start_loop("usage", wait_interval, persist, within=_NOTED_WITHIN)

    async def persist_usage(self, catalog: Catalog) -> None:
        """Write down when versions were last used, and what was measured of their nodes, if it can be."""
        self._recently_used |= self._autoscaler.recently_active()
        uses: dict[VersionName, tuple[str, VersionUsage]] = {}
        for uid in self._recently_used & self._ready_versions.keys():
            use = self._get_unsaved_usage(uid)
            if use is not None:
                uses[self._ready_versions[uid].record.name] = uid, use
        if uses:
            try:
                await catalog.change(version_rules.record_usage, uses)
            except ServingError as error:  # they are written down next time
                logger.warning("the use of versions cannot be written down now: %s", error.message)
                return
        self._recently_used.clear()

    def report_failure(self, catalog: Catalog, uid: str, reason: str) -> None:
        """Show on a version why its nodes cannot be started; "" once one could."""
        known = self._ready_versions.get(uid)
        if known is None or known.trouble == reason:
            return
        name = known.record.name

        async def write_failure() -> None:
            try:
                await catalog.change(version_rules.record_start_failure, name, uid, reason)
            except BaseException:
                if uid in self._ready_versions:  # the next time it is told, it is written down
                    self._ready_versions[uid] = self._ready_versions[uid]._replace(trouble=known.trouble)
                raise

        self._ready_versions[uid] = known._replace(trouble=reason)
        self._supervisor.start_task("trouble", write_failure(), title=str(name))

    def _track_version(self, record: VersionRecord) -> _ReadyVersion:
        known = self._ready_versions.get(record.uid)
        if known is not None and known.record is record:
            return known
        self._deployment.track_version(record)
        if known is not None:
            return known._replace(record=record)
        # The request that creation made does not count.
        last_end = self._autoscaler.versions[record.uid].meter.last_end
        return _ReadyVersion(record, last_end, record.version.error_message)

    def _count_pilot_need(self, record: VersionRecord | None, count: int) -> None:
        """So many more versions that may need a pilot."""
        if record is not None and record.version.state in (VersionState.READY, VersionState.CREATING):
            for pilot in self._deployment.list_pilots(record):
                self._pilots[pilot.key] = pilot
                self._pilot_needs[pilot.key] += count

    def _get_unsaved_usage(self, uid: str) -> VersionUsage | None:
        """How a version was used, if it was since that was written down."""
        known = self._ready_versions.get(uid)
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
        return VersionUsage(last, tracked.memory, tracked.quickest_start(forked=True) or 0.0)
