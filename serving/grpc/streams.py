"""Calls that gRPC's own services answer: with messages as bytes, and errors in our words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from serving.errors import ServingError
from serving.protocols import Dialect
from serving.protocols.errors import render_error
from serving.transport.grpc_server.call import finish_call

T = TypeVar("T")

# Reads the next message of a call by its context, None if there is none. Raises ServingError.
MessageReader = Callable[[Any], Awaitable[bytes | None]]


def with_error_replies(answer: Callable[[Any], Awaitable[T]]) -> Callable[[Any, Any], Awaitable[T | bytes]]:
    """A handler that answers calls by their context, and with the errors which that raises."""

    async def handle_call(_: Any, context: Any) -> T | bytes:
        try:
            return await answer(context)
        except ServingError as error:
            return await finish_call(context, render_error(error, Dialect.INFERENCE_GRPC))

    return handle_call
