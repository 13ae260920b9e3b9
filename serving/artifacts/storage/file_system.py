"""Single files as they are found, and what a place that holds them can do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from serving.errors import Unavailable


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file or object as it was found.

    `uri` is gs://bucket/name or an absolute path, `size` in bytes as stored. `version` is a text that
    changes with the content. `gzip` says that an object is stored with `Content-Encoding: gzip`.
    """

    uri: str
    size: int
    version: str
    gzip: bool


class FileSystem(Protocol):
    """A bucket, or the disks of this machine; names are those of `uris.parse`.

    Every method raises PermissionDenied, and Unavailable when the storage keeps failing.
    """

    def uri(self, name: str) -> str:
        """What `name` is called outside of this place."""

    def stat(self, name: str) -> FileInfo:
        """One file. Raises NotFound, or InvalidArgument for a folder."""

    def list_prefix(self, stem: str) -> list[FileInfo]:
        """Files whose names start with `stem` and have no slash after it; no placeholders for folders."""

    def list(self, folder: str) -> list[FileInfo]:
        """Every file below a folder, complete ones only; none when there is no such folder."""

    def open(self, name: str, item: FileInfo, start: int) -> BinaryIO:
        """Read what was found, from byte `start` on."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a file that appears when the block ends, unless it raises."""

    def read(self, name: str) -> bytes:
        """The content of a small file. Raises NotFound."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file."""

    def create_if_absent(self, name: str, data: bytes) -> bool:
        """Create a file unless there is one; whether it was created."""

    def move(self, name: str, target: str) -> None:
        """Rename a file; one of the target's name is replaced. Raises NotFound."""

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""

    def delete_partials(self, name: str) -> None:
        """Remove what is not the whole file, and never will be."""

    def delete_folder(self, name: str) -> None:
        """Remove whatever lies below a folder."""


def file_changed_error(uri: str) -> Unavailable:
    """The error for content that is no longer what was found."""
    return Unavailable(
        f"{uri} was replaced or removed while it was being read; try again when nothing writes to it."
    )
