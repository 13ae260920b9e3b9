"""Reads what is known of a job where several servers may have worked on it.

Each server has what its own processes have written. The work's owner knows how far unfinished jobs are.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from serving.errors import Unavailable
from serving.gateway.jobs.job_kind import FoundModels
from serving.gateway.jobs.job_questions import (
    CurvesQuestion,
    JobQuestion,
    LastLinesQuestion,
    LogQuestion,
    ModelsQuestion,
    ProgressQuestion,
    decode_curves,
    decode_last_lines,
    decode_log_part,
    decode_models,
    decode_progress,
    encode_question,
)
from serving.gateway.jobs.job_reader import Curves, LocalJobReader, find_job_dir
from serving.gateway.jobs.log_copies import LogCopies
from serving.gateway.jobs.log_lines import SERVICE_TASK, JobLogLine
from serving.gateway.jobs.log_query import LogPart, LogQuery, select_lines
from serving.gateway.state.records import JobRecord, JobServer


class PeerAsker(Protocol):
    """The other servers of the database; see `serving.gateway.server_peers`."""

    def find_work_owner(self) -> JobServer | None:
        """The other server that does the work, as far as this one knows."""

    async def ask(self, server: str, question: bytes, seconds: float) -> bytes | None:
        """What the server with an id answers; None if it cannot be reached, or cannot say.

        Raises the ServingError that it answers with, and DeadlineExceeded.
        """


class SharedJobReader:
    """Asks this server, by `local`, and `peers`, None where it takes part in no requests of others.

    `find_own` returns what this server is known by. `owns_work` tells whether it does the work now. `copies`
    are those of logs, None where servers make none.
    """

    def __init__(
        self,
        local: LocalJobReader,
        peers: PeerAsker | None,
        find_own: Callable[[], JobServer | None],
        owns_work: Callable[[], bool],
        copies: LogCopies | None = None,
    ) -> None:
        self._local = local
        self._peers = peers
        self._find_own = find_own
        self._owns_work = owns_work
        self._copies = copies

    async def read_progress(self, record: JobRecord, seconds: float) -> Mapping[str, Any]:
        """Of an unfinished job by the server that does the work; without it, what the database has."""
        if record.has_ended:
            return {**self._local.render_progress(record), "log": await self._read_end(record, seconds)}
        if self._owns_work():
            return await self._local.read_progress(record)
        worker = None if self._peers is None else self._peers.find_work_owner()
        if worker is not None:
            answer = await self._ask(worker, ProgressQuestion(record.name, record.uid), seconds)
            if answer is not None:
                return decode_progress(answer)
        return {
            **self._local.render_progress(record),
            "waitReason": _explain_no_worker(record, worker),
            "log": [],
        }

    async def read_log(self, record: JobRecord, query: LogQuery, seconds: float) -> Sequence[LogPart]:
        """Raises Unavailable if no part of the log can be read.

        Where other parts cannot be read, lines say so.
        """
        servers = list({server.id: server for server in record.servers}.values())
        if not servers:
            return await self._local.read_log(record, query)
        parts = await asyncio.gather(
            *(self._read_part(record, query, seconds, place, server) for place, server in enumerate(servers))
        )
        missing = [server for server, part in zip(servers, parts, strict=True) if part is None]
        found = [part for part in parts if part is not None]
        if not found:
            raise Unavailable(f"The log of {record.name} is {_explain_missing(missing)}")
        notes = _build_missing_notes(record, {server.id for server in missing})
        return [*found, select_lines(notes, record, query)]

    async def find_models(self, record: JobRecord, trial: str, seconds: float) -> FoundModels:
        question = ModelsQuestion(record.name, record.uid, trial)
        answer = await self._ask_for_folder(record, question, seconds)
        if answer is not None:
            return decode_models(answer)
        return await self._local.find_models(record, trial)

    async def read_curves(self, record: JobRecord, seconds: float) -> Curves:
        question = CurvesQuestion(record.name, record.uid)
        answer = await self._ask_for_folder(record, question, seconds)
        return await self._local.read_curves(record) if answer is None else decode_curves(answer)

    async def _read_part(
        self, record: JobRecord, query: LogQuery, seconds: float, place: int, server: JobServer
    ) -> LogPart | None:
        if self._is_own(server):
            return await self._local.read_log_part(record, query, place)
        answer = await self._ask(server, LogQuestion(record.name, record.uid, query, place), seconds)
        if answer is not None:
            return decode_log_part(answer)
        copy = await self._fetch_copy(record, server, seconds)
        return None if copy is None else await self._local.read_log_part(record, query, place, copy)

    async def _read_end(self, record: JobRecord, seconds: float) -> Sequence[str]:
        """The last lines of a job that has ended."""
        if not record.servers or self._is_own(record.servers[-1]):
            return await self._local.read_last_lines(record)
        answer = await self._ask(record.servers[-1], LastLinesQuestion(record.name, record.uid), seconds)
        if answer is not None:
            return decode_last_lines(answer)
        copy = await self._fetch_copy(record, record.servers[-1], seconds)
        if copy is not None:
            return await self._local.read_last_lines(record, copy)
        return [f"The end of the log is {_explain_missing(record.servers[-1:])}"]

    async def _fetch_copy(self, record: JobRecord, server: JobServer, seconds: float) -> Path | None:
        return None if self._copies is None else await self._copies.fetch(record, server, seconds)

    async def _ask_for_folder(
        self, record: JobRecord, question: ModelsQuestion | CurvesQuestion, seconds: float
    ) -> bytes | None:
        """Ask about a job's folder where the server that has written there may be the only one to have it."""
        is_local = not find_job_dir(record).startswith("gs://")
        if not is_local or not record.servers or self._is_own(record.servers[-1]):
            return None
        return await self._ask(record.servers[-1], question, seconds)

    async def _ask(self, server: JobServer, question: JobQuestion, seconds: float) -> bytes | None:
        if self._peers is None:
            return None
        return await self._peers.ask(server.id, encode_question(question), seconds)

    def _is_own(self, server: JobServer) -> bool:
        own = self._find_own()
        return own is not None and own.id == server.id


def _build_missing_notes(record: JobRecord, missing: Collection[str]) -> Sequence[JobLogLine]:
    """A line where the lines of a missing server end, or where they begin if it was the last."""
    notes: list[JobLogLine] = []
    for server, following in itertools.zip_longest(record.servers, record.servers[1:]):
        if server.id in missing:
            since, word = (server.since, "after") if following is None else (following.since, "before")
            # Before the first line of the server that follows: those of servers have whole seconds.
            moment = int(datetime.datetime.fromisoformat(since).timestamp()) * 1_000_000
            text = f"Lines {word} this one are {_explain_missing([server])}"
            notes.append(JobLogLine(moment, len(notes), "WARNING", SERVICE_TASK, text))
    return notes


def _explain_missing(servers: Iterable[JobServer]) -> str:
    names = ", ".join(server.name for server in servers)
    return (
        f"on {names} alone, which cannot be reached from the server that was asked. Start it again, or ask "
        "it (`pilotlight servers` lists those that can be reached)."
    )


def _explain_no_worker(record: JobRecord, worker: JobServer | None) -> str:
    if worker is None:
        reason = "No server is known to do the work at the moment"
    else:
        reason = f"{worker.name}, which does the work, cannot be reached from the server that was asked"
    return f"{reason}: how far {record.name} is now is not known here."
