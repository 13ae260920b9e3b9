"""Who sends a request."""

from __future__ import annotations

from dataclasses import dataclass

from serving.http_headers import Scope

_CALLER_KEY = "pilotlight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: `user:ann@example.com`, `serviceAccount:…`, `allUsers` for one without a token.

    "" while access control is off.
    """

    principal: str


UNKNOWN_CALLER = Caller("")
ANONYMOUS_CALLER = Caller("allUsers")


def get_caller(scope: Scope) -> Caller:
    """The caller of a request that was let in."""
    caller: Caller = scope.get(_CALLER_KEY, UNKNOWN_CALLER)
    return caller


def set_caller(scope: Scope, caller: Caller) -> None:
    """Keep the caller beside the request."""
    scope[_CALLER_KEY] = caller
