"""`fields=`: the fields of a response that a client wants: `models(name,defaultVersion/state),nextPageToken`.

    mask = item {"," item};  item = path ["(" mask ")"];  path = name {"/" name};  name = "*" | a field

In lists it applies to the elements. A name that the response cannot have is rejected, as Google does.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument
from serving.gateway.api.documents.discovery_document import get_response_schema, get_schema
from serving.gateway.api.request_io import Endpoint, json_response
from serving.gateway.methods import ApiMethod
from serving.resources import to_camel_case

# Selected names, each with the mask of its value; an empty mask selects everything.
FieldMask = dict[str, "FieldMask"]

_WILDCARD = "*"
_TOKEN = re.compile(r"[A-Za-z0-9_@.-]+|[*/,()]")
_MARKS = frozenset("/,()")
_MAX_MASK_LENGTH, _MAX_MASK_DEPTH = 4096, 16
_CACHE_SIZE = 256


def can_select_fields(method: ApiMethod) -> bool:
    """Whether responses of a method can be requested in part."""
    return method.path.startswith("/v1/") and not method.is_foreign


def with_checked_fields(method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """Reject unknown `fields` before the endpoint does anything."""

    @functools.wraps(endpoint)
    async def call_checked(request: Request) -> Response:
        if text := request.query_params.get("fields"):
            _check_mask(parse_field_mask(text), get_response_schema(method.id), "")
        return await endpoint(request)

    return call_checked if can_select_fields(method) else endpoint


def with_selected_fields(method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """Reduce the endpoint's responses to the requested fields."""

    @functools.wraps(endpoint)
    async def call_selecting(request: Request) -> Response:
        response = await endpoint(request)
        text = request.query_params.get("fields")
        if not text or response.status_code != 200:
            return response
        chosen = json_response(select_fields(orjson.loads(response.body), parse_field_mask(text)))
        for name, value in response.headers.items():
            if name not in chosen.headers:
                chosen.headers[name] = value
        return chosen

    return call_selecting if can_select_fields(method) else endpoint


@functools.lru_cache(_CACHE_SIZE)
def parse_field_mask(text: str) -> FieldMask:
    """Raises InvalidArgument."""
    tokens = _TOKEN.findall(text)
    if len(text) > _MAX_MASK_LENGTH or "".join(tokens) != text:
        raise _mask_error(text)
    mask = _parse_items(tokens, text, 0)
    if tokens:
        raise _mask_error(text)
    return mask


def _parse_items(tokens: list[str], text: str, depth: int) -> FieldMask:
    """Parse the mask at the front of the tokens, and remove its tokens."""
    mask: FieldMask = {}
    while True:
        place, level = mask, depth
        while True:
            if not tokens or tokens[0] in _MARKS or level > _MAX_MASK_DEPTH:
                raise _mask_error(text)
            name = to_camel_case(tokens.pop(0))
            is_all = name in place and not place[name]
            place = {} if is_all else place.setdefault(name, {})
            level += 1
            if not tokens or tokens[0] != "/":
                break
            tokens.pop(0)
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            _merge_masks(place, _parse_items(tokens, text, level))
            if not tokens or tokens.pop(0) != ")":
                raise _mask_error(text)
        else:
            place.clear()
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _merge_masks(mask: FieldMask, other: FieldMask) -> None:
    for name, more in other.items():
        if name not in mask:
            mask[name] = more
        elif not mask[name] or not more:
            mask[name] = {}
        else:
            _merge_masks(mask[name], more)


def select_fields(value: Any, mask: FieldMask) -> Any:
    """Return the part of a JSON value that a mask selects."""
    if not mask:
        return value
    if isinstance(value, list):
        return [select_fields(item, mask) for item in value]
    if not isinstance(value, dict):
        return value
    rest = mask.get(_WILDCARD)
    found = {}
    for name, entry in value.items():
        wanted = mask.get(name, rest)
        if wanted is not None:
            found[name] = select_fields(entry, wanted)
    return found


def _check_mask(mask: FieldMask, shape: Any, where: str) -> None:
    """Reject names that a response of this shape cannot have."""
    while isinstance(shape, dict) and (inner := shape.get("$ref") or shape.get("items")):
        shape = get_schema(inner) if isinstance(inner, str) else inner
    properties = shape.get("properties") if isinstance(shape, dict) else None
    if not properties:
        return  # its fields are not known
    for name, more in mask.items():
        if name != _WILDCARD and name not in properties:
            raise InvalidArgument(
                f"Field: fields Error: Invalid field selection {where}{name}. There are "
                f"{', '.join(sorted(properties))}.",
                field="fields",
            )
        if name != _WILDCARD:
            _check_mask(more, properties[name], f"{where}{name}/")


def _mask_error(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"Field: fields Error: Cannot read {text[:200]!r}. Example: models(name,defaultVersion/state),"
        "nextPageToken",
        field="fields",
    )
