"""Puts the audit log around endpoints.

`watched` is outermost, so that it sees who is refused; `announced` is innermost, around the endpoint of a
change alone, when all checks have passed and nothing has been done.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import RPC_CODES, ServingError
from serving.gateway.access.caller import caller_of
from serving.gateway.api.requests import Endpoint, read_json
from serving.gateway.audit.entry import OK, REFUSED, Log, Status, status_of
from serving.gateway.audit.entry import Call as Recorded
from serving.gateway.audit.recorder import Audit
from serving.gateway.cause import CAUSE, Cause
from serving.gateway.identity import request_id
from serving.gateway.methods import Activity, Method
from serving.protocols import Call
from serving.protocols.errors import GRPC_STATUS
from serving.wire import Headers, Scope, find_header

_CALL = "pilotlight.audit_call"
_UNKNOWN = 2
# What a status of HTTP says where an answer says no more.
_CODES: Mapping[int, int] = {
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
_MOST_NAME = 256


def is_change(method: Method) -> bool:
    """Whether a method changes something: the activity log has it always."""
    return method.activity in {Activity.ADMIN_WRITE, Activity.DATA_WRITE}


def watched(audit: Audit, method: Method, endpoint: Endpoint) -> Endpoint:
    """The endpoint, with how each call of it ended in the log."""

    @functools.wraps(endpoint)
    async def call(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except ServingError as error:
            await _ended(audit, method, request, status_of(error))
            raise
        except Exception as error:
            await _ended(audit, method, request, Status(RPC_CODES["INTERNAL"], type(error).__name__))
            raise
        status, operation = _outcome(method, request, response)
        await _ended(audit, method, request, status, operation)
        return response

    return call


def announced(audit: Audit, method: Method, endpoint: Endpoint) -> Endpoint:
    """The endpoint of a change, which begins when the log has it on disk."""

    @functools.wraps(endpoint)
    async def call(request: Request) -> Response:
        body = await read_json(request) if request.method in {"POST", "PATCH"} else {}
        described = describe(audit, method, request.scope, body if isinstance(body, dict) else {})
        await audit.before(described)
        request.scope[_CALL] = described
        cause = Cause(call=described.id, request_id=described.request_id, principal=described.principal)
        token = CAUSE.set(cause)
        try:
            return await endpoint(request)
        finally:
            CAUSE.reset(token)

    return call if is_change(method) else endpoint


@dataclass(frozen=True, slots=True)
class Asked:
    """What a prediction has asked: a method, of a resource, and the permission that this takes.

    `call` is what its node is told of its body.
    """

    scope: Scope
    method: Method
    resource: str
    permission: str
    call: Call


def predicted(audit: Audit, asked: Asked, status: Status) -> None:
    """Record how a prediction ended, where it is to be: all that are refused, the others by setting."""
    if status.code in REFUSED:
        audit.denied(_prediction(audit, asked), status)
    elif audit.predictions:
        audit.accessed(_prediction(audit, asked), status)


def _prediction(audit: Audit, asked: Asked) -> Recorded:
    call = describe(audit, asked.method, asked.scope, {})
    return replace(call, resource=asked.resource, guarded=asked.resource, permission=asked.permission)


def describe(audit: Audit, method: Method, scope: Scope, body: Mapping[str, Any]) -> Recorded:
    """The call that a request is."""
    resource, params = _resource(method, scope, body), scope.get("path_params")
    return Recorded(
        id=audit.new_id(),
        log=Log.ACTIVITY if is_change(method) else Log.DATA_ACCESS,
        method=method.id,
        resource=resource,
        guarded=method.resource.format_map(params) if params else resource,
        permission=method.permission,
        principal=caller_of(scope).principal,
        request_id=request_id(scope),
        caller_ip=scope["client"][0] if scope.get("client") else "",
        user_agent=(find_header(scope, b"user-agent") or b"").decode("latin-1"),
        request=body,
    )


async def _ended(audit: Audit, method: Method, request: Request, status: Status, operation: str = "") -> None:
    begun: Recorded | None = request.scope.get(_CALL)
    if begun is not None:
        await audit.after(begun, status, operation)
    elif is_change(method) or status.code in REFUSED:
        audit.denied(describe(audit, method, request.scope, {}), status)
    elif audit.reads and "{project}" in method.resource:
        audit.accessed(describe(audit, method, request.scope, {}), status)


def _resource(method: Method, scope: Scope, body: Mapping[str, Any]) -> str:
    """What is called: what the path names, and below it what is to be created."""
    if method.is_foreign and scope.get("path_params"):
        return method.resource.format_map(scope["path_params"])
    path, _, _ = str(scope["path"]).removeprefix("/v1/").partition(":")
    made = body.get("name") or body.get("jobId") or body.get("job_id")
    if method.id.endswith(".create") and isinstance(made, str):
        return f"{path}/{made[:_MOST_NAME]}"
    return path


def answered(http_status: int, body: bytes | memoryview, headers: Headers = ()) -> Status:
    """The status of a call that was answered like this, in the form of any protocol."""
    if http_status < 400:
        return OK
    for name, value in headers:
        if name == GRPC_STATUS:
            return Status(int(value), bytes(body).decode(errors="replace"))
    try:
        error = orjson.loads(body)["error"]
        if isinstance(error, str):
            return Status(_CODES.get(http_status, _UNKNOWN), error)
        return Status(RPC_CODES[error["status"]], str(error["message"]))
    except (ValueError, KeyError, TypeError):  # not in our form
        return Status(_UNKNOWN, f"HTTP status {http_status}")


def _outcome(method: Method, request: Request, response: Response) -> tuple[Status, str]:
    """How a call was answered, and the operation or the job that goes on after it."""
    status = answered(response.status_code, response.body)
    if status.code or not is_change(method):
        return status, ""
    answer = orjson.loads(response.body or b"{}")
    if method.id == "projects.jobs.create":
        return OK, f"projects/{request.path_params['project']}/jobs/{answer['jobId']}"
    name = answer.get("name", "")
    return OK, name if "/operations/" in name and not answer.get("done") else ""
