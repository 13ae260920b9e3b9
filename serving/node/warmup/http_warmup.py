"""What a node asks itself as its clients do, over a connection to itself; see `serving.node.warmup.protocol_warmup`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from serving.node.warmup.protocol_warmup import ExampleRequest

_READ_BYTES = 1 << 16
_HEAD_END, _CONTENT_LENGTH = b"\r\n\r\n", b"content-length:"


async def warm_up_connection(
    connection: socket.socket, requests: Sequence[ExampleRequest], rounds: int, seconds: float
) -> None:
    """Ask all over a connection, so many times, for at most so many seconds.

    Every other time in words that have not been heard before: heads that are known are not read again.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for turn in range(rounds):
                for question in requests:
                    await loop.sock_sendall(connection, _encode_request(question, turn // 2 * (turn % 2)))
                    await _read_response(connection)
    except (TimeoutError, ConnectionError):  # it is only practice
        return


def _encode_request(question: ExampleRequest, turn: int) -> bytes:
    headers = b"".join(b"%b: %b\r\n" % header for header in question.headers)
    length = len(question.body)
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\nturn: %d\r\n%bcontent-length: %d\r\n\r\n%b" % (
        question.path.encode(),
        turn,
        headers,
        length,
        question.body,
    )


async def _read_response(connection: socket.socket) -> None:
    """Read one answer. Raises ConnectionError when there is none."""
    loop = asyncio.get_running_loop()
    received, whole = b"", None
    while whole is None or len(received) < whole:
        data = await loop.sock_recv(connection, _READ_BYTES)
        if not data:
            raise ConnectionError
        received += data
        end = received.find(_HEAD_END)
        if whole is None and end >= 0:
            told = received[:end].lower().partition(_CONTENT_LENGTH)[2].partition(b"\r\n")[0]
            whole = end + len(_HEAD_END) + int(told or 0)
