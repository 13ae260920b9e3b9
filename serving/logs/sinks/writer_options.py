"""What the server and its log writer both know: the writer's options, and where records are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.uris import parse_storage_uri
from serving.logs import formatters

BIGQUERY = "bq://"
SCHEMES = frozenset({"gs", "file", "bq"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWriterOptions:
    """What the server tells its log writer; see the settings `log_...`.

    `spill` is the folder of the journals, `logs` that of all logs that are kept on this machine; `folders`
    are those that request logs of callers may go to.
    """

    spill: Path
    logs: Path
    rotate_bytes: int
    rotate_seconds: float
    bigquery: bool
    stdout: bool
    log_format: str = formatters.TEXT
    folders: LocalFolderPolicy = LocalFolderPolicy()

    def to_argument(self) -> str:
        """As an argument of a command."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """What `to_argument` has made."""

        def convert_value(kind: type[Any], value: Any) -> Any:
            return kind(value)

        return msgspec.json.decode(argument, type=cls, dec_hook=convert_value)


def folder_of_address(address: str) -> Path | None:
    """The folder that an address names; None when it names a bucket or a table. Raises InvalidArgument."""
    if address.startswith("file://") or address.startswith("/"):
        return Path(parse_storage_uri(address)[1])
    return None


def check_address(address: str) -> None:
    """Raises InvalidArgument for a bucket or a folder that cannot be; what is neither is a table."""
    if address.startswith(("gs://", "file://", "/")):
        parse_storage_uri(address)


def fallback_folder(logs: Path, address: str) -> Path:
    """Where records for a table are kept while BigQuery is not used; `logs` is the folder for all logs."""
    name = quote(address.removeprefix(BIGQUERY), safe="")
    return logs / "requests" / (f"_{name}" if name.startswith(".") else name)
