"""What happens on the server, as it happens: `GET /events`, a stream of server-sent events.

Not part of the AI Platform API.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from serving.errors import InvalidArgument, Unauthenticated, field_error
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.request_io import wait_for_disconnect
from serving.gateway.observability.event_stream import (
    EventReader,
    EventStream,
    ReadingEndedError,
    ServerEvent,
)
from serving.gateway.request_context import ANONYMOUS_CALLER, get_caller
from serving.http_headers import Receive, Scope, Send, find_header

SendChunk = Callable[[bytes], Awaitable[None]]

_MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final[Mapping[str, str]] = {
    "content-type": _MEDIA_TYPE,
    "cache-control": "no-store",
    # Proxies like nginx would keep events until they have many.
    "x-accel-buffering": "no",
}
_HEARTBEAT_SECONDS: Final = 15.0
# Milliseconds after which a browser comes back whose connection is lost.
_RETRY: Final = 3000
_LONGEST_EVENT_ID: Final = 20
_PARENT: Final = re.compile(r"projects/[^/]+(/models/[^/]+(/versions/[^/]+)?|/(jobs|operations)/[^/]+)?")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What of the stream is wanted: events after the one with the id `after` (None: those to come) of a
    resource and of those below it, "" for all.
    """

    parent: str = ""
    after: int | None = None

    @classmethod
    def from_request(cls, request: Request) -> EventFilter:
        """Raises InvalidArgument. A browser that comes back sends the header, with the address of before."""
        query = request.query_params
        parent = query.get("parent", "")
        if parent and not _PARENT.fullmatch(parent):
            what = "no project, model, version, job or operation"
            raise field_error(InvalidArgument, "parent", f"{parent[:200]!r} is {what}: projects/PROJECT/...")
        text = request.headers.get("last-event-id") or query.get("lastEventId", "")
        if text and not (text.isdecimal() and text.isascii() and len(text) <= _LONGEST_EVENT_ID):
            raise field_error(InvalidArgument, "lastEventId", f"{text[:50]!r} is no id of an event.")
        return cls(parent, int(text) if text else None)


class EventsApi:
    """`access` is None while access control is off.

    After `heartbeat_seconds` without an event a line says that the connection is good.
    """

    def __init__(
        self, stream: EventStream, access: AccessControl | None, heartbeat_seconds: float = _HEARTBEAT_SECONDS
    ) -> None:
        self._stream = stream
        self._access = access
        self._heartbeat_seconds = heartbeat_seconds

    async def follow(self, request: Request) -> Response:
        """`GET /events`: the events that the caller may see, until one of both ends it."""
        if get_caller(request.scope) == ANONYMOUS_CALLER:
            raise Unauthenticated("The events take a token: `Authorization: Bearer TOKEN`.")
        wanted = EventFilter.from_request(request)
        if request.method == "HEAD":
            self._stream.check_room()
            return Response(headers=_HEADERS)
        # At once: many may come in one turn of the event loop.
        reader = self._stream.open_reader(wanted.after)
        credentials = find_header(request.scope, b"authorization") or b""
        return EventStreamResponse(lambda send: self._send_events(send, reader, wanted.parent, credentials))

    async def _send_events(
        self, send: SendChunk, reader: EventReader, parent: str, credentials: bytes
    ) -> None:
        clock = asyncio.get_running_loop().time
        with reader:
            await send(_encode_start(reader))
            last_sent = clock()
            while True:
                try:
                    events = await reader.read(max(0.0, last_sent + self._heartbeat_seconds - clock()))
                    shown = self._select_visible(events, parent, credentials)
                except ReadingEndedError as end:
                    await send(_encode_end(end.reason, str(end)))
                    return
                except Unauthenticated as error:
                    await send(_encode_end("token", error.message))
                    return
                if shown or clock() - last_sent >= self._heartbeat_seconds:
                    await send(b"".join(map(_encode_event, shown)) or _encode_heartbeat(reader))
                    last_sent = clock()

    def _select_visible(
        self, events: Sequence[ServerEvent], parent: str, credentials: bytes
    ) -> Sequence[ServerEvent]:
        """Those that are wanted and may be seen now. Raises Unauthenticated once the token is no good."""
        wanted, access = [one for one in events if one.concerns(parent)], self._access
        if access is None:
            return wanted
        caller = access.resolve_caller(credentials)
        return [
            one for one in wanted if access.filter_permissions(caller, one.resource, [one.kind.permission])
        ]


class EventStreamResponse(Response):
    """A body that `produce` sends, in chunks, until it returns or the client is gone."""

    def __init__(self, produce: Callable[[SendChunk], Awaitable[None]]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_chunk(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        producing = asyncio.ensure_future(self._produce(send_chunk))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((producing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            producing.cancel()
            leaving.cancel()
            await asyncio.gather(producing, leaving, return_exceptions=True)
        if not producing.cancelled():
            producing.result()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _encode_start(reader: EventReader) -> bytes:
    """How soon to come back, and from which id on. Without data no event is dispatched."""
    start = b"retry: %d\nid: %d\n\n" % (_RETRY, reader.position)
    if not reader.has_gap:
        return start
    return start + _encode_notice("gap", {"message": "Events are missing here: read anew what you keep."})


def _encode_event(event: ServerEvent) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.id, event.kind.encode(), event.data)


def _encode_heartbeat(reader: EventReader) -> bytes:
    return b": nothing happened\nid: %d\n\n" % reader.position


def _encode_end(reason: str, message: str) -> bytes:
    return _encode_notice("end", {"reason": reason, "message": message})


def _encode_notice(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(fields))
