"""The files of versions that several servers use: packs those of this server, and fetches those of others.

Files of a version never change: what is in a pack with the digest of its record is good for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.artifacts.prepare import to_serving_error
from serving.artifacts.shared_versions import (
    SILENCE_SECONDS,
    FetchRequest,
    InstallSettings,
    ListRequest,
    LocalFiles,
    PublishRequest,
    RemoveRequest,
    SharingReport,
    SharingRequest,
    make_relative,
    read_local_files_record,
    refresh_used_files,
)
from serving.artifacts.trusted_sources import parse_local_folder
from serving.config import ServeConfig
from serving.container_engine import find_engine
from serving.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable
from serving.gateway.state.records import DeploymentInfo, VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry
from serving.scratch_folders import remove_folder

logger = logging.getLogger(__name__)

_COMMAND = module_command("serving.artifacts.shared_versions")
# Versions that are packed or fetched at a time.
_TRANSFERS = 4
_THREADS = 2
_GRACE_SECONDS = 1.0
# Seconds beyond those in which the process reports something.
_PATIENCE_SECONDS = 10.0


class VersionSharing:
    """`database` is the id of the database that the servers have in common.

    `environment` is the server's own. Raises InvalidArgument for the setting `shared_versions_uri`.
    """

    def __init__(
        self,
        config: ServeConfig,
        environment: Mapping[str, str],
        database: str,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        uri = config.shared_versions_uri.rstrip("/")
        _check_uri(uri)
        self._uri = f"{uri}/{database}"
        self._config = config
        self._environment = environment
        self._command = command
        self._folder = config.state_dir / "versions"
        self._interpreters = InterpreterRegistry(
            interpreters.parse_interpreters(config.runtime), config.state_dir
        )
        self._threads = ThreadPool("shared versions", _THREADS)
        self._transfers = asyncio.Semaphore(_TRANSFERS)
        self._looking = asyncio.Lock()  # files are not removed while they are looked for
        self._local: dict[str, LocalFiles] = {}  # by uid, of the versions whose files are known to be here
        self._known_bytes = 0  # of these
        self._fetches: dict[str, asyncio.Task[LocalFiles]] = {}

    def localize(self, record: VersionRecord) -> VersionRecord:
        """The version with the paths that its files have, or will have, on this server."""
        deployed = record.deployed
        if deployed is None or not deployed.pack:
            return record
        folder = self._folder / record.uid
        local = self._local.get(record.uid)
        if local is None or local.pack != deployed.pack:
            local = self._derive_local_files(record, deployed)
        here = msgspec.structs.replace(
            deployed,
            model_dir=str(folder / "model"),
            packages=tuple(str(folder / package) for package in local.packages),
            interpreter=str(folder / local.interpreter) if local.interpreter else "",
        )
        return msgspec.structs.replace(record, deployed=here)

    def is_here(self, record: VersionRecord) -> bool:
        """Whether the files of a version are known to be on this server, or not shared."""
        deployed = record.deployed
        if deployed is None or not deployed.pack:
            return True
        local = self._local.get(record.uid)
        return local is not None and local.pack == deployed.pack

    async def has_room_ahead(self) -> bool:
        """Whether files may be fetched that nobody has asked for yet: they leave as much of the disk free."""
        config = self._config
        if self._known_bytes >= min(config.prefetch_bytes, config.shared_versions_bytes):
            return False
        disk = await self._threads.run(shutil.disk_usage, config.state_dir)
        return disk.free > config.prefetch_bytes

    async def publish(self, record: VersionRecord, deployed: DeploymentInfo) -> str:
        """Pack the version, whose files are on this server; returns the digest. Raises a ServingError."""
        async with self._transfers:
            folder = self._folder / record.uid
            local = LocalFiles(
                pack="",
                packages=tuple(make_relative(package, folder) for package in deployed.packages),
                interpreter=make_relative(deployed.interpreter, folder),
            )
            request = PublishRequest(
                folder=str(folder),
                uri=f"{self._uri}/{record.uid}",
                local=local,
                code=self._describe_install_settings(record),
            )
            local = await self._run_transfer(request)
        self._set_local(record.uid, local)
        return local.pack

    async def fetch(self, record: VersionRecord) -> VersionRecord:
        """Have the files of a version on this server; all who ask meanwhile wait for one fetch.

        Returns the version with their paths. Raises a ServingError.
        """
        deployed = record.deployed
        if deployed is not None and not self.is_here(record):
            task = self._fetches.get(record.uid)
            if task is None:
                task = asyncio.create_task(self._fetch_files(record, deployed))
                self._fetches[record.uid] = task
                task.add_done_callback(lambda _: self._fetches.pop(record.uid, None))
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise FailedPrecondition(f"The version {record.name} was deleted.") from None
                raise
        return self.localize(record)

    async def can_publish(self, record: VersionRecord) -> bool:
        """Whether the version can be packed here: its files were made, or unpacked, by this server."""
        deployed, folder = record.deployed, self._folder / record.uid
        if deployed is None:
            return False
        if not deployed.pack:
            return Path(deployed.model_dir).is_relative_to(folder) and await self._threads.run(
                Path(deployed.model_dir).is_dir
            )
        local = await self._threads.run(read_local_files_record, folder)
        return local is not None and local.is_as_packed and local.pack == deployed.pack

    async def evict_files(
        self, packs: Collection[tuple[str, str]], is_evictable: Callable[[str], bool], in_use: Collection[str]
    ) -> None:
        """Remove files that were not used for longest, until those that are kept fit the setting.

        Only what has one of the `packs`, by uid and digest; `is_evictable` is asked with the uid just before.
        """
        kept = await self._threads.run(refresh_used_files, self._folder, in_use)
        excess = sum(files.local.bytes for files in kept) - self._config.shared_versions_bytes
        for files in kept:
            if excess <= 0:
                return
            if files.is_replaceable and (files.uid, files.local.pack) in packs:
                removed = await self._evict(files.uid, is_evictable)
                excess -= files.local.bytes if removed else 0

    async def _evict(self, uid: str, is_evictable: Callable[[str], bool]) -> bool:
        folder, gone = self._folder / uid, self._folder / f".{uid}.gone"
        async with self._looking:
            if not is_evictable(uid) or uid in self._fetches:
                return False
            # From now on who needs them fetches them.
            self._set_local(uid, None)
            await self._threads.run(folder.rename, gone)
        await self._threads.run(remove_folder, gone)
        return True

    async def cancel(self, uid: str) -> None:
        """End the fetch of a version that is deleted."""
        task = self._fetches.get(uid)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def forget(self, uid: str) -> None:
        """Its files are removed."""
        self._set_local(uid, None)

    async def close(self) -> None:
        for uid in list(self._fetches):
            await self.cancel(uid)

    async def list_packs(self) -> set[tuple[str, str]]:
        """The uid and the digest of each pack of this database. Raises a ServingError."""
        names: list[str] = []
        await self._run(ListRequest(self._uri), lambda report: names.extend(report.names))
        return {(uid, digest) for uid, _, digest in (name.partition("/") for name in names)}

    async def remove_packs(self, names: Sequence[str]) -> None:
        """Remove packs, each by `UID/DIGEST`, or all of a version by `UID`. Raises a ServingError."""
        await self._run(RemoveRequest(self._uri, tuple(names)))

    async def _fetch_files(self, record: VersionRecord, deployed: DeploymentInfo) -> LocalFiles:
        folder = self._folder / record.uid
        async with self._looking:
            local = await self._threads.run(read_local_files_record, folder)
        if local is None or local.pack != deployed.pack:
            async with self._transfers:
                began = time.monotonic()
                local = await self._run_transfer(
                    FetchRequest(
                        folder=str(folder),
                        uri=f"{self._uri}/{record.uid}",
                        local=self._derive_local_files(record, deployed),
                        code=self._describe_install_settings(record),
                        image=record.version.container.image if record.version.container else "",
                        image_id=deployed.image,
                        engine=find_engine(self._config.container_engine),
                    )
                )
                logger.info("%s: its files were fetched in %.1f s", record.name, time.monotonic() - began)
        self._set_local(record.uid, local)
        return local

    def _derive_local_files(self, record: VersionRecord, deployed: DeploymentInfo) -> LocalFiles:
        """What of a version's pack holds on this server, by the paths that it had on another."""
        return LocalFiles(
            deployed.pack,
            tuple(_find_relative(package, record.uid) for package in deployed.packages),
            self._find_interpreter(record, deployed.interpreter),
        )

    def _find_interpreter(self, record: VersionRecord, recorded: str) -> str:
        relative = _find_relative(recorded, record.uid)
        if not recorded or relative != recorded or Path(recorded).exists():
            return relative
        # Of another server, which has it elsewhere.
        return self._interpreters.find_interpreter(record.version.runtime_version) or sys.executable

    def _describe_install_settings(self, record: VersionRecord) -> InstallSettings:
        config = self._config
        return InstallSettings(
            self._interpreters.find_interpreter(record.version.runtime_version),
            record.version.runtime_version,
            str(config.state_dir / "cache"),
            config.cache_bytes,
            config.build_timeout,
        )

    def _set_local(self, uid: str, local: LocalFiles | None) -> None:
        before = self._local.pop(uid, None)
        self._known_bytes -= 0 if before is None else before.bytes
        if local is not None:
            self._local[uid] = local
            self._known_bytes += local.bytes

    async def _run_transfer(self, request: SharingRequest) -> LocalFiles:
        local = (await self._run(request)).local
        if local is None:
            raise Internal("The process that shares files of versions gave no result.")
        return local

    async def _run(
        self, request: SharingRequest, on_report: Callable[[SharingReport], None] = lambda _: None
    ) -> SharingReport:
        """The last report of a process; raises the ServingError that it ended with."""
        running = run_child(
            self._command,
            environment=self._environment,
            stdin=msgspec.json.encode(request),
            grace_seconds=_GRACE_SECONDS,
        )
        last = SharingReport()
        async with running as child:
            while line := await _read_line(child.output):
                last = msgspec.json.decode(line, type=SharingReport)
                on_report(last)
            code = await child.wait_until_gone()
        if last.failed is not None:
            raise to_serving_error(last.failed)
        if not last.is_done:
            raise Internal(
                f"The process that shares files of versions exited with code {code} without a result."
            )
        return last


def _check_uri(uri: str) -> None:
    folder = parse_local_folder("shared_versions_uri", uri)
    if "*" in uri or (folder and folder != uri.removeprefix("file://")):
        raise InvalidArgument(
            f"shared_versions_uri is {uri!r}: expected gs://BUCKET/FOLDER or the absolute path of a folder "
            "that all servers reach."
        )


async def _read_line(output: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_SECONDS + _PATIENCE_SECONDS):
            return await output.readline()
    raise Unavailable("The process that shares files of versions does not answer, and was ended. Try again.")


def _find_relative(path: str, uid: str) -> str:
    """A path in a version's folder on any server, relative to that folder; another path as it is."""
    parts = Path(path).parts
    return str(Path(*parts[parts.index(uid) + 1 :])) if uid in parts else path
