"""The request log: sampled requests, access logs and the output of nodes, written to journals on disk.

A record stays in memory for half a second, then a thread appends it to the journal of its destination, from
which the log writer reads it: memory stays bounded however slow the destination is. Records that do not fit
into memory (the disk fails) or into a journal (the destination is down for long) are counted as dropped. A
prediction never waits for its log and is never refused because of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import orjson

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.config import ServeConfig
from serving.gateway.observability.log_writer import LogWriterProcess
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.routing_table import RouteTarget
from serving.gateway.request_context import ensure_request_id, read_trace_id
from serving.http_headers import (
    BINARY,
    CONTENT_TYPE,
    JSON,
    JSON_BYTES,
    PROTOBUF,
    Scope,
    find_header,
    strip_parameters,
)
from serving.logs.journal import BlockBuilder, JournalAppender, JournalCounts, LogKind, journal_folder
from serving.logs.sinks.cloud_logging_entries import AccessRecord, ConsoleLine
from serving.logs.sinks.writer_options import LogWriterOptions
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata
from serving.protocols.errors import GRPC_STATUS

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between flushes, and the bytes in memory that cause one at once. More frequent flushes would show in
# the latency of more than one request in a hundred.
_FLUSH_INTERVAL = 0.5
_FLUSH_BYTES = 4 << 20
_PAUSE = 1.0
_COUNTS_TIMEOUT = 2.0
# Seconds after which a flush that has neither succeeded nor failed is reported.
_FLUSH_TIMEOUT = 60.0


@dataclass(slots=True)
class _Queue:
    """The records in memory for one journal; `dropped` is not yet counted in the journal."""

    appender: JournalAppender
    batches: list[BlockBuilder] = field(default_factory=list)
    dropped: int = 0
    counts: JournalCounts = field(default_factory=JournalCounts)

    def current_batch(self) -> BlockBuilder:
        if not self.batches or self.batches[-1].is_full:
            self.batches.append(BlockBuilder())
        return self.batches[-1]


@dataclass(frozen=True, slots=True)
class LogCounts:
    """The counts of one destination; `address` is "" for kinds that have only one."""

    kind: LogKind
    address: str
    counts: JournalCounts


class RequestLog:
    """Samples requests and writes log records to journals.

    `queue_bytes` bounds the records in memory, `spill_bytes` those on disk for each destination.
    `environment` is that of the log writer process.
    """

    def __init__(
        self,
        options: LogWriterOptions,
        environment: Mapping[str, str],
        supervisor: Supervisor,
        *,
        queue_bytes: int,
        spill_bytes: int,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._spill = options.spill
        self._queue_bytes = queue_bytes
        self._spill_bytes = spill_bytes
        self._chance = chance
        self._supervisor = supervisor
        self._loop: BackgroundLoop | None = None
        self._writer = LogWriterProcess(options, environment, supervisor)
        self._queues: dict[tuple[LogKind, str], _Queue] = {}
        self._held_bytes = 0
        self._work = asyncio.Event()
        self._flush_now = asyncio.Event()
        self._resumed = asyncio.Event()
        self._failing = False
        self._flushing = asyncio.Lock()
        self._counts_task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "request-log")

    @classmethod
    def from_config(
        cls, config: ServeConfig, environment: Mapping[str, str], supervisor: Supervisor
    ) -> RequestLog:
        return cls(
            LogWriterOptions(
                spill=config.state_dir / "logs" / "spill",
                logs=config.state_dir / "logs",
                rotate_bytes=config.log_rotate_bytes,
                rotate_seconds=config.log_rotate_seconds,
                bigquery=config.log_bigquery == "auto",
                stdout=config.log_stdout,
                log_format=config.log_format,
                folders=LocalFolderPolicy.from_setting(
                    config.local_folders, config.state_dir, config.shared_versions_uri
                ),
            ),
            environment,
            supervisor,
            queue_bytes=config.log_queue_bytes,
            spill_bytes=config.log_spill_bytes,
        )

    # ---- on the predict path

    def log_request(
        self,
        target: RouteTarget,
        scope: Scope,
        start: float,
        body: bytes,
        reply: NodeReply,
        *,
        metadata: RequestMetadata = DEFAULT_METADATA,
    ) -> None:
        """Log a request if the version's settings say so; `start` is in seconds since 1970."""
        if target.access_log:
            self._log_access(target, scope, start, reply.status, (len(body), len(reply.body)))
        config = target.logging
        if config is not None and self._chance() < config.sampling_percentage:
            queue = self._get_queue(LogKind.REQUESTS, config.bigquery_table_name)
            logged_request = encode_request_body(metadata, body)
            logged_reply = encode_reply_body(metadata, reply)
            if self._reserve_space(queue, BlockBuilder.record_size(logged_request, logged_reply)):
                request_id = ensure_request_id(scope).encode()
                queue.current_batch().add_record(
                    start, target.title, request_id, logged_request, logged_reply
                )

    def log_refusal(self, target: RouteTarget, scope: Scope, start: float, status: int) -> None:
        """Write the access log of a request that no node answered, if it is on."""
        if target.access_log:
            self._log_access(target, scope, start, status, (0, 0))

    def log_node_output(self, target: RouteTarget, node: str, text: str) -> None:
        self._log_entry(LogKind.CONSOLE, target, time.time(), ConsoleLine(node, text, target.region))

    def _log_access(
        self, target: RouteTarget, scope: Scope, start: float, status: int, sizes: tuple[int, int]
    ) -> None:
        client = scope.get("client")
        record = AccessRecord(
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=time.time() - start,
            request_bytes=sizes[0],
            response_bytes=sizes[1],
            user_agent=(find_header(scope, b"user-agent") or b"").decode("latin-1"),
            remote_ip=client[0] if client else "",
            http_version=scope.get("http_version", "1.1"),
            request_id=ensure_request_id(scope),
            trace=read_trace_id(scope),
            region=target.region,
        )
        self._log_entry(LogKind.ACCESS, target, start, record)

    def _log_entry(
        self, kind: LogKind, target: RouteTarget, when: float, record: AccessRecord | ConsoleLine
    ) -> None:
        queue, entry = self._get_queue(kind, ""), msgspec.json.encode(record)
        if self._reserve_space(queue, BlockBuilder.record_size(entry, b"")):
            queue.current_batch().add_record(when, target.title, b"", entry, b"")

    def _reserve_space(self, queue: _Queue, size: int) -> bool:
        """Reserve memory for a record; False if there is none, and the record is counted as dropped."""
        self._work.set()
        if self._held_bytes + size > self._queue_bytes:
            queue.dropped += 1
            return False
        self._held_bytes += size
        if self._held_bytes > _FLUSH_BYTES:
            self._flush_now.set()
        return True

    def _get_queue(self, kind: LogKind, address: str) -> _Queue:
        queue = self._queues.get((kind, address))
        if queue is None:
            appender = JournalAppender(
                journal_folder(self._spill, kind, address), kind, address, self._spill_bytes
            )
            queue = self._queues[kind, address] = _Queue(appender)
        return queue

    # ---- in the background

    def start(self) -> None:
        """Flush in the background until `close`."""
        self._loop = self._supervisor.start_loop(
            "request-log", self._wait_for_records, self._flush, within=_FLUSH_TIMEOUT
        )

    async def close(self) -> None:
        """Write what is queued, then stop the log writer."""
        if self._loop is not None:
            await self._loop.stop()
        try:
            if not self._resumed.is_set():
                await self._recover_journals()
            await self._flush()
        except Exception as error:
            self._supervisor.report_error("request-log", error)
        await self._writer.close()
        await self._in_thread(self._close_journals)
        self._thread.shutdown()

    async def _wait_for_records(self) -> None:
        if not self._resumed.is_set():
            await self._recover_journals()
        if self._failing:
            await asyncio.sleep(_PAUSE)
            return
        await self._work.wait()
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_INTERVAL):
                await self._flush_now.wait()
        self._flush_now.clear()

    async def get_counts(self) -> Sequence[LogCounts]:
        """The counts by destination, records of earlier servers included.

        They may be slightly old if the disk is slow.
        """
        if self._counts_task is None or self._counts_task.done():
            self._counts_task = asyncio.create_task(self._refresh_counts(), name="count of log records")
        await asyncio.wait((self._counts_task,), timeout=_COUNTS_TIMEOUT)
        return [
            LogCounts(queue.appender.kind, queue.appender.address, queue.counts)
            for queue in self._queues.values()
        ]

    async def sum_counts(self) -> dict[str, int]:
        """The sums over all destinations: sampled = sent + waiting + dropped."""
        total = sum((logged.counts for logged in await self.get_counts()), JournalCounts())
        return {
            "sampled": total.sampled, "sent": total.sent, "waiting": total.waiting, "dropped": total.dropped,
        }  # fmt: skip

    async def _refresh_counts(self) -> None:
        await self._resumed.wait()
        await self._flush()

    async def _recover_journals(self) -> None:
        """Go on with the journals of an earlier server."""
        for appender in await self._in_thread(
            lambda: list(JournalAppender.find_existing(self._spill, self._spill_bytes))
        ):
            self._queues.setdefault((appender.kind, appender.address), _Queue(appender))
        self._resumed.set()
        if self._queues:
            self._work.set()

    async def _flush(self) -> None:
        """Write the records in memory to the journals, in a thread."""
        async with self._flushing:
            await self._write_queues()

    async def _write_queues(self) -> None:
        writes = [_PendingWrite(queue, queue.batches, queue.dropped) for queue in self._queues.values()]
        for write in writes:
            write.queue.batches, write.queue.dropped = [], 0
        if writes:
            self._writer.ensure_started()
        before = sum(write.size for write in writes)
        try:
            error = await self._in_thread(lambda: _write_pending(writes))
        finally:
            self._held_bytes += sum(write.size for write in writes) - before
            for write in writes:
                write.queue.batches[:0] = write.batches
                write.queue.dropped += write.dropped
                write.queue.counts = write.counts or write.queue.counts
        if error is not None and not self._failing:
            logger.error("log records wait in memory, they cannot be written to %s: %s", self._spill, error)
        self._failing = error is not None

    def _close_journals(self) -> None:
        for queue in self._queues.values():
            if count := sum(batch.records for batch in queue.batches):
                logger.error("%d log records are lost: they could not be written to %s", count, self._spill)
            try:
                queue.appender.close()
            except OSError as error:
                logger.warning("cannot tidy up the journal in %s: %s", self._spill, error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


@dataclass(slots=True)
class _PendingWrite:
    """The batches of a queue that are being written; those left afterwards could not be written."""

    queue: _Queue
    batches: list[BlockBuilder]
    dropped: int
    counts: JournalCounts | None = None

    @property
    def size(self) -> int:
        """Bytes left to write."""
        return sum(batch.size for batch in self.batches)


def _write_pending(writes: Sequence[_PendingWrite]) -> OSError | None:
    """Append each to its journal; returns the last error."""
    failure: OSError | None = None
    for write in writes:
        appender = write.queue.appender
        try:
            while write.batches:
                appender.append(write.batches[0])
                del write.batches[0]
            appender.count_dropped(write.dropped)
            write.dropped = 0
            write.counts = appender.checkpoint()
        except OSError as error:
            failure = error
    return failure


# ---- bodies in records: JSON unchanged, anything else as base64 inside JSON
#
# `{"b64": "...", "contentType": "application/x-npy"}`; `jsonBytes` is the length of JSON before tensors.

_GRPC = frozenset({Dialect.TENSORFLOW_GRPC, Dialect.INFERENCE_GRPC})


def encode_request_body(metadata: RequestMetadata, body: bytes) -> bytes:
    if metadata is DEFAULT_METADATA:
        return body
    if metadata.dialect in _GRPC:
        return _wrap_bytes(body, PROTOBUF)
    if metadata.json_bytes is not None:
        return _wrap_bytes(body, BINARY, metadata.json_bytes)
    return _wrap_bytes(body, metadata.content_type) if metadata.content_type else body


def encode_reply_body(metadata: RequestMetadata, reply: NodeReply) -> bytes:
    """The body of a reply; an error over gRPC is its text."""
    if metadata is DEFAULT_METADATA:
        return reply.body
    headers = dict(reply.headers)
    if metadata.dialect in _GRPC:
        return reply.body if GRPC_STATUS in headers else _wrap_bytes(reply.body, PROTOBUF)
    content_type = headers.get(CONTENT_TYPE, b"").decode("latin-1")
    if not content_type or strip_parameters(content_type) == JSON:
        return reply.body
    json_bytes = headers.get(JSON_BYTES)
    return _wrap_bytes(reply.body, content_type, None if json_bytes is None else int(json_bytes))


def _wrap_bytes(body: bytes, content_type: str, json_bytes: int | None = None) -> bytes:
    document = {"b64": base64.b64encode(body).decode(), "contentType": content_type}
    return orjson.dumps(document if json_bytes is None else {**document, "jsonBytes": json_bytes})
