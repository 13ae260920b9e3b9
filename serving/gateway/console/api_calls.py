"""Calls of API methods by their ids, for pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from serving.errors import ERRORS_BY_STATUS, Internal, ServingError
from serving.gateway.methods import METHODS
from serving.protocols import Reply

_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")


def build_target(method: str, parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
    """The path of a method with its parameters filled in, and the query."""

    def fill_in(found: re.Match[str]) -> str:
        return quote(parameters[found[1]], safe="/" if found[2] == "path" else "")

    path = _PARAMETER.sub(fill_in, METHODS[method].path)
    return f"{path}?{urlencode(query)}".encode() if query else path.encode()


def read_reply(reply: Reply) -> Any:
    """The JSON of a reply. Raises the error that it has."""
    body = orjson.loads(reply.body or b"{}")
    if reply.status < 400:
        return body
    raise read_error(body, reply.status)


def read_error(body: Any, http_status: int) -> ServingError:
    """The error in a body in Google's structured form."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return Internal(f"The API answered with HTTP status {http_status}.")
    kind = ERRORS_BY_STATUS.get(str(error.get("status")), Internal)
    return kind(str(error.get("message", "")), field=_read_field(error))


def _read_field(error: Mapping[str, Any]) -> str:
    for detail in error.get("details", ()):
        for violation in detail.get("fieldViolations", ()):
            return str(violation.get("field", ""))
    return ""
