"""A folder of files to fetch, wherever it lies, and what is asked of its names."""

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
    """One file of a folder: its relative name, size in bytes, and a text that changes with its content.

    `origin` is what the folder copies it from.
    """

    name: str
    size: int
    version: str
    origin: Any


class SourceFolder(Protocol):
    """Somewhere files are fetched from."""

    @property
    def uri(self) -> str:
        """The folder as messages and digests name it."""

    def list_files(self) -> list[SourceFile]:
        """Every file below the folder, at most MAX_LISTED. Raises when there is none."""

    def copy_file(self, file: SourceFile, target: Path) -> None:
        """Write the very content that was listed to `target`. Called from several threads."""


def check_file_names(uri: str, files: Sequence[SourceFile]) -> None:
    """Raise InvalidArgument when there are too many, or when they cannot be files of one folder."""
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
    """Name of the cache entry that holds these files: hex digest of what was listed."""
    listing = sorted((file.name, file.size, file.version) for file in files)
    return hashlib.sha256(json.dumps([uri, listing]).encode()).hexdigest()
