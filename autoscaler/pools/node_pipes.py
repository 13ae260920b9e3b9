"""What connects the server and one node that is being started: sockets, pipes, files and memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import socket
from collections.abc import Mapping
from typing import Any

from autoscaler import linux
from autoscaler.node_memory import NodeMemory, memory_size
from autoscaler.node_process import LaunchSpec, NodeDescriptors

_LINE_LIMIT = 1 << 20
# The schema of a model with many inputs is in the report that it is ready.
_MOST_REPORT_BYTES = 16 << 20


class NodePipes:
    """Both ends of all pipes for one attempt to start a node; raises OSError.

    `node_ends` and `output` (the writing end of its output pipe) go to the node; `listener` and `board` stay
    the caller's. `close` kills the node, if there is one. Its output goes to a new pipe, unless there is a
    descriptor for it.
    """

    def __init__(self, order: LaunchSpec, listener: int, board: int, output: int | None = None) -> None:
        with contextlib.ExitStack() as undo:
            file = linux.create_anonymous_file()
            undo.callback(os.close, file)
            os.write(file, order.to_bytes())
            self._control, control = socket.socketpair()
            undo.callback(self._control.close)
            undo.callback(control.close)
            self._control.setblocking(False)
            lifeline, our_lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            undo.callback(os.close, our_lifeline)
            self._output_end: int | None = None
            if output is None:
                self._output_end, self.output = os.pipe()
            else:
                self.output = os.dup(output)
            undo.pop_all()
        self.node_ends = NodeDescriptors(file, listener, control.detach(), lifeline, board)
        self._node_descriptors = [file, self.node_ends.control, lifeline, self.output]
        self._server_ends = [fd for fd in (our_lifeline, self._output_end) if fd is not None]
        self._received = b""

    def close_node_ends(self) -> None:
        while self._node_descriptors:
            os.close(self._node_descriptors.pop())

    async def receive_report(self) -> Mapping[str, Any]:
        """The next report of the node; empty at the end of them. Raises ValueError for what is no report."""
        loop = asyncio.get_running_loop()
        received, chunk = bytearray(self._received), self._received
        while b"\n" not in chunk:
            chunk = await loop.sock_recv(self._control, 1 << 16)
            if not chunk:
                return {}
            received += chunk
            if len(received) > _MOST_REPORT_BYTES:
                raise ValueError(f"a report of the node has more than {_MOST_REPORT_BYTES >> 20} MiB")
        line, _, self._received = bytes(received).partition(b"\n")
        report: Mapping[str, Any] = json.loads(line)
        return report

    async def open_report_stream(self) -> tuple[asyncio.StreamReader, asyncio.Transport]:
        """The reports that follow, a line each; `receive_report` cannot be called any more."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT)
        reader.feed_data(self._received)
        transport, _ = await loop.create_unix_connection(
            lambda: asyncio.StreamReaderProtocol(reader), sock=self._control
        )
        return reader, transport

    def detach_output(self) -> int:
        """The reading end of the output pipe, which the caller must close."""
        fd = self._output_end
        if fd is None:
            raise ValueError("the output goes to a descriptor of the caller's")
        self._server_ends.remove(fd)
        return fd

    def close(self) -> None:
        self.close_node_ends()
        self._control.close()
        while self._server_ends:
            os.close(self._server_ends.pop())


class SharedRegion:
    """A `NodeMemory` in an anonymous file. `memory` is the server's view; the node attaches to `fileno()`."""

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
