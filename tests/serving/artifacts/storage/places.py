"""Folders to try things in, in a bucket and on a disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.artifacts.storage import FileInfo

MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """A folder to try things in, `root`, and a way to put files there without what is tested."""

    root: str
    put: Callable[[str, bytes], None]

    def fill(self, *names: str) -> None:
        """Put a file with its name as its content under each of these names."""
        for name in names:
            self.put(f"{self.root}/{name}", name.encode())

    def names(self, items: list[FileInfo]) -> list[str]:
        """Names of files, relative to the folder."""
        return [item.uri.removeprefix(f"{self.root}/") for item in items]


def put(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)
