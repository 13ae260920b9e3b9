"""The data plane: parse the route, lease a node, send it the body unparsed, return its reply.

On the fast path a request has no task, future or timer of its own: the body is sent in the callback in which
it is complete, and the reply is returned in the callback in which it arrives. Requests that must wait for a
node, or whose node is lost, go on in `serving.gateway.proxy.retry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from autoscaler.activator import Activator, Lease
from autoscaler.pools import Node, NodeState
from serving.config import ServerSettings
from serving.errors import (
    FailedPrecondition,
    Internal,
    NotFound,
    QueueFull,
    ServingError,
    http_status,
)
from serving.gateway.access.access_control import AccessControl
from serving.gateway.proxy.node_client import NodeClient, NodeReply, ReceiveBudget, ReplyCallback
from serving.gateway.proxy.observation import (
    ObservedPrediction,
    PredictionObserver,
    RequestTiming,
    RequestTrace,
)
from serving.gateway.proxy.peers.hop import Hop
from serving.gateway.proxy.peers.peer_client import PeerClient
from serving.gateway.proxy.peers.peer_protocol import HopHead, encode_head
from serving.gateway.proxy.rate_limits import PredictionLimits
from serving.gateway.proxy.retry import RetryingSender
from serving.gateway.proxy.route import PredictionRoute, parse_route
from serving.gateway.proxy.routing_table import RouteTarget, RoutingTable
from serving.gateway.proxy.server_timing import with_server_timing, without_server_timing
from serving.gateway.proxy.timeouts import (
    Deadline,
    TimeoutBucket,
    TimeoutQueue,
    client_gone_error,
    deadline_exceeded_error,
    drop_tracebacks,
)
from serving.gateway.request_context import choose_request_id, get_caller, set_request_id
from serving.http_headers import (
    CONTENT_ENCODING,
    REQUEST_ID,
    TIMEOUT,
    TRACEPARENT,
    WANTS_TIMING_HEADER,
    Scope,
    body_too_large,
    parse_timeout,
)
from serving.protocols import DEFAULT_METADATA, Dialect
from serving.protocols.paths import parse_prediction_path, wrong_method_error
from serving.transport.content_encoding import check_encoding
from serving.transport.request import PREDICT_SUFFIX, PredictionRequest

logger = logging.getLogger(__name__)


# Headers of a request that are not passed on to another server: it gets the first two in another form, the
# body unpacked, and no tokens and sessions.
_KEPT_HEADERS = frozenset(
    {
        REQUEST_ID, TIMEOUT, CONTENT_ENCODING, b"authorization", b"proxy-authorization", b"cookie",
        b"content-length",
    }
)  # fmt: skip
# A look at the database may take so long; what is known then decides.
_REFRESH_SECONDS = 1.0
_GRPC_DIALECTS = frozenset({Dialect.TENSORFLOW_GRPC, Dialect.INFERENCE_GRPC})


class PeerRouter(Protocol):
    """Knows which requests other servers answer; see `serving.gateway.control.placement.server_placement`."""

    def find_peer(self, key: str) -> PeerClient | None:
        """A connected server that is to answer for a version; None if this one answers."""

    def is_full(self, key: str) -> bool:
        """Whether this server would have to turn down a request for a version: another one may answer it."""

    def on_hop_ended(self, outcome: str, seconds: float) -> None:
        """`seconds` are those of the hop alone, of one that was answered."""


class PredictionProxy:
    """The HTTP server's handler of prediction requests: proxies each to a node of its version.

    `default_project` is the project of models that a client names without one. `peers` is set where several
    servers share a database; `refresh_state` then takes in what others have committed, or raises Unavailable.
    """

    peers: PeerRouter | None = None

    def __init__(
        self,
        routing_table: RoutingTable,
        activator: Activator,
        observer: PredictionObserver,
        settings: ServerSettings,
        *,
        limits: PredictionLimits | None = None,
        access: AccessControl | None = None,
        default_project: str = "local",
        refresh_state: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.default_project = default_project
        self.refresh_state = refresh_state
        self.routing_table = routing_table
        self.activator = activator
        self.observer = observer
        self.limits = limits
        self.access = access
        self.max_body_bytes = settings.max_body_bytes
        self.queue_bytes = settings.queue_bytes
        self.held_bytes = 0  # complete bodies not answered yet, or still being written to a node
        self._max_answer_bytes = settings.max_answer_bytes
        self.receive_budget = ReceiveBudget(settings.unsent_bytes)
        self.request_timeout = settings.request_timeout
        self.timeouts = TimeoutQueue(settings.request_timeout)
        self.node_clients: dict[str, NodeClient] = {}
        self._retrying_sender = RetryingSender(activator, self._get_node_client)
        self._tasks: set[asyncio.Task[None]] = set()

    def can_handle(self, method: str, path: str) -> bool:
        """Whether the path looks like a prediction; it is parsed in `on_request_head`."""
        return path.endswith(PREDICT_SUFFIX) or parse_prediction_path(path) is not None

    def on_request_error(self, request: PredictionRequest, error: ServingError) -> None:
        """Respond with an error; before `on_request_head` the observer is not called."""
        proxied: ProxiedRequest | None = request.state
        if proxied is None:
            request.respond_error(error, ((REQUEST_ID, choose_request_id(request.head)),))
        else:
            proxied.refuse(error)

    def on_request_head(self, request: PredictionRequest) -> None:
        """Refuse the request now if it is going to be refused, before its body is read."""
        head = request.head
        route: PredictionRoute | None = head.handler_cache
        if route is None:
            route = parse_route(head, self.default_project)
            if route.problem is None:
                head.handler_cache = route
        request.state = proxied = ProxiedRequest(self, request, route)
        try:
            proxied.admit()
        except ServingError as error:
            proxied.refuse(error)
            drop_tracebacks(
                error
            )  # the error of a cached route would keep its frames, and the body with them

    def on_request_complete(self, request: PredictionRequest) -> None:
        proxied: ProxiedRequest = request.state
        if proxied.needs_refresh:
            self._start_task(self._dispatch_refreshed(proxied))
            return
        try:
            proxied.dispatch()
        except ServingError as error:
            proxied.refuse(error)
        except Exception:
            proxied.fail()

    def reserve_bytes(self, size: int) -> None:
        """Count bytes of a body against `queue_bytes`. Raises QueueFull."""
        if self.held_bytes and self.held_bytes + size > self.queue_bytes:
            raise QueueFull(
                f"Too many bytes of bodies wait or are in nodes (setting queue_bytes = {self.queue_bytes}).",
                retry_after=1,
            )
        self.held_bytes += size

    def release_bytes(self, size: int) -> None:
        self.held_bytes -= size

    def close_node_client(self, node: Node) -> None:
        """Close the connection to a node that is gone."""
        client = self.node_clients.pop(node.id, None)
        if client is not None:
            client.close()

    def start_slow_path(self, request: ProxiedRequest, lost_lease: Lease | None = None) -> None:
        """Go on in a task. `lost_lease`: of a node that was lost with the request, and not yet released."""
        request.retry_deadline = deadline = Deadline(request.deadline, request.timeout)
        self._start_task(self._run_slow_path(request, deadline, lost_lease))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dispatch_refreshed(self, request: ProxiedRequest) -> None:
        """Look for the version in the newest state: another server may just have made it READY."""
        try:
            await self._refresh_state_for(request)
            request.admit_refreshed()
            request.dispatch()
        except ServingError as error:
            request.refuse(error)
            drop_tracebacks(error)
        except Exception as error:
            request.fail()
            drop_tracebacks(error)

    async def _refresh_state_for(self, request: ProxiedRequest) -> None:
        """Take in what can be had in time. Raises Cancelled if the client goes away meanwhile."""
        end = asyncio.get_running_loop().time() + _REFRESH_SECONDS
        request.retry_deadline = deadline = Deadline(end, _REFRESH_SECONDS)
        if self.refresh_state is not None:
            with contextlib.suppress(ServingError, TimeoutError):
                async with asyncio.timeout_at(end):
                    await self.refresh_state()
        if deadline.is_cancelled:
            raise client_gone_error()
        request.retry_deadline = None

    async def _run_slow_path(
        self, request: ProxiedRequest, deadline: Deadline, lost_lease: Lease | None
    ) -> None:
        try:
            reply = await self._retrying_sender.send(request, deadline, lost_lease)
        except ServingError as error:
            request.refuse(error)
            drop_tracebacks(error)
        except Exception as error:
            request.fail()
            drop_tracebacks(error)
        else:
            request.finish(reply, self.activator.clock())

    def _get_node_client(self, node: Node) -> NodeClient | None:
        """None if the node is gone since it was leased: nobody would close the client."""
        client = self.node_clients.get(node.id)
        if client is None and node.state is not NodeState.GONE:
            client = self.node_clients[node.id] = NodeClient(
                node.address, self._max_answer_bytes, self.receive_budget
            )
        return client


class ProxiedRequest:
    """One prediction request, from its head to its reply.

    `update_target` sets `target`, `dispatch` sets `timeout` and `deadline`, and on the fast path `_lease` and
    `_timeout_bucket`; `send` sets what follows. `retry_deadline` is set once the request is handed to the
    retry task. `needs_refresh`: its version was not found, and may be in the newest state. `losses` counts
    the nodes that were lost with the request inside, `deaths` those of them that may have died of it.
    """

    # Defaults on the class: most requests never set these.
    retry_deadline: Deadline | None = None
    waits: tuple[Lease, ...] = ()
    losses = deaths = 0
    needs_refresh = False
    _is_refreshed = False
    # Of one that another server has passed on, after its own checks.
    _decline: Callable[[], None] | None = None
    _hop: Hop | None = None
    _trace: RequestTrace | None = None
    _admitted_target: RouteTarget | None = None
    _limited_target: RouteTarget | None = None
    _is_in_node = False
    _wants_timing = False
    _node_seconds = 0.0
    _frame_number = -1
    _held_bytes = 0
    _encoded_metadata = b""

    target: RouteTarget
    timeout: float
    deadline: float
    _lease: Lease
    _timeout_bucket: TimeoutBucket
    _node_client: NodeClient
    _sent_at: float

    def __init__(
        self, proxy: PredictionProxy, client_request: PredictionRequest, route: PredictionRoute
    ) -> None:
        self._proxy = proxy
        self._client_request = client_request
        self.route = route
        self._started_at = proxy.activator.clock()
        self._request_id = choose_request_id(client_request.head)
        client_request.on_disconnect = self._on_client_gone
        tracing = proxy.observer.tracing
        if tracing is not None:
            self._trace = tracing.begin_trace(self._identified_scope(), route.method.id)

    @property
    def body(self) -> bytes:
        """The body that is sent to the node."""
        return self._client_request.body

    # ---- before a node

    def admit(self) -> None:
        """Check what can be checked without the body. Raises the ServingError to refuse the request with."""
        proxy, head, route = self._proxy, self._client_request.head, self.route
        if proxy.access is not None:
            proxy.access.authorize_prediction(self._identified_scope(), route.permission, route.resource_name)
        if route.problem is not None:
            raise route.problem
        if head.method != "POST" or head.method_override:
            raise wrong_method_error(head.effective_method, head.path, "POST")
        if head.encoding:
            check_encoding(head.encoding)
        try:
            self._admitted_target = target = proxy.routing_table.find_target(route.target_key)
        except (NotFound, FailedPrecondition):
            if proxy.refresh_state is None or self._is_refreshed or head.length > proxy.max_body_bytes:
                raise
            self.needs_refresh = True
            return
        if proxy.limits is not None:
            proxy.limits.admit(target)
        if head.length > proxy.max_body_bytes:
            raise body_too_large(proxy.max_body_bytes)

    def admit_refreshed(self) -> None:
        """As `admit`, once the state is the newest that can be had."""
        self.needs_refresh, self._is_refreshed = False, True
        self.admit()

    def admit_forwarded(self, target: RouteTarget, decline: Callable[[], None]) -> None:
        """Take a request that another server has checked; `decline` leaves it to that one."""
        self._decline = decline
        self._admitted_target = target

    def dispatch(self) -> None:
        """Send the request to a free node, or wait for one. Raises the ServingError to refuse it with."""
        proxy, client_request = self._proxy, self._client_request
        size = len(client_request.body)
        if size > proxy.max_body_bytes:
            raise body_too_large(proxy.max_body_bytes)
        proxy.reserve_bytes(size)
        self._held_bytes = size
        headers, longest = client_request.head.prediction_headers, proxy.request_timeout
        given = headers.get(TIMEOUT)
        if headers.get(WANTS_TIMING_HEADER) == b"1":
            self._wants_timing = True
        self.timeout = timeout = longest if given is None else min(parse_timeout(given), longest)
        self.deadline = asyncio.get_running_loop().time() + timeout
        target = self.update_target()  # again: it may have been deleted while the body was received
        if proxy.limits is not None and self._decline is None:
            proxy.limits.acquire(target)
            self._limited_target = target
        peers = proxy.peers
        if peers is not None and self._decline is None:
            peer = peers.find_peer(target.spec.key)
            if peer is not None and self._begin_hop(peer, peers):
                return
        lease = proxy.activator.try_lease(target.spec)
        if lease is None:
            proxy.start_slow_path(self)
            return
        client = proxy.node_clients.get(lease.node.id)
        if client is None or not client.is_connected:
            lease.release()
            proxy.start_slow_path(self)
            return
        self._lease, self._is_in_node = lease, True
        self._timeout_bucket = bucket = proxy.timeouts.bucket_for(timeout)
        bucket.add(self)
        self.send(client, lease, self, timeout, lease.granted)

    # ---- at another server

    def _begin_hop(self, peer: PeerClient, peers: PeerRouter) -> bool:
        """Pass the request on as it came; False if it has to be answered here."""
        head = self._client_request.head
        path = head.prediction_path
        address, dialect = None, ""
        if path is not None and path.dialect in _GRPC_DIALECTS:
            dialect, address = path.dialect.value, (path.verb, path.model, path.version, path.label)
        scope, trace = self._identified_scope(), self._trace
        headers = [header for header in head.headers if header[0] not in _KEPT_HEADERS]
        if trace is not None:
            headers = [header for header in headers if header[0] != TRACEPARENT]
            headers.append((TRACEPARENT, trace.traceparent))
        encoded = encode_head(
            HopHead(
                method=head.method,
                path=head.path,
                headers=headers,
                version=self.target.spec.key,
                request_id=self._request_id,
                timeout=self.timeout,
                principal=get_caller(scope).principal,
                client=scope.get("client"),
                dialect=dialect,
                address=address,
            )
        )
        if encoded is None:
            return False
        self._hop = hop = Hop(self, peer, self._proxy.timeouts.bucket_for(self.timeout), peers.on_hop_ended)
        hop.start(encoded)
        return True

    def finish_hop(self, reply: NodeReply) -> None:
        """Respond with the answer of another server, which has counted and logged it."""
        self._hop = None
        self._release_limits()
        try:
            self._client_request.respond(reply.status, reply.body, reply.headers)
            if self._trace is not None:
                self._trace.end(reply.status, version=str(self.target.name))
        except Exception:
            self.fail()

    def answer_here(self) -> None:
        """Go on as if there had been no hop."""
        self._hop = None
        self._proxy.start_slow_path(self)

    def fail_hop(self, error: ServingError) -> None:
        self._hop = None  # which has this request: only the collector would find them
        self.refuse(error)

    def defer_body_release(self) -> Callable[[], None]:
        """What is returned ends the count of the body, which may stay in use after the request ends."""
        size, self._held_bytes = self._held_bytes, 0
        return partial(self._proxy.release_bytes, size)

    # ---- inside a node

    def update_target(self) -> RouteTarget:
        """Find the version that answers now; raises NotFound. Called before each lease."""
        route = self.route
        self.target = target = self._proxy.routing_table.find_target(route.target_key)
        self._encoded_metadata = (
            b"" if route.metadata is DEFAULT_METADATA else route.encode_request_metadata(target.name.version)
        )
        return target

    def send(
        self, client: NodeClient, lease: Lease, callback: ReplyCallback, timeout: float, now: float
    ) -> None:
        """Send the body to the node of a lease, which may take `timeout` seconds."""
        self._node_client, self._sent_at = client, now
        trace = self._trace
        if trace is not None:
            trace.begin_node_span(lease)
        self._frame_number = client.send(
            callback,
            self._client_request.body,
            slot=lease.slot,
            timeout=timeout,
            never_batch=self.deaths > 0,
            # First what costs no call: this runs for every request.
            wants_timing=trace is not None
            or self._wants_timing
            or (lease.arrived is not None and lease.waited_for_start),
            encoded_metadata=self._encoded_metadata,
        )

    def adapt_timing(self, reply: NodeReply, lease: Lease) -> NodeReply:
        """The reply with what its client gets to see of the node's timing."""
        if lease.waited_for_start:
            return replace(reply, headers=with_server_timing(lease, reply.headers))
        if self._trace is not None and not self._wants_timing:
            return replace(reply, headers=without_server_timing(reply.headers))
        return reply

    def count_node_seconds(self, reply: NodeReply | None, now: float) -> None:
        """The request left the node; `reply` is None if it was lost or cancelled."""
        self._node_seconds += now - self._sent_at
        if self._trace is not None:
            self._trace.end_node_span(reply)

    def on_reply(self, reply: NodeReply) -> None:
        self._timeout_bucket.remove(self)
        try:
            now = self._release_lease(reply)
            if self._trace is not None:
                reply = self.adapt_timing(reply, self._lease)
        except Exception:
            self.fail()
        else:
            self.finish(reply, now)

    def on_reply_dropped(self, error: ServingError) -> None:
        """The node replied, but the reply exceeds the receive budget."""
        self._timeout_bucket.remove(self)
        self._release_lease(None)
        self.refuse(error)

    def on_connection_lost(self) -> None:
        self._timeout_bucket.remove(self)
        self._is_in_node = False
        self.count_node_seconds(None, self._proxy.activator.clock())
        self._proxy.start_slow_path(self, self._lease)

    def expire(self) -> None:
        self.cancel_in_node()
        self._release_lease(None)
        self.refuse(deadline_exceeded_error(self.timeout))

    def _on_client_gone(self) -> None:
        is_late = self._client_request.left_at_deadline
        if self.retry_deadline is not None:
            self.retry_deadline.cancel(is_late=is_late)
            return
        if self._hop is not None:
            self._hop.cancel()
            self._hop = None
        if self._is_in_node:
            self._timeout_bucket.remove(self)
            self.cancel_in_node()
            self._release_lease(None)
        self.refuse(deadline_exceeded_error(self.timeout) if is_late else client_gone_error())

    def cancel_in_node(self) -> None:
        """Withdraw it from the node."""
        self._node_client.cancel(self._frame_number, self.defer_body_release())

    def _release_lease(self, reply: NodeReply | None) -> float:
        self._is_in_node = False
        now = self._lease.release()
        self.count_node_seconds(reply, now)
        return now

    # ---- the reply

    def finish(self, reply: NodeReply, now: float) -> None:
        """Respond with the node's reply. Raises nothing: that would close the connection to the node."""
        client_request, target = self._client_request, self.target
        self._release_limits()
        body = client_request.body
        try:
            client_request.respond(reply.status, reply.body, (*reply.headers, (REQUEST_ID, self._request_id)))
        except Exception:
            self.fail()
            return
        timing: RequestTiming = (now - self._started_at, self._node_seconds, self.waits)
        observer = self._proxy.observer
        try:
            if self._trace is not None:
                self._trace.end(reply.status, version=str(target.name))
            if observer.count_answer(timing, target, body, reply, self._request_id):
                observer.on_answered(self._describe(target), timing, target, body, reply)
        except Exception:
            logger.exception("a reply could not be counted or logged")

    def refuse(self, error: ServingError) -> None:
        """Respond with an error, unless the client has gone. Raises nothing.

        A request of another server that finds this one full is left to that server, which may have room.
        """
        proxy, target = self._proxy, self._admitted_target
        self._release_limits()
        if self._decline is not None and isinstance(error, QueueFull):
            self._decline()
            if self._trace is not None:
                self._trace.end(http_status(error), version="" if target is None else str(target.name))
            return
        self._client_request.respond_error(error, ((REQUEST_ID, self._request_id),))
        try:
            if self._trace is not None:
                self._trace.end(http_status(error), version="" if target is None else str(target.name))
            seconds = proxy.activator.clock() - self._started_at
            timing: RequestTiming = (seconds, self._node_seconds, self.waits)
            proxy.observer.on_refused(self._describe(target), timing, target, error)
        except Exception:
            logger.exception("a refusal could not be counted or logged")

    def fail(self) -> None:
        """Log the current exception, release everything and respond with an internal error."""
        logger.exception("a prediction could not be answered")
        if self._is_in_node:
            self._is_in_node = False
            self._timeout_bucket.remove(self)
            self.cancel_in_node()
            self._lease.release()
        self.refuse(Internal("Internal error encountered."))

    def _describe(self, target: RouteTarget | None) -> ObservedPrediction:
        route = self.route
        resource = route.resolve_resource("" if target is None else str(target.name))
        return ObservedPrediction(
            self._identified_scope(), route.method, resource, route.permission, route.metadata
        )

    def _identified_scope(self) -> Scope:
        """The ASGI scope of the request, with its id."""
        scope = self._client_request.scope
        set_request_id(scope, self._request_id)
        return scope

    def _release_limits(self) -> None:
        self._proxy.held_bytes -= self._held_bytes
        self._held_bytes = 0
        if self._limited_target is not None and self._proxy.limits is not None:
            self._proxy.limits.release(self._limited_target)
            self._limited_target = None
