"""Every error that clients see, and its form as JSON.

    ServingError
    ├── InvalidArgument          400   ├── FailedPrecondition   400
    │   ├── BodyTooLarge         413   ├── Aborted              409
    │   ├── HeadTooLarge         431
    │   ├── NotAcceptable        406
    │   └── UnsupportedEncoding  415
    ├── NotFound                 404   ├── AlreadyExists        409
    ├── MethodNotAllowed         405   ├── ResourceExhausted    429
    │                                  │   ├── LimitReached     429
    │                                  │   └── QueueFull        429
    ├── Cancelled                499   ├── Internal             500
    ├── Unimplemented            501   ├── Unavailable          503
    ├── DeadlineExceeded         504   │   └── ResourceShortage 503
    ├── Unauthenticated          401   ├── PermissionDenied     403
    └── ModelError  (the contract's categories: `CATEGORY: DETAIL (Error code: N)`)
        ├── LoadFailed       0   400   ├── InvalidInputs    1   400
        ├── ModelFailed      2   500   ├── InvalidOutputs   3   500
        └── InvalidUserCode   4   400

An error carries its google.rpc code by name; only `http_status` knows HTTP.
Source: sections 2.3 and 3.3 of the AI Platform contract, google/rpc/code.proto.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

RPC_CODES: Mapping[str, int] = {
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}

_HTTP_STATUS = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}


# Characters of a message, and of the detail of a ModelError in it.
_MAX_MESSAGE, _MAX_DETAIL = 10_000, 9_000


def sanitize_text(text: str, longest: int = _MAX_MESSAGE) -> str:
    """A text that can be sent and stored: valid UTF-8, cut at `longest`. User code may raise any text."""
    if len(text) > longest:
        text = f"{text[:longest]} ... ({len(text) - longest} more characters)"
    return text if text.isascii() else text.encode(errors="replace").decode()


def describe_exception(error: BaseException) -> str:
    """Class and text of an exception of user code, whose `__str__` may itself raise."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return kind
    return f"{kind}: {text}" if text else kind


class ServingError(Exception):
    """An error that a client sees.

    `field` names the invalid field of the request (it becomes a `google.rpc.BadRequest` detail);
    `retry_after` is in seconds.
    """

    status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = sanitize_text(message)
        self.field = field
        self.retry_after = retry_after


class InvalidArgument(ServingError):
    """The request is invalid whatever the state of the server."""

    status = "INVALID_ARGUMENT"


class BodyTooLarge(InvalidArgument):
    """The body exceeds max_body_bytes."""


class HeadTooLarge(InvalidArgument):
    """The request line and the headers exceed max_header_bytes."""


class NotAcceptable(InvalidArgument):
    """The client accepts no form that the response can have."""


