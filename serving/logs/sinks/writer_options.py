"""Options of the log writer process, and the folders of logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import parse_storage_uri
from serving.logs import formatters

BIGQUERY = "bq://"
SCHEMES = frozenset({"gs", "file", "bq"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWriterOptions:
    """What the server passes to its log writer; see the settings `log_...`.

    `spill` is the folder of the journals, `logs` that of all local logs; `folders` are those that request
    logs may be written to.
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
        """As a command-line argument."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        def convert_value(kind: type[Any], value: Any) -> Any:
            return kind(value)

        return msgspec.json.decode(argument, type=cls, dec_hook=convert_value)


def folder_of_address(address: str) -> Path | None:
    """The folder of an address; None for a bucket or a table. Raises InvalidArgument."""
    if address.startswith("file://") or address.startswith("/"):
        return Path(parse_storage_uri(address)[1])
    return None


def check_address(address: str) -> None:
    """Raises InvalidArgument for an invalid bucket or folder; anything else is taken for a table."""
    if address.startswith(("gs://", "file://", "/")):
        parse_storage_uri(address)


def fallback_folder(logs: Path, address: str) -> Path:
    """The folder for a table's records while BigQuery is not used; `logs` is the folder of all logs."""
    name = quote(address.removeprefix(BIGQUERY), safe="")
    return logs / "requests" / (f"_{name}" if name.startswith(".") else name)
