"""Copies of the logs of jobs, in the place that all servers reach: they outlive the server that ran the job.

A copy is made when a job has ended on a server, or leaves it, of all that the server has of its log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from autoscaler.child_launcher import module_command, run_child
from serving.artifacts.job_logs import (
    CopyLogRequest,
    FetchLogRequest,
    JobLogReport,
    JobLogRequest,
    RemoveLogsRequest,
)
from serving.artifacts.prepare import to_serving_error
from serving.errors import Internal, ServingError, Unavailable
from serving.gateway.state.records import JobRecord, JobServer
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

COPIES_FOLDER, COPIED_FILE = "copies", "copied"
_COMMAND = module_command("serving.artifacts.job_logs")
_GRACE_SECONDS = 1.0
_PROCESS_SECONDS = 120.0
# Processes at a time.
_PROCESSES = 2
# For so long after a copy was not found it is not looked for again.
_ABSENT_SECONDS = 30.0


class LogCopies:
    """`uri` is the folder of the copies, `folder` has the folders of jobs on this server.

    `environment` is that of the processes that read and write copies.
    """

    def __init__(self, uri: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._uri = uri
        self._folder = folder
        self._environment = environment
        self._threads = ThreadPool("log copies", 1)
        self._places = asyncio.Semaphore(_PROCESSES)
        self._fetches: dict[Path, asyncio.Task[bool]] = {}
        self._absent: dict[Path, float] = {}

    async def copy(self, record: JobRecord, own: JobServer) -> None:
        """Copy what this server has of a job's log, unless that is done already. Logs what goes wrong."""
        found = find_job_server(record, own.id)
        folder = self._folder / record.uid
        if found is None or await self._threads.run(_is_copied, folder, found):
            return
        try:
            await self._run(CopyLogRequest(str(folder), self._locate_copy(record, found)))
            await self._threads.run(_mark_copied, folder, found)
        except (ServingError, OSError) as error:
            logger.warning("the log of %s is on this server alone: %s", record.name, error)

    async def fetch(self, record: JobRecord, server: JobServer, seconds: float) -> Path | None:
        """The folder with a copy of what a server has of a job's log; None if there is none in this time."""
        found = find_job_server(record, server.id)
        if found is None:
            return None
        target = self._folder / record.uid / COPIES_FOLDER / f"{found.id}.{found.attempt}"
        if await self._threads.run(target.is_dir):
            return target
        if time.monotonic() < self._absent.get(target, 0.0):
            return None
        task = self._fetches.get(target)
        if task is None:
            request = FetchLogRequest(self._locate_copy(record, found), str(target))
            task = self._fetches[target] = asyncio.create_task(self._fetch(record, request))
            task.add_done_callback(lambda _: self._fetches.pop(target, None))
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() or task.result():
            return target if task.done() else None
        self._absent = {path: until for path, until in self._absent.items() if until > time.monotonic()}
        self._absent[target] = time.monotonic() + _ABSENT_SECONDS
        return None

    async def remove(self, uids: Iterable[str]) -> None:
        """Remove all copies of jobs. Logs what goes wrong."""
        uris = tuple(f"{self._uri}/{uid}" for uid in uids)
        try:
            await self._run(RemoveLogsRequest(uris))
        except (ServingError, OSError) as error:
            logger.warning("copies of logs may be left in %s: %s", self._uri, error)

    def _locate_copy(self, record: JobRecord, server: JobServer) -> str:
        return f"{self._uri}/{record.uid}/{server.id}.{server.attempt}.tar.gz"

    async def _fetch(self, record: JobRecord, request: FetchLogRequest) -> bool:
        try:
            return (await self._run(request)).is_found
        except (ServingError, OSError) as error:
            logger.warning("a copy of the log of %s cannot be read: %s", record.name, error)
            return False

    async def _run(self, request: JobLogRequest) -> JobLogReport:
        """Raises the ServingError that a process ended with, and OSError if it cannot be started."""
        running = run_child(
            _COMMAND,
            environment=self._environment,
            stdin=msgspec.json.encode(request),
            grace_seconds=_GRACE_SECONDS,
        )
        try:
            async with self._places, asyncio.timeout(_PROCESS_SECONDS), running as child:
                line = await child.output.readline()
        except TimeoutError:
            raise Unavailable(f"{self._uri} did not answer within {_PROCESS_SECONDS:g} s.") from None
        try:
            report = msgspec.json.decode(line, type=JobLogReport)
        except msgspec.DecodeError:
            raise Internal("The process that copies logs of jobs ended without a result.") from None
        if report.failed is not None:
            raise to_serving_error(report.failed)
        return report


def find_job_server(record: JobRecord, server: str) -> JobServer | None:
    """The last time that a job was worked on at a server; None if it never was."""
    return next((one for one in reversed(record.servers) if one.id == server), None)


def _is_copied(folder: Path, stay: JobServer) -> bool:
    """Whether there is nothing to copy any more."""
    try:
        return (folder / COPIED_FILE).read_text() == str(stay.attempt)
    except FileNotFoundError:
        return not folder.is_dir()


def _mark_copied(folder: Path, stay: JobServer) -> None:
    (folder / COPIED_FILE).write_text(str(stay.attempt))
