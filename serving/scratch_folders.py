"""Temporary folders that are removed even if their process is killed.

The owner holds a lock on the folder, which the kernel releases when the process ends. `sweep_scratch` removes
folders that nobody has locked: unlike a pid, a lock is valid in all containers that share the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "pilotlight-scratch-"


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder for the duration of the block; `purpose` becomes part of its name."""
    folder, lock = _make_locked_folder(purpose)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def make_scratch_folder(purpose: str) -> Path:
    """A temporary folder for the life of this process; a later `sweep_scratch` removes it."""
    return _make_locked_folder(purpose)[0]


def sweep_scratch() -> None:
    """Remove the folders of processes that have ended: this user's only, and never through a link."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # another's, a link, or gone meanwhile
                _remove_if_unlocked(folder)


def _remove_if_unlocked(folder: Path) -> None:
    descriptor = _open_folder(folder)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
    finally:
        os.close(descriptor)


def _make_locked_folder(purpose: str) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        try:
            descriptor = _open_folder(folder)
        except FileNotFoundError:  # swept before it was locked
            continue
        with contextlib.suppress(OSError):  # a file system without locks: nothing is swept there either
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if folder.exists():
            return folder, descriptor
        os.close(descriptor)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def remove_folder(folder: Path) -> None:
    """Remove a folder and, as far as possible, all in it. Nobody may write there meanwhile.

    Of any depth: `shutil.rmtree` calls itself, and opens a file, for each level.
    """
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        with contextlib.suppress(OSError):
            _flatten_folder(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _flatten_folder(folder: Path) -> None:
    """Move all folders below those in a folder into a new one in it. Raises OSError."""
    pending, numbers = _list_folders(folder), itertools.count()
    flat = tempfile.mkdtemp(dir=folder)
    while pending:
        for inner in _list_folders(pending.pop()):
            moved = Path(flat, str(next(numbers)))
            with contextlib.suppress(OSError):
                pending.append(inner.rename(moved))


def _list_folders(folder: Path) -> list[Path]:
    """Those directly in it, without links."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
