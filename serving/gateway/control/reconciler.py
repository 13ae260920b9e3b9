"""Applies committed changes to autoscaler and pool, and writes usage and failures back to the catalog."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from autoscaler.pools import NodePool, PilotSpec
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import versions as version_rules
from serving.gateway.control.deployment import VersionDeployer, has_floor
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import VersionRecord, VersionUsage
from serving.names import VersionName
from serving.resources import VersionState, format_timestamp

logger = logging.getLogger(__name__)

# Seconds between two writes of usage: a kill loses that much of `lastUseTime`.
_PERSIST_INTERVAL = 60.0
# Seconds after which a write that has not succeeded is reported.
_PERSIST_TIMEOUT = 60.0


class _ReadyVersion(NamedTuple):
    """A READY version.

    Requests that ended up to `unused_until` (on `time.monotonic`) are no use of it. `trouble` is why its
    nodes cannot be started, as last written to the catalog.
    """

    record: VersionRecord
    unused_until: float
    trouble: str


class Reconciler:
    def __init__(
        self, deployment: VersionDeployer, autoscaler: Autoscaler, pool: NodePool, supervisor: Supervisor
    ) -> None:
        self._deployment = deployment
        self._autoscaler = autoscaler
        self._pool = pool
        self._supervisor = supervisor
        self._ready_versions: dict[str, _ReadyVersion] = {}
        self._pilots: dict[str, PilotSpec] = {}
        self._pilot_needs: Counter[str] = Counter()  # versions by the key of their pilot
        self._floored: set[str] = set()  # uids of READY versions that have nodes without requests
        self._recently_used: set[str] = set()  # uids whose usage may not be written yet

    def apply_commit(self, commit: Commit) -> None:
        """Call it first with the whole state, once the pool is open."""
        for before, after in commit.iter_changed_versions():
            self._update_pilot_needs(before, -1)
            self._update_pilot_needs(after, 1)
            if after is not None and after.version.state is VersionState.READY:
                self._ready_versions[after.uid] = self._track_version(after)
                (self._floored.add if has_floor(after.version) else self._floored.discard)(after.uid)
            elif before is not None:
                self._ready_versions.pop(before.uid, None)
                self._floored.discard(before.uid)
        self._pool.set_wanted_pilots(
            [self._pilots[key] for key, count in self._pilot_needs.items() if count > 0]
        )

    def reshare_nodes(self, uids: Collection[str]) -> None:
        """Scale these versions, and all with a lower limit, by the part that this server has in them now."""
        for uid in (*self._floored, *(uid for uid in uids if uid not in self._floored)):
            known = self._ready_versions.get(uid)
            if known is not None:
                self._deployment.track_version(known.record)

    async def fetch_files(self, record: VersionRecord) -> VersionRecord:
        """Have the files of a READY version on this server, and its nodes started with them.

        Returns the version with their paths. Raises a ServingError.
        """
        had_files = self._deployment.has_files(record)
        fetched = await self._deployment.fetch_files(record)
        known = self._ready_versions.get(record.uid)
        if not had_files and known is not None:
            # As it is now: it may have been changed meanwhile, or deleted.
            self._deployment.track_version(known.record)
        return fetched

    def find_node_limit(self, uid: str) -> int | None:
        """How many nodes a READY version may have on all servers together; None if that was not said."""
        known = self._ready_versions.get(uid)
        return None if known is None else self._deployment.find_node_limit(known.record.version)

    def find_record(self, uid: str) -> VersionRecord | None:
        """The READY version with this uid."""
        known = self._ready_versions.get(uid)
        return None if known is None else known.record

    def with_usage(self, record: VersionRecord) -> VersionRecord:
        """The version with its current usage."""
        use = self._get_unsaved_usage(record.uid)
        return record if use is None else version_rules.with_usage(record, use)

    def start(self, catalog: Catalog) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_PERSIST_INTERVAL)

        async def persist() -> None:
            await self.persist_usage(catalog)

        return self._supervisor.start_loop("usage", wait_interval, persist, within=_PERSIST_TIMEOUT)

    async def persist_usage(self, catalog: Catalog) -> None:
        """Write the usage of versions and the measurements of their nodes; a failure is only logged."""
        self._recently_used |= self._autoscaler.pop_recently_active()
        uses: dict[VersionName, tuple[str, VersionUsage]] = {}
        for uid in self._recently_used & self._ready_versions.keys():
            use = self._get_unsaved_usage(uid)
            if use is not None:
                uses[self._ready_versions[uid].record.name] = uid, use
        if uses:
            try:
                await catalog.change(version_rules.record_usage, uses)
            except ServingError as error:  # the next run writes it
                logger.warning("the usage of versions cannot be written now: %s", error.message)
                return
        self._recently_used.clear()

    def report_failure(self, catalog: Catalog, uid: str, reason: str) -> None:
        """Record on a version why its nodes cannot be started; "" once one could."""
        known = self._ready_versions.get(uid)
        if known is None or known.trouble == reason:
            return
        name = known.record.name

        async def write_failure() -> None:
            catalog.clear_work_fence()
            try:
                await catalog.change(version_rules.record_start_failure, name, uid, reason)
            except BaseException:
                if uid in self._ready_versions:  # the next report is written
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
        # The request that the creation made does not count as usage.
        last_end = self._autoscaler.versions[record.uid].meter.last_end
        return _ReadyVersion(record, last_end, record.version.error_message)

    def _update_pilot_needs(self, record: VersionRecord | None, count: int) -> None:
        """Count how many versions need each pilot."""
        if record is not None and record.version.state in (VersionState.READY, VersionState.CREATING):
            for pilot in self._deployment.list_pilots(record):
                self._pilots[pilot.key] = pilot
                self._pilot_needs[pilot.key] += count

    def _get_unsaved_usage(self, uid: str) -> VersionUsage | None:
        """The usage of a version that is not written yet; None if there is none."""
        known = self._ready_versions.get(uid)
        if known is None:
            return None
        tracked = self._autoscaler.versions[uid]
        if tracked.meter.last_end <= known.unused_until:
            return None
        last_end = tracked.meter.last_end + time.time() - time.monotonic()
        last_use = format_timestamp(datetime.datetime.fromtimestamp(last_end, datetime.UTC))
        if last_use <= known.record.version.last_use_time:
            return None
        # Cold starts are not kept: the next start may be a fork.
        return VersionUsage(last_use, tracked.memory, tracked.quickest_start(forked=True) or 0.0)
