"""Access log and console log as structured entries for Cloud Logging.

https://cloud.google.com/logging/docs/structured-logging; other fields go to `jsonPayload`. The gateway only
writes compact records; the log writer makes the entries, which takes ten times as long.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from serving.names import VersionName

_LEVELS = {
    "DEBUG": "DEBUG", "INFO": "INFO", "WARNING": "WARNING", "ERROR": "ERROR", "CRITICAL": "CRITICAL",
    "Traceback": "ERROR",
}  # fmt: skip
_LEVEL_LETTERS = max(map(len, _LEVELS))


class AccessRecord(msgspec.Struct, frozen=True, array_like=True):
    """A request and its outcome; `trace` is "" if it has none."""

    method: str
    path: str
    status: int
    seconds: float
    request_bytes: int
    response_bytes: int
    user_agent: str
    remote_ip: str
    http_version: str
    request_id: str
    trace: str
    region: str


class ConsoleLine(msgspec.Struct, frozen=True, array_like=True):
    """A line printed by a node."""

    node: str
    text: str
    region: str


def make_access_entry(call: AccessRecord, name: VersionName, time: float) -> dict[str, Any]:
    """The entry of a request that arrived at `time`, in seconds since the epoch."""
    milliseconds = round(call.seconds * 1000, 3)
    entry = {
        "severity": "INFO" if call.status < 400 else "WARNING" if call.status < 500 else "ERROR",
        "time": format_rfc3339(time),
        "message": f"{call.method} {call.path} {call.status} {milliseconds} ms",
        "httpRequest": {
            "requestMethod": call.method,
            "requestUrl": call.path,
            "requestSize": str(call.request_bytes),
            "status": call.status,
            "responseSize": str(call.response_bytes),
            "latency": f"{call.seconds:.6f}s",
            "protocol": f"HTTP/{call.http_version}",
            "userAgent": call.user_agent,
            "remoteIp": call.remote_ip,
        },
        "resource": _monitored_resource(name, call.region),
        "logging.googleapis.com/labels": {"request_id": call.request_id},
        "model": name.model,
        "model_version": name.version,
        "status": call.status,
        "latency_ms": milliseconds,
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes,
    }
    if call.trace:
        entry["logging.googleapis.com/trace"] = f"projects/{name.project}/traces/{call.trace}"
    return entry


def make_console_entry(said: ConsoleLine, name: VersionName, time: float) -> dict[str, Any]:
    """The entry of a line printed at `time`, in seconds since the epoch."""
    first = said.text[: _LEVEL_LETTERS + 1].split(" ", 1)[0].rstrip(":")
    return {
        "severity": _LEVELS.get(first, "DEFAULT"),
        "time": format_rfc3339(time),
        "message": said.text,
        "resource": _monitored_resource(name, said.region),
        "logging.googleapis.com/labels": {"node": said.node},
        "model": name.model,
        "model_version": name.version,
    }


def format_rfc3339(time: float) -> str:
    """Seconds since the epoch as a UTC time with microseconds."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _monitored_resource(name: VersionName, region: str) -> dict[str, Any]:
    labels = {
        "project_id": name.project, "model_id": name.model, "version_id": name.version, "region": region,
    }  # fmt: skip
    return {"type": "cloudml_model_version", "labels": labels}
