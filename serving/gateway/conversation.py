"""What a prediction's way through the gateway needs of its client's request, whatever its protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from serving.errors import ServingError
from serving.heads import Head
from serving.wire import Headers, Scope


class Conversation(Protocol):
    """One request and its answer; `serving.exchange.Exchange` is one.

    `body` is there once the request is whole. `on_gone` is called, once, if the client goes away before the
    answer. `state` is for who answers it.
    """

    head: Head
    body: bytes
    on_gone: Callable[[], None] | None
    state: Any

    @property
    def scope(self) -> Scope:
        """Its head as ASGI has it, the same object each time, on which notes are kept."""

    def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send what a node answered, a refusal too; does nothing if the client is gone."""

    def refuse(self, error: ServingError, headers: Headers = ()) -> None:
        """Answer with an error, in the form of its protocol; does nothing if the client is gone."""
