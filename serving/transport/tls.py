"""HTTPS by certificate files."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from serving.errors import InvalidArgument

# Bytes that are encrypted at a time; about twice as many are not counted.
_PIECE_BYTES = 64 << 10


class TlsTransport:
    """What a connection sees of a transport over TLS; its protocol tells it of `paused` and of `go_on`."""

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
        """Send, once what was given before is sent."""
        if self._unsent or self.paused or len(data) > _PIECE_BYTES:
            self._unsent.append(memoryview(data))
            self._size += len(data)
            self._send_unsent()
        else:
            self._transport.write(data)

    def writelines(self, parts: Any) -> None:
        """Send one after the other."""
        for part in parts:
            self.write(part)

    def resume_sending(self) -> bool:
        """The transport takes more; returns whether it has taken all."""
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
        """Bytes that are not sent."""
        return self._size + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether nothing is read any more."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close once all is sent."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._transport.pause_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
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
        """The files of the settings, None for none. Raises InvalidArgument if they are no good."""
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
    # Else OpenSSL would ask for one on the terminal.
    return ""
