"""A `NodeMemory` that is shared by processes: an anonymous file, mapped by both ends."""

from __future__ import annotations

import mmap
import os
from collections.abc import MutableSequence
from typing import cast

from autoscaler import linux
from autoscaler.node_memory import NodeMemory, memory_size


class SharedRegion:
    """The server's end: `memory` is its view, `fileno()` is what the node attaches to."""

    def __init__(self, slots: int, counter_bytes: int = 0) -> None:
        self._fd = linux.create_anonymous_file()
        try:
            size = memory_size(slots, counter_bytes)
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
            self.memory = NodeMemory(memoryview(self._map), slots, counter_bytes)
        except BaseException:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Unmap the memory; `memory` keeps the last values."""
        self.memory.detach()
        self._map.close()
        os.close(self._fd)


def attach_region(fd: int) -> MutableSequence[int]:
    """The node's view, counters included; closes the descriptor."""
    size = os.fstat(fd).st_size
    try:
        # A memoryview has all the methods that are needed, and a fixed length.
        return cast(MutableSequence[int], memoryview(mmap.mmap(fd, size)))
    finally:
        os.close(fd)
