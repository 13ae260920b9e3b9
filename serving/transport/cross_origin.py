"""Cross-origin protection: foreign web pages must not use a server that asks for no token.

A browser sends requests for any page it shows, to loopback addresses too. `Origin` and `Sec-Fetch-Site` say
whose page it is; a foreign `Host` shows a page whose own name resolves to this server (DNS rebinding).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from serving.config import ServerSettings
from serving.errors import InvalidArgument, PermissionDenied
from serving.http_headers import Headers

ANY_HOST = "*"
# Response headers that scripts of allowed origins may read, besides the CORS-safelisted ones.
EXPOSED_HEADERS = ("x-request-id", "server-timing", "retry-after", "inference-header-content-length")

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::(\d{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(.+)")
_PORTS = {"http": 80, "https": 443}
# DNS names are shorter; longer values are neither parsed, nor cached, nor repeated in errors.
_MAX_AUTHORITY_BYTES = 300
_MAX_CACHED_AUTHORITIES = 256
_OWN_FETCH_SITES = frozenset({None, b"none", b"same-origin"})


class Authority(NamedTuple):
    """Host and port of a `Host` header; `address` if the host is an IP address, `port` if it is given."""

    host: str
    port: int | None
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None


@dataclass(frozen=True, slots=True)
class CrossOriginPolicy:
    """Which requests are answered, by the headers that browsers add.

    If not `enforced`, all are; scripts of allowed `origins` may read responses in either case. `domains`
    begin with a dot and stand for all names below them. `scheme` is the server's own.
    """

    enforced: bool = False
    scheme: str = "http"
    any_host: bool = False
    any_address: bool = False
    hosts: frozenset[str] = frozenset()
    domains: tuple[str, ...] = ()
    origins: frozenset[bytes] = frozenset()

    @classmethod
    def from_settings(
        cls, settings: ServerSettings, listening: str | None, *, enforced: bool, scheme: str = "http"
    ) -> Self:
        """The policy of a server that listens on a host; None: on a unix socket, which no page can reach.

        Raises InvalidArgument for invalid settings.
        """
        names = [_parse_host_pattern(name) for name in _split_setting(settings.allowed_hosts)]
        address = None if listening is None else _parse_address(listening)
        return cls(
            enforced=enforced,
            scheme=scheme,
            any_host=ANY_HOST in names or listening is None,
            any_address=address is not None and address.is_unspecified,
            hosts=frozenset(names) | ({listening.lower()} if listening else set()),
            domains=tuple(name[1:] for name in names if name.startswith("*.")),
            origins=frozenset(_parse_origin(origin) for origin in _split_setting(settings.allowed_origins)),
        )

    def find_violation(
        self, host: bytes | None, origin: bytes | None, fetch_site: bytes | None
    ) -> PermissionDenied | None:
        """The error for a request with these three headers, None if it is allowed."""
        if not self.enforced:
            return None
        authority = None if host is None else parse_authority(host)
        if host is not None and not self._is_own_host(authority):
            return _foreign_host_error(host)
        if origin is None:
            return None if fetch_site in _OWN_FETCH_SITES else _foreign_page_error("another origin")
        if origin in self.origins:
            return None
        if fetch_site in _OWN_FETCH_SITES and self._is_same_origin(origin, authority, fetch_site):
            return None
        return _foreign_page_error(_shorten(origin))

    def response_headers(self, origin: bytes | None) -> Headers:
        """CORS headers for scripts of an allowed origin, none for another."""
        if origin is None or origin not in self.origins:
            return ()
        exposed = ", ".join(EXPOSED_HEADERS).encode()
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", exposed),
            (b"vary", b"Origin"),
        )

    def _is_own_host(self, authority: Authority | None) -> bool:
        if self.any_host:
            return True
        if authority is None:
            return False
        host, _, address = authority
        if address is not None:  # DNS rebinding needs a name
            return address.is_loopback or self.any_address or host in self.hosts
        return (
            host == "localhost"
            or host in self.hosts
            or host.endswith(".localhost")
            or host.endswith(self.domains)
        )

    def _is_same_origin(self, origin: bytes, called: Authority | None, fetch_site: bytes | None) -> bool:
        found = _ORIGIN.fullmatch(origin.decode("latin-1"))
        theirs = None if found is None else parse_authority(found[2].encode("latin-1"))
        if found is None or theirs is None or called is None or theirs.host != called.host:
            return False
        # Behind a proxy with TLS the schemes differ, but the browser says that the origin is the same.
        scheme, port = found[1], _PORTS[found[1]]
        return (scheme == self.scheme or fetch_site == b"same-origin") and (
            (theirs.port or port) == (called.port or port)
        )


UNENFORCED_POLICY = CrossOriginPolicy()


def parse_authority(text: bytes) -> Authority | None:
    """Parse a `Host` header; None if it is invalid."""
    return _parse_authority(text) if len(text) <= _MAX_AUTHORITY_BYTES else None


@functools.lru_cache(_MAX_CACHED_AUTHORITIES)
def _parse_authority(text: bytes) -> Authority | None:
    found = _AUTHORITY.fullmatch(text.decode("latin-1").lower())
    if found is None:
        return None
    host, port = found[1].strip("[]").removesuffix("."), found[2]
    return Authority(host, int(port) if port else None, _parse_address(host))


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# ---- settings


def _split_setting(setting: str) -> list[str]:
    return [part for part in (part.strip() for part in setting.split(",")) if part]


def _parse_host_pattern(name: str) -> str:
    authority = parse_authority(name.removeprefix("*.").encode())
    if name == ANY_HOST:
        return name
    if authority is None or authority.port is not None:
        raise InvalidArgument(
            f"allowed_hosts: {name!r} is no host; give a name or an address without a port, *.DOMAIN for all "
            "names below one, or * for any."
        )
    return f"*.{authority.host}" if name.startswith("*.") else authority.host


def _parse_origin(origin: str) -> bytes:
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None or parse_authority(found[2].encode()) is None:
        raise InvalidArgument(
            f"allowed_origins: {origin!r} is no origin; give SCHEME://HOST or SCHEME://HOST:PORT, as in "
            "https://app.example.com, without a path."
        )
    return origin.lower().encode()


# ---- errors


def _foreign_host_error(host: bytes) -> PermissionDenied:
    return PermissionDenied(
        f"This server does not answer to the host {_shorten(host)!r}: it asks for no token, and a web page "
        "could have given it that name. Call it by a loopback address, or list the host in --allowed-hosts "
        "(setting allowed_hosts)."
    )


def _foreign_page_error(origin: str) -> PermissionDenied:
    return PermissionDenied(
        f"The request comes from a web page of {origin}. This server asks for no token, so it answers only "
        "pages of its own and of the origins in --allowed-origins (setting allowed_origins)."
    )


def _shorten(text: bytes) -> str:
    return text[:_MAX_AUTHORITY_BYTES].decode("latin-1")
