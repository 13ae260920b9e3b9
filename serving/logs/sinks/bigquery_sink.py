"""Writes log records to BigQuery by streaming inserts.

The table must exist, with the columns of section 3.7 of the AI Platform contract. `record_id` and
`request_id` are filled in tables that have these columns too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from serving.errors import PermissionDenied, ServingError, Unavailable
from serving.logs.journal import JournalRecord
from serving.logs.sinks.record_encoding import make_request_row

logger = logging.getLogger(__name__)

# Google's advice, and well below its limits: 50,000 rows, 10 MB.
_MAX_ROWS, _MAX_BYTES = 500, 5 << 20
_TIMEOUT = 30.0
# What is wrong with the request itself: sending it again would not help.
_REJECTED_STATUSES = frozenset({400, 413})
_INVALID_REASONS = frozenset({"invalid", "invalidQuery", "notImplemented"})


class BigQueryUnavailableError(Exception):
    """BigQuery cannot be used; the message says why."""


class BigQuerySink:
    """Rows in the table `project.dataset.table`. Raises BigQueryUnavailableError."""

    collect_bytes = 4 << 20
    collect_seconds = 0.5

    def __init__(self, table: str) -> None:
        self._table = table
        self._project = table.split(".", maxsplit=1)[0]
        self._client = self._make_client()

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        """Insert the rows, with ids by which BigQuery removes duplicates."""
        refused = 0
        batch: list[JournalRecord] = []
        size = 0
        for record in records:
            length = len(record.data) + len(record.answer)
            if batch and (len(batch) >= _MAX_ROWS or size + length > _MAX_BYTES):
                refused += self._insert_rows(batch)
                batch, size = [], 0
            batch.append(record)
            size += length
        return refused + self._insert_rows(batch)

    def _insert_rows(self, records: Sequence[JournalRecord]) -> int:
        """Returns how many rows are refused.

        An invalid row fails the others of its request, which are repeated.
        """
        if not records:
            return 0
        from google.api_core import exceptions as api  # noqa: PLC0415

        try:
            found = self._send_rows(records)
        except api.GoogleAPICallError as error:
            if error.code not in _REJECTED_STATUSES:
                raise self._translate_error(error) from error
            return self._insert_halves(records, error.message)
        if not found:
            return 0
        bad = {one["index"]: one["errors"] for one in found if _is_invalid(one["errors"])}
        if not bad:
            raise Unavailable(
                f"BigQuery did not take the rows for {self._table}: {_describe_errors(found[0])}"
            )
        logger.error(
            "%d log records do not fit the table %s: %s", len(bad), self._table, _first_message(bad.values())
        )
        return len(bad) + self._insert_rows(
            [record for index, record in enumerate(records) if index not in bad]
        )

    def _insert_halves(self, records: Sequence[JournalRecord], reason: str) -> int:
        """Bisect a request that is refused as a whole, to find the row at fault."""
        if len(records) == 1:
            logger.error("a log record is refused by the table %s: %s", self._table, reason)
            return 1
        middle = len(records) // 2
        return self._insert_rows(records[:middle]) + self._insert_rows(records[middle:])

    def _send_rows(self, records: Sequence[JournalRecord]) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._client.insert_rows_json(
            self._table,
            [make_request_row(record) for record in records],
            row_ids=[record.id for record in records],
            ignore_unknown_values=True,
            # Trying again is the log writer's own business.
            retry=None,
            timeout=_TIMEOUT,
        )
        return found

    def _make_client(self) -> Any:
        try:
            from google.cloud import bigquery  # noqa: PLC0415
        except ImportError as error:
            raise BigQueryUnavailableError(
                "google-cloud-bigquery is not installed (extra `bigquery`)"
            ) from error
        return bigquery.Client(project=self._project, credentials=self._credentials)

    @cached_property
    def _credentials(self) -> Any:
        import google.auth  # noqa: PLC0415
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
        from google.auth.exceptions import DefaultCredentialsError  # noqa: PLC0415

        # Google's client owns this variable and takes the address from it by itself.
        if os.environ.get("BIGQUERY_EMULATOR_HOST"):
            return AnonymousCredentials()  # type: ignore[no-untyped-call]
        try:
            credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/bigquery"])
        except DefaultCredentialsError as error:
            raise BigQueryUnavailableError("the server has no Google credentials") from error
        return credentials

    def _translate_error(self, error: Any) -> ServingError:
        if error.code in {401, 403}:
            return PermissionDenied(
                f"BigQuery refuses the table {self._table} to the server's account: {error.message} It needs "
                "roles/bigquery.dataEditor there."
            )
        return Unavailable(f"BigQuery failed on the table {self._table}: {error.message}")


def _is_invalid(errors: Sequence[Mapping[str, Any]]) -> bool:
    return any(error.get("reason") in _INVALID_REASONS for error in errors)


def _first_message(found: Any) -> str:
    return next((error.get("message", "") for errors in found for error in errors), "")


def _describe_errors(found: Mapping[str, Any]) -> str:
    return "; ".join(f"{error.get('reason')}: {error.get('message')}" for error in found["errors"])
