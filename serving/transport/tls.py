"""HTTPS by certificate files."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from serving.errors import InvalidArgument

# Bytes encrypted at a time; up to about twice as many are in the transport.
_PIECE_BYTES = 64 << 10


class PiecewiseTlsTransport:
    """Encrypts in pieces on top of a TLS transport.

    Its protocol sets `paused` and calls `resume_sending` when the transport accepts writes again.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(_PIECE_BYTES)
        self._transport = transport
        self._unsent: deque[memoryview] = deque()
        self._size = 0
        self._closing = False
        self.paused = False
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.can_write_eof = transport.can_write_eof

    def write(self, data: bytes) -> None:
        if self._unsent or self.paused or len(data) > _PIECE_BYTES:
            self._unsent.append(memoryview(data))
            self._size += len(data)
            self._send_unsent()
        else:
            self._transport.write(data)

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def resume_sending(self) -> bool:
        """The transport accepts writes again; returns whether everything was written."""
        self.paused = False
        self._send_unsent()
        return not self.paused

    def _send_unsent(self) -> None:
        unsent = self._unsent
        while unsent and not self.paused:
            first = unsent[0]
            piece = first[:_PIECE_BYTES]
            if len(piece) == len(first):
                unsent.popleft()
            else:
                unsent[0] = first[_PIECE_BYTES:]
            self._size -= len(piece)
            self._transport.write(piece)
        if self._closing and not unsent:
            self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close once everything is sent."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._transport.pause_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._unsent.clear()
        self._size = 0
        self._transport.abort()


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The PEM files of a certificate chain and its key."""

    chain: str
    key: str

    @classmethod
    def from_settings(cls, chain: str, key: str) -> Self | None:
        """The files named by the settings, None if none are.

        Raises InvalidArgument if they cannot be used.
        """
        if not chain and not key:
            return None
        if not chain or not key:
            raise InvalidArgument("HTTPS takes both --tls-cert and --tls-key.")
        for flag, file in (("--tls-cert", chain), ("--tls-key", key)):
            try:
                Path(file).read_bytes()
            except OSError as error:
                raise InvalidArgument(f"Cannot read {flag} {file}: {error.strerror}.") from error
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgument(
                f"--tls-cert {chain} and --tls-key {key} do not work together: {error}. Both must be PEM "
                "files, the key that of the first certificate and without a password."
            ) from error
        return cls(chain, key)


def _no_password() -> str:
    # Otherwise OpenSSL would prompt for one on the terminal.
    return ""
