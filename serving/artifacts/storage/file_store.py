"""Reading and writing single files, in buckets and on this machine alike."""

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

    Threads may share one. A copy that is sent to another process connects there anew. A transient failure
    of Cloud Storage is retried for `patience` seconds. Local paths outside of `folders` are refused, each
    time they are used, with FailedPrecondition.

    Besides what they say, all methods raise InvalidArgument (no URI of ours), PermissionDenied,
    Unavailable (the storage keeps failing) and, where something is written, NotFound (no such bucket) and
    ResourceExhausted (the disk is full).
    """

    def __init__(self, *, retry_seconds: float = 60.0, folders: LocalFolderPolicy | None = None) -> None:
        self._gcs = GcsClient(retry_seconds)
        self.folders = folders or LocalFolderPolicy()

    def glob(self, pattern: str) -> list[FileInfo]:
        """The files that an exact path, `folder/*` or `prefix*` names, in the order of their URIs.

        A `*` stands for the rest of a name, never for a slash. What it leaves out: folders, the objects
        that stand for them, and names that start with a dot. Raises NotFound when nothing matches, and
        InvalidArgument for a folder, or a `*` that is not the last character.
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
        """Read what was found, from byte `start` on, as it is stored: a gzip object stays compressed.

        For reading from front to back, in bounded memory. Opening, reading or, for a local file, closing
        raises Unavailable when the file has been replaced, changed or removed since it was found.
        """
        place, name = self._file_system_of(item.uri)
        return place.open(name, item, start)

    def create(self, uri: str) -> AbstractContextManager[BinaryIO]:
        """Write a file from front to back, in bounded memory.

        It appears, complete, when the block ends, and replaces one of its name; when the block raises it
        does not appear. Local folders are made. Leave closing the file to the block.
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
        """Create a file unless there is one of its name; of several callers one is told True."""
        place, name = self._file_system_of(uri)
        return place.create_if_absent(name, data)

    def move(self, source: str, target: str) -> None:
        """Give a file another name, in its own bucket or file system; replaces one that has it.

        Local folders are made. Raises NotFound. In a bucket a move that breaks off may leave both.
        """
        (place, name), (target_place, target_name) = (
            self._file_system_of(source),
            self._file_system_of(target),
        )
        if place != target_place:
            raise InvalidArgument(f"{source} cannot be moved to {target}, which is not in the same storage.")
        place.move(name, target_name)

    def delete(self, uri: str) -> None:
        """Remove a file if it is there."""
        place, name = self._file_system_of(uri)
        place.delete(name)

    def delete_partials(self, uri: str) -> None:
        """Remove what killed processes had written of a file; another process that writes it now fails."""
        place, name = self._file_system_of(uri)
        place.delete_partials(name)

    def delete_folder(self, uri: str) -> None:
        """Remove whatever lies below a folder, if it is there, and a local folder itself too."""
        place, name = self._file_system_of(uri)
        if not name.strip("/"):
            raise InvalidArgument(f"{uri} is a whole storage, not a folder of one; it is not removed.")
        place.delete_folder(name)

    def list(self, uri: str) -> list[FileInfo]:
        """Every complete file below a folder at any depth, in the order of their URIs."""
        place, name = self._file_system_of(uri)
        return sorted(place.list(name), key=lambda item: item.uri)

    def _file_system_of(self, uri: str) -> tuple[FileSystem, str]:
        bucket, name = parse_storage_uri(uri)
        return (GcsFileSystem(self._gcs, bucket) if bucket else LocalFileSystem(self.folders), name)
