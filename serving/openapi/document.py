"""A document of OpenAPI 3.1, put together from operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any

from serving.media import JSON

Json = dict[str, Any]

OBJECT: Json = {"type": "object"}
STRING: Json = {"type": "string"}

# Every refusal, by its status.
_WORDS: Mapping[int, str] = {
    400: "The request is wrong, or the state of the resource does not allow it.",
    401: "No token where one is needed, or one that is no good.",
    403: "The caller has no role that allows it.",
    404: "There is no such resource.",
    406: "The answer has none of the forms that are asked for.",
    408: "The request came too slowly.",
    409: "The id is taken, or somebody else has changed the resource first.",
    413: "The body is too large.",
    415: "The body is packed in a way that is not known here.",
    429: "A queue is full, or somebody has had their share.",
    431: "The head of the request is too large.",
    500: "The model raised, or answered what cannot be sent.",
    503: "Not now: no node could be started, or the server is starting or stopping.",
    504: "The request's time ran out.",
}
ANY = (408, 431)
READ = (400, 401, 403, 404, *ANY, 429, 503)
WRITE = (*READ, 409, 413, 415)
PREDICT = (*READ, 406, 413, 415, 500, 504)

_STATUS: Json = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": STRING,
                "status": STRING,
                "details": {"type": "array", "items": OBJECT},
            },
            "required": ["code", "message", "status"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
_TEXT: Json = {
    "type": "object",
    "properties": {"error": STRING},
    "required": ["error"],
    "additionalProperties": False,
}
ERRORS: Mapping[str, Json] = {"Error": _STATUS, "ErrorText": _TEXT}

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_IDS: Mapping[str, Json] = {
    "project": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
    "location": {"type": "string", "pattern": "^[a-z0-9-]+$"},
}
_ID: Json = {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_.-]{0,126}[A-Za-z0-9_-])?$"}
_SEGMENT: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}


@dataclass(frozen=True, slots=True)
class Operation:
    """What there is to be said of a route.

    `takes` are the bodies by content type, `gives` those of a success; `refusals` are the statuses it is
    refused with. `text_errors`: in the form of other people's protocols. `open`: nobody's token matters.
    """

    summary: str
    tag: str
    gives: Mapping[str, Json]
    takes: Mapping[str, Json] | None = None
    query: tuple[Json, ...] = ()
    refusals: tuple[int, ...] = READ
    text_errors: bool = False
    open: bool = False
    unavailable: Json | None = None  # what is told with 503 where that is no error

    def to_json(self, name: str, path: str) -> Json:
        """The operation with this id, at this path."""
        error = "ErrorText" if self.text_errors else "Error"
        told: Json = {
            "operationId": name,
            "summary": self.summary,
            "tags": [self.tag],
            "parameters": [*_in_path(path), *self.query],
            "responses": {
                **({"200": {"description": "Done.", "content": content(self.gives)}} if self.gives else {}),
                **{
                    str(status): {"$ref": f"#/components/responses/{error}{status}"}
                    for status in sorted(self.refusals)
                },
            },
        }
        if self.unavailable is not None:
            told["responses"]["503"] = {
                "description": _WORDS[503],
                "content": content({JSON: self.unavailable}),
            }
        if self.takes is not None:
            told["requestBody"] = {"required": True, "content": content(self.takes)}
        return {**told, "security": []} if self.open else told


def document(
    title: str, description: str, paths: Mapping[str, Json], components: Mapping[str, Json], *, tokens: bool
) -> Json:
    """The whole; `tokens` says whether callers have some."""
    found: Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "description": description, "version": version_of("pilotlight")},
        "paths": dict(paths),
        "components": {"schemas": {**ERRORS, **components}, "responses": _refusals()},
    }
    if tokens:
        found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"bearer": []}]
    return found


def template(path: str) -> str:
    """A path as OpenAPI has it."""
    return _PARAMETER.sub(r"{\1}", path)


def ref(component: str) -> Json:
    """A schema of the components."""
    return {"$ref": f"#/components/schemas/{component}"}


def content(bodies: Mapping[str, Json]) -> Json:
    """Bodies by content type."""
    return {kind: {"schema": schema} for kind, schema in bodies.items()}


def parameter(name: str, schema: Json, description: str, *, required: bool = False) -> Json:
    """A parameter of a query."""
    return {"name": name, "in": "query", "schema": schema, "description": description, "required": required}


def shaped(properties: Mapping[str, Json], required: Iterable[str] = (), *, more: bool = False) -> Json:
    """An object with these properties; `more`: and others."""
    found: Json = {"type": "object", "properties": dict(properties)}
    if needed := list(required):
        found["required"] = needed
    return found if more else {**found, "additionalProperties": False}


def listed(item: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": item}


def _in_path(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _of_segment(name, path)}
        for name in _PARAMETER.findall(path)
    ]


def _of_segment(name: str, path: str) -> Json:
    if name == "version" and not path.startswith("/v1/projects"):
        return _SEGMENT  # a number too
    if name in ("job", "operation", "label", "study", "trial"):
        return _SEGMENT
    return _IDS.get(name, _ID)


def _refusals() -> Mapping[str, Json]:
    return {
        f"{error}{status}": {"description": words, "content": content({JSON: ref(error)})}
        for error in ERRORS
        for status, words in _WORDS.items()
    }
