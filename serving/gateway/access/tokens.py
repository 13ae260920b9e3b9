"""Bearer tokens. Only their SHA-256 is stored.

A token is `plt_ID_SECRET`, which is easy to search for where one has leaked. The secret has 256 random bits:
nobody guesses one, so the slow hash that passwords need would only slow down every request. A token is looked
up by its hash, and how long that takes says nothing about other tokens.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import secrets

import msgspec

from serving.errors import InvalidArgument

_TOKEN_FORMAT = re.compile(rb"plt_[0-9a-f]{12}_[0-9a-f]{64}")
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored token; `name` is its id. Times are seconds since the epoch, None for never."""

    name: str
    hash: str
    principal: str
    title: str = ""
    created: float
    expires: float | None = None
    revoked: float | None = None

    def describe_invalidity(self, now: float) -> str:
        """Return "revoked", "expired", or "" for a valid token."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is not None and self.expires <= now:
            return "expired"
        return ""


def mint_token(
    principal: str, now: float, *, title: str = "", seconds: float | None = None
) -> tuple[str, TokenRecord]:
    """Return a new token and its record; `seconds` is its lifetime, None for no limit."""
    name = secrets.token_hex(6)
    token = f"plt_{name}_{secrets.token_hex(32)}"
    return token, TokenRecord(
        name=name,
        hash=hash_token(token.encode()),
        principal=principal,
        title=title,
        created=now,
        expires=None if seconds is None else now + seconds,
    )


def hash_token(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


def has_token_format(token: bytes) -> bool:
    return _TOKEN_FORMAT.fullmatch(token) is not None


def parse_lifetime(text: str) -> float:
    """Convert `30d`, `12h`, `90m` or `3600s` to seconds. Raises InvalidArgument."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise InvalidArgument(
            f"Invalid duration {text!r}: expected a number with its unit: 30d, 12h, 90m, 3600s."
        )
    return datetime.timedelta(**{_UNITS[match[2]]: int(match[1])}).total_seconds()
