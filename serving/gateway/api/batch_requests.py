"""`POST /batch`: several requests in one, each authorized, counted and answered like a request of its own."""

from __future__ import annotations

import asyncio
import logging
import secrets

from starlette.requests import Request
from starlette.responses import Response

from serving.errors import DeadlineExceeded, Internal, ResourceExhausted, ServingError
from serving.gateway.api.in_process import ApiCall, InProcessApi
from serving.gateway.api.request_io import read_body
from serving.http_headers import CONTENT_TYPE, JSON_CONTENT_TYPE
from serving.protocols import Reply
from serving.protocols.errors import render_error
from serving.protocols.multipart_batch import (
    BatchPart,
    parse_batch,
    parse_boundary,
    render_answer,
    render_batch,
)
from serving.protocols.paths import detect_dialect

logger = logging.getLogger(__name__)

# Headers of the batch that apply to parts without them.
_INHERITED_HEADERS = (b"authorization", b"user-agent")


class BatchRequestsApi:
    """Answers batches.

    A batch takes at most `seconds`, its responses `max_answer_bytes`, and those of all batches at the same
    time `unsent_bytes`: the parts that are left then are not executed, and their responses say so.
    """

    def __init__(
        self,
        api: InProcessApi,
        *,
        seconds: float,
        max_answer_bytes: int,
        unsent_bytes: int,
    ) -> None:
        self._api = api
        self._seconds = seconds
        self._max_answer_bytes = max_answer_bytes
        self._unsent_bytes = unsent_bytes
        self._unsent_bytes_held = 0  # bytes of responses, over all batches

    async def answer_batch(self, request: Request) -> Response:
        """`POST /batch`: one part after the other, in their order, until the client disconnects."""
        boundary = parse_boundary(request.headers.get("content-type", ""))
        parts = parse_batch(await read_body(request), boundary)
        deadline, size, answers = asyncio.get_running_loop().time() + self._seconds, 0, []
        try:
            for part in parts:
                if await request.is_disconnected():
                    break  # nobody reads the answers
                error = self._find_limit_error(size, deadline)
                reply = await self._answer_part(request, part) if error is None else _error_reply(part, error)
                answers.append(render_answer(part, reply.status, reply.headers, reply.body))
                size += len(answers[-1])
                self._unsent_bytes_held += len(answers[-1])
            separator = b"batch_" + secrets.token_hex(16).encode()
            content_type = f"multipart/mixed; boundary={separator.decode()}"
            return Response(render_batch(answers, separator), headers={"content-type": content_type})
        finally:
            self._unsent_bytes_held -= size

    def _find_limit_error(self, size: int, deadline: float) -> ServingError | None:
        """Return why the next part of a batch is not executed, if its responses have `size` bytes so far."""
        if asyncio.get_running_loop().time() >= deadline:
            return DeadlineExceeded(f"The batch has taken {self._seconds:g} s already.")
        if size > self._max_answer_bytes:
            most = self._max_answer_bytes
            return ResourceExhausted(
                f"The answers to the parts before have over {most} bytes (setting max_answer_bytes)."
            )
        if self._unsent_bytes_held > self._unsent_bytes:
            return ResourceExhausted(
                f"The answers of batches have over {self._unsent_bytes} bytes (setting unsent_bytes).",
                retry_after=1,
            )
        return None

    async def _answer_part(self, request: Request, part: BatchPart) -> Reply:
        own = {name for name, _ in part.headers}
        inherited = [
            (name, value)
            for name, value in request.scope["headers"]
            if name in _INHERITED_HEADERS and name not in own
        ]
        try:
            return await self._api.call(
                request.scope,
                request.receive,
                ApiCall(part.method, part.target, [*part.headers, *inherited], part.body),
            )
        except Exception:
            logger.exception("part %d of a batch could not be answered", part.number)
            return _error_reply(part, Internal("Internal error encountered."))


def _error_reply(part: BatchPart, error: ServingError) -> Reply:
    status, body, headers = render_error(error, detect_dialect(part.target.partition(b"?")[0].decode()))
    return Reply(
        status, body, headers if headers and headers[0][0] == CONTENT_TYPE else (JSON_CONTENT_TYPE, *headers)
    )
