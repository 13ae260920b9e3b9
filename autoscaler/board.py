"""The board of a node: memory that it shares with the server, a byte for each request that may be inside.

Once the node is dead it still tells what the node was doing; see `autoscaler.pools.Mark`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import MutableSequence
from typing import cast

from autoscaler import linux


class Board:
    """The server's end: `marks` are the bytes, `fileno()` is what the node attaches to."""

    def __init__(self, size: int) -> None:
        self._fd = linux.anonymous_file()
        try:
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
            self._marks = memoryview(self._map)
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """The descriptor to hand to the node."""
        return self._fd

    @property
    def marks(self) -> MutableSequence[int]:
        """The bytes as they are now and will be."""
        return _sequence(self._marks)

    def close(self) -> bytearray:
        """Let go of the memory; returns what was on it last."""
        last = bytearray(self._marks)
        self._marks.release()
        self._map.close()
        os.close(self._fd)
        return last


def attach(fd: int) -> MutableSequence[int]:
    """The node's end; takes the descriptor."""
    size = os.fstat(fd).st_size
    try:
        return _sequence(memoryview(mmap.mmap(fd, size)))
    finally:
        os.close(fd)


def _sequence(view: memoryview) -> MutableSequence[int]:
    """A view can do all that is needed of one, and has a fixed length as it should."""
    return cast(MutableSequence[int], view)
