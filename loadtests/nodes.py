"""How many nodes a server has, asked from outside."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Counts:
    """Nodes by state."""

    ready: int
    starting: int
    draining: int


def ask(host: str, name: str, seconds: float) -> Counts | None:
    """The nodes of a model or version by its full name; None when the server does not tell.

    `host` is the server's address, `seconds` the time it may take.
    """
    address = urlsplit(host)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.netloc, timeout=seconds)
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/nodes", headers=credentials())
        answer = connection.getresponse()
        return count(json.loads(answer.read()), name) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def credentials() -> dict[str, str]:
    """The header with the token of PILOTLIGHT_TOKEN, for a server with access control."""
    token = os.environ.get("PILOTLIGHT_TOKEN", "")
    return {"authorization": f"Bearer {token}"} if token else {}


def count(document: Any, name: str) -> Counts | None:
    """The nodes of a model or version in what `/nodes` answered; None when that is something else.

    A version that sleeps may be left out of the document.
    """
    versions = document.get("versions") if isinstance(document, Mapping) else None
    if not isinstance(versions, list):
        return None
    try:
        ours = [one for one in versions if one["version"] == name or one["version"].startswith(f"{name}/")]
        return Counts(
            ready=sum(int(one["ready"]) for one in ours),
            starting=sum(int(one["starting"]) for one in ours),
            draining=sum(int(one["draining"]) for one in ours),
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        return None
