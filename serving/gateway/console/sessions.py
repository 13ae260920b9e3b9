"""Sessions of browsers: a cookie in place of a token, and a second secret that every change must carry.

A visitor has a cookie with a random id. Signing in gives it a new one, for which the server knows the token.
The anti-forgery token follows from the id, which pages of other origins cannot read. The server remembers
nothing for it, so an open page can still be used after a restart of a server without access control.

Where several servers share a database, a session is a row there: a load balancer may send each request to
another server. The row is of no use to who has no cookie.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from serving.errors import ResourceExhausted, Unavailable
from serving.gateway.thread_pool import ThreadPool

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SESSION_SECONDS: Final = 8 * 3600.0
_MAX_SESSIONS: Final = 1000
# A page waits no longer for the database.
_ASK_SECONDS: Final = 5.0
_MAX_WAITING: Final = 100
_VISITOR_FORMAT = re.compile(r"[A-Za-z0-9_-]{43}")


class Session(NamedTuple):
    """A visitor who has signed in with `token`."""

    token: str


class SessionStore(Protocol):
    """The sessions of visitors, by their ids. Calls raise a ServingError where they cannot be had."""

    async def open(self, token: str) -> str:
        """Begin a session; returns the id of its visitor."""

    async def find(self, visitor: str) -> Session | None: ...

    async def close(self, visitor: str) -> None: ...


class LocalSessions:
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
        self._sessions: OrderedDict[str, tuple[Session, float]] = OrderedDict()  # and when they end

    async def open(self, token: str) -> str:
        visitor = new_visitor()
        self.keep(visitor, Session(token), self._seconds)
        return visitor

    async def find(self, visitor: str) -> Session | None:
        return self.recall(visitor)

    async def close(self, visitor: str) -> None:
        self.forget(visitor)

    def keep(self, visitor: str, session: Session, seconds: float) -> None:
        self._sessions[visitor] = session, self._clock() + seconds
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)

    def recall(self, visitor: str) -> Session | None:
        session, ends_at = self._sessions.get(visitor, (None, 0.0))
        if session is not None and ends_at <= self._clock():
            self.forget(visitor)
            return None
        return session

    def forget(self, visitor: str) -> None:
        self._sessions.pop(visitor, None)


class SessionTable(Protocol):
    """`serving.gateway.state.shared.console_session_rows.ConsoleSessionRows` is one.

    All calls block, and raise Unavailable.
    """

    def add(self, session: str, token: bytes, seconds: float, most: int) -> None: ...

    def find(self, session: str, seconds: float) -> tuple[bytes, float] | None: ...

    def remove(self, session: str) -> None: ...


class SharedSessions:
    """The sessions of all servers of a database, which is asked for each page.

    While it cannot be asked, sessions go on that this server has seen. One begins or ends in the database or
    not at all: who signs out has to know whether that holds everywhere.
    """

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        # Any cookie is asked for: strangers may send many.
        self._thread = ThreadPool("console sessions", 1, queue=_MAX_WAITING)
        self._seen = LocalSessions()

    async def open(self, token: str) -> str:
        visitor = new_visitor()
        sealed = _create_cipher(visitor).encrypt(token.encode())
        await self._thread.run(self._table.add, _name_row(visitor), sealed, SESSION_SECONDS, _MAX_SESSIONS)
        return visitor

    async def find(self, visitor: str) -> Session | None:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                found = await self._thread.run(self._table.find, _name_row(visitor), SESSION_SECONDS)
        except (ResourceExhausted, Unavailable, TimeoutError):
            return self._seen.recall(visitor)
        token = None if found is None else _decrypt_token(visitor, found[0])
        if found is None or token is None:
            self._seen.forget(visitor)
            return None
        session, seconds = Session(token), found[1]
        self._seen.keep(visitor, session, seconds)
        return session

    async def close(self, visitor: str) -> None:
        await self._thread.run(self._table.remove, _name_row(visitor))
        self._seen.forget(visitor)


def _name_row(visitor: str) -> str:
    return hashlib.sha256(visitor.encode()).hexdigest()


def _create_cipher(visitor: str) -> Fernet:
    """What encrypts a visitor's token with its id, which is as random as a key."""
    from cryptography.fernet import Fernet  # noqa: PLC0415  only where servers share a database

    key = hashlib.sha256(b"pilotlight session token " + visitor.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))


def _decrypt_token(visitor: str, sealed: bytes) -> str | None:
    """A visitor's token; None if an earlier version of the servers wrote the row, or somebody else."""
    from cryptography.fernet import InvalidToken  # noqa: PLC0415

    try:
        return _create_cipher(visitor).decrypt(sealed).decode()
    except InvalidToken:
        return None


def new_visitor() -> str:
    return secrets.token_urlsafe(32)


def is_visitor(text: str) -> bool:
    """Whether a cookie can be an id of this server."""
    return _VISITOR_FORMAT.fullmatch(text) is not None


def derive_anti_forgery_token(visitor: str) -> str:
    return hmac.new(visitor.encode(), b"pilotlight anti-forgery", hashlib.sha256).hexdigest()


def is_anti_forgery_token(visitor: str, given: str) -> bool:
    return hmac.compare_digest(derive_anti_forgery_token(visitor).encode(), given.encode())