class UnsupportedEncoding(InvalidArgument):
    """The body's Content-Encoding is not one of the `known` ones."""

    def __init__(self, message: str, *, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = known


class NotFound(ServingError):
    """No such resource, method or path."""

    status = "NOT_FOUND"


class MethodNotAllowed(ServingError):
    """The path has no such HTTP method; `allow` lists those it has."""

    status = "UNIMPLEMENTED"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow


class AlreadyExists(ServingError):
    """The id is taken."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(ServingError):
    """The request is valid, but the state of the resource does not allow it."""

    status = "FAILED_PRECONDITION"


class Aborted(ServingError):
    """The resource was changed concurrently (etag)."""

    status = "ABORTED"


class PermissionDenied(ServingError):
    """The caller, or the server on its behalf, may not do this."""

    status = "PERMISSION_DENIED"


class Unauthenticated(ServingError):
    """The token is missing or invalid."""

    status = "UNAUTHENTICATED"


class ResourceExhausted(ServingError):
    """A bounded queue is full, or a quota is used up."""

    status = "RESOURCE_EXHAUSTED"


class LimitReached(ResourceExhausted):
    """The limit of the setting `setting` is reached."""

    def __init__(self, message: str, *, setting: str, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.setting = setting


class QueueFull(ResourceExhausted):
    """This server holds as many requests as it may: nothing was done for this one."""


class Cancelled(ServingError):
    """The operation was cancelled, or the client disconnected."""

    status = "CANCELLED"


class DeadlineExceeded(ServingError):
    """The request's timeout has passed."""

    status = "DEADLINE_EXCEEDED"


class ClientTooSlow(DeadlineExceeded):
    """The client took too long to send its request."""


class Unavailable(ServingError):
    """A temporary condition; the same request may succeed later."""

    status = "UNAVAILABLE"


class Unimplemented(ServingError):
    """A part of the API that this server does not have."""

    status = "UNIMPLEMENTED"


class Internal(ServingError):
    """A fault of the server or of a node."""

    status = "INTERNAL"


class ModelError(ServingError):
    """An error of the model, its code or its inputs, in the contract's message layout."""

    category: ClassVar[str]
    number: ClassVar[int]

    def __init__(self, detail: str, *, field: str = "", retry_after: float | None = None) -> None:
        self.detail = sanitize_text(detail, _MAX_DETAIL)
        super().__init__(
            f"{self.category}: {self.detail} (Error code: {self.number})",
            field=field,
            retry_after=retry_after,
        )


class LoadFailed(ModelError):
    """The model or its packages cannot be loaded; creating the version fails."""

    status = "INVALID_ARGUMENT"
    category = "Failed to load model"
    number = 0


class InvalidInputs(ModelError):
    """The instances do not fit the model."""

    status = "INVALID_ARGUMENT"
    category = "Invalid inputs"
    number = 1


class ModelFailed(ModelError):
    """The framework or the user's predict raised."""

    category = "Failed to run the provided model"
    number = 2


class InvalidOutputs(ModelError):
    """The model's result cannot be sent."""

    category = "There was a problem processing the outputs"
    number = 3


class InvalidUserCode(ModelError):
    """The custom class cannot be found or lacks a method."""

    status = "INVALID_ARGUMENT"
    category = "There was a problem processing the user code"
    number = 4


def http_status(error: ServingError) -> int:
    return next(
        (status for kind, status in _HTTP_STATUS_OF_CLASS if isinstance(error, kind)),
        _HTTP_STATUS[error.status],
    )


# For classes whose google.rpc code has several HTTP statuses.
_HTTP_STATUS_OF_CLASS: Sequence[tuple[type[ServingError], int]] = (
    (BodyTooLarge, 413),
    (HeadTooLarge, 431),
    (NotAcceptable, 406),
    (UnsupportedEncoding, 415),
    (ClientTooSlow, 408),
    (MethodNotAllowed, 405),
)


ERRORS_BY_STATUS: Mapping[str, type[ServingError]] = {
    kind.status: kind
    for kind in (
        Aborted,
        AlreadyExists,
        Cancelled,
        DeadlineExceeded,
        FailedPrecondition,
        Internal,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unimplemented,
    )
}


def error_to_json(error: ServingError) -> dict[str, Any]:
    """The body of an HTTP error response, in Google's structured form."""
    body: dict[str, Any] = {"code": http_status(error), "message": error.message, "status": error.status}
    if error.field:
        violation = {
            "field": error.field,
            "description": error.message.removeprefix(f"Field: {error.field} Error: "),
        }
        body["details"] = [
            {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
        ]
    return {"error": body}


def to_rpc_status(error: ServingError) -> dict[str, Any]:
    """The error as the `google.rpc.Status` of a failed operation."""
    return {"code": RPC_CODES[error.status], "message": error.message}


def method_not_allowed(method: str, path: str, allow: str) -> MethodNotAllowed:
    return MethodNotAllowed(f"{method} is not allowed at {path}; use {allow}.", allow=allow)


def field_error(kind: type[ServingError], field: str, description: str) -> ServingError:
    """An error about one field of a request, worded as the API words it."""
    return kind(f"Field: {field} Error: {description}", field=field)


_SHORTAGE_TEXTS: Mapping[int, str] = {
    errno.EMFILE: "file descriptors (limit nofile of its process)",
    errno.ENFILE: "file descriptors (of the whole machine)",
    errno.EAGAIN: "processes or threads (limit nproc, or pids of its container)",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory for sockets",
}
_RETRY_AFTER = 5.0


class ResourceShortage(Unavailable):
    """The server is temporarily short of descriptors, threads or memory."""


def find_shortage(error: BaseException) -> ResourceShortage | None:
    """The error for clients if the server is temporarily short of a resource; None for other errors."""
    if isinstance(error, MemoryError):
        missing = _SHORTAGE_TEXTS[errno.ENOMEM]
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        missing = _SHORTAGE_TEXTS[errno.EAGAIN]
    elif isinstance(error, OSError) and error.errno in _SHORTAGE_TEXTS:
        missing = _SHORTAGE_TEXTS[error.errno or 0]
    else:
        return None
    return ResourceShortage(
        f"The server is short of {missing}: {str(error) or type(error).__name__}. Try again.",
        retry_after=_RETRY_AFTER,
    )
