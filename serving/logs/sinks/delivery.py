"""Delivers the records of one journal to their sink."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from serving.errors import ServingError
from serving.logs.journal import JournalReader, RecordChunk
from serving.logs.sinks import Sink

logger = logging.getLogger(__name__)

# Seconds between two looks at a journal with nothing in it.
_POLL_SECONDS = 0.2
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 30.0


class JournalDelivery:
    """One journal and its sink. `make` makes the sink; like writing, that may fail for a while."""

    def __init__(
        self, reader: JournalReader, make: Callable[[], Sink], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._make_sink = make
        self._clock = clock
        self._sink: Sink | None = None
        self._retry_seconds = 0.0
        self._since: float | None = None
        self._due = 0  # bytes that are collected and are not yet delivered
        self.is_failing = False

    def deliver_next(self, *, closing: bool = False) -> float:
        """Deliver what is due; returns the seconds until the next call.

        `closing`: everything is due, since there are no later calls.
        """
        try:
            if self._sink is None:
                self._sink = self._make_sink()
            if not closing and self._should_wait(self._sink):
                return _POLL_SECONDS
            chunk = self._reader.read(self._sink.collect_bytes)
            if chunk is None:
                self._since, self._due = None, 0
                return _POLL_SECONDS
            refused = self._sink.write(chunk.records, self._batch_id(chunk)) if chunk.records else 0
        except (ServingError, OSError) as error:
            return self._on_failure(str(error))
        except Exception as error:
            # A library's own way to fail; what cannot be sent must wait all the same.
            logger.debug("delivery failed", exc_info=True)
            return self._on_failure(f"{type(error).__name__}: {error}")
        self._on_delivered(chunk, refused)
        return 0.0

    def _should_wait(self, sink: Sink) -> bool:
        """Whether to collect more records before a write."""
        if not sink.collect_seconds or self._due > 0:
            return False
        backlog = self._reader.backlog_bytes()
        if not backlog:
            self._since = None
            return True
        if self._since is None:
            self._since = self._clock()
        if backlog < sink.collect_bytes and self._clock() - self._since < sink.collect_seconds:
            return True
        self._due = backlog
        return False

    def _on_delivered(self, chunk: RecordChunk, refused: int) -> None:
        if self.is_failing:
            logger.info("log records reach %s again", self._destination_name)
        self.is_failing, self._retry_seconds, self._since = False, 0.0, None
        self._due -= chunk.size
        if chunk.lost:
            logger.error("%d log records for %s are damaged on disk", chunk.lost, self._destination_name)
        try:
            self._reader.commit(chunk, refused)
        except OSError as error:
            logger.warning("cannot note what log records have been sent: %s", error)

    def _on_failure(self, reason: str) -> float:
        if not self.is_failing:
            logger.error(
                "log records for %s wait, they cannot be written: %s", self._destination_name, reason
            )
        self.is_failing = True
        self._retry_seconds = min(_MAX_RETRY_SECONDS, self._retry_seconds * 2 or _FIRST_RETRY_SECONDS)
        # Not all sinks of all servers at the same moment.
        return self._retry_seconds * random.uniform(0.8, 1.2)  # noqa: S311

    def _batch_id(self, chunk: RecordChunk) -> str:
        return f"{self._reader.uid:08x}{chunk.first:012x}"

    @property
    def _destination_name(self) -> str:
        return self._reader.address or f"the {self._reader.kind} log"
