"""Reads and writes single files, in buckets and on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import BinaryIO

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import FileInfo, FileSystem
from serving.artifacts.storage.gcs import GcsClient
from serving.artifacts.storage.gcs_file_system import GcsFileSystem
from serving.artifacts.storage.local_file_system import LocalFileSystem
from serving.artifacts.storage.uris import parse_storage_uri
from serving.errors import InvalidArgument, NotFound


class FileStore:
    """Reads and writes files by URI: gs://bucket/name, file:///path or a path.

    Threads may share one; a pickled copy makes connections of its own. Transient failures of Cloud Storage
    are retried for `retry_seconds`. Local paths outside of `folders` are refused, at each use, with
    FailedPrecondition.

    All methods also raise InvalidArgument (malformed URI), PermissionDenied, Unavailable (the storage keeps
    failing) and, when writing, NotFound (no such bucket) and ResourceExhausted (the disk is full).
    """

    def __init__(self, *, retry_seconds: float = 60.0, folders: LocalFolderPolicy | None = None) -> None:
        self._gcs = GcsClient(retry_seconds)
        self.folders = folders or LocalFolderPolicy()

    def glob(self, pattern: str) -> list[FileInfo]:
        """The files of an exact path, `folder/*` or `prefix*`, sorted by URI.

        A `*` matches no slash. Folders, their placeholder objects, and names that start with a dot are left
        out. Raises NotFound when nothing matches, and InvalidArgument for a folder, or a `*` that is not at
        the end.
        """
        if "*" in pattern[:-1]:
            raise InvalidArgument(
                f"{pattern} has a * that is not its last character; write FOLDER/* or PREFIX*."
            )
        place, name = self._file_system_of(pattern)
        if not pattern.endswith("*"):
            return [place.stat(name)]
        found = [item for item in place.list_prefix(name[:-1]) if not PurePath(item.uri).name.startswith(".")]
        if not found:
            raise NotFound(
                f"No file matches {place.uri(name)}. Check the path; a * reaches files of one folder only, "
                "none below it and none whose name starts with a dot."
            )
        return sorted(found, key=lambda item: item.uri)

    def open(self, item: FileInfo, start: int = 0) -> BinaryIO:
        """Read a file found before, from byte `start` on, as it is stored: a gzip object stays compressed.

        Sequential, in bounded memory. Opening, reading or, for a local file, closing raises Unavailable when
        the file has been replaced, changed or removed since it was found.
        """
        place, name = self._file_system_of(item.uri)
        return place.open(name, item, start)

    def create(self, uri: str) -> AbstractContextManager[BinaryIO]:
        """Write a file sequentially, in bounded memory.

        It appears when the block ends, replacing one of its name, or not at all when the block raises. Local
        folders are made. Leave closing the file to the block.
        """
        place, name = self._file_system_of(uri)
        return place.create(name)

    def read(self, uri: str) -> bytes:
        """The content of a small file, as it is stored. Raises NotFound."""
        place, name = self._file_system_of(uri)
        return place.read(name)

    def write(self, uri: str, data: bytes) -> None:
        """Create or replace a file. Local folders are made."""
        place, name = self._file_system_of(uri)
        place.write(name, data)

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        """Create a file unless it exists; of several callers exactly one gets True."""
        place, name = self._file_system_of(uri)
        return place.create_if_absent(name, data)

    def move(self, source: str, target: str) -> None:
        """Rename a file within its bucket or machine; replaces a file of the new name.

        Local folders are made. Raises NotFound. An interrupted move in a bucket may leave both.
        """
        (place, name), (target_place, target_name) = (
            self._file_system_of(source),
            self._file_system_of(target),
        )
        if place != target_place:
            raise InvalidArgument(f"{source} cannot be moved to {target}, which is not in the same storage.")
        place.move(name, target_name)

    def delete(self, uri: str) -> None:
        """Remove a file if it exists."""
        place, name = self._file_system_of(uri)
        place.delete(name)

    def delete_partials(self, uri: str) -> None:
        """Remove what killed processes have written of a file; a process still writing it fails."""
        place, name = self._file_system_of(uri)
        place.delete_partials(name)

    def delete_folder(self, uri: str) -> None:
        """Remove everything below a folder, if it exists, and a local folder itself too."""
        place, name = self._file_system_of(uri)
        if not name.strip("/"):
            raise InvalidArgument(f"{uri} is a whole storage, not a folder of one; it is not removed.")
        place.delete_folder(name)

    def list(self, uri: str) -> list[FileInfo]:
        """Every complete file below a folder at any depth, sorted by URI."""
        place, name = self._file_system_of(uri)
        return sorted(place.list(name), key=lambda item: item.uri)

    def _file_system_of(self, uri: str) -> tuple[FileSystem, str]:
        bucket, name = parse_storage_uri(uri)
        return (GcsFileSystem(self._gcs, bucket) if bucket else LocalFileSystem(self.folders), name)
