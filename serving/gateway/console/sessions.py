"""Sessions of browsers: a cookie in place of a token, and a second secret that every change must carry.

A visitor has a cookie with a random id. Signing in gives it a new one, for which the server knows the token.
The anti-forgery token follows from the id, which pages of other origins cannot read. The server remembers
nothing for it, so an open page can still be used after a restart of a server without access control.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SESSION_SECONDS: Final = 8 * 3600.0
_MAX_SESSIONS: Final = 1000
_VISITOR_FORMAT = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Session:
    """A visitor who has signed in with `token`; it ends at `expires` on the store's clock."""

    token: str
    expires: float


class SessionStore:
    """The sessions of one server process. The one that began first ends when there are too many."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        seconds: float = SESSION_SECONDS,
        most: int = _MAX_SESSIONS,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(self, token: str) -> str:
        """Begin a session; returns the id of its visitor."""
        visitor = new_visitor()
        self._sessions[visitor] = Session(token, self._clock() + self._seconds)
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return visitor

    def find(self, visitor: str) -> Session | None:
        session = self._sessions.get(visitor)
        if session is not None and session.expires <= self._clock():
            self.close(visitor)
            return None
        return session

    def close(self, visitor: str) -> None:
        self._sessions.pop(visitor, None)


def new_visitor() -> str:
    return secrets.token_urlsafe(32)


def is_visitor(text: str) -> bool:
    """Whether a cookie can be an id of this server."""
    return _VISITOR_FORMAT.fullmatch(text) is not None


def derive_anti_forgery_token(visitor: str) -> str:
    return hmac.new(visitor.encode(), b"pilotlight anti-forgery", hashlib.sha256).hexdigest()


def is_anti_forgery_token(visitor: str, given: str) -> bool:
    return hmac.compare_digest(derive_anti_forgery_token(visitor).encode(), given.encode())
