"""Connections from the gateway to one node: HTTP/1.1 over its unix socket, kept open and reused.

On the hot path, so it does only what our own nodes need: one request at a time per connection, whole
bodies both ways, nothing parsed but the answer's head and length.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

import httptools

# Seconds after which an idle connection is surplus: the bursts it was opened for are over.
_UNNEEDED_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class ConnectError(Exception):
    """No connection to the node could be made; nothing of the request reached it."""


class ConnectionLostError(Exception):
    """The node died or hung up before the first byte of its answer."""


Wait = Callable[[asyncio.Future[Answer]], Awaitable[Answer]]


class _Connection(asyncio.Protocol):
    """One connection; `answer` is pending while a request is under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def open(self) -> bool:
        """Whether a request can be sent; False as soon as the node has hung up."""
        return self.transport is not None and not self.transport.is_closing()

    def send(self, head: bytes, body: bytes) -> asyncio.Future[Answer]:
        self._answer = asyncio.get_running_loop().create_future()
        if self.transport is not None:
            self.transport.writelines((head, body))
        return self._answer

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLostError())

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        answer, body = self._answer, self._body
        if answer is not None and not answer.done():
            whole = body[0] if len(body) == 1 else b"".join(body)
            answer.set_result(Answer(self._parser.get_status_code(), tuple(self._headers), whole))
        if not self._parser.should_keep_alive():
            self.close()
        self._headers = []
        self._body = []


class Upstream:
    """The connections to one node: as many as were needed at once in the last few seconds."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._idle: deque[tuple[float, _Connection]] = deque()  # the last used one at the right

    async def exchange(self, head: bytes, body: bytes, wait: Wait) -> Answer:
        """Send a request and wait for its whole answer.

        `wait` awaits the future it is given and may give up by raising; the connection is then closed, so
        that the node stops too. Raises ConnectError or ConnectionLostError.
        """
        connection = await self._connect()
        try:
            answer = await wait(connection.send(head, body))
        except BaseException:
            connection.close()
            raise
        if connection.open:
            self._keep(connection)
        return answer

    def close(self) -> None:
        """Close the idle connections; those in use close when they are done."""
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    def _keep(self, connection: _Connection) -> None:
        """Keep a connection for the next request, and let go of one that has not been needed for long.

        A node that has a single connection need not look out for requests to merge.
        """
        now = asyncio.get_running_loop().time()
        self._idle.append((now, connection))
        if now - self._idle[0][0] > _UNNEEDED_AFTER:
            self._idle.popleft()[1].close()

    async def _connect(self) -> _Connection:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.open:
                return connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(_Connection, self._address)
        except OSError as error:
            raise ConnectError(str(error)) from error
        return connection
