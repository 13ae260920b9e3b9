"""HTTPS by certificate files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serving.errors import InvalidArgument


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
