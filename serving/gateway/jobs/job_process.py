"""Starts one process of a job, reads its reports, waits for its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from autoscaler.processes import ChildProcess, describe_exit
from batch.messages import FailureStatus, JobOutcome, JobReport, JobRequest
from serving.gateway.jobs.job_log import JobLog
from serving.gateway.thread_pool import ThreadPool

_LINE_LIMIT = 1 << 20
# Seconds for which the rest of a process's output is awaited once it has ended: others may hold its pipe.
_DRAIN_SECONDS = 1.0
# Lines of the log in an error message.
_TAIL_LINES = 5

# Stands in a command for the number of the lifeline; see `autoscaler.module_process`.
LIFELINE_PLACEHOLDER = "FD"


class LostProcess(NamedTuple):
    """The process ended before it reported a result."""

    reason: str


AttemptResult = JobOutcome | FailureStatus | LostProcess
ReportHandler = Callable[[JobReport], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobProcessLauncher:
    """Starts processes of jobs.

    `silence_seconds` is how long one may report nothing, `grace_seconds` how long it may take to end when it
    is stopped. `threads` read its log.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    silence_seconds: float
    grace_seconds: float
    threads: ThreadPool

    async def run(
        self, request: JobRequest, log: JobLog, hear: ReportHandler, stop: asyncio.Event
    ) -> AttemptResult:
        """Run a process until it has reported a result, or has ended, or `stop` is set.

        When this returns or raises, the process and all it has started are gone. Raises OSError if it cannot
        be started, and what `hear` raises.
        """
        before = log.size()
        async with self._start_process(request, log) as (child, reader):
            stopping = asyncio.create_task(self._terminate_when_set(stop, child))
            try:
                ending = await self._read_reports(child, reader, hear)
                if ending is not None:
                    return ending
                await self._wait_until_gone(child)
                tail = await self.threads.run(log.read_tail, _TAIL_LINES, since=before)
            finally:
                stopping.cancel()
        how = describe_exit(child.exit.result(), tail)
        return LostProcess(f"The job's process {how}")

    async def _read_reports(
        self, child: ChildProcess, reader: asyncio.StreamReader, hear: ReportHandler
    ) -> AttemptResult | None:
        """Return the result that the process reports; None if it has ended without one."""
        while True:
            try:
                async with asyncio.timeout(self.silence_seconds):
                    line = await reader.readline()
            except TimeoutError:
                child.kill()
                return LostProcess(
                    f"The job's process said nothing for {self.silence_seconds:g} s, and was ended."
                )
            except ValueError:  # a line over the limit was thrown away
                continue
            if not line:
                return None
            report = _parse_report(line)
            if (ending := report.done or report.failed) is not None:
                return ending
            await hear(report)

    async def _terminate_when_set(self, stop: asyncio.Event, child: ChildProcess) -> None:
        await stop.wait()
        child.terminate()
        await asyncio.sleep(self.grace_seconds)
        child.kill()

    async def _wait_until_gone(self, child: ChildProcess) -> None:
        """Wait until the process and its group are gone."""
        try:
            async with asyncio.timeout(self.grace_seconds):
                await child.wait()
        except TimeoutError:
            child.kill()
        await child.wait_group_gone()

    @contextlib.asynccontextmanager
    async def _start_process(
        self, request: JobRequest, log: JobLog
    ) -> AsyncGenerator[tuple[ChildProcess, asyncio.StreamReader]]:
        remote_lifeline, lifeline = os.pipe()
        try:
            try:
                child, output = self._spawn_child(request, log, remote_lifeline)
            finally:
                os.close(remote_lifeline)
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(limit=_LINE_LIMIT)
            pipe = os.fdopen(output, "rb", buffering=0)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            child.exit.add_done_callback(lambda _: loop.call_later(_DRAIN_SECONDS, transport.close))
            try:
                yield child, reader
            except BaseException:
                child.terminate()
                raise
            finally:
                try:
                    await self._wait_until_gone(child)
                finally:
                    transport.close()
        finally:
            os.close(lifeline)  # whatever happened above: without it, the process and its group are killed

    def _spawn_child(self, request: JobRequest, log: JobLog, lifeline: int) -> tuple[ChildProcess, int]:
        """Start the process; returns it and the reading end of its output. Blocks for a few milliseconds.

        Called on the event loop, for the reason in `autoscaler.processes.spawn_child`.
        """
        reading, writing = os.pipe()
        try:
            with log.open() as stderr, tempfile.TemporaryFile() as stdin:
                stdin.write(msgspec.json.encode(request))
                stdin.seek(0)
                started = subprocess.Popen(
                    [str(lifeline) if word == LIFELINE_PLACEHOLDER else word for word in self.command],
                    env=dict(self.environment),
                    pass_fds=[lifeline],
                    stdin=stdin,
                    stdout=writing,
                    stderr=stderr,
                    start_new_session=True,
                )
            try:
                return ChildProcess(started.pid, started), reading
            except OSError:  # no descriptor is left to watch it with
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
                raise
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)


def _parse_report(line: bytes) -> JobReport:
    """Parse a line of output; a line that is no report becomes an empty one."""
    try:
        return msgspec.json.decode(line, type=JobReport)
    except msgspec.DecodeError:
        return JobReport()
