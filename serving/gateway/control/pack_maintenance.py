"""Keeps packs in step with the state: removes those of deleted versions, and makes those that are missing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import ServingError
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.catalog.versions import record_pack
from serving.gateway.control.version_sharing import VersionSharing
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.resources import VersionState

logger = logging.getLogger(__name__)

# Seconds to the first round, between rounds, and from the deletion of a version to the removal of its pack,
# with those that are deleted meanwhile.
_FIRST_SECONDS, _INTERVAL, _REMOVAL_SECONDS = 5.0, 300.0, 2.0
_ROUND_SECONDS = 3600.0


class PackMaintenance:
    """Each server packs what it has the files of, and removes files that it has not used for long.

    The owner of the work removes packs. `find_awake` returns the uids of versions that have nodes or
    requests.
    """

    def __init__(
        self, catalog: SharedCatalog, sharing: VersionSharing, find_awake: Callable[[], Collection[str]]
    ) -> None:
        self._catalog = catalog
        self._sharing = sharing
        self._find_awake = find_awake
        self._thread = ThreadPool("packs", 1)
        self._removal = asyncio.Event()
        self._next_wait = _FIRST_SECONDS
        # Uids of versions that could not be packed the last time: they come last, so no others wait for them.
        self._unpackable: set[str] = set()

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        return supervisor.start_loop("packs", self._wait, self._run_round, within=_ROUND_SECONDS)

    def apply_commit(self, commit: Commit) -> None:
        """Look soon whether there is a pack of a version that has been deleted."""
        if any(before is not None and after is None for before, after in commit.iter_changed_versions()):
            self._removal.set()

    async def maintain(self) -> None:
        """Raises a ServingError."""
        # First: what is in no later state was deleted, or never was.
        packs = await self._sharing.list_packs()
        await self._catalog.refresh()
        # Of a hundred thousand versions too, which would hold up requests.
        surplus, unpacked = await self._thread.run(compare_packs, packs, self._catalog.state)
        # First what makes room here: the rest may fail where packs are.
        await self._sharing.evict_files(packs, self._is_evictable, set(self._find_awake()))
        if surplus and self._catalog.owns_work:
            await self._remove(surplus)
        self._unpackable &= {record.uid for record in unpacked}
        for record in sorted(unpacked, key=lambda record: record.uid in self._unpackable):
            if await self._sharing.can_publish(record):
                await self._publish(record)

    def _is_evictable(self, uid: str) -> bool:
        """Whether no node and no job needs the files of a version."""
        state = self._catalog.state
        jobs = (state.jobs[name] for _, name in state.job_index.unfinished)
        return uid not in self._find_awake() and all(job.target_uid != uid for job in jobs)

    async def _wait(self) -> None:
        seconds, self._next_wait = self._next_wait, _INTERVAL
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._removal.wait()
            await asyncio.sleep(_REMOVAL_SECONDS)
        self._removal.clear()

    async def _run_round(self) -> None:
        try:
            await self.maintain()
        except ServingError as error:
            logger.warning("the packs of versions cannot be looked after now: %s", error.message)

    async def _remove(self, surplus: Sequence[str]) -> None:
        try:
            await self._sharing.remove_packs(surplus)
        except ServingError as error:
            logger.warning("%d packs of no use cannot be removed now: %s", len(surplus), error.message)
        else:
            logger.info("%d packs of versions were removed", len(surplus))

    async def _publish(self, record: VersionRecord) -> None:
        deployed = record.deployed
        if deployed is None:
            return
        logger.info("%s: its files are packed for the other servers", record.name)
        self._unpackable.add(record.uid)
        pack = await self._sharing.publish(record, deployed)
        self._unpackable.discard(record.uid)
        if pack != deployed.pack:
            await self._catalog.change(record_pack, record.name, record.uid, pack)


def compare_packs(packs: set[tuple[str, str]], state: CatalogState) -> tuple[list[str], list[VersionRecord]]:
    """What may be removed, and the versions whose pack is missing."""
    missing = [record for record in state.versions.values() if is_pack_missing(record, packs)]
    return find_surplus(packs, state), missing


def find_surplus(packs: set[tuple[str, str]], state: CatalogState) -> list[str]:
    """What may be removed: `UID` for an unknown version, `UID/DIGEST` for another pack than a READY one's."""
    versions = {record.uid: record for record in state.versions.values()}
    unknown = {uid for uid, _ in packs if uid not in versions}
    stale = (
        f"{uid}/{digest}"
        for uid, digest in packs
        if uid in versions and _has_another_pack(versions[uid], digest, packs)
    )
    return sorted((*unknown, *stale))


def is_pack_missing(record: VersionRecord, packs: set[tuple[str, str]]) -> bool:
    deployed = record.deployed
    if deployed is None or record.version.state is not VersionState.READY:
        return False
    return not deployed.pack or (record.uid, deployed.pack) not in packs


def _has_another_pack(record: VersionRecord, digest: str, packs: set[tuple[str, str]]) -> bool:
    """Whether a READY version has its pack beside this one.

    Without it, this may be the one that a server has just made in its place, and not recorded yet.
    """
    deployed = record.deployed
    return (
        deployed is not None
        and record.version.state is VersionState.READY
        and deployed.pack != digest
        and (record.uid, deployed.pack) in packs
    )
