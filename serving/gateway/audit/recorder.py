"""Records calls on the event loop; a thread writes them, everything that waits with one write and one fsync.

A change is on disk twice: before it is done, so that nothing is ever done unrecorded whatever is killed or
full, and before it is answered. Denied calls and data access are never waited for: what comes faster than it
can be written is counted and dropped.
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
from serving.gateway.audit.entry import OK, Call, Event, Log, Stage, Status, encode
from serving.gateway.audit.folder import Folder, audit_folder
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

# Entries of data access that may wait, and how long they do (seconds) so that many share a write.
_MOST_WAITING = 20_000
_GATHER = 0.2
# Denied calls cost their sender nothing: so many per second at most fill the disk.
_DENIED_PER_SECOND = 100
_TRY_AGAIN_AFTER = 10
# Seconds after which it is trouble that what waits has neither been written nor refused.
_WRITTEN_WITHIN = 10.0

_Waiting = tuple[Event, asyncio.Future[None] | None]


class Audit:
    """The audit log of a server. `now` gives seconds since the epoch."""

    def __init__(self, config: ServeConfig, now: Callable[[], float] = time.time) -> None:
        self._path = audit_folder(config.state_dir)
        self._folder = Folder(self._path, config.audit_retention_days)
        self._thread = ThreadPool("audit", 1)
        self._now = now
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._work = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._ended = False
        self._loop: BackgroundLoop | None = None
        self._denied = (0, 0)
        self._broken = False
        self.reads = config.audit_data_access in {"read", "all"}
        self.predictions = config.audit_data_access in {"predict", "all"}
        self.written = 0
        self.dropped = 0

    def new_id(self) -> str:
        """An id for a call."""
        return f"{self._prefix}{next(self._numbers):08x}"

    async def before(self, call: Call) -> None:
        """Record that a change is about to be done. Raises Unavailable, and then it must not be done."""
        try:
            await self._write(self._event(call, Stage.BEFORE))
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    async def after(self, call: Call, status: Status, operation: str = "") -> None:
        """Record how a change ended; `operation` names the one that goes on with it."""
        event = self._event(call, Stage.AFTER, status, operation, last=not operation)
        try:
            await self._write(event)
        except OSError:
            self.dropped += 1  # the line from before says that it was done

    def end(self, call: Call, status: Status, operation: str) -> None:
        """Record how the operation or the job ended that a call has begun."""
        self._put(self._event(call, Stage.END, status, operation), None)
        self._work.set()

    def denied(self, call: Call, status: Status) -> None:
        """Record a call that was not allowed, or not known, or wrong before anything was done."""
        event = self._event(call, Stage.ONLY, status)
        second, count = self._denied
        count = count + 1 if int(event.time) == second else 1
        self._denied = (int(event.time), count)
        if count > _DENIED_PER_SECOND:
            self.dropped += 1
        else:
            self._offer(event)

    def accessed(self, call: Call, status: Status = OK) -> None:
        """Record that something was read or predicted."""
        self._offer(self._event(call, Stage.ONLY, status))

    def stats(self) -> dict[str, int]:
        """Lines since the start: written, waiting, and dropped."""
        return {"written": self.written, "waiting": len(self._waiting), "dropped": self.dropped}

    def start(self, supervisor: Supervisor) -> None:
        """Write what comes, until `close`."""
        self._loop = supervisor.start_loop("audit", self._wait, self._flush, within=_WRITTEN_WITHIN)

    async def close(self) -> None:
        """Write what waits, and end; what comes later is refused."""
        if self._loop is not None:
            await self._loop.stop()
        self._ended = True
        await self._flush()
        await self._thread.run(self._folder.close)

    async def _wait(self) -> None:
        await self._work.wait()
        self._work.clear()

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            await self._thread.run(self._append, [event for event, _ in batch])
        except OSError as error:
            self._report_failure(batch, error)
        except BaseException as error:
            self._report_failure(batch, OSError(errno.EIO, describe_error(error)))  # nobody waits for ever
            raise
        else:
            self._succeed(batch)

    def _event(
        self, call: Call, stage: Stage, status: Status = OK, operation: str = "", *, last: bool = True
    ) -> Event:
        now = self._now()
        return Event(call=call, stage=stage, time=now, status=status, operation=operation, last=last)

    async def _write(self, event: Event) -> None:
        if self._ended:
            raise OSError(errno.ESHUTDOWN, "the server stops")
        written = asyncio.get_running_loop().create_future()
        self._put(event, written)
        self._work.set()
        await written

    def _offer(self, event: Event) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
            return
        self._put(event, None)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._work.set()

    def _put(self, event: Event, written: asyncio.Future[None] | None) -> None:
        self._waiting.append((event, written))

    def _append(self, events: Sequence[Event]) -> None:
        if events:
            today = datetime.datetime.fromtimestamp(self._now(), datetime.UTC).date()
            self._folder.append(map(encode, events), today)

    def _succeed(self, batch: Sequence[_Waiting]) -> None:
        if self._broken:
            logger.warning("the audit log in %s is written again", self._path)
        self._broken = False
        self.written += len(batch)
        _settle(batch, None)

    def _report_failure(self, batch: Sequence[_Waiting], error: OSError) -> None:
        if not self._broken:
            logger.error("the audit log in %s cannot be written: %s", self._path, error)
        self._broken = True
        self.dropped += sum(written is None for _, written in batch)
        _settle(batch, error)


def _settle(batch: Sequence[_Waiting], error: OSError | None) -> None:
    for _, written in batch:
        if written is None or written.done():  # done: who waited has gone
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


def record(state_dir: Path, method: str, resource: str, request: Mapping[str, Any]) -> None:
    """Record a change that a command is about to make beside the server, as the user who runs it.

    On disk when this returns. Raises Unavailable, and then the change must not be made.
    """
    now = time.time()
    call = Call(
        id=secrets.token_hex(12),
        log=Log.ACTIVITY,
        method=method,
        resource=resource,
        principal=f"user:{pwd.getpwuid(os.getuid()).pw_name}@localhost",
        user_agent="pilotlight",
        request=request,
    )
    folder = Folder(audit_folder(state_dir))
    try:
        line = encode(Event(call=call, stage=Stage.ONLY, time=now))
        folder.append([line], datetime.datetime.fromtimestamp(now, datetime.UTC).date())
    except OSError as error:
        raise _cannot_write(audit_folder(state_dir), error) from error
    finally:
        folder.close()


def _cannot_write(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"The audit log in {path} cannot be written: {error.strerror}. Nothing is changed until it can be: "
        "free some space, or see `pilotlight doctor`.",
        retry_after=_TRY_AGAIN_AFTER,
    )
