"""Which sink an address means."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from serving.journal import Kind
from serving.local_folders import LocalFolders
from serving.sinks import Sink
from serving.sinks.bigquery import BigQuerySink, NotAvailableError
from serving.sinks.bucket import BucketSink
from serving.sinks.folder import Both, FolderSink, StdoutSink
from serving.sinks.places import BIGQUERY, Options, own_folder, place
from serving.storage import Files

logger = logging.getLogger(__name__)

_TABLE = re.compile(r"[\w.:-]+\.\w+\.[\w$-]+")
# The journal keeps what fails; nothing else needs patience.
_PATIENCE = 10.0


def make_sink(kind: Kind, address: str, journal: int, options: Options) -> Sink:
    """The sink for the journal of an address, which has this number. May take seconds."""
    if kind is not Kind.REQUESTS:
        sink = _folder(options.logs / kind, kind, journal, options)
        return Both(sink, StdoutSink(kind)) if options.stdout else sink
    if address.startswith("gs://"):
        return BucketSink(
            address,
            kind,
            Files(patience=_PATIENCE),
            rotate_bytes=options.rotate_bytes,
            rotate_seconds=options.rotate_seconds,
        )
    folder = place(address)
    if folder is not None:
        return _folder(folder, kind, journal, options, options.folders)
    table = address.removeprefix(BIGQUERY)
    reason = "the setting log_bigquery is off"
    if options.bigquery:
        try:
            return _table(table)
        except NotAvailableError as error:
            reason = str(error)
    folder = own_folder(options.logs, address)
    logger.warning("the request log for the table %s is kept in %s: %s", table, folder, reason)
    return _folder(folder, kind, journal, options)


def _table(table: str) -> Sink:
    if not _TABLE.fullmatch(table):
        raise NotAvailableError(f"{table} is no name of a table: project.dataset.table")
    return BigQuerySink(table)


def _folder(
    folder: Path, kind: Kind, journal: int, options: Options, folders: LocalFolders | None = None
) -> FolderSink:
    return FolderSink(
        folder,
        kind,
        journal=journal,
        rotate_bytes=options.rotate_bytes,
        rotate_seconds=options.rotate_seconds,
        folders=folders or LocalFolders(),
    )
