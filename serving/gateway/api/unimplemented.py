"""The methods of the discovery document that this server does not offer.

They are answered with 404: clients show it at once. On 501 gcloud retries for half a minute.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import NotFound
from serving.gateway.api.request_io import Endpoint, error_response


def build_refusal(method: str) -> Endpoint:
    async def refuse_call(_: Request) -> Response:
        return error_response(
            NotFound(
                f"The method ml.{method} is not offered by this server; docs/api.md lists those that are."
            )
        )

    return refuse_call
