"""The methods of the discovery document that this server does not offer: a deliberate 501 each."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import Unimplemented
from serving.gateway.api.requests import Endpoint, answer_error


def refuse(method: str) -> Endpoint:
    """The endpoint of a method that is not offered."""

    async def refuse(_: Request) -> Response:
        return answer_error(Unimplemented(f"The method ml.{method} is not implemented by this server."))

    return refuse
