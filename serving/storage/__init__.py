"""Artefact URI (`gs://bucket/folder`, `file:///folder` or a plain path) to a local directory; single files.

`Storage` fetches: it lists the source and copies its files to the destination; those of Cloud Storage by way
of a cache entry named after what was listed, so that they are downloaded once. No two destinations share a
file, though they share its blocks where the file system can copy on write.
`Files` reads and writes files where they lie.

Nothing of google.cloud.storage is imported before a `gs://` URI is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.local_folders import LocalFolders
from serving.storage.cache import Cache, copy_folder
from serving.storage.files import Files
from serving.storage.folder import MAX_FILES, Folder, check_names, digest_of
from serving.storage.gcs import Gcs, GcsFolder, emulator_host
from serving.storage.items import Item
from serving.storage.local import LocalFolder, local_file
from serving.storage.uris import parse

__all__ = ["MAX_FILES", "Fetched", "Files", "Item", "Storage", "emulator_host"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch put in place: number of files, their size in bytes, hex digest of what was listed."""

    files: int
    bytes: int
    digest: str


class Storage:
    """Fetches artefacts.

    `cache` is a folder that several processes may share, and `capacity` its cap in bytes, which only the
    artefact that was fetched last may exceed. A transient failure of Cloud Storage is retried for `patience`
    seconds. Local paths outside of `folders` are refused with FailedPrecondition.
    """

    def __init__(
        self, cache: Path, capacity: int, *, patience: float = 60.0, folders: LocalFolders | None = None
    ) -> None:
        self._cache = Cache(cache, capacity)
        self._gcs = Gcs(patience)
        self._folders = folders or LocalFolders()

    def fetch(self, uri: str, destination: Path) -> Fetched:
        """Copy the folder `uri` to `destination`, which must not exist; it appears complete or not at all.

        Raises InvalidArgument (not a folder, too many files, unsafe names, unknown scheme), NotFound,
        PermissionDenied, or Unavailable when the storage keeps failing or the source changes meanwhile.
        """
        folder = self._folder(uri)
        files = folder.files()
        check_names(folder.uri, files)
        digest = digest_of(folder.uri, files)
        if isinstance(folder, LocalFolder):
            copy_folder(files, folder.copy, destination)
        else:
            self._cache.fetch(digest, files, folder.copy, destination)
        return Fetched(len(files), sum(file.size for file in files), digest)

    def build(self, digest: str, make: Callable[[Path], None], destination: Path) -> None:
        """Copy what `make` puts into a folder to `destination`, a new one; made once for each `digest`."""
        self._cache.build(digest, make, destination)

    def fetch_file(self, uri: str, destination_dir: Path) -> Path:
        """Copy the one file `uri` into `destination_dir` under its own name. Raises as `fetch` does."""
        bucket, name = parse(uri)
        folder, file = self._gcs.file(bucket, name) if bucket else local_file(Path(name), self._folders)
        check_names(folder.uri, [file])
        destination_dir.mkdir(parents=True, exist_ok=True)
        target = destination_dir / file.name
        partial = target.with_name(f".{target.name}.part")
        folder.copy(file, partial)
        return partial.rename(target)

    def _folder(self, uri: str) -> Folder:
        bucket, name = parse(uri)
        return GcsFolder(self._gcs, bucket, name) if bucket else LocalFolder(Path(name), self._folders)
