"""The cache of fetched artifacts.

cache/DIGEST/      a complete entry, put there by one rename and never changed
cache/.partial/    entries being built or removed, by the holder of the entry's lock
cache/.locks/      one flock per entry in use; the kernel releases it when its holder dies
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from serving.artifacts.storage.file_system import FileInfo
from serving.artifacts.storage.gcs import MAX_CONCURRENT_REQUESTS
from serving.artifacts.storage.local_files import copy_content, sync_to_disk
from serving.scratch_folders import remove_folder

_DIGEST = re.compile("[0-9a-f]{64}")

# Seconds before a lock is tried again whose holder only looks at the entry.
_RETRY_SECONDS = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry of the cache that is not removed while it is held, by this process or a fork of it."""

    folder: Path
    lock: IO[bytes]

    def close(self) -> None:
        self.lock.close()


class ArtifactCache:
    """Entries below `root`, limited to `capacity` bytes; a larger one is removed when the next is added."""

    def __init__(self, root: Path, capacity: int) -> None:
        self._root = root
        self._capacity = capacity
        self._locks = root / ".locks"
        self._partial = root / ".partial"

    def fetch(
        self,
        digest: str,
        files: Mapping[str, FileInfo],
        download: Callable[[FileInfo, Path], None],
        destination: Path,
    ) -> None:
        """Copy the entry `digest` to `destination`; a missing entry is first filled with `download`.

        `files` are by their names in the entry.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(exist_ok=True)
        entry = self._root / digest
        self._remove_leftovers()
        with self._lock_entry(digest):
            if not entry.is_dir():
                self._evict_entries(sum(file.size for file in files.values()))
                _copy_all(files, download, self._partial / digest, entry)
                sync_to_disk(self._root)
            now = time.time_ns()
            os.utime(entry, ns=(now, now))
            # Not linked: what the code of a model does to its files must not change another version's.
            copy_files_atomically({name: entry / name for name in files}, copy_content, destination)

    def fetch_or_build(self, digest: str, make: Callable[[Path], None], destination: Path) -> None:
        """Copy the entry `digest` to `destination`; a missing entry is first filled by `make`.

        Other processes that need it wait. Links are copied as links; modes and times are kept.
        """
        with self._hold_or_build(digest, make) as entry:
            _copy_tree(entry, destination)

    def build_if_absent(self, digest: str, make: Callable[[Path], None]) -> None:
        """Fill the entry `digest` by `make` if it is missing."""
        with self._hold_or_build(digest, make):
            pass

    def hold(self, digest: str, *, wait: bool = False) -> HeldEntry | None:
        """The entry `digest` for use in place, until it is closed; None if it is missing.

        One that is in work is waited for with `wait`, else counts as missing.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        entry, lock = self._root / digest, self._locks / digest
        while True:
            file = lock.open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_SH if wait else fcntl.LOCK_SH | fcntl.LOCK_NB)
                # Whoever locked it alone may have removed the entry, or the lock's file alone.
                if entry.is_dir() and _is_still_at(file, lock):
                    now = time.time_ns()
                    os.utime(entry, ns=(now, now))
                    return HeldEntry(entry, file)
                is_missing = not entry.is_dir()
            except BlockingIOError:
                is_missing = True
            file.close()
            if is_missing:
                return None

    @contextmanager
    def _hold_or_build(self, digest: str, make: Callable[[Path], None]) -> Iterator[Path]:
        """Have an entry, filled by `make` if it is missing, and keep others from removing it.

        Only who fills it locks it alone: an entry that is there is never waited for, however long others use
        it in place.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        self._partial.mkdir(exist_ok=True)
        self._remove_leftovers()
        while (held := self.hold(digest, wait=True)) is None:
            with self._lock_entry(digest, wait=False) as locked:
                if locked:
                    self._fill_entry(digest, make)
            if not locked:
                time.sleep(_RETRY_SECONDS)
        try:
            yield held.folder
        finally:
            self._release_entry(held)

    def _release_entry(self, held: HeldEntry) -> None:
        """Let go of an entry that no fork of this process uses, and remove its lock unless others have it."""
        lock = self._locks / held.folder.name
        with held.lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(held.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(held.lock, lock):
                lock.unlink()

    def _fill_entry(self, digest: str, make: Callable[[Path], None]) -> None:
        """Make an entry that is missing; its lock is held."""
        entry, partial = self._root / digest, self._partial / digest
        if entry.is_dir():
            return
        remove_folder(partial)
        partial.mkdir()
        try:
            make(partial)
        except BaseException:
            remove_folder(partial)
            raise
        self._evict_entries(_folder_size(partial))
        os.sync()  # its files are too many to flush one by one
        partial.rename(entry)
        sync_to_disk(self._root)

    def _evict_entries(self, needed: int) -> None:
        """Remove unlocked entries, least recently used first, until `needed` more bytes fit."""
        with self._lock_entry(".evict"):
            # Nothing but our own entries: the folder may be one that holds other things too.
            entries = [path for path in self._root.iterdir() if _DIGEST.fullmatch(path.name)]
            sizes = {entry: _folder_size(entry) for entry in entries}
            excess = sum(sizes.values()) + needed - self._capacity
            for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime_ns):
                if excess <= 0:
                    return
                with self._lock_entry(entry.name, wait=False) as held:
                    if held:
                        self._remove_entry(entry)
                        excess -= sizes[entry]

    def _remove_entry(self, entry: Path) -> None:
        doomed = self._partial / entry.name
        remove_folder(doomed)
        entry.rename(doomed)
        remove_folder(doomed)

    def _remove_leftovers(self) -> None:
        """Remove partial entries of processes that have died."""
        for partial in self._partial.iterdir():
            with self._lock_entry(partial.name, wait=False) as held:
                if held:
                    remove_folder(partial)

    @contextmanager
    def _lock_entry(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock `name`; without `wait`, yields False if another process holds it."""
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
                if _is_still_at(file, path):
                    try:
                        yield True
                    finally:
                        path.unlink(missing_ok=True)
                    return


def _copy_tree(source: Path, destination: Path) -> None:
    """Copy a folder with its links, modes and times; it appears when complete."""

    def copy_with_metadata(file: str, target: str) -> None:
        copy_content(Path(file), Path(target))
        shutil.copystat(file, target)

    partial = _partial_of(destination)
    remove_folder(partial)
    shutil.copytree(source, partial, symlinks=True, copy_function=copy_with_metadata)
    partial.rename(destination)
    sync_to_disk(destination.parent)


def _is_still_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _folder_size(entry: Path) -> int:
    return sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())


def copy_files_atomically(
    sources: Mapping[str, T], copy: Callable[[T, Path], None], destination: Path
) -> None:
    """Copy files, by name, to a new folder, which appears when complete."""
    _copy_all(sources, copy, _partial_of(destination), destination)
    sync_to_disk(destination.parent)


def _partial_of(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.part")


def _copy_all(
    sources: Mapping[str, T], copy: Callable[[T, Path], None], partial: Path, destination: Path
) -> None:
    remove_folder(partial)
    for folder in {(partial / name).parent for name in sources}:
        folder.mkdir(parents=True, exist_ok=True)

    def copy_one(name: str, source: T) -> None:
        target = partial / name
        copy(source, target)
        # Read-only, so that nothing is written to it by mistake.
        target.chmod(0o444)
        sync_to_disk(target)

    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
        copies = [pool.submit(copy_one, name, source) for name, source in sources.items()]
        try:
            for done in as_completed(copies):
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    partial.rename(destination)
