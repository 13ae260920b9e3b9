"""Calls that gRPC's own services answer: with messages as bytes, and errors in our words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from serving.errors import ServingError
from serving.grpc.call import finish
from serving.protocols import Dialect
from serving.protocols.errors import refusal

T = TypeVar("T")

# Reads the next message of a call by its context, None if there is none. Raises ServingError.
Read = Callable[[Any], Awaitable[bytes | None]]


def refusing(answer: Callable[[Any], Awaitable[T]]) -> Callable[[Any, Any], Awaitable[T | bytes]]:
    """A handler that answers calls by their context, and with the errors which that raises."""

    async def handle(_: Any, context: Any) -> T | bytes:
        try:
            return await answer(context)
        except ServingError as error:
            return await finish(context, refusal(error, Dialect.INFERENCE_GRPC))

    return handle
