"""The gRPC server: its methods, limits, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Set
from pathlib import Path
from typing import Any, Protocol

import grpc
from grpc import aio

from serving.config import ServerSettings
from serving.errors import Internal, ServingError, Unavailable, Unimplemented
from serving.protocols import Dialect, Reply, RequestMetadata
from serving.protocols.errors import render_error
from serving.transport.cross_origin import UNENFORCED_POLICY, CrossOriginPolicy
from serving.transport.grpc_server import compression, health
from serving.transport.grpc_server.call import GrpcCall, finish_call
from serving.transport.grpc_server.compression import Decompressor
from serving.transport.grpc_server.health import HealthService
from serving.transport.grpc_server.incoming_messages import IncomingMessages
from serving.transport.grpc_server.reflection import ReflectionService
from serving.transport.grpc_server.rpc_methods import RPC_METHODS, SERVICES, RpcMethod
from serving.transport.grpc_server.unsent_replies import UnsentReplies, shut_down_connections
from serving.transport.request import PredictionHandler
from serving.transport.tls import CertificateFiles

logger = logging.getLogger(__name__)

# Calls that one connection may have at a time; more wait in the client.
_MAX_STREAMS = 1000
# Messages of up to so many times the limit are read, to be rejected with an error that names it; gRPC rejects
# longer ones as soon as it knows their length.
_READ_TO_REFUSE = 2
# Seconds between a client's pings; connections of clients that ping more often are closed.
_MIN_PING_SECONDS = 10
_MS_PER_SECOND = 1000
# Part of the name of the task in which gRPC takes calls; gRPC does not report its end.
_ACCEPT_TASK = "server_main_loop"
# The logger of gRPC's core; its lines when metadata is not UTF-8, and when a client disconnects in a reply.
_CORE_LOGGER = "grpc._cython.cygrpc"
_CLIENT_LOG_PREFIXES = ("Invalid encoding on", "ExecuteBatchError raised")

RpcHandler = Callable[[Any, Any], Coroutine[Any, Any, bytes]]
_PATHS_BY_VERB = {(rpc.dialect, rpc.verb): rpc.path for rpc in RPC_METHODS.values()}


class ModelServiceHandler(Protocol):
    """Answers calls about models and the server."""

    async def __call__(self, call: GrpcCall) -> Reply: ...


class GrpcServer:
    """A gRPC server, made inside the event loop that it runs on.

    `most_connections` may be open at a time; `active_calls` is the number of calls being answered,
    `rejections` how many connections and calls were rejected, by reason. Until `mark_ready`, its health is
    NOT_SERVING.
    """

    def __init__(
        self,
        predictions: PredictionHandler,
        metadata_handler: ModelServiceHandler,
        settings: ServerSettings,
        *,
        most_connections: int,
        certificate: CertificateFiles | None = None,
        cross_origin: CrossOriginPolicy = UNENFORCED_POLICY,
    ) -> None:
        self._predictions, self._metadata_handler = predictions, metadata_handler
        self.active_calls = 0
        self._stopping = False
        self._accepting = True
        self._certificate = certificate
        self.rejections: Counter[str] = Counter()
        self._port = 0
        clock = asyncio.get_running_loop().time
        self._incoming = IncomingMessages(settings, clock)
        self._unsent = UnsentReplies(settings, self._close_connections, clock, self.rejections)
        self._decompressor = Decompressor(settings.max_body_bytes)
        self._health = HealthService(SERVICES, self._read_message)
        self._reflection = ReflectionService((*SERVICES, health.HEALTH_SERVICE), self._read_message)
        logging.getLogger(_CORE_LOGGER).addFilter(_is_server_log)
        self._server = aio.server(options=_server_options(settings, most_connections))
        self._server.add_generic_rpc_handlers(
            (
                _CrossOriginHandler(cross_origin, self.rejections),  # the first to know a method answers it
                self._health.build_handler(),
                *self._reflection.build_handlers(),
                _MethodHandlers(self._build_handler),
            )
        )

    def bind(self, host: str, port: int) -> str:
        """Bind to a port, 0 for any free one; returns the address. Raises Unavailable."""
        host = f"[{host}]" if ":" in host else host
        address = f"{host}:{port}"
        try:
            if self._certificate is None:
                taken = self._server.add_insecure_port(address)
            else:
                taken = self._server.add_secure_port(address, _load_credentials(self._certificate))
        except RuntimeError as error:
            raise Unavailable(f"Cannot listen on {address} for gRPC. Choose another --grpc-port.") from error
        self._port = taken
        return f"{host}:{taken}"

    async def start(self, on_death: Callable[[str], None] = logger.critical) -> None:
        """Take calls. `on_death` is called with the reason if gRPC stops taking them unasked."""
        # Never given back: else gRPC ends its thread when the last server or channel is freed, and waits for
        # that without a bound in whatever thread frees it; now and then the thread does not end.
        aio.init_grpc_aio()
        before = asyncio.all_tasks()
        await self._server.start()
        for task in asyncio.all_tasks() - before:
            if _ACCEPT_TASK in repr(task):
                task.add_done_callback(functools.partial(self._on_accept_loop_end, on_death))

    def _on_accept_loop_end(self, on_death: Callable[[str], None], task: asyncio.Task[object]) -> None:
        self._accepting = False
        if not self._stopping:
            error = None if task.cancelled() else task.exception()
            on_death(f"gRPC takes no more calls: {error or 'its loop was cancelled or returned'}")

    def mark_ready(self) -> None:
        self._health.set_serving()

    async def stop(self, grace: float) -> None:
        """Take no more calls; returns when all are answered, after `grace` seconds at the latest."""
        self._stopping = True
        self._health.set_stopped()
        self._reflection.end_streams()
        if self._accepting:  # else it would never return
            await self._server.stop(grace)
        self._decompressor.close()

    def _build_handler(self, rpc: RpcMethod) -> RpcHandler:
        async def handle_call(_: Any, context: Any) -> bytes:
            self.active_calls += 1
            try:
                reply = await self._answer_call(rpc, context)
            except ServingError as error:
                reply = render_error(error, rpc.dialect)
            except Exception:
                logger.exception("a call could not be answered")
                reply = render_error(Internal("Internal error encountered."), rpc.dialect)
            finally:
                self.active_calls -= 1
            return await finish_call(context, reply)

        return handle_call

    async def _answer_call(self, rpc: RpcMethod, context: Any) -> Reply:
        """Answer a call; nothing of it is left in memory afterwards. Raises ServingError."""
        call = GrpcCall(rpc, context, await self._read_message(context) or b"")
        reply = await (self._answer_prediction(call) if rpc.verb else self._answer_metadata(call))
        if (task := asyncio.current_task()) is not None:
            self._unsent.add(task, call.peer, len(reply.body))
        return reply

    async def _read_message(self, context: Any) -> bytes | None:
        """Read the next message of a call, None if there is none. Raises ServingError."""
        reading = _MessageRead()
        self._incoming.add(reading)
        try:
            message = await context.read()
            return await self._decompressor.decompress(message) if isinstance(message, bytes) else None
        except asyncio.CancelledError:
            if reading.error is not None:
                raise reading.error from None
            raise
        finally:
            self._incoming.remove(reading)

    async def _answer_prediction(self, call: GrpcCall) -> Reply:
        try:
            self._predictions.on_request_head(call)
            if not call.response_complete:
                self._predictions.on_request_complete(call)
            return await call.wait_for_reply()
        except asyncio.CancelledError:
            call.handle_disconnect()
            raise

    def _close_connections(self, clients: Set[str]) -> None:
        # Not in the middle of an answer: gRPC may end the calls of the connection at once.
        asyncio.get_running_loop().call_soon(shut_down_connections, self._port, clients)

    async def _answer_metadata(self, call: GrpcCall) -> Reply:
        if call.rpc.name == "HandleReloadConfigRequest":
            raise Unimplemented(
                "Models are not reloaded from a list here: make versions of them with the API of models and "
                "versions; see docs/api.md."
            )
        return await self._metadata_handler(call)


class _MessageRead:
    """A message that is being read and decompressed, in the task that creates this."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.error: ServingError | None = None

    def interrupt(self, error: ServingError) -> None:
        if self._task is not None:
            self.error = error
            self._task.cancel()


