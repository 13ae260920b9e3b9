"""Finds entries in the files of an audit log."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.gateway.audit.log_folder import list_log_files, parse_day

AuditEntry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Conditions on entries; "" and None match anything.

    `principal` is an e-mail address or a principal, `method` a part of a method's name, `resource` a resource
    or an ancestor of it (`projects/p`, `models/flowers`), `kind` a log, `since` the earliest time.
    """

    principal: str = ""
    method: str = ""
    resource: str = ""
    kind: str = ""
    since: datetime.datetime | None = None

    def matches(self, entry: AuditEntry) -> bool:
        payload = entry["protoPayload"]
        return (
            (not self.principal or self.principal in payload["authenticationInfo"].values())
            and self.method.lower() in payload["methodName"].lower()
            and (not self.resource or f"/{self.resource.strip('/')}/" in f"/{payload['resourceName']}/")
            and entry["logName"].endswith(f"%2F{self.kind}" if self.kind else "")
            and (self.since is None or datetime.datetime.fromisoformat(entry["timestamp"]) >= self.since)
        )


def follow_lines(folder: Path, since: datetime.datetime | None = None) -> Iterator[bytes | None]:
    """The lines of a log from the day of `since` on, oldest first; None whenever there are no more yet."""
    oldest = since.astimezone(datetime.UTC).date() if since else datetime.date.min
    read: dict[str, int] = {}
    while True:
        for file in list_log_files(folder):
            if parse_day(file) >= oldest:
                yield from _read_new_lines(file, read)
        yield None


def _read_new_lines(file: Path, read: dict[str, int]) -> Iterator[bytes]:
    """The complete lines after those already read; `read` has the number of bytes read, by file."""
    with file.open("rb") as stream:
        stream.seek(read.get(file.name, 0))
        while (line := stream.readline()).endswith(b"\n"):
            read[file.name] = stream.tell()
            yield line
