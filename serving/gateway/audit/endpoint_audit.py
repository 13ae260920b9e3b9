"""Endpoint decorators that write the audit log.

`audit_result` is outermost, so that it sees rejected calls; `audit_intent` is innermost and around changes
alone: then all checks have passed and nothing has been done.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import RPC_CODES, ServingError
from serving.gateway.api.request_io import Endpoint, read_json
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.audit.log_entry import (
    DENIED_CODES,
    OK_STATUS,
    AuditedCall,
    AuditLogType,
    CallStatus,
    status_from_error,
)
from serving.gateway.methods import Activity, ApiMethod
from serving.gateway.request_context import CURRENT_CAUSE, ChangeCause, ensure_request_id, get_caller
from serving.http_headers import Headers, Scope, find_header
from serving.protocols.errors import GRPC_STATUS

_CALL_KEY = "pilotlight.audit_call"
_UNKNOWN_CODE = 2
# Codes of responses that have an HTTP status only.
_CODE_BY_HTTP_STATUS: Mapping[int, int] = {
    status: RPC_CODES[name]
    for status, name in (
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (501, "UNIMPLEMENTED"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    )
}
_MAX_NAME_LENGTH = 256


def is_change(method: ApiMethod) -> bool:
    """Whether the activity log always has the method, because it changes something."""
    return method.activity in {Activity.ADMIN_WRITE, Activity.DATA_WRITE}


def audit_result(audit: AuditLog, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """Record the result of each call of the endpoint."""

    @functools.wraps(endpoint)
    async def call_audited(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except ServingError as error:
            await _record_end(audit, method, request, status_from_error(error))
            raise
        except Exception as error:
            await _record_end(audit, method, request, CallStatus(RPC_CODES["INTERNAL"], type(error).__name__))
            raise
        status, operation = _read_outcome(method, request, response)
        await _record_end(audit, method, request, status, operation)
        return response

    return call_audited


def audit_intent(audit: AuditLog, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """Call the endpoint of a change once the log has it on disk."""

    @functools.wraps(endpoint)
    async def call_audited(request: Request) -> Response:
        body = await read_json(request) if request.method in {"POST", "PATCH"} else {}
        described = describe_call(audit, method, request.scope, body if isinstance(body, dict) else {})
        await audit.record_intent(described)
        request.scope[_CALL_KEY] = described
        cause = ChangeCause(call=described.id, request_id=described.request_id, principal=described.principal)
        token = CURRENT_CAUSE.set(cause)
        try:
            return await endpoint(request)
        finally:
            CURRENT_CAUSE.reset(token)

    return call_audited if is_change(method) else endpoint


def record_prediction(
    audit: AuditLog, method: ApiMethod, scope: Scope, status: CallStatus, *, resource: str, permission: str
) -> None:
    """Record the result of a prediction: always if it was denied, otherwise if the setting says so."""
    if status.code not in DENIED_CODES and not audit.records_predictions:
        return
    call = replace(
        describe_call(audit, method, scope, {}),
        resource=resource,
        authorized_resource=resource,
        permission=permission,
    )
    if status.code in DENIED_CODES:
        audit.record_denied(call, status)
    else:
        audit.record_data_access(call, status)


def describe_call(audit: AuditLog, method: ApiMethod, scope: Scope, body: Mapping[str, Any]) -> AuditedCall:
    resource, params = _resolve_resource(method, scope, body), scope.get("path_params")
    return AuditedCall(
        id=audit.new_id(),
        log=AuditLogType.ACTIVITY if is_change(method) else AuditLogType.DATA_ACCESS,
        method=method.id,
        resource=resource,
        authorized_resource=method.resource.format_map(params) if params else resource,
        permission=method.permission,
        principal=get_caller(scope).principal,
        request_id=ensure_request_id(scope),
        caller_ip=scope["client"][0] if scope.get("client") else "",
        user_agent=(find_header(scope, b"user-agent") or b"").decode("latin-1"),
        request=body,
    )


async def _record_end(
    audit: AuditLog, method: ApiMethod, request: Request, status: CallStatus, operation: str = ""
) -> None:
    begun: AuditedCall | None = request.scope.get(_CALL_KEY)
    if begun is not None:
        await audit.record_result(begun, status, operation)
    elif is_change(method) or status.code in DENIED_CODES:
        audit.record_denied(describe_call(audit, method, request.scope, {}), status)
    elif audit.records_reads and "{project}" in method.resource:
        audit.record_data_access(describe_call(audit, method, request.scope, {}), status)


def _resolve_resource(method: ApiMethod, scope: Scope, body: Mapping[str, Any]) -> str:
    """Return the resource of the path, or below it the one that is to be created."""
    if method.is_foreign and scope.get("path_params"):
        return method.resource.format_map(scope["path_params"])
    path, _, _ = str(scope["path"]).removeprefix("/v1/").partition(":")
    made = body.get("name") or body.get("jobId") or body.get("job_id") or _read_study_id(method, scope)
    if method.id.endswith(".create") and isinstance(made, str):
        return f"{path}/{made[:_MAX_NAME_LENGTH]}"
    return path


def _read_study_id(method: ApiMethod, scope: Scope) -> str | None:
    """Return the id of a study that is to be created, which is in the query."""
    if method.id != "projects.locations.studies.create":
        return None
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
    return query.get("studyId") or query.get("study_id")


def status_from_response(http_status: int, body: bytes | memoryview, headers: Headers = ()) -> CallStatus:
    """Read the status from a response in the format of any protocol."""
    if http_status < 400:
        return OK_STATUS
    for name, value in headers:
        if name == GRPC_STATUS:
            return CallStatus(int(value), bytes(body).decode(errors="replace"))
    try:
        error = orjson.loads(body)["error"]
        if isinstance(error, str):
            return CallStatus(_CODE_BY_HTTP_STATUS.get(http_status, _UNKNOWN_CODE), error)
        return CallStatus(RPC_CODES[error["status"]], str(error["message"]))
    except (ValueError, KeyError, TypeError):  # not in our form
        return CallStatus(_UNKNOWN_CODE, f"HTTP status {http_status}")


def _read_outcome(method: ApiMethod, request: Request, response: Response) -> tuple[CallStatus, str]:
    """Return the status of a call, and the name of the operation or job that continues it."""
    status = status_from_response(response.status_code, response.body)
    if status.code or not is_change(method):
        return status, ""
    answer = orjson.loads(response.body or b"{}")
    if method.id == "projects.jobs.create":
        return OK_STATUS, f"projects/{request.path_params['project']}/jobs/{answer['jobId']}"
    name = answer.get("name", "")
    return OK_STATUS, name if "/operations/" in name and not answer.get("done") else ""
