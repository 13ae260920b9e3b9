"""A proxy that does nothing but forward, as bare as it gets on this stack: uvloop, httptools, a unix socket.

    python -m loadtests.bench.targets.forwarder PORT SOCKET

Each client connection has one of its own to the node. Requests are parsed as far as a gateway must, for their
path; answers pass as they come. No counting, no deadline, no second try, no limits.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

_BACKLOG = 2048


class ClientConnection(asyncio.Protocol):
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._parser = httptools.HttpRequestParser(self)
        self._unsent: list[bytes] | None = []
        self.requested_path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the node; until then data is buffered."""
        self.transport = cast(asyncio.Transport, transport)
        self._node = NodeConnection(self)
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(loop.create_unix_connection(lambda: self._node, self._socket))

    def on_node_connected(self) -> None:
        if self._unsent:
            self._node.transport.writelines(self._unsent)
        self._unsent = None

    def on_url(self, url: bytes) -> None:
        """The path, by which a gateway would route."""
        self.requested_path = url

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()
            return
        if self._unsent is None:
            self._node.transport.write(data)
        else:
            self._unsent.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._opening.cancel()
        self._node.close()


class NodeConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, client: ClientConnection) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.on_node_connected()

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.transport.close()

    def close(self) -> None:
        if hasattr(self, "transport"):
            self.transport.close()


async def serve_forever(port: int, socket: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(socket), "127.0.0.1", port, backlog=_BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve_forever(int(sys.argv[1]), sys.argv[2]))
