"""Node counts of a server, over HTTP."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class NodeCounts:
    ready: int
    starting: int
    draining: int


def fetch_node_counts(host: str, name: str, seconds: float) -> NodeCounts | None:
    """The nodes of a version by its full name, or of the version that a model's predictions go to.

    None when the server does not report them. `host` is its address, `seconds` the time that an answer may
    take.
    """
    address = urlsplit(host)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.netloc, timeout=seconds)
    root = address.path.rstrip("/")
    try:
        target = (
            name if "/versions/" in name else _default_version(_get_json(connection, f"{root}/v1/{name}"))
        )
        return parse_node_counts(_get_json(connection, f"{root}/nodes"), target or name)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def auth_headers() -> dict[str, str]:
    """The header with the token of PILOTLIGHT_TOKEN, for a server with access control."""
    token = os.environ.get("PILOTLIGHT_TOKEN", "")
    return {"authorization": f"Bearer {token}"} if token else {}


def parse_node_counts(document: Any, name: str) -> NodeCounts | None:
    """The nodes of a version in what `/nodes` answered; None when that is something else.

    A version that sleeps may be left out of the document. Of a model, whose default version is not known,
    they are reported where it has one version only.
    """
    versions = document.get("versions") if isinstance(document, Mapping) else None
    if not isinstance(versions, list):
        return None
    try:
        ours = [one for one in versions if one["version"] == name or one["version"].startswith(f"{name}/")]
        if len(ours) > 1:
            return None
        return NodeCounts(
            ready=sum(int(one["ready"]) for one in ours),
            starting=sum(int(one["starting"]) for one in ours),
            draining=sum(int(one["draining"]) for one in ours),
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        return None


def _get_json(connection: http.client.HTTPConnection, path: str) -> Any:
    """The JSON at a path; None unless its status is 200."""
    connection.request("GET", path, headers=auth_headers())
    answer = connection.getresponse()
    content = answer.read()
    return json.loads(content) if answer.status == 200 else None


def _default_version(model: Any) -> str:
    """The full name of a model's default version; "" where it is not reported."""
    default = model.get("defaultVersion") if isinstance(model, Mapping) else None
    name = default.get("name") if isinstance(default, Mapping) else None
    return name if isinstance(name, str) else ""
