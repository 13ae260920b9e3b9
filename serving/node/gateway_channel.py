"""The node's side of a gateway channel, and its server; the wire format is `serving.transport.framing`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import Any

from serving.errors import Unavailable
from serving.http_headers import Headers
from serving.node.predict import NodePredictor
from serving.node.request import NO_SLOT, NodeRequest
from serving.protocols import DEFAULT_METADATA, decode_metadata
from serving.protocols.errors import render_error
from serving.transport.framing import (
    CANCEL_FRAME,
    NEVER_BATCH,
    PING_FRAME,
    PREDICT_FRAME,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    WANTS_TIMING,
    Body,
    FrameError,
    FrameProtocol,
    encode_header_lines,
)


class _ChannelRequest(NodeRequest):
    """A request that came through a channel."""

    __slots__ = ("_channel", "_number")

    def __init__(
        self, channel: GatewayChannel, number: int, slot: int, *, never_batch: bool, wants_timing: bool
    ) -> None:
        super().__init__(slot, never_batch=never_batch, wants_timing=wants_timing)
        self._channel = channel
        self._number = number

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self._channel.send_response(self._number, status, body, headers)


class GatewayChannel(FrameProtocol):
    """A connection of the gateway. A damaged frame ends it, and nothing else."""

    def __init__(self, server: GatewayChannelServer) -> None:
        super().__init__(REQUEST_HEADER, server.max_body_bytes)
        self._server = server
        self._received_frames: list[tuple[tuple[Any, ...], bytes, Body]] = []
        self._in_flight: dict[int, NodeRequest] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.channels.add(self)

    def on_close(self) -> None:
        """Cancel what is in flight: the gateway is gone."""
        predictor = self._server.predictor()
        if predictor is not None:
            for request in self._in_flight.values():
                predictor.cancel_request(request)
        self._in_flight.clear()
        self._server.channels.discard(self)
        self._server.notify_change()

    def on_frame(self, head: tuple[Any, ...], front: bytes, body: Body) -> None:
        self._received_frames.append((head, front, body))

    def on_frames_read(self) -> None:
        """Compute requests that arrived together in as few calls as possible; a single one is not queued."""
        frames, self._received_frames = self._received_frames, []
        predictor = self._server.predictor()
        idle_fast_path = len(frames) == 1
        for head, metadata, body in frames:
            kind, number = head[0], head[2]
            if kind == PREDICT_FRAME:
                self._start_prediction(predictor, head, metadata, body, idle_fast_path=idle_fast_path)
            elif kind == CANCEL_FRAME:
                request = self._in_flight.pop(number, None)
                if request is not None and predictor is not None:
                    predictor.cancel_request(request)
            elif kind == PING_FRAME:
                self.send_response(number, 200, b"", ())
            else:
                raise FrameError
        if predictor is not None:
            predictor.start_now()

    def send_response(self, number: int, status: int, body: bytes, headers: Headers) -> None:
        self._in_flight.pop(number, None)
        lines = encode_header_lines(headers)
        self.send(
            number, RESPONSE_HEADER.pack(number, status, len(lines), len(lines) + len(body)) + lines, body
        )
        if self._server.stopping:
            self._server.notify_change()

    def _start_prediction(
        self,
        predictor: NodePredictor | None,
        head: tuple[Any, ...],
        metadata: bytes,
        body: Body,
        *,
        idle_fast_path: bool,
    ) -> None:
        _, flags, number, slot, timeout, _, _ = head
        call = DEFAULT_METADATA
        if metadata:
            try:
                call = decode_metadata(metadata)
            except ValueError as problem:
                raise FrameError from problem
        if predictor is None:
            error = Unavailable("The model is being loaded.", retry_after=1)
            self.send_response(number, *render_error(error, call.dialect))
            return
        if slot >= self._server.slots:
            slot = NO_SLOT
        request = _ChannelRequest(
            self, number, slot, never_batch=bool(flags & NEVER_BATCH), wants_timing=bool(flags & WANTS_TIMING)
        )
        predictor.predict(request, body, timeout, idle_fast_path=idle_fast_path, call=call)
        if not request.is_finished:
            self._in_flight[number] = request


class GatewayChannelServer:
    """Serves channels on a listener until it is stopped: then no new connections are taken, requests in
    flight finish, and `serve` returns.

    `predictor` returns None while the model is being loaded; `slots` is the number of request marks,
    `drain_seconds` how long requests in flight may take once it stops.
    """

    def __init__(
        self,
        predictor: Callable[[], NodePredictor | None],
        *,
        slots: int,
        max_body_bytes: int,
        drain_seconds: float,
    ) -> None:
        self.predictor = predictor
        self.slots = slots
        self.max_body_bytes = max_body_bytes
        self.channels: set[GatewayChannel] = set()
        self.stopping = False
        self._drain_seconds = drain_seconds
        self._stop = asyncio.Event()
        self._stop_at_once = False
        self._state_changed = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop`, or SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        server = await loop.create_unix_server(lambda: GatewayChannel(self), sock=listener)
        try:
            await self._stop.wait()
            server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(1, int(self._drain_seconds))):
                    await self._wait_until(lambda: not any(channel.is_busy for channel in self.channels))
                    for channel in tuple(self.channels):
                        channel.close_when_sent()
                    await self._wait_until(lambda: not self.channels)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for channel in tuple(self.channels):
                channel.abort()

    def stop(self) -> None:
        """Begin to stop; a second call does not wait for requests in flight."""
        self._stop_at_once = self.stopping
        self.stopping = True
        self._stop.set()
        self.notify_change()

    def notify_change(self) -> None:
        """Have `serve` check again whether requests or channels are left."""
        self._state_changed.set()

    async def _wait_until(self, is_over: Callable[[], bool]) -> None:
        while not (is_over() or self._stop_at_once):
            self._state_changed.clear()
            await self._state_changed.wait()
