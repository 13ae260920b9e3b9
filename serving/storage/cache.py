"""The cache of what was fetched.

cache/DIGEST/      a complete entry, never changed after one rename put it there
cache/.partial/    what is being built or torn down, by whoever holds the entry's lock
cache/.locks/      one flock per entry in work; the kernel frees it when its holder dies
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from serving.storage.folder import File
from serving.storage.gcs import THREADS
from serving.storage.local import UNLINKABLE, flush

_DIGEST = re.compile("[0-9a-f]{64}")


class Cache:
    """Entries below `root`, kept under `capacity` bytes as far as those in use allow."""

    def __init__(self, root: Path, capacity: int) -> None:
        self._root = root
        self._capacity = capacity
        self._locks = root / ".locks"
        self._partial = root / ".partial"

    def fetch(
        self, digest: str, files: Sequence[File], copy: Callable[[File, Path], None], destination: Path
    ) -> None:
        """Link the entry `digest` into `destination`, after filling it with `copy` if it is not there yet."""
        self._locks.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(exist_ok=True)
        entry = self._root / digest
        self._sweep()
        with self._lock(digest):
            if not entry.is_dir():
                self._evict(sum(file.size for file in files))
                self._fill(entry, files, copy)
            now = time.time_ns()
            os.utime(entry, ns=(now, now))
            _link(entry, [file.name for file in files], destination)

    def _fill(self, entry: Path, files: Sequence[File], copy: Callable[[File, Path], None]) -> None:
        partial = self._partial / entry.name
        shutil.rmtree(partial, ignore_errors=True)
        _make_folders(partial, [file.name for file in files])

        def settle(file: File) -> None:
            target = partial / file.name
            copy(file, target)
            # Read-only, because every version made from this entry shares the file.
            target.chmod(0o444)
            flush(target)

        with ThreadPoolExecutor(THREADS) as pool:
            copies = [pool.submit(settle, file) for file in files]
            try:
                for done in as_completed(copies):
                    done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        partial.rename(entry)
        flush(self._root)

    def _evict(self, needed: int) -> None:
        """Remove unused entries, least recently used first, until `needed` more bytes fit under the cap."""
        with self._lock(".evict"):
            # Nothing but our own entries: the folder may be one that holds other things too.
            entries = [path for path in self._root.iterdir() if _DIGEST.fullmatch(path.name)]
            sizes = {entry: sum(file.st_size for file in _statuses(entry)) for entry in entries}
            excess = sum(sizes.values()) + needed - self._capacity
            for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime_ns):
                if excess <= 0:
                    return
                with self._lock(entry.name, wait=False) as held:
                    if held and all(file.st_nlink == 1 for file in _statuses(entry)):
                        self._discard(entry)
                        excess -= sizes[entry]

    def _discard(self, entry: Path) -> None:
        doomed = self._partial / entry.name
        shutil.rmtree(doomed, ignore_errors=True)
        entry.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what processes left half-made when they died."""
        for partial in self._partial.iterdir():
            with self._lock(partial.name, wait=False) as held:
                if held:
                    shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock `name`, or, without waiting, learn that somebody else does."""
        path = self._locks / name
        while True:
            with path.open("ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
                # A holder removes the file before it lets go, so that none pile up. What was locked may
                # thus be a file that nobody else can open any more.
                if _same(file, path):
                    try:
                        yield True
                    finally:
                        path.unlink(missing_ok=True)
                    return


def _same(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _statuses(entry: Path) -> list[os.stat_result]:
    return [path.stat() for path in entry.rglob("*") if path.is_file()]


def _make_folders(root: Path, names: Sequence[str]) -> None:
    for folder in {(root / name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)


def _link(entry: Path, names: Sequence[str], destination: Path) -> None:
    partial = destination.with_name(f".{destination.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    _make_folders(partial, names)
    for name in names:
        try:
            (partial / name).hardlink_to(entry / name)
        except OSError as error:
            if error.errno not in UNLINKABLE:
                raise
            shutil.copy(entry / name, partial / name)
    partial.rename(destination)
    flush(destination.parent)
