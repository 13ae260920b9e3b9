"""Memory that a node shares with the server: a mark for each request that may be inside, and counters.

Once the node is dead the marks still show what it was doing; see `autoscaler.pools.Mark`. The meaning of the
counters is up to the maker of the node's spec.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import MutableSequence
from typing import cast

from autoscaler import linux

# The alignment of the counters: so that they can be integers, which are written atomically.
_ALIGNMENT = 8


class SharedRegion:
    """The server's end: `marks` are the bytes of requests, `fileno()` is what the node attaches to."""

    def __init__(self, size: int, counter_bytes: int = 0) -> None:
        self._fd = linux.create_anonymous_file()
        try:
            whole = counters_offset(size) + counter_bytes if counter_bytes else size
            os.ftruncate(self._fd, whole)
            self._map = mmap.mmap(self._fd, whole)
            self._whole = memoryview(self._map)
            self._marks = self._whole[:size]
            self._counters = self._whole[whole - counter_bytes :]
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    @property
    def marks(self) -> MutableSequence[int]:
        """A live view of the marks."""
        return _as_sequence(self._marks)

    @property
    def counters(self) -> memoryview:
        """A live view of the node's counters."""
        return self._counters

    def close(self) -> tuple[bytearray, memoryview]:
        """Unmap the memory; returns the last values of marks and counters."""
        last = bytearray(self._marks), memoryview(bytes(self._counters))
        for view in (self._marks, self._counters, self._whole):
            view.release()
        self._map.close()
        os.close(self._fd)
        return last


def counters_offset(size: int) -> int:
    """The offset of the counters behind that many marks."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def attach_region(fd: int) -> MutableSequence[int]:
    """The node's view, counters included; closes the descriptor."""
    size = os.fstat(fd).st_size
    try:
        return _as_sequence(memoryview(mmap.mmap(fd, size)))
    finally:
        os.close(fd)


def _as_sequence(view: memoryview) -> MutableSequence[int]:
    """A memoryview has all the methods that are needed, and a fixed length."""
    return cast(MutableSequence[int], view)
