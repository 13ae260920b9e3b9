"""Records calls on the event loop; a thread writes all pending ones with one write and one fsync.

A change is written to disk twice: before it is made, so that nothing is ever done unrecorded whatever is
killed or full, and before it is answered. Nobody waits for records of denied calls and of data access: those
that come faster than they can be written are counted and dropped.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import itertools
import logging
import os
import pwd
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoscaler.supervision import BackgroundLoop, Supervisor, describe_error
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.audit.log_entry import (
    OK_STATUS,
    AuditedCall,
    AuditEvent,
    AuditLogType,
    AuditStage,
    CallStatus,
    encode_line,
)
from serving.gateway.audit.log_folder import AuditLogFolder, audit_log_path
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

# Pending entries of data access, and the seconds for which they are gathered, so that many share a write.
_MAX_PENDING = 20_000
_GATHER_SECONDS = 0.2
# Denied calls cost their sender nothing: so many per second at most fill the disk.
_DENIED_PER_SECOND = 100
_RETRY_AFTER_SECONDS = 10
# Seconds after which the supervisor reports that pending entries were neither written nor refused.
_WRITE_DEADLINE = 10.0

_PendingEvent = tuple[AuditEvent, asyncio.Future[None] | None]


class AuditLog:
    """The audit log of a server. `now` returns seconds since the epoch."""

    def __init__(self, config: ServeConfig, now: Callable[[], float] = time.time) -> None:
        self._path = audit_log_path(config.state_dir)
        self._folder = AuditLogFolder(self._path, config.audit_retention_days)
        self._thread = ThreadPool("audit", 1)
        self._now = now
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._pending: list[_PendingEvent] = []
        self._work = asyncio.Event()
        self._gather_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop: BackgroundLoop | None = None
        self._denied_this_second = (0, 0)
        self._write_fails = False
        self.records_reads = config.audit_data_access in {"read", "all"}
        self.records_predictions = config.audit_data_access in {"predict", "all"}
        self.written = 0
        self.dropped = 0

    def new_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):08x}"

    async def record_intent(self, call: AuditedCall) -> None:
        """Record that a change is about to be made. Raises Unavailable, and then it must not be made."""
        try:
            await self._write_and_wait(self._build_event(call, AuditStage.BEFORE))
        except OSError as error:
            raise _write_error(self._path, error) from error

    async def record_result(self, call: AuditedCall, status: CallStatus, operation: str = "") -> None:
        """Record the result of a change; `operation` names the operation or job that continues it."""
        event = self._build_event(call, AuditStage.AFTER, status, operation, last=not operation)
        try:
            await self._write_and_wait(event)
        except OSError:
            self.dropped += 1  # the line of its intent says that it was done

    def record_operation_result(self, call: AuditedCall, status: CallStatus, operation: str) -> None:
        """Record the result of the operation or job that a call began."""
        self._enqueue_event(self._build_event(call, AuditStage.END, status, operation), None)
        self._work.set()

    def record_denied(self, call: AuditedCall, status: CallStatus) -> None:
        """Record a call that was rejected before anything was done."""
        event = self._build_event(call, AuditStage.ONLY, status)
        second, count = self._denied_this_second
        count = count + 1 if int(event.time) == second else 1
        self._denied_this_second = (int(event.time), count)
        if count > _DENIED_PER_SECOND:
            self.dropped += 1
        else:
            self._enqueue_or_drop(event)

    def record_data_access(self, call: AuditedCall, status: CallStatus = OK_STATUS) -> None:
        """Record a read or a prediction."""
        self._enqueue_or_drop(self._build_event(call, AuditStage.ONLY, status))

    def stats(self) -> dict[str, int]:
        """Numbers of lines since the start: written, waiting and dropped."""
        return {"written": self.written, "waiting": len(self._pending), "dropped": self.dropped}

    def start(self, supervisor: Supervisor) -> None:
        """Write records until `close`."""
        self._loop = supervisor.start_loop(
            "audit", self._wait_for_work, self._flush_pending, within=_WRITE_DEADLINE
        )

    async def close(self) -> None:
        """Write pending records and stop; later ones are refused."""
        if self._loop is not None:
            await self._loop.stop()
        self._closed = True
        await self._flush_pending()
        await self._thread.run(self._folder.close)

    async def _wait_for_work(self) -> None:
        await self._work.wait()
        self._work.clear()

    async def _flush_pending(self) -> None:
        batch, self._pending = self._pending, []
        try:
            await self._thread.run(self._append_events, [event for event, _ in batch])
        except OSError as error:
            self._report_failure(batch, error)
        except BaseException as error:
            self._report_failure(batch, OSError(errno.EIO, describe_error(error)))  # nobody waits for ever
            raise
        else:
            self._report_written(batch)

    def _build_event(
        self,
        call: AuditedCall,
        stage: AuditStage,
        status: CallStatus = OK_STATUS,
        operation: str = "",
        *,
        last: bool = True,
    ) -> AuditEvent:
        now = self._now()
        return AuditEvent(call=call, stage=stage, time=now, status=status, operation=operation, last=last)

    async def _write_and_wait(self, event: AuditEvent) -> None:
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "the server stops")
        written = asyncio.get_running_loop().create_future()
        self._enqueue_event(event, written)
        self._work.set()
        await written

    def _enqueue_or_drop(self, event: AuditEvent) -> None:
        if len(self._pending) >= _MAX_PENDING:
            self.dropped += 1
            return
        self._enqueue_event(event, None)
        if self._gather_timer is None:
            self._gather_timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._on_gather_timer)

    def _on_gather_timer(self) -> None:
        self._gather_timer = None
        self._work.set()

    def _enqueue_event(self, event: AuditEvent, written: asyncio.Future[None] | None) -> None:
        self._pending.append((event, written))

    def _append_events(self, events: Sequence[AuditEvent]) -> None:
        if events:
            today = datetime.datetime.fromtimestamp(self._now(), datetime.UTC).date()
            self._folder.append(map(encode_line, events), today)

    def _report_written(self, batch: Sequence[_PendingEvent]) -> None:
        if self._write_fails:
            logger.warning("the audit log in %s is written again", self._path)
        self._write_fails = False
        self.written += len(batch)
        _resolve_waiters(batch, None)

    def _report_failure(self, batch: Sequence[_PendingEvent], error: OSError) -> None:
        if not self._write_fails:
            logger.error("the audit log in %s cannot be written: %s", self._path, error)
        self._write_fails = True
        self.dropped += sum(written is None for _, written in batch)
        _resolve_waiters(batch, error)


def _resolve_waiters(batch: Sequence[_PendingEvent], error: OSError | None) -> None:
    for _, written in batch:
        if written is None or written.done():  # done: who waited has gone
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


def record_command(state_dir: Path, method: str, resource: str, request: Mapping[str, Any]) -> None:
    """Record a change that a command is about to make beside the server, as the user who runs it.

    It is on disk when this returns. Raises Unavailable, and then the change must not be made.
    """
    now = time.time()
    call = AuditedCall(
        id=secrets.token_hex(12),
        log=AuditLogType.ACTIVITY,
        method=method,
        resource=resource,
        principal=f"user:{pwd.getpwuid(os.getuid()).pw_name}@localhost",
        user_agent="pilotlight",
        request=request,
    )
    folder = AuditLogFolder(audit_log_path(state_dir))
    try:
        line = encode_line(AuditEvent(call=call, stage=AuditStage.ONLY, time=now))
        folder.append([line], datetime.datetime.fromtimestamp(now, datetime.UTC).date())
    except OSError as error:
        raise _write_error(audit_log_path(state_dir), error) from error
    finally:
        folder.close()


def _write_error(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"The audit log in {path} cannot be written: {error.strerror}. Nothing is changed until it can be: "
        "free some space, or see `pilotlight doctor`.",
        retry_after=_RETRY_AFTER_SECONDS,
    )
