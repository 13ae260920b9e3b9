"""Makes the sink of an address."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import FileStore
from serving.logs.journal import LogKind
from serving.logs.sinks import Sink
from serving.logs.sinks.bigquery_sink import BigQuerySink, BigQueryUnavailableError
from serving.logs.sinks.bucket_sink import BucketSink
from serving.logs.sinks.folder_sink import FolderSink, StdoutSink, TeeSink
from serving.logs.sinks.writer_options import BIGQUERY, LogWriterOptions, fallback_folder, folder_of_address

logger = logging.getLogger(__name__)

_TABLE = re.compile(r"[\w.:-]+\.\w+\.[\w$-]+")
# The journal keeps what fails; nothing else needs patience.
_RETRY_SECONDS = 10.0


def make_sink(kind: LogKind, address: str, journal: int, options: LogWriterOptions) -> Sink:
    """The sink of an address; `journal` is the journal's number. May take seconds."""
    if kind is not LogKind.REQUESTS:
        sink = _make_folder_sink(options.logs / kind, kind, journal, options)
        return TeeSink(sink, StdoutSink(kind)) if options.stdout else sink
    if address.startswith("gs://"):
        return BucketSink(
            address,
            kind,
            FileStore(retry_seconds=_RETRY_SECONDS),
            rotate_bytes=options.rotate_bytes,
            rotate_seconds=options.rotate_seconds,
        )
    folder = folder_of_address(address)
    if folder is not None:
        return _make_folder_sink(folder, kind, journal, options, options.folders)
    table = address.removeprefix(BIGQUERY)
    reason = "the setting log_bigquery is off"
    if options.bigquery:
        try:
            return _make_bigquery_sink(table)
        except BigQueryUnavailableError as error:
            reason = str(error)
    folder = fallback_folder(options.logs, address)
    logger.warning("the request log for the table %s is kept in %s: %s", table, folder, reason)
    return _make_folder_sink(folder, kind, journal, options)


def _make_bigquery_sink(table: str) -> Sink:
    if not _TABLE.fullmatch(table):
        raise BigQueryUnavailableError(f"{table} is no name of a table: project.dataset.table")
    return BigQuerySink(table)


def _make_folder_sink(
    folder: Path,
    kind: LogKind,
    journal: int,
    options: LogWriterOptions,
    folders: LocalFolderPolicy | None = None,
) -> FolderSink:
    return FolderSink(
        folder,
        kind,
        journal=journal,
        rotate_bytes=options.rotate_bytes,
        rotate_seconds=options.rotate_seconds,
        folders=folders or LocalFolderPolicy(),
    )
