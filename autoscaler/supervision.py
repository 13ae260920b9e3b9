"""Background loops and tasks: named, their errors logged and counted, their health known.

An error ends neither a loop nor the program: it is logged and counted, and the loop goes on with its next
round. When a loop ends although it was not stopped, `on_death` is called, which must end the program.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
Round = Callable[[], Awaitable[object]]

# Seconds after a failed round; twice as many after each further one.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
# Seconds in which errors of one name are logged once, and counted otherwise.
_LOG_INTERVAL = 60.0
# Seconds that trouble lasts after its last report: what is in trouble is tried more often.
_TROUBLE_SECONDS = 5.0
# Seconds that a running round is given when its loop is to stop.
_STOP_WITHIN = 30.0


def _ignore_death(_: str) -> None:
    pass


class BackgroundLoop:
    """Runs `work` whenever `wait` returns. Made by `Supervisor.start_loop`."""

    def __init__(self, supervisor: Supervisor, name: str, wait: Round, work: Round, within: float) -> None:
        self.name = name
        self._supervisor = supervisor
        self._wait, self._work, self._within = wait, work, within
        self._clock = supervisor.clock
        self._due: float | None = None  # since when a round is due that is not completed
        self._working = False
        self._stopping = False
        self._failures = 0
        self._last_error = ""
        self._task = asyncio.get_running_loop().create_task(self._run_rounds(), name=name)
        self._task.add_done_callback(self._on_task_done)

    def describe_trouble(self) -> str:
        """Why the program is not ready for work because of this loop; "" while it runs well."""
        if self._stopping:
            return ""
        if self._task.done():
            return f"The background loop {self.name!r} is dead."
        late = 0.0 if self._due is None else self._clock() - self._due
        if late <= self._within:
            return ""
        why = f"its last error: {self._last_error}" if self._failures else "its round does not end"
        return f"The background loop {self.name!r} has completed no round for {late:.0f} s; {why}."

    async def stop(self, within: float = _STOP_WITHIN) -> None:
        """Let the current round finish, for `within` seconds at most, and begin no other."""
        self._stopping = True
        if not self._working:
            self._task.cancel()
        _, late = await asyncio.wait((self._task,), timeout=within)
        if late:
            logger.error("the background loop %r hangs, and is ended in the middle of its round", self.name)
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_STOP_WITHIN)

    async def _run_rounds(self) -> None:
        while not self._stopping:
            try:
                await self._wait()
                self._begin_round()
                await self._work()
            except Exception as error:
                self._working = False
                await self._back_off(error)
            else:
                self._record_success()

    def _begin_round(self) -> None:
        self._working = True
        if self._due is None:
            self._due = self._clock()

    def _record_success(self) -> None:
        if self._failures:
            logger.warning("the background loop %r works again, after %d errors", self.name, self._failures)
        self._working, self._due, self._failures = False, None, 0

    async def _back_off(self, error: Exception) -> None:
        self._supervisor.report_error(self.name, error)
        if self._due is None:  # it could not even wait
            self._due = self._clock()
        self._failures += 1
        self._last_error = describe_error(error)
        if not self._stopping:
            doublings = min(self._failures - 1, 16)
            await asyncio.sleep(min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2**doublings))

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not self._stopping:
            self._supervisor.report_death(f"the background loop {self.name!r}", task)


class Supervisor:
    """All background loops and tasks of a program. Use as an async context manager, on one event loop.

    `on_death` is called with the reason why the program cannot go on.
    """

    def __init__(
        self, on_death: Callable[[str], None] = _ignore_death, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self._on_death = on_death
        self._loops: dict[str, BackgroundLoop] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors: Counter[str] = Counter()
        self._muted: dict[str, tuple[float, int]] = {}  # until when, and how many errors there were before
        self._troubles: dict[str, tuple[float, str]] = {}  # until when, and what

    async def __aenter__(self) -> Supervisor:
        """Set the event loop's exception handler: errors of callbacks are counted like all others."""
        asyncio.get_running_loop().set_exception_handler(self._handle_callback_error)
        return self

    async def __aexit__(self, *details: object) -> None:
        """Stop the loops, and wait for the tasks; those that do not end are cancelled."""
        await asyncio.gather(*(loop.stop() for loop in self._loops.values()))
        if self._tasks:
            late = (await asyncio.wait(self._tasks, timeout=_STOP_WITHIN))[1]
            for task in late:
                logger.error("%r does not end, and is cancelled", task.get_name())
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_STOP_WITHIN)
        asyncio.get_running_loop().set_exception_handler(None)

    @property
    def loops(self) -> Mapping[str, BackgroundLoop]:
        return self._loops

    @property
    def tasks(self) -> Set[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return self._tasks

    @property
    def errors(self) -> Mapping[str, int]:
        """How many errors there have been, by the name of the loop or the kind of task; from 0 on."""
        return {**dict.fromkeys(self._loops, 0), **self._errors}

    def list_troubles(self) -> list[str]:
        """Why the program is not ready for work; empty while all is well."""
        now = self.clock()
        noted = [trouble for until, trouble in self._troubles.values() if now < until]
        return [trouble for loop in self._loops.values() if (trouble := loop.describe_trouble())] + noted

    def report_trouble(self, name: str, trouble: str) -> None:
        """Report trouble, which lasts until it is cleared, or for some seconds after the last report."""
        self._troubles[name] = self.clock() + _TROUBLE_SECONDS, trouble

    def clear_trouble(self, name: str) -> None:
        self._troubles.pop(name, None)

    def start_loop(self, name: str, wait: Round, work: Round, *, within: float) -> BackgroundLoop:
        """Run `work` whenever `wait` returns, until the loop is stopped.

        The loop is in trouble when `work` has not succeeded `within` so many seconds after `wait` returned.
        """
        loop = self._loops[name] = BackgroundLoop(self, name, wait, work, within)
        return loop

    def start_task(self, kind: str, work: Coroutine[Any, Any, T], *, title: str = "") -> asyncio.Task[T]:
        """Run a coroutine once. `kind` is what its errors are counted by, `title` what it is about."""
        name = f"{kind} {title}" if title else kind
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)

        def on_task_done(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if isinstance(error, Exception):
                self.report_error(kind, error, title)
            elif error is not None:
                self.report_death(f"the task {name!r}", task)

        task.add_done_callback(on_task_done)
        return task

    def report_error(self, name: str, error: Exception, title: str = "") -> None:
        """Count an error, and log it with its traceback unless one of the same name was logged just now."""
        self._errors[name] += 1
        until, before = self._muted.get(name, (0.0, 0))
        now = self.clock()
        if now < until:
            return
        more = self._errors[name] - before - 1
        logger.error(
            "an error in %r%s%s: %s",
            name,
            f" ({title})" if title else "",
            f", {more} more since the last line about it" if more else "",
            describe_error(error),
            exc_info=error,
        )
        self._muted[name] = now + _LOG_INTERVAL, self._errors[name]

    def report_death(self, what: str, task: asyncio.Task[Any]) -> None:
        """Report that the program cannot go on, because of a task that has ended."""
        error = None if task.cancelled() else task.exception()
        how = f"ended unexpectedly: {describe_error(error) if error else 'it was cancelled or returned'}"
        if error is not None:
            logger.critical("%s %s", what, how, exc_info=error)
        self._on_death(f"{what} {how}")

    def _handle_callback_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.report_error("callback", error, str(context.get("message", "")))
        else:
            loop.default_exception_handler(context)


def describe_error(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
