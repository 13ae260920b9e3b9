"""`/$discovery/rest` and `/discovery/v1/apis`: what clients build themselves from.

This server is the root of the URLs.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, NotFound
from serving.gateway.api.documents.discovery_document import (
    API_VERSION,
    NAME,
    build_directory,
    build_document,
)
from serving.gateway.api.request_io import Endpoint, error_response, json_response
from serving.transport.cross_origin import parse_authority

# The document contains the address that the caller has used: no cache may give it to others.
_PRIVATE_HEADERS = {"cache-control": "private, no-store", "vary": "Host, X-Forwarded-Proto"}


class DiscoveryApi:
    """`tokens` says whether callers need some."""

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens

    async def get_document(self, request: Request) -> Response:
        """Return the document of this API; that of another one is not here."""
        path, query = request.path_params, request.query_params
        api, version = path.get("api", NAME), path.get("version") or query.get("version") or API_VERSION
        if (api, version) != (NAME, API_VERSION):
            raise NotFound(f"There is no API {api} {version} here, only {NAME} {API_VERSION}.")
        return _private_response(build_document(_root_url(request), tokens=self._tokens))

    async def list_apis(self, request: Request) -> Response:
        """List the APIs: one."""
        found = build_directory(_root_url(request))
        if request.query_params.get("name", NAME) != NAME:
            del found["items"]
        return _private_response(found)


def _private_response(body: dict[str, object]) -> Response:
    response = json_response(body)
    response.headers.update(_PRIVATE_HEADERS)
    return response


def _root_url(request: Request) -> str:
    """Return the URL by which the caller reached this server. Raises InvalidArgument for invalid hosts."""
    host = request.headers.get("host", "")
    authority = parse_authority(host.encode("latin-1"))
    if authority is None:
        raise InvalidArgument("The Host header must name this server, as in pilotlight.example:8080.")
    # A proxy in front may speak TLS; a false claim only makes the caller itself use it.
    is_secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    return f"{'https' if is_secure else 'http'}://{host.lower()}/"


def build_refusal_endpoint(method: str) -> Endpoint:
    async def refuse_call(_: Request) -> Response:
        return error_response(
            NotFound(
                f"The method ml.{method} is not offered by this server; docs/api.md lists those that are."
            )
        )

    return refuse_call
