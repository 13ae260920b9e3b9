"""Reads requests and writes responses for all endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import orjson
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, ServingError
from serving.gateway.api.query.paging import PagedList
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import (
    TIMEOUT,
    Receive,
    body_too_large,
    check_body_length,
    find_header,
    parse_timeout,
)
from serving.json_depth import DEFAULT_MAX_DEPTH, TooDeepError, parse_json
from serving.names import ModelName, VersionName
from serving.protocols import Dialect
from serving.protocols.errors import render_error
from serving.resources import Resource, resource_from_json
from serving.resources import resource_to_json as resource_to_wire

T = TypeVar("T", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 4 << 20
_BODY_KEY = "pilotlight.body"
# Larger bodies are decoded in a thread, a few at a time: that takes up to a second.
_MOST_DECODED_AT_ONCE = 64 << 10
# Of the lists that clients expect to be whole.
_MOST_LIST_BYTES = 8 << 20
_THREADS = ThreadPool("large request bodies", 1, queue=31)


class IdConvertor(Convertor[str]):
    """One path segment without ":", so that `{model}` never swallows the verb of `m:verb`."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("id", IdConvertor())


def read_timeout(request: Request, longest: float) -> float:
    """The seconds that a request has: those of its header, at most `longest`. Raises InvalidArgument."""
    given = find_header(request.scope, TIMEOUT)
    return longest if given is None else min(parse_timeout(given), longest)


def model_name(request: Request) -> ModelName:
    return ModelName(request.path_params["project"], request.path_params["model"])


def version_name(request: Request) -> VersionName:
    path = request.path_params
    return VersionName(path["project"], path["model"], path["version"])


async def read_resource(request: Request, kind: type[T]) -> T:
    """Parse the resource in the body. Raises InvalidArgument."""
    body = await _read_json_body(request)
    if body.size <= _MOST_DECODED_AT_ONCE:
        return resource_from_json(kind, body.value)
    return await _THREADS.run(resource_from_json, kind, body.value)


def read_update_mask(request: Request) -> Sequence[str]:
    """The paths of the update mask, under either of its names."""
    mask = request.query_params.get("updateMask") or request.query_params.get("update_mask") or ""
    paths = [path.strip() for path in mask.split(",") if path.strip()]
    if not paths:
        raise InvalidArgument(
            "Field: update_mask Error: Say which fields to update, e.g. ?updateMask=description.",
            field="update_mask",
        )
    return paths


def resource_response(resource: Resource) -> Response:
    return json_response(resource_to_wire(resource))


def page_response(request: Request, key: str, listing: PagedList[Any]) -> Response:
    """Return one page of a list; an empty page has no key at all."""
    return _render_page(key, *listing.page(request.query_params))


def whole_list_response(request: Request, key: str, listing: PagedList[Any]) -> Response:
    """The same of `PagedList.page_whole`. Takes up to a second, and is for a thread."""
    return _render_page(key, *listing.page_whole(request.query_params, _MOST_LIST_BYTES))


def _render_page(key: str, rows: Sequence[dict[str, Any]], token: str) -> Response:
    body: dict[str, Any] = {key: rows} if rows else {}
    if token:
        body["nextPageToken"] = token
    return json_response(body)


def json_response(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def error_response(error: ServingError, dialect: Dialect = Dialect.AI_PLATFORM) -> Response:
    status, body, headers = render_error(error, dialect)
    response = Response(body, status, media_type="application/json")
    for name, value in headers:
        response.headers[name.decode()] = value.decode()
    return response


async def read_json(request: Request) -> Any:
    """Return the body as it was sent; may be called again."""
    return (await _read_json_body(request)).value


async def read_body(request: Request) -> bytes:
    check_body_length(request.scope, MAX_BODY_BYTES)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise body_too_large(MAX_BODY_BYTES)
    return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class _JsonBody:
    """A body as JSON, and the number of its bytes."""

    value: Any
    size: int


async def _read_json_body(request: Request) -> _JsonBody:
    known: _JsonBody | None = request.scope.get(_BODY_KEY)
    if known is None:
        body = await read_body(request)
        is_large = len(body) > _MOST_DECODED_AT_ONCE
        value = await _THREADS.run(_parse_body, body) if is_large else _parse_body(body)
        known = request.scope[_BODY_KEY] = _JsonBody(value, len(body))
    return known


def _parse_body(body: bytes) -> Any:
    try:
        return parse_json(body or b"{}", DEFAULT_MAX_DEPTH)
    except TooDeepError as error:
        raise InvalidArgument(f"Invalid JSON payload received. {error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            f"Invalid JSON payload received. {error.msg} at line {error.lineno} column {error.colno}."
        ) from error
