"""Workers that join a job on this machine while it runs, where processors are idle.

Beam's embedded runner fixes the number of its workers when it starts: it deals the input of each stage out to
them. A worker that joins is a process with a pipeline of its own, of the same steps: it takes shards from the
job's queue, and seals them as all workers do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import psutil
from apache_beam.internal import cloudpickle_pickler

from batch.beam.pipeline import PipelinePlan
from batch.beam.progress import ProgressReader
from batch.beam.runners import count_cores
from batch.failures import WorkersLost
from batch.records.input_shards import Shard

logger = logging.getLogger(__name__)

_MODULE = "batch.beam.extra_worker"
# Seconds for which processors must have been idle.
_MEASURE_SECONDS = 2.0
_POLL_SECONDS = 0.1
# How many workers like the largest must fit into free memory before one joins.
_SPARE_WORKERS = 2
_CGROUP = Path("/sys/fs/cgroup")


class IdleMeter(Protocol):
    """See `ProcessorMeter`."""

    def measure_idle(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Reading:
    """Seconds: of the clock, in which processors were idle so far, and that this container has used."""

    time: float
    idle: float
    used: float | None


class ProcessorMeter:
    """Tells how many of the processors that this process may use were idle since it was asked last."""

    def __init__(self) -> None:
        self._last = _read_processors()

    def measure_idle(self) -> float:
        before, now = self._last, _read_processors()
        self._last = now
        seconds = now.time - before.time
        if seconds <= 0:
            return 0.0
        idle = (now.idle - before.idle) / seconds
        allowed = count_cores()
        if before.used is not None and now.used is not None:
            return min(idle, allowed - (now.used - before.used) / seconds)
        # How much of its quota a container uses is not known.
        return idle if allowed == len(os.sched_getaffinity(0)) else 0.0


def _read_processors() -> _Reading:
    usable = os.sched_getaffinity(0)
    times = psutil.cpu_times(percpu=True)
    idle = sum(one.idle + one.iowait for number, one in enumerate(times) if number in usable)
    used = None
    with contextlib.suppress(OSError, ValueError, KeyError):
        fields = dict(line.split() for line in (_CGROUP / "cpu.stat").read_text().splitlines())
        used = int(fields["usage_usec"]) / 1e6
    return _Reading(time.monotonic(), idle, used)


def count_joining(idle: float, waiting: int, running: int, most: int) -> int:
    """How many workers join: one for each idle processor, as long as shards wait for them."""
    return max(0, min(int(idle), waiting, most - running))


class ExtraWorkers:
    """Up to `most` workers in all, of which `workers` are Beam's. One thread calls `adjust`.

    Of one that ends with an error the others do what it had taken, and no other joins: if the job is at
    fault, they meet the same error.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        progress: ProgressReader,
        *,
        workers: int,
        most: int,
        meter: IdleMeter | None = None,
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._workers = workers
        self._most = most
        self._meter = meter or ProcessorMeter()
        self._measured_at = time.monotonic()
        self._running: dict[subprocess.Popen[bytes], float] = {}
        self._has_lost = False
        self.seconds = 0.0  # for which they have run

    def adjust(self) -> None:
        """Look after those that run, and let others join. Call it often."""
        for process in list(self._running):
            if process.poll() is not None:
                self._release_ended(process)
        now = time.monotonic()
        if now < self._measured_at + _MEASURE_SECONDS:
            return
        self._measured_at = now
        idle = self._meter.measure_idle()
        queue = self._plan.queue
        if queue is None or self._has_lost:
            return
        running = self._workers + len(self._running)
        for _ in range(count_joining(idle, queue.count_waiting(), running, self._most)):
            if not _has_memory() or not self._start_worker():
                return

    def wait(self) -> None:
        """Wait until those that joined have done what they have taken; `adjust` is called meanwhile.

        Raises WorkersLost if shards are left that nobody takes.
        """
        queue = self._plan.queue
        if queue is None:
            return
        while True:
            running = list(self._running)
            at_work = any(queue.has_taken(process.pid) for process in running)
            # After that: a worker that is lost gives back what it has taken before it is forgotten.
            waiting = queue.count_waiting()
            if not at_work and not waiting:
                return
            if not running:
                raise WorkersLost("A worker that had joined was lost when the others had ended.")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def _start_worker(self) -> bool:
        """Whether it could be started."""
        command = [sys.executable, "-m", _MODULE]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
        except OSError as error:
            logger.warning("no other worker can join: %s", error)
            self._has_lost = True
            return False
        logger.info("a processor is idle: another worker joins")
        self._running[process] = time.monotonic()
        # The pipe stays open: the worker ends with this process.
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                send_plan(self._plan, process.stdin)
        return True

    def _release_ended(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        self._progress.mark_worker_ended(process.pid)
        self.seconds += time.monotonic() - self._running[process]
        if process.returncode != 0:
            logger.warning("a worker that had joined is gone, with exit code %d", process.returncode)
            self._has_lost = True
            if self._plan.queue is not None:
                self._plan.queue.give_back(process.pid)
        # The last that is done: who waits looks for what was given back.
        del self._running[process]


def _has_memory() -> bool:
    """Whether there is room for one more worker, and as much again."""
    job = psutil.Process()
    sizes = []
    for process in (job, *job.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes.append(process.memory_info().rss)
    return _read_free_memory() > _SPARE_WORKERS * max(sizes)


def _read_free_memory() -> int:
    """Of this machine, and within the limit of its container."""
    free: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no limit
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return free


def send_plan(plan: PipelinePlan, stream: IO[bytes]) -> None:
    """Without its shards, which the queue hands out: one without records takes their place."""
    encoded = cloudpickle_pickler.dumps(dataclasses.replace(plan, shards=(Shard(0, ()),)))
    stream.write(len(encoded).to_bytes(8) + encoded)
    stream.flush()


def receive_plan(stream: IO[bytes]) -> PipelinePlan:
    plan: PipelinePlan = cloudpickle_pickler.loads(stream.read(int.from_bytes(stream.read(8))))
    return plan
