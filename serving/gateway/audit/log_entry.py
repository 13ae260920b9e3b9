"""One line of the audit log: a `LogEntry` whose payload is an `AuditLog`.

A change has two lines with the same `operation.id`: one from before it is made (`operation.first`), which has
no status, and one with its result. Work that continues afterwards has a third when it ends; the final line
says `operation.last`. Everything else has one line.
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
from serving.gateway.audit.method_names import format_log_name, parse_project, to_audit_method

_PAYLOAD_TYPE = "type.googleapis.com/google.cloud.audit.AuditLog"
_SERVICE = "ml.googleapis.com"
_MAX_REQUEST_BYTES = 32 << 10
_SECRET_NAME = re.compile(r"token|secret|password|passwd|credential|private_?key|api_?key", re.IGNORECASE)
_BULK_FIELDS = frozenset({"instances", "inputs", "signedData"})
# Codes of calls that were not authenticated or authorized.
DENIED_CODES = frozenset({RPC_CODES["PERMISSION_DENIED"], RPC_CODES["UNAUTHENTICATED"]})
_REDACTED = "[redacted]"
_MAX_DEPTH, _TOO_DEEP = 32, "[deeper]"


class AuditLogType(enum.StrEnum):
    """The two audit logs: changes, and everything else."""

    ACTIVITY = "activity"
    DATA_ACCESS = "data_access"


class AuditStage(enum.StrEnum):
    """The line of a call; the letter ends its insertId."""

    ONLY = "o"
    BEFORE = "a"
    AFTER = "b"
    END = "c"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCall:
    """Who called which method on what; `id` is unique among all calls.

    `resource` is what is called, and `authorized_resource` what the permission was checked on. `principal` is
    "" while access control is off. `request` is the body as JSON, where it is recorded.
    """

    id: str
    log: AuditLogType
    method: str
    resource: str
    authorized_resource: str = ""
    permission: str = ""
    principal: str = ""
    request_id: str = ""
    caller_ip: str = ""
    user_agent: str = ""
    request: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The status of a finished call: a `google.rpc` code, 0 for success, and a message."""

    code: int = 0
    message: str = ""


OK_STATUS = CallStatus()


def status_from_error(error: ServingError | None) -> CallStatus:
    return OK_STATUS if error is None else CallStatus(RPC_CODES[error.status], error.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """A call at one of its stages. `time` is in seconds since the epoch; `status` is that at the stage's end.

    `last` is whether nothing follows; `operation` names the long-running operation or the job behind it.
    """

    call: AuditedCall
    stage: AuditStage
    time: float
    status: CallStatus = OK_STATUS
    operation: str = ""
    last: bool = True


def encode_line(event: AuditEvent) -> bytes:
    """The line includes its newline."""
    return orjson.dumps(to_log_entry(event)) + b"\n"


def to_log_entry(event: AuditEvent) -> dict[str, Any]:
    call, project = event.call, parse_project(event.call.resource)
    entry: dict[str, Any] = {
        "timestamp": _format_timestamp(event.time),
        "insertId": f"{call.id}{event.stage}",
        "logName": format_log_name(project, call.log),
        "severity": _choose_severity(event),
        "resource": {
            "type": "audited_resource",
            "labels": {
                "project_id": project or "-",
                "service": _SERVICE,
                "method": to_audit_method(call.method),
            },
        },
        "protoPayload": _build_payload(event),
    }
    if call.request_id:
        entry["labels"] = {"request_id": call.request_id}
    if event.stage is not AuditStage.ONLY:
        entry["operation"] = {"id": call.id, "producer": _SERVICE, **_operation_flags(event)}
    return entry


def _operation_flags(event: AuditEvent) -> dict[str, bool]:
    if event.stage is AuditStage.BEFORE:
        return {"first": True}
    return {"last": True} if event.last else {}


def _choose_severity(event: AuditEvent) -> str:
    if event.status.code:
        return "ERROR"
    return "NOTICE" if event.call.log is AuditLogType.ACTIVITY else "INFO"


def _build_payload(event: AuditEvent) -> dict[str, Any]:
    call = event.call
    payload: dict[str, Any] = {
        "@type": _PAYLOAD_TYPE,
        "serviceName": _SERVICE,
        "methodName": to_audit_method(call.method),
        "resourceName": call.resource,
        "authenticationInfo": _authentication_info(call.principal),
        "requestMetadata": {"callerIp": call.caller_ip, "callerSuppliedUserAgent": call.user_agent},
    }
    if call.principal and call.permission:
        granted = event.status.code not in DENIED_CODES
        payload["authorizationInfo"] = [
            {"resource": call.authorized_resource, "permission": call.permission, "granted": granted}
        ]
    if call.request:
        payload["request"] = _render_request(call.request)
    if event.stage is not AuditStage.BEFORE:
        payload["status"] = _render_status(event.status)
    if event.operation:
        payload["metadata"] = {"operation": event.operation}
    return payload


def _authentication_info(principal: str) -> dict[str, str]:
    if not principal:
        return {}
    return {"principalEmail": principal.partition(":")[2] or principal, "principalSubject": principal}


def _render_status(status: CallStatus) -> dict[str, Any]:
    # An empty Status is success, as in proto3 JSON.
    return {"code": status.code, "message": status.message} if status.code else {}


def _render_request(request: Mapping[str, Any]) -> Any:
    shown = _redact_secrets(request)
    size = len(orjson.dumps(shown))
    return shown if size <= _MAX_REQUEST_BYTES else {"omitted": f"{size} bytes"}


def _redact_secrets(value: Any, key: str = "", depth: int = 0) -> Any:
    """Remove rows of data and the values of fields with secret names; cut off what is nested too deeply."""
    if depth > _MAX_DEPTH:
        return _TOO_DEEP
    if key in _BULK_FIELDS or (key and _SECRET_NAME.search(key) and not isinstance(value, bool | None)):
        return _REDACTED
    match value:
        case {"name": str(name), "value": _} if len(value) == 2:  # a variable of a container
            return {"name": name, "value": _REDACTED}
        case dict():
            return {name: _redact_secrets(inner, name, depth + 1) for name, inner in value.items()}
        case list():
            return [_redact_secrets(inner, "", depth + 1) for inner in value]
        case _:
            return value


def _format_timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
