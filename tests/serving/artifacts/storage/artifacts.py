"""Artifacts to fetch, by other processes too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOMY = 1 << 30
FETCH = """
import sys
from pathlib import Path
from serving.artifacts.storage import ArtifactFetcher
fetcher = ArtifactFetcher(Path(sys.argv[1]), 1 << 30, retry_seconds=5)
print(fetcher.fetch(sys.argv[2], Path(sys.argv[3])).digest)
"""


def fetching(tmp_path: Path, uri: str, name: str) -> subprocess.Popen[str]:
    """A process that fetches `uri` into `tmp_path / name` and prints the digest."""
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), uri, str(tmp_path / name)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by relative name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def entries(tmp_path: Path) -> set[str]:
    """Digests of what the cache holds."""
    return {path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")}


def make(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
