"""Sampled requests and access logs: handed to a writer process, never waited for.

The queue is bounded in bytes. What does not fit, and what the writer could not write, is counted as
dropped; a prediction is never slower or refused because of its log.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from serving.gateway.targets import Target
from serving.gateway.upstream import Answer

logger = logging.getLogger(__name__)

_BATCH = 256
_RESTART_AFTER = 1.0


class RequestLog:
    """Samples requests and gets them written.

    `folder` is where logs without an address of their own go; `queue_bytes` bounds what may wait.
    """

    def __init__(
        self,
        folder: Path,
        queue_bytes: int,
        environment: Mapping[str, str],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._folder = folder
        self._limit = queue_bytes
        self._environment = environment
        self._chance = chance
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._work = asyncio.Event()
        self._closing = False
        self._unconfirmed = 0
        self.sampled = 0
        self.written = 0
        self.dropped = 0

    def offer(self, target: Target, start: float, body: bytes, answer: Answer) -> None:
        """Log a request if it is to be logged. `start` is in seconds since the epoch."""
        name = target.name
        time = datetime.datetime.fromtimestamp(start, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if target.access_log:
            elapsed = datetime.datetime.now(datetime.UTC).timestamp() - start
            row: dict[str, Any] = {
                "time": time,
                "model": name.model,
                "model_version": name.version,
                "status": answer.status,
                "latency_ms": round(elapsed * 1000, 3),
                "request_bytes": len(body),
                "response_bytes": len(answer.body),
            }
            self._put(str(self._folder / "access" / name.project / name.model), row)
        if target.logging is not None and self._chance() < target.logging.sampling_percentage:
            row = {
                "model": name.model,
                "model_version": name.version,
                "time": time,
                "raw_data": body.decode(errors="replace"),
                "raw_prediction": answer.body.decode(errors="replace"),
                "groundtruth": None,
            }
            self._put(self._address(target.logging.bigquery_table_name), row)

    def stats(self) -> dict[str, int]:
        """Counts since the start: sampled = written + dropped + waiting."""
        waiting = self.sampled - self.written - self.dropped
        return {"sampled": self.sampled, "written": self.written, "dropped": self.dropped, "waiting": waiting}

    def close(self) -> None:
        """Let `run` write what waits and end."""
        self._closing = True
        self._work.set()

    async def run(self) -> None:
        """Feed the writer process, started when there is something to write, until `close`."""
        while await self._more():
            try:
                await self._feed()
            except OSError as error:
                logger.error("the log writer failed: %s", error)
            except Exception:
                # An error that left this task would end the server.
                logger.exception("the log writer failed")
            if self._unconfirmed:
                logger.error("the log writer ended with %d records unwritten", self._unconfirmed)
                self.dropped += self._unconfirmed
                self._unconfirmed = 0
                await asyncio.sleep(_RESTART_AFTER)

    def _address(self, table: str) -> str:
        """Where a request log goes: gs://... and folders as they are, a table's name into our own folder."""
        if "://" in table or table.startswith("/"):
            return table.removeprefix("file://")
        return str(self._folder / "requests" / table)

    def _put(self, address: str, row: Mapping[str, Any]) -> None:
        self.sampled += 1
        line = orjson.dumps({"address": address, "row": row}) + b"\n"
        if self._queued_bytes + len(line) > self._limit:
            self.dropped += 1
            return
        self._queue.append(line)
        self._queued_bytes += len(line)
        self._work.set()

    async def _more(self) -> bool:
        """Wait for something to write; False when there is nothing left and no more will come."""
        while not self._queue:
            if self._closing:
                return False
            self._work.clear()
            await self._work.wait()
        return True

    async def _feed(self) -> None:
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serving.sinks",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(self._environment),
            start_new_session=True,
        )  # fmt: skip
        confirmations = asyncio.create_task(self._hear(writer))
        try:
            while writer.stdin is not None and await self._more():
                if writer.stdin.is_closing():
                    break  # it has died; its successor gets what waits
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._queued_bytes -= sum(len(line) for line in batch)
                self._unconfirmed += len(batch)
                writer.stdin.writelines(batch)
                await writer.stdin.drain()
            if writer.stdin is not None:
                writer.stdin.close()  # it writes what it has and ends
        finally:
            await confirmations
            await writer.wait()

    async def _hear(self, writer: asyncio.subprocess.Process) -> None:
        """Count what the writer says it has written or had to drop."""
        while writer.stdout is not None and (line := await writer.stdout.readline()):
            said = orjson.loads(line)
            self.written += said["written"]
            self.dropped += said["dropped"]
            self._unconfirmed -= said["written"] + said["dropped"]
