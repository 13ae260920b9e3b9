"""Reads and writes single files, in buckets and on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import BinaryIO

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.file_system import FileInfo, FileSystem, parse_storage_uri
from serving.artifacts.storage.gcs import GcsClient
from serving.artifacts.storage.gcs_file_system import GcsFileSystem
from serving.artifacts.storage.local_file_system import LocalFileSystem
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

    def resolve(self, uri: str) -> tuple[FileSystem, str]:
        """The file system of a URI, and the name in it."""
        bucket, name = parse_storage_uri(uri)
        return (GcsFileSystem(self._gcs, bucket) if bucket else LocalFileSystem(self.folders), name)

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
        system, name = self.resolve(pattern)
        if not pattern.endswith("*"):
            return [system.stat(name)]
        listed = system.list_prefix(name[:-1])
        found = [item for item in listed if not PurePath(item.uri).name.startswith(".")]
        if not found:
            raise NotFound(
                f"No file matches {system.uri(name)}. Check the path; a * reaches files of one folder only, "
                "none below it and none whose name starts with a dot."
            )
        return sorted(found, key=lambda item: item.uri)

    def open(self, item: FileInfo, start: int = 0) -> BinaryIO:
        """Read a file found before, from byte `start` on, as it is stored: a gzip object stays compressed.

        Sequential, in bounded memory. Opening, reading or, for a local file, closing raises Unavailable when
        the file has been replaced, changed or removed since it was found.
        """
        system, _ = self.resolve(item.uri)
        return system.open(item, start)

    def create(self, uri: str) -> AbstractContextManager[BinaryIO]:
        """Write a file sequentially, in bounded memory.

        It appears when the block ends, replacing one of its name, or not at all when the block raises. Local
        folders are made. Leave closing the file to the block.
        """
        system, name = self.resolve(uri)
        return system.create(name)

    def read(self, uri: str) -> bytes:
        """The content of a small file, as it is stored. Raises NotFound."""
        system, name = self.resolve(uri)
        return system.read(name)

    def write(self, uri: str, data: bytes) -> None:
        """Create or replace a file. Local folders are made."""
        system, name = self.resolve(uri)
        system.write(name, data)

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        """Create a file unless it exists; of several callers exactly one gets True."""
        system, name = self.resolve(uri)
        return system.create_if_absent(name, data)

    def move(self, source: str, target: str) -> None:
        """Rename a file within its bucket or machine; replaces a file of the new name.

        Local folders are made. Raises NotFound. An interrupted move in a bucket may leave both.
        """
        (system, name), (target_system, target_name) = (
            self.resolve(source),
            self.resolve(target),
        )
        if system != target_system:
            raise InvalidArgument(f"{source} cannot be moved to {target}, which is not in the same storage.")
        system.move(name, target_name)

    def delete(self, uri: str) -> None:
        """Remove a file if it exists."""
        system, name = self.resolve(uri)
        system.delete(name)

    def delete_partials(self, uri: str) -> None:
        """Remove what killed processes have written of a file; a process still writing it fails."""
        system, name = self.resolve(uri)
        system.delete_partials(name)

    def delete_folder(self, uri: str) -> None:
        """Remove everything below a folder, if it exists, and a local folder itself too."""
        system, name = self.resolve(uri)
        if not name.strip("/"):
            raise InvalidArgument(f"{uri} is a whole storage, not a folder of one; it is not removed.")
        system.delete_folder(name)

    def list(self, uri: str) -> list[FileInfo]:
        """Every complete file below a folder at any depth, sorted by URI."""
        system, name = self.resolve(uri)
        return sorted(system.list(name), key=lambda item: item.uri)
