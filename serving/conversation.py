"""A prediction as its client asks for it, whatever protocol it came by, and who answers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from serving.errors import ServingError
from serving.http_headers import Headers, Scope
from serving.transport.request_head import RequestHead


class PredictionRequest(Protocol):
    """One request and its answer; `serving.transport.request.HttpRequest` is one.

    `body` is there once the request is whole. `on_gone` is called, once, if the client goes away before the
    answer; it is `late` if its time was out then. `state` is for who answers it.
    """

    body: bytes
    on_disconnect: Callable[[], None] | None
    state: Any
    response_complete: bool

    @property
    def head(self) -> RequestHead:
        """What it says before its body."""

    @property
    def is_past_deadline(self) -> bool:
        """Whether the client set a deadline, and left when that was past."""

    @property
    def scope(self) -> Scope:
        """Its head as ASGI has it, the same object each time, on which notes are kept."""

    def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send what a node answered, a refusal too; does nothing if the client is gone."""

    def respond_error(self, error: ServingError, headers: Headers = ()) -> None:
        """Answer with an error, in the form of its protocol; does nothing if the client is gone."""


class PredictionHandler(Protocol):
    """Answers conversations. Both are called on the event loop and must not block."""

    def on_request_head(self, exchange: PredictionRequest) -> None:
        """The head is there; what can be refused now is."""

    def on_request_complete(self, exchange: PredictionRequest) -> None:
        """The body is whole. Not called once the conversation is answered."""