def _is_server_log(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC's own is about more than one client: each could fill the log with tracebacks."""
    return not str(record.msg).startswith(_CLIENT_LOG_PREFIXES)


class _CrossOriginHandler(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """Handles every method, of any service, for calls of web pages that are not allowed to make them.

    Pages reach gRPC only by HTTP/2, so over TLS: the certificate would not fit another host's name.
    """

    def __init__(self, policy: CrossOriginPolicy, refused: Counter[str]) -> None:
        self._policy = policy
        self._refused = refused

    def service(self, handler_call_details: Any) -> Any:
        """Return a handler that rejects the call; None if it is allowed."""
        metadata = dict(handler_call_details.invocation_metadata or ())
        origin, site = (metadata.get(name) for name in ("origin", "sec-fetch-site"))
        error = self._policy.find_violation(None, _encode_header(origin), _encode_header(site))
        if error is None:
            return None
        self._refused["cross_origin"] += 1

        async def refuse_call(_: Any, context: Any) -> None:
            await finish_call(context, render_error(error, Dialect.INFERENCE_GRPC))

        return grpc.stream_unary_rpc_method_handler(refuse_call)


def _encode_header(value: str | None) -> bytes | None:
    return None if value is None else value.encode("latin-1", "replace")


class _MethodHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """The handlers of methods by path.

    Requests are read like streams, of which the first message is taken: so a call can be rejected while its
    message is arriving, and one that never sends any does not wait for ever.
    """

    def __init__(self, serve: Callable[[RpcMethod], RpcHandler]) -> None:
        self._handlers = {
            path: grpc.stream_unary_rpc_method_handler(serve(rpc)) for path, rpc in RPC_METHODS.items()
        }
        self._unknown = grpc.stream_unary_rpc_method_handler(_refuse_unknown_method)

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method, self._unknown)


async def _refuse_unknown_method(_: Any, context: Any) -> bytes:
    error = Unimplemented(f"There is no such method here. The services are {', '.join(SERVICES)}.")
    return await finish_call(context, render_error(error, Dialect.INFERENCE_GRPC))


def _server_options(settings: ServerSettings, most_connections: int) -> list[tuple[str, int]]:
    """Options of gRPC; times are in milliseconds."""
    return [
        ("grpc.so_reuseport", 0),  # binding to a port that is in use fails
        ("grpc.max_receive_message_length", _READ_TO_REFUSE * settings.max_body_bytes),
        ("grpc.max_metadata_size", settings.max_header_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.server_handshake_timeout_ms", int(settings.header_timeout * _MS_PER_SECOND)),
        ("grpc.max_connection_idle_ms", int(settings.keep_alive_timeout * _MS_PER_SECOND)),
        ("grpc.keepalive_time_ms", int(settings.keep_alive_timeout * _MS_PER_SECOND)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_SECONDS * _MS_PER_SECOND),
        *compression.COMPRESSION_OPTIONS,
    ]


def _load_credentials(certificate: CertificateFiles) -> Any:
    files = (certificate.key, certificate.chain)
    return grpc.ssl_server_credentials([tuple(Path(file).read_bytes() for file in files)])


async def run_warmup_server(
    server: GrpcServer, samples: Iterable[tuple[RequestMetadata, bytes]], seconds: float
) -> None:
    """Start a server for this alone, call it for at most so many seconds, and stop it."""
    address = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), aio.insecure_channel(address) as channel:
                for call, body in samples:
                    with contextlib.suppress(aio.AioRpcError):  # it is only a warm-up
                        await channel.unary_unary(_PATHS_BY_VERB[call.dialect, call.verb])(body)
    finally:
        await server.stop(0)
