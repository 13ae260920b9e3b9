"""Sends warm-up requests over an HTTP connection of the node to itself."""

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
    """Send all requests so many times, for at most so many seconds.

    Every other round sends new header values, so that the head cache misses.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for round_number in range(rounds):
                for example in requests:
                    await loop.sock_sendall(
                        connection, _encode_request(example, round_number // 2 * (round_number % 2))
                    )
                    await _read_response(connection)
    except (TimeoutError, ConnectionError):  # a failed warm-up changes nothing
        return


def _encode_request(example: ExampleRequest, turn: int) -> bytes:
    headers = b"".join(b"%b: %b\r\n" % header for header in example.headers)
    length = len(example.body)
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\nturn: %d\r\n%bcontent-length: %d\r\n\r\n%b" % (
        example.path.encode(),
        turn,
        headers,
        length,
        example.body,
    )


async def _read_response(connection: socket.socket) -> None:
    """Read one response. Raises ConnectionError when there is none."""
    loop = asyncio.get_running_loop()
    received, whole = b"", None
    while whole is None or len(received) < whole:
        data = await loop.sock_recv(connection, _READ_BYTES)
        if not data:
            raise ConnectionError
        received += data
        end = received.find(_HEAD_END)
        if whole is None and end >= 0:
            length = received[:end].lower().partition(_CONTENT_LENGTH)[2].partition(b"\r\n")[0]
            whole = end + len(_HEAD_END) + int(length or 0)
