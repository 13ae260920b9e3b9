"""What a change is made for: the call of the API behind it, kept with work that outlives the call."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec


class ChangeCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call: its id in the audit log, the id of its request, and who made it.

    `principal` is "" without access control.
    """

    call: str
    request_id: str = ""
    principal: str = ""


# The cause of the changes that are made in this context; a call sets it for as long as it lasts.
CURRENT_CAUSE: ContextVar[ChangeCause | None] = ContextVar("pilotlight_cause", default=None)
