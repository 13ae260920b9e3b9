"""The interface of a bucket or of local disks: single files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from serving.errors import Unavailable


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or object as it was found.

    `uri` is gs://bucket/name or an absolute path, `size` in bytes as stored. `version` changes with the
    content. `gzip` says that an object is stored with `Content-Encoding: gzip`.
    """

    uri: str
    size: int
    version: str
    gzip: bool


class FileSystem(Protocol):
    """A bucket, or this machine's disks; names are those of `uris.parse_storage_uri`.

    Every method raises PermissionDenied, and Unavailable when the storage keeps failing.
    """

    def uri(self, name: str) -> str: ...

    def stat(self, name: str) -> FileInfo:
        """One file. Raises NotFound, or InvalidArgument for a folder."""

    def list_prefix(self, stem: str) -> list[FileInfo]:
        """Files whose names start with `stem` and have no slash after it; no folder placeholders."""

    def list(self, folder: str) -> list[FileInfo]:
        """Every complete file below a folder; none if there is no such folder."""

    def open(self, name: str, item: FileInfo, start: int) -> BinaryIO:
        """Read a file found before, from byte `start` on."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a file that appears when the block ends, unless it raises."""

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises NotFound."""

    def write(self, name: str, data: bytes) -> None: ...

    def create_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file unless it exists; returns whether it was created."""

    def move(self, name: str, target: str) -> None:
        """Rename a file, replacing one of the new name. Raises NotFound."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""

    def delete_partials(self, name: str) -> None:
        """Remove incomplete files that nobody will complete."""

    def delete_folder(self, name: str) -> None: ...


def file_changed_error(uri: str) -> Unavailable:
    return Unavailable(
        f"{uri} was replaced or removed while it was being read; try again when nothing writes to it."
    )
