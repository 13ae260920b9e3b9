"""Starts one process of a job, reads its reports, waits for its exit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from autoscaler import linux
from autoscaler.child_launcher import RunningChild, run_child
from autoscaler.pools import NodePool
from autoscaler.processes import describe_exit
from serving.gateway.jobs.job_kind import AttemptResult, ForkPlan, JobAttempt, LostProcess
from serving.gateway.jobs.job_log import JobLog
from serving.gateway.thread_pool import ThreadPool

# Lines of the log in an error message.
_TAIL_LINES = 5

ReportHandler = Callable[[], Awaitable[None]]


class JobProcesses:
    """The processes of all jobs that run, by pid, so that what others have left can be told from them."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        # How many are being started, whose pids are not known yet.
        self._starting = 0
        self._none_starts = asyncio.Event()
        self._none_starts.set()

    @contextlib.asynccontextmanager
    async def track(
        self, start: contextlib.AbstractAsyncContextManager[RunningChild]
    ) -> AsyncGenerator[RunningChild]:
        """Start a process, and know it until it is gone."""
        async with contextlib.AsyncExitStack() as running:
            pids: set[int] = set()
            running.callback(self._pids.difference_update, pids)  # the last that is done
            self._starting += 1
            self._none_starts.clear()
            try:
                child = await running.enter_async_context(start)
                pids.add(child.process.pid)
                self._pids |= pids
            finally:
                self._starting -= 1
                if not self._starting:
                    self._none_starts.set()
            yield child

    async def kill_orphans(self, threads: ThreadPool) -> None:
        """End what has detached itself from processes of jobs that are gone."""
        await self._none_starts.wait()
        await threads.run(linux.kill_orphans, linux.JOB_OOM_SCORE, self._is_orphan)

    def _is_orphan(self, pid: int) -> bool:
        """Asked in a thread. What a start has brought forth since the pid was found is not asked of."""
        return not self._starting and pid not in self._pids


@dataclass(frozen=True, slots=True)
class JobProcessLauncher:
    """Starts processes of jobs by a command, or as `fork` plans where a pilot of the pool is ready.

    `silence_seconds` is how long one may report nothing, `grace_seconds` how long it may take to end when it
    is stopped. `threads` read its log. `processes` are those of all launchers.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    silence_seconds: float
    grace_seconds: float
    oom_score: int
    threads: ThreadPool
    pool: NodePool
    processes: JobProcesses
    fork: ForkPlan | None = None

    async def run(
        self, attempt: JobAttempt, log: JobLog, on_report: ReportHandler, stop: asyncio.Event
    ) -> AttemptResult:
        """Run a process until it has reported a result, or has ended, or `stop` is set.

        `on_report` is called after each line that `attempt` has read. When this returns or raises, the
        process and all it has started are gone. Raises OSError if it cannot be started, and what `on_report`
        raises.
        """
        try:
            return await self._run_to_result(attempt, log, on_report, stop)
        finally:
            await self.processes.kill_orphans(self.threads)

    async def _run_to_result(
        self, attempt: JobAttempt, log: JobLog, on_report: ReportHandler, stop: asyncio.Event
    ) -> AttemptResult:
        before = log.size()
        async with contextlib.AsyncExitStack() as running:
            with log.open() as stderr:
                start = self._start_process(attempt, stderr)
                child = await running.enter_async_context(self.processes.track(start))
            stopping = asyncio.create_task(_stop_when_set(stop, child))
            try:
                ending = await self._read_reports(child, attempt, on_report)
                if ending is not None:
                    return ending
                code = await child.wait_until_gone()
                tail = await self.threads.run(log.read_tail, _TAIL_LINES, since=before)
            finally:
                stopping.cancel()
        return LostProcess(f"The job's process {describe_exit(code, tail)}")

    @contextlib.asynccontextmanager
    async def _start_process(self, attempt: JobAttempt, stderr: BinaryIO) -> AsyncGenerator[RunningChild]:
        async with contextlib.AsyncExitStack() as running:
            child = None
            if self.fork is not None:
                forked = self.pool.run_forked(
                    *self.fork, output=stderr.fileno(), grace_seconds=self.grace_seconds
                )
                child = await running.enter_async_context(forked)
            if child is None:
                child = await running.enter_async_context(self._run_command(attempt.request, stderr))
            yield child

    def _run_command(
        self, request: bytes, stderr: BinaryIO
    ) -> contextlib.AbstractAsyncContextManager[RunningChild]:
        return run_child(
            self.command,
            environment=self.environment,
            stdin=request,
            stderr=stderr.fileno(),
            grace_seconds=self.grace_seconds,
            oom_score=self.oom_score,
        )

    async def _read_reports(
        self, child: RunningChild, attempt: JobAttempt, on_report: ReportHandler
    ) -> AttemptResult | None:
        """Return the result that the process reports; None if it has ended without one."""
        while True:
            try:
                async with asyncio.timeout(self.silence_seconds):
                    line = await child.output.readline()
            except TimeoutError:
                child.process.kill()
                return LostProcess(
                    f"The job's process said nothing for {self.silence_seconds:g} s, and was ended."
                )
            except ValueError:  # a line over the limit was thrown away
                continue
            if not line:
                return None
            if (result := attempt.read_report(line, time.monotonic())) is not None:
                return result
            await on_report()


async def _stop_when_set(stop: asyncio.Event, child: RunningChild) -> None:
    await stop.wait()
    await child.stop()
