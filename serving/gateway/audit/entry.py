"""One line of the audit log: a `LogEntry` whose payload is an `AuditLog`.

A change has two lines, tied by `operation.id`: one from before it is done (`operation.first`), which has no
status, and one that tells how it ended. Work that goes on afterwards has a third when it ends; the final line
says `operation.last`. Everything else has one.
Source: google/logging/v2/log_entry.proto, google/cloud/audit/audit_log.proto.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from serving.errors import RPC_CODES, ServingError
from serving.gateway.audit.naming import log_name, method_name, project_of

_TYPE = "type.googleapis.com/google.cloud.audit.AuditLog"
_SERVICE = "ml.googleapis.com"
_MOST_BYTES = 32 << 10
_SECRET = re.compile(r"token|secret|password|passwd|credential|private_?key|api_?key", re.IGNORECASE)
_BULK = frozenset({"instances", "inputs", "signedData"})
# The calls that were not let in.
REFUSED = frozenset({RPC_CODES["PERMISSION_DENIED"], RPC_CODES["UNAUTHENTICATED"]})
_HIDDEN = "[redacted]"
_MOST_DEPTH, _DEEPER = 32, "[deeper]"


class Log(enum.StrEnum):
    """The two audit logs: changes, and everything else."""

    ACTIVITY = "activity"
    DATA_ACCESS = "data_access"


class Stage(enum.StrEnum):
    """Which line of a call it is; the letter ends its insertId."""

    ONLY = "o"
    BEFORE = "a"
    AFTER = "b"
    END = "c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who called which method on what; `id` is unique among all calls.

    `resource` is what is called, and `guarded` what the permission was checked on. `principal` is "" while
    access control is off. `request` is the body as JSON, where it is to be recorded.
    """

    id: str
    log: Log
    method: str
    resource: str
    guarded: str = ""
    permission: str = ""
    principal: str = ""
    request_id: str = ""
    caller_ip: str = ""
    user_agent: str = ""
    request: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended: a `google.rpc` code, 0 for success, and a message."""

    code: int = 0
    message: str = ""


OK = Status()


def status_of(error: ServingError | None) -> Status:
    """The status of a call that raised this, or nothing."""
    return OK if error is None else Status(RPC_CODES[error.status], error.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A call at one of its stages. `time` is in seconds since the epoch; `status` is that of the stage's end.

    `last` is whether nothing follows; `operation` names the long-running operation or the job behind it.
    """

    call: Call
    stage: Stage
    time: float
    status: Status = OK
    operation: str = ""
    last: bool = True


def encode(event: Event) -> bytes:
    """The line, with its end."""
    return orjson.dumps(to_entry(event)) + b"\n"


def to_entry(event: Event) -> dict[str, Any]:
    """The event as a LogEntry in JSON."""
    call, project = event.call, project_of(event.call.resource)
    entry: dict[str, Any] = {
        "timestamp": _timestamp(event.time),
        "insertId": f"{call.id}{event.stage}",
        "logName": log_name(project, call.log),
        "severity": _severity(event),
        "resource": {
            "type": "audited_resource",
            "labels": {
                "project_id": project or "-",
                "service": _SERVICE,
                "method": method_name(call.method),
            },
        },
        "protoPayload": _payload(event),
    }
    if call.request_id:
        entry["labels"] = {"request_id": call.request_id}
    if event.stage is not Stage.ONLY:
        entry["operation"] = {"id": call.id, "producer": _SERVICE, **_place(event)}
    return entry


def _place(event: Event) -> dict[str, bool]:
    if event.stage is Stage.BEFORE:
        return {"first": True}
    return {"last": True} if event.last else {}


def _severity(event: Event) -> str:
    if event.status.code:
        return "ERROR"
    return "NOTICE" if event.call.log is Log.ACTIVITY else "INFO"


def _payload(event: Event) -> dict[str, Any]:
    call = event.call
    payload: dict[str, Any] = {
        "@type": _TYPE,
        "serviceName": _SERVICE,
        "methodName": method_name(call.method),
        "resourceName": call.resource,
        "authenticationInfo": _authentication(call.principal),
        "requestMetadata": {"callerIp": call.caller_ip, "callerSuppliedUserAgent": call.user_agent},
    }
    if call.principal and call.permission:
        granted = event.status.code not in REFUSED
        payload["authorizationInfo"] = [
            {"resource": call.guarded, "permission": call.permission, "granted": granted}
        ]
    if call.request:
        payload["request"] = _bounded(call.request)
    if event.stage is not Stage.BEFORE:
        payload["status"] = _status(event.status)
    if event.operation:
        payload["metadata"] = {"operation": event.operation}
    return payload


def _authentication(principal: str) -> dict[str, str]:
    if not principal:
        return {}
    return {"principalEmail": principal.partition(":")[2] or principal, "principalSubject": principal}


def _status(status: Status) -> dict[str, Any]:
    # An empty Status is success, as in proto3 JSON.
    return {"code": status.code, "message": status.message} if status.code else {}


def _bounded(request: Mapping[str, Any]) -> Any:
    shown = _without_secrets(request)
    size = len(orjson.dumps(shown))
    return shown if size <= _MOST_BYTES else {"omitted": f"{size} bytes"}


def _without_secrets(value: Any, key: str = "", depth: int = 0) -> Any:
    """The value without rows of data, without what its name calls a secret, and not too deep to write."""
    if depth > _MOST_DEPTH:
        return _DEEPER
    if key in _BULK or (key and _SECRET.search(key) and not isinstance(value, bool | None)):
        return _HIDDEN
    match value:
        case {"name": str(name), "value": _} if len(value) == 2:  # a variable of a container
            return {"name": name, "value": _HIDDEN}
        case dict():
            return {name: _without_secrets(inner, name, depth + 1) for name, inner in value.items()}
        case list():
            return [_without_secrets(inner, "", depth + 1) for inner in value]
        case _:
            return value


def _timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
