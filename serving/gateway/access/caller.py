"""Who sends a request."""

from __future__ import annotations

from dataclasses import dataclass

from serving.wire import Scope

_KEY = "pilotlight.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: `user:ann@example.com`, `serviceAccount:…`, `allUsers` for one without a token.

    "" while access control is off.
    """

    principal: str


NOBODY = Caller("")
ANONYMOUS = Caller("allUsers")


def caller_of(scope: Scope) -> Caller:
    """The caller of a request that was let in."""
    caller: Caller = scope.get(_KEY, NOBODY)
    return caller


def note_caller(scope: Scope, caller: Caller) -> None:
    """Keep the caller beside the request."""
    scope[_KEY] = caller
