"""The interface of a bucket or of local disks, where a URI points, and which listings can be a folder's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from serving.errors import InvalidArgument, Unavailable

# The most files of a folder that is fetched.
MAX_FILES = 1000
# Enough to tell a folder that is somewhat too large how large it is, without listing a whole data lake.
MAX_LISTED = 10 * MAX_FILES


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or object as it was found.

    `uri` is gs://bucket/name or an absolute path, `size` in bytes as stored. `version` changes with the
    content. `gzip` says that an object is stored with `Content-Encoding: gzip`. `crc32c` is that of the
    stored bytes in base64, "" where the storage keeps none.
    """

    uri: str
    size: int
    version: str
    gzip: bool
    crc32c: str = ""


class FileSystem(Protocol):
    """A bucket, or this machine's disks; names are those of `parse_storage_uri`.

    Every method raises PermissionDenied, and Unavailable when the storage keeps failing.
    """

    def uri(self, name: str) -> str: ...

    def stat(self, name: str) -> FileInfo:
        """One file. Raises NotFound, or InvalidArgument for a folder."""

    def list_prefix(self, stem: str) -> Sequence[FileInfo]:
        """Files whose names start with `stem` and have no slash after it; no folder placeholders."""

    def list(self, folder: str) -> Sequence[FileInfo]:
        """Every complete file below a folder; none if there is no such folder."""

    def list_artifact(self, folder: str) -> Sequence[FileInfo]:
        """Every file below a folder to be fetched, at most MAX_LISTED.

        Raises NotFound if there are none, InvalidArgument for a single file.
        """

    def download(self, item: FileInfo, target: Path) -> None:
        """Write the content that was found to `target`, unpacked. Called from several threads.

        Raises Unavailable if it has changed, or arrives damaged.
        """

    def open(self, item: FileInfo, start: int) -> BinaryIO:
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


def parse_storage_uri(uri: str) -> tuple[str, str]:
    """(bucket, object name), or ("", absolute path) for a local URI; without a trailing slash."""
    expected = "expected gs://bucket/folder, file:///folder or a path"
    if not uri or "\0" in uri:
        raise InvalidArgument(f"{uri!r} is no URI; {expected}.")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "", str(Path(uri).absolute())
    match scheme.lower():
        case "gs":
            bucket, _, name = rest.partition("/")
            if not (bucket[:1] + bucket[-1:]).isalnum():
                raise InvalidArgument(f"{uri} names no bucket; {expected}.")
            return bucket, name.rstrip("/")
        case "file":
            parts = urlsplit(uri)
            if parts.netloc not in {"", "localhost"} or not parts.path:
                raise InvalidArgument(f"{uri} names no local path; {expected}.")
            return "", str(Path(unquote(parts.path)))
        case _:
            raise InvalidArgument(f"{uri} has the unknown scheme {scheme}://; {expected}.")


def name_in_folder(item: FileInfo, folder: str) -> str:
    """The name of a file relative to the URI of a folder that it is in."""
    return item.uri.removeprefix(f"{folder.rstrip('/')}/")


def check_file_names(folder: str, names: Sequence[str]) -> None:
    """Raise InvalidArgument for too many files, or relative names that cannot be files of one folder."""
    if len(names) > MAX_FILES:
        count = f"at least {MAX_LISTED}" if len(names) == MAX_LISTED else str(len(names))
        raise InvalidArgument(
            f"{folder} holds {count} files; a model may have {MAX_FILES}. "
            "Name the folder of the model itself."
        )
    for name in names:
        if "\0" in name or {"", ".", ".."} & set(name.split("/")):
            raise InvalidArgument(
                f"{folder} holds {name!r}, whose name would lead out of the model's folder."
            )
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name in names:
        if name in parents:
            raise InvalidArgument(f"{folder} holds {name!r} both as a file and as a folder; rename one.")


def digest_listing(folder: str, files: Mapping[str, FileInfo]) -> str:
    """The key of the cache entry: a hex digest of the files, which are by relative name."""
    listing = sorted((name, file.size, file.version) for name, file in files.items())
    return hashlib.sha256(json.dumps([folder, listing]).encode()).hexdigest()


def unexpected_folder_error(uri: str) -> InvalidArgument:
    return InvalidArgument(
        f"{uri} is a folder; expected a single file, or {uri.rstrip('/')}/* where several are taken."
    )


def file_changed_error(uri: str, doing: str = "read") -> Unavailable:
    return Unavailable(
        f"{uri} was replaced or removed while it was being {doing}; try again when nothing writes to it."
    )
