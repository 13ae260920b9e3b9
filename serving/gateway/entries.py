"""Lines of the access log and the console log, as Cloud Logging understands them.

https://cloud.google.com/logging/docs/structured-logging; fields it does not know go to `jsonPayload`.
"""

from __future__ import annotations

import datetime
from typing import Any

import orjson

from serving.gateway.identity import request_id, trace_id
from serving.gateway.targets import Target
from serving.names import VersionName
from serving.wire import Headers, Scope

_LEVELS = {
    "DEBUG": "DEBUG", "INFO": "INFO", "WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "CRITICAL",
    "Traceback": "ERROR",
}  # fmt: skip
_LEVEL_LETTERS = max(map(len, _LEVELS))


def access_entry(
    target: Target, scope: Scope, start: float, *, seconds: float, status: int, sizes: tuple[int, int]
) -> bytes:
    """A request. `start` is in seconds since the epoch; `sizes` are those of the two bodies in bytes."""
    name, (request_bytes, response_bytes) = target.name, sizes
    milliseconds = round(seconds * 1000, 3)
    method, path = scope["method"], scope["path"]
    client = scope.get("client")
    request = {
        "requestMethod": method,
        "requestUrl": path,
        "requestSize": str(request_bytes),
        "status": status,
        "responseSize": str(response_bytes),
        "latency": f"{seconds:.6f}s",
        "protocol": f"HTTP/{scope.get('http_version', '1.1')}",
        "userAgent": _user_agent(scope["headers"]),
        "remoteIp": client[0] if client else "",
    }
    entry = {
        "severity": "INFO" if status < 400 else "WARNING" if status < 500 else "ERROR",
        "time": rfc3339(start),
        "message": f"{method} {path} {status} {milliseconds} ms",
        "httpRequest": request,
        "resource": _resource(name, target.region),
        "logging.googleapis.com/labels": {"request_id": request_id(scope)},
        "model": name.model,
        "model_version": name.version,
        "status": status,
        "latency_ms": milliseconds,
        "request_bytes": request_bytes,
        "response_bytes": response_bytes,
    }
    if trace := trace_id(scope):
        entry["logging.googleapis.com/trace"] = f"projects/{name.project}/traces/{trace}"
    return orjson.dumps(entry)


def console_entry(name: VersionName, region: str, node: str, text: str, now: float) -> bytes:
    """A line that a node has printed. `now` is in seconds since the epoch."""
    first = text[: _LEVEL_LETTERS + 1].split(" ", 1)[0].rstrip(":")
    return orjson.dumps(
        {
            "severity": _LEVELS.get(first, "DEFAULT"),
            "time": rfc3339(now),
            "message": text,
            "resource": _resource(name, region),
            "logging.googleapis.com/labels": {"node": node},
            "model": name.model,
            "model_version": name.version,
        }
    )


def rfc3339(time: float) -> str:
    """Seconds since the epoch as a time in UTC."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _resource(name: VersionName, region: str) -> dict[str, Any]:
    labels = {
        "project_id": name.project, "model_id": name.model, "version_id": name.version, "region": region,
    }  # fmt: skip
    return {"type": "cloudml_model_version", "labels": labels}


def _user_agent(headers: Headers) -> str:
    for name, value in headers:
        if name == b"user-agent":
            return value.decode("latin-1")
    return ""
