"""The board of a node: memory that it shares with the server, a byte for each request that may be inside.

Once the node is dead it still tells what the node was doing; see `autoscaler.pools.Mark`. Behind the marks
there may be room for notes: what nodes of that kind count, for whoever made the spec to read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import MutableSequence
from typing import cast

from autoscaler import linux

# Where notes begin: so that they can be integers, which are written in one piece.
_ALIGNMENT = 8


class SharedRegion:
    """The server's end: `marks` are the bytes of requests, `fileno()` is what the node attaches to."""

    def __init__(self, size: int, notes: int = 0) -> None:
        self._fd = linux.create_anonymous_file()
        try:
            whole = counters_offset(size) + notes if notes else size
            os.ftruncate(self._fd, whole)
            self._map = mmap.mmap(self._fd, whole)
            self._whole = memoryview(self._map)
            self._marks = self._whole[:size]
            self._notes = self._whole[whole - notes :]
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """The descriptor to hand to the node."""
        return self._fd

    @property
    def marks(self) -> MutableSequence[int]:
        """The bytes as they are now and will be."""
        return _as_sequence(self._marks)

    @property
    def counters(self) -> memoryview:
        """What the node notes, as it is now and will be."""
        return self._notes

    def close(self) -> tuple[bytearray, memoryview]:
        """Let go of the memory; returns the marks and the notes as they were last."""
        last = bytearray(self._marks), memoryview(bytes(self._notes))
        for view in (self._marks, self._notes, self._whole):
            view.release()
        self._map.close()
        os.close(self._fd)
        return last


def counters_offset(size: int) -> int:
    """Where the notes begin behind that many marks."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def attach_region(fd: int) -> MutableSequence[int]:
    """The node's end, the notes included; takes the descriptor."""
    size = os.fstat(fd).st_size
    try:
        return _as_sequence(memoryview(mmap.mmap(fd, size)))
    finally:
        os.close(fd)


def _as_sequence(view: memoryview) -> MutableSequence[int]:
    """A view can do all that is needed of one, and has a fixed length as it should."""
    return cast(MutableSequence[int], view)
