"""Fetches artifacts by URI, and reads and writes single files.

URIs are `gs://bucket/folder`, `file:///folder` or a path. `ArtifactFetcher` copies a folder to a destination;
folders of Cloud Storage go through a cache entry named after their listing, so that they are downloaded once.
Destinations share no files, but share blocks where the file system can copy on write. `FileStore` reads and
writes files in place.

google.cloud.storage is imported only when a `gs://` URI is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage.artifact_cache import ArtifactCache, HeldEntry, copy_files_atomically
from serving.artifacts.storage.file_store import FileStore
from serving.artifacts.storage.file_system import (
    MAX_FILES,
    FileInfo,
    check_file_names,
    digest_listing,
    name_in_folder,
)
from serving.artifacts.storage.gcs import emulator_host
from serving.artifacts.storage.local_file_system import LocalFileSystem

__all__ = [
    "MAX_FILES",
    "ArtifactFetcher",
    "FetchResult",
    "FileInfo",
    "FileStore",
    "HeldEntry",
    "emulator_host",
]


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Number of files fetched, their size in bytes, hex digest of the listing."""

    files: int
    bytes: int
    digest: str


class ArtifactFetcher:
    """Fetches artifacts.

    `cache` is a folder that processes may share, and `capacity` its limit in bytes, which only the latest
    artifact may exceed. Transient failures of Cloud Storage are retried for `retry_seconds`. Local paths
    outside of `folders` are refused with FailedPrecondition.
    """

    def __init__(
        self,
        cache: Path,
        capacity: int,
        *,
        retry_seconds: float = 60.0,
        folders: LocalFolderPolicy | None = None,
    ) -> None:
        self._cache = ArtifactCache(cache, capacity)
        self._files = FileStore(retry_seconds=retry_seconds, folders=folders)

    def fetch(self, uri: str, destination: Path) -> FetchResult:
        """Copy the folder `uri` to `destination`, which must not exist; it appears complete or not at all.

        Raises InvalidArgument (not a folder, too many files, unsafe names, unknown scheme), NotFound,
        PermissionDenied, or Unavailable when the storage keeps failing or the source changes meanwhile.
        """
        system, name = self._files.resolve(uri)
        folder = system.uri(name).rstrip("/")
        found = system.list_artifact(name)
        names = [name_in_folder(file, folder) for file in found]
        check_file_names(folder, names)
        files = dict(zip(names, found, strict=True))
        digest = digest_listing(folder, files)
        if isinstance(system, LocalFileSystem):
            copy_files_atomically(files, system.download, destination)
        else:
            self._cache.fetch(digest, files, system.download, destination)
        return FetchResult(len(files), sum(file.size for file in found), digest)

    def fetch_or_build(self, digest: str, make: Callable[[Path], None], destination: Path) -> None:
        """Copy what `make` puts into a folder to the new folder `destination`; cached by `digest`."""
        self._cache.fetch_or_build(digest, make, destination)

    def build_if_absent(self, digest: str, make: Callable[[Path], None]) -> None:
        """Have the cache entry `digest` filled by `make`, unless it is there."""
        self._cache.build_if_absent(digest, make)

    def hold(self, digest: str, *, wait: bool = False) -> HeldEntry | None:
        """The cache entry `digest` for use in place, which must not be changed; None if it is not there.

        One that is in work is waited for with `wait`, else counts as missing.
        """
        return self._cache.hold(digest, wait=wait)

    def fetch_file(self, uri: str, destination_dir: Path) -> Path:
        """Copy one file into `destination_dir` under its own name. Raises as `fetch` does."""
        system, name = self._files.resolve(uri)
        file = system.stat(name)
        folder, _, own_name = file.uri.rpartition("/")
        check_file_names(folder, [own_name])
        destination_dir.mkdir(parents=True, exist_ok=True)
        target = destination_dir / own_name
        partial = target.with_name(f".{target.name}.part")
        system.download(file, partial)
        return partial.rename(target)
