"""Who calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """`principal` is `user:ann@example.com` or the like, and "" while access control is off."""

    principal: str
