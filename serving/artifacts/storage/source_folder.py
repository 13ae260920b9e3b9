"""The interface of a folder to fetch from, and checks of its file names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from serving.errors import InvalidArgument

MAX_FILES = 1000
# Enough to tell a folder that is somewhat too large how large it is, without listing a whole data lake.
MAX_LISTED = 10 * MAX_FILES


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a folder: its relative name, size in bytes, and a text that changes with its content.

    `origin` is what the folder copies it from.
    """

    name: str
    size: int
    version: str
    origin: Any


class SourceFolder(Protocol):
    """A folder to fetch from."""

    @property
    def uri(self) -> str:
        """The folder in messages and digests."""

    def list_files(self) -> list[SourceFile]:
        """Every file below the folder, at most MAX_LISTED. Raises if there are none."""

    def copy_file(self, file: SourceFile, target: Path) -> None:
        """Write the listed content to `target`. Called from several threads."""


def check_file_names(uri: str, files: Sequence[SourceFile]) -> None:
    """Raise InvalidArgument for too many files, or names that cannot be files of one folder."""
    if len(files) > MAX_FILES:
        count = f"at least {MAX_LISTED}" if len(files) == MAX_LISTED else str(len(files))
        raise InvalidArgument(
            f"{uri} holds {count} files; a model may have {MAX_FILES}. Name the folder of the model itself."
        )
    for file in files:
        if "\0" in file.name or {"", ".", ".."} & set(file.name.split("/")):
            raise InvalidArgument(
                f"{uri} holds {file.name!r}, whose name would lead out of the model's folder."
            )
    folders = {str(parent) for file in files for parent in PurePosixPath(file.name).parents}
    for file in files:
        if file.name in folders:
            raise InvalidArgument(f"{uri} holds {file.name!r} both as a file and as a folder; rename one.")


def digest_listing(uri: str, files: Sequence[SourceFile]) -> str:
    """The key of the cache entry: a hex digest of the listing."""
    listing = sorted((file.name, file.size, file.version) for file in files)
    return hashlib.sha256(json.dumps([uri, listing]).encode()).hexdigest()
