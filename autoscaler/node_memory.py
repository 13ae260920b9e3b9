"""The memory that a node shares with its pool: a mark for each request that may be inside, then counters.

Both ends use this module, the node in its own process, so it imports nothing else of ours. The meaning of the
counters is up to the maker of the node's spec.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import MutableSequence
from typing import cast

# The alignment of the counters: so that they can be integers, which are written atomically.
_ALIGNMENT = 8


class Mark(enum.IntEnum):
    """The state of the request in a slot: the server writes UNTOUCHED, the node the others."""

    UNTOUCHED = 0
    COMPUTING = 1
    COMPUTED = 2


class NodeMemory:
    """The server's views of it. After the end of the node they keep the last values."""

    __slots__ = ("counters", "marks")

    def __init__(self, memory: memoryview, slots: int, counter_bytes: int = 0) -> None:
        self.marks, self.counters = split_memory(memory, slots, counter_bytes)

    def detach(self) -> None:
        """Keep a copy of the values, and release the memory."""
        views = self.marks, self.counters
        self.marks, self.counters = (memoryview(bytearray(view)) for view in views)
        for view in views:
            view.release()


def split_memory(memory: memoryview, slots: int, counter_bytes: int) -> tuple[memoryview, memoryview]:
    """The marks and the counters in memory of `memory_size`."""
    return memory[:slots], memory[len(memory) - counter_bytes :]


def memory_size(slots: int, counter_bytes: int) -> int:
    """How many bytes the marks and the counters take."""
    return -(-slots // _ALIGNMENT) * _ALIGNMENT + counter_bytes if counter_bytes else slots


def attach_region(fd: int) -> MutableSequence[int]:
    """The node's view, counters included; closes the descriptor."""
    size = os.fstat(fd).st_size
    try:
        # A memoryview has all the methods that are needed, and a fixed length.
        return cast(MutableSequence[int], memoryview(mmap.mmap(fd, size)))
    finally:
        os.close(fd)
