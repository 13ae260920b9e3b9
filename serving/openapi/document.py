"""Builds a document of OpenAPI 3.1 from operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any

from serving.http_headers import JSON

Json = dict[str, Any]

OBJECT: Json = {"type": "object"}
STRING: Json = {"type": "string"}

# Descriptions of errors, by status.
_ERROR_DESCRIPTIONS: Mapping[int, str] = {
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
ANY_ERRORS = (408, 431)
READ_ERRORS = (400, 401, 403, 404, *ANY_ERRORS, 429, 503)
WRITE_ERRORS = (*READ_ERRORS, 409, 413, 415)
PREDICT_ERRORS = (*READ_ERRORS, 406, 413, 415, 500, 504)

_STATUS_ERROR: Json = {
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
_TEXT_ERROR: Json = {
    "type": "object",
    "properties": {"error": STRING},
    "required": ["error"],
    "additionalProperties": False,
}
ERROR_SCHEMAS: Mapping[str, Json] = {"Error": _STATUS_ERROR, "ErrorText": _TEXT_ERROR}

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ID_SCHEMAS: Mapping[str, Json] = {
    "project": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
    "location": {"type": "string", "pattern": "^[a-z0-9-]+$"},
}
_DEFAULT_ID_SCHEMA: Json = {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_.-]{0,126}[A-Za-z0-9_-])?$"}
_SEGMENT_SCHEMA: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}


@dataclass(frozen=True, slots=True)
class OpenApiOperation:
    """The description of a route.

    `request_bodies` and `response_bodies` are by content type; `refusals` are the statuses of its errors.
    `text_errors`: in the form of the other protocols. `is_public`: it needs no token.
    """

    summary: str
    tag: str
    response_bodies: Mapping[str, Json]
    request_bodies: Mapping[str, Json] | None = None
    query: tuple[Json, ...] = ()
    refusals: tuple[int, ...] = READ_ERRORS
    text_errors: bool = False
    is_public: bool = False
    unavailable_body: Json | None = None  # the body of a 503 that is no error

    def to_json(self, name: str, path: str) -> Json:
        error = "ErrorText" if self.text_errors else "Error"
        rendered: Json = {
            "operationId": name,
            "summary": self.summary,
            "tags": [self.tag],
            "parameters": [*_path_parameters(path), *self.query],
            "responses": {
                **(
                    {"200": {"description": "Done.", "content": body_content(self.response_bodies)}}
                    if self.response_bodies
                    else {}
                ),
                **{
                    str(status): {"$ref": f"#/components/responses/{error}{status}"}
                    for status in sorted(self.refusals)
                },
            },
        }
        if self.unavailable_body is not None:
            rendered["responses"]["503"] = {
                "description": _ERROR_DESCRIPTIONS[503],
                "content": body_content({JSON: self.unavailable_body}),
            }
        if self.request_bodies is not None:
            rendered["requestBody"] = {"required": True, "content": body_content(self.request_bodies)}
        return {**rendered, "security": []} if self.is_public else rendered


def build_document(
    title: str, description: str, paths: Mapping[str, Json], components: Mapping[str, Json], *, tokens: bool
) -> Json:
    """`tokens` says whether callers have some."""
    found: Json = {
        "openapi": "3.1.0",
        "info": {"title": title, "description": description, "version": version_of("pilotlight")},
        "paths": dict(paths),
        "components": {"schemas": {**ERROR_SCHEMAS, **components}, "responses": _error_responses()},
    }
    if tokens:
        found["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"bearer": []}]
    return found


def to_path_template(path: str) -> str:
    return _PARAMETER.sub(r"{\1}", path)


def schema_ref(component: str) -> Json:
    return {"$ref": f"#/components/schemas/{component}"}


def body_content(bodies: Mapping[str, Json]) -> Json:
    return {kind: {"schema": schema} for kind, schema in bodies.items()}


def query_parameter(name: str, schema: Json, description: str, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description, "required": required}


def object_schema(
    properties: Mapping[str, Json], required: Iterable[str] = (), *, allow_others: bool = False
) -> Json:
    found: Json = {"type": "object", "properties": dict(properties)}
    if needed := list(required):
        found["required"] = needed
    return found if allow_others else {**found, "additionalProperties": False}


def array_schema(item: Json) -> Json:
    return {"type": "array", "items": item}


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _choose_segment_schema(name, path)}
        for name in _PARAMETER.findall(path)
    ]


def _choose_segment_schema(name: str, path: str) -> Json:
    if name == "version" and not path.startswith("/v1/projects"):
        return _SEGMENT_SCHEMA  # a number too
    if name in ("job", "operation", "label", "study", "trial"):
        return _SEGMENT_SCHEMA
    return _ID_SCHEMAS.get(name, _DEFAULT_ID_SCHEMA)


def _error_responses() -> Mapping[str, Json]:
    return {
        f"{error}{status}": {"description": words, "content": body_content({JSON: schema_ref(error)})}
        for error in ERROR_SCHEMAS
        for status, words in _ERROR_DESCRIPTIONS.items()
    }
