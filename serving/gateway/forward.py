"""`:predict` on the gateway, the straight line: name -> leased node -> bytes through.

The body is never parsed. It goes to a node in the call in which it became whole, and the answer to its client
in the call in which that came: no task, no future, no timer of its own. Only a request that cannot have it so
fast, since no node is free or one was lost with it, goes on in `serving.gateway.insistence`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.activator import Activator, Lease
from autoscaler.pools import Node, NodeState
from serving.config import ServerSettings
from serving.content_encoding import check_encoding
from serving.conversation import PredictionRequest
from serving.errors import (
    Internal,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    http_status,
)
from serving.exchange import PREDICT_SUFFIX
from serving.gateway.access.gate import AccessControl
from serving.gateway.audit.endpoint import AuditedPrediction
from serving.gateway.deadlines import Allowance, Deadlines
from serving.gateway.identity import identify, note_id
from serving.gateway.insistence import Insistence
from serving.gateway.limits import PredictionLimits
from serving.gateway.patience import Patience, forget_frames, left, too_late
from serving.gateway.server_timing import without_server_timing
from serving.gateway.tallies import Fare
from serving.gateway.targets import Target, Targets
from serving.gateway.upstream import Answer, ReceivedBytes, Upstream
from serving.gateway.ways import Way, way_of
from serving.gateway.witnesses import Witnesses
from serving.heads import REQUEST_ID, TIMEOUT, RequestHead
from serving.protocols import DEFAULT_METADATA
from serving.protocols.paths import parse_prediction_path, wrong_method_error
from serving.wire import Scope, body_too_large

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.tracing import Trace

logger = logging.getLogger(__name__)


class Forwarder:
    """Answers prediction requests with the nodes of their version; the server's handler of exchanges.

    `project` is that of models of which a client does not say it.
    """

    def __init__(
        self,
        targets: Targets,
        activator: Activator,
        witnesses: Witnesses,
        limits: ServerSettings,
        *,
        shares: PredictionLimits | None = None,
        access: AccessControl | None = None,
        project: str = "local",
    ) -> None:
        self.project = project
        self.targets = targets
        self.activator = activator
        self.witnesses = witnesses
        self.shares = shares
        self.access = access
        self.max_body_bytes = limits.max_body_bytes
        self.queue_bytes = limits.queue_bytes
        self.held_bytes = 0  # of whole bodies that are not answered, or still being written to a node
        self._max_answer_bytes = limits.max_answer_bytes
        self.received = ReceivedBytes(limits.unsent_bytes)
        self.request_timeout = limits.request_timeout
        self.deadlines = Deadlines(limits.request_timeout)
        self.upstreams: dict[str, Upstream] = {}
        self._insistence = Insistence(targets, activator, self._upstream)
        self._insisting: set[asyncio.Task[None]] = set()

    def can_handle(self, method: str, path: str) -> bool:
        """Whatever looks like a prediction; what its path says is seen when it begins."""
        return path.endswith(PREDICT_SUFFIX) or parse_prediction_path(path) is not None

    def on_request_error(self, exchange: PredictionRequest, error: ServingError) -> None:
        """Answer with an error; of one that has not begun nobody else is told."""
        passage: Passage | None = exchange.state
        if passage is None:
            exchange.respond_error(error, ((REQUEST_ID, identify(exchange.head)),))
        else:
            passage.refuse(error)

    def on_request_head(self, exchange: PredictionRequest) -> None:
        """The head of a request is there: refuse it now if need be, so that no body is read for nothing."""
        head = exchange.head
        way: Way | None = head.handler_cache
        if way is None:
            way = way_of(head, self.project)
            if way.problem is None:
                head.handler_cache = way
        exchange.state = passage = Passage(self, exchange, way)
        try:
            passage.begin()
        except ServingError as error:
            passage.refuse(error)
            forget_frames(error)  # the problem of a way is kept by frames that it keeps, with the body

    def on_request_complete(self, exchange: PredictionRequest) -> None:
        """The request is whole."""
        passage: Passage = exchange.state
        try:
            passage.proceed()
        except ServingError as error:
            passage.refuse(error)
        except Exception:
            passage.fail()

    def reserve_bytes(self, size: int) -> None:
        """Count so many bytes of a body. Raises ResourceExhausted if there are too many."""
        if self.held_bytes and self.held_bytes + size > self.queue_bytes:
            raise ResourceExhausted(
                f"Too many bytes of bodies wait or are in nodes (setting queue_bytes = {self.queue_bytes}).",
                retry_after=1,
            )
        self.held_bytes += size

    def release_bytes(self, size: int) -> None:
        """So many bytes of bodies are free."""
        self.held_bytes -= size

    def node_gone(self, node: Node) -> None:
        """Close what was open to a node that is gone."""
        upstream = self.upstreams.pop(node.id, None)
        if upstream is not None:
            upstream.close()

    def insist(self, passage: Passage, lost: Lease | None = None) -> None:
        """Have a request answered that must wait, or that was lost in a node together with its lease."""
        passage.patience = patience = Patience(passage.deadline, passage.timeout)
        task = asyncio.get_running_loop().create_task(self._insist(passage, patience, lost))
        self._insisting.add(task)
        task.add_done_callback(self._insisting.discard)

    async def _insist(self, passage: Passage, patience: Patience, lost: Lease | None) -> None:
        try:
            answer = await self._insistence.ask(passage, patience, lost)
        except ServingError as error:
            passage.refuse(error)
            forget_frames(error)
        except Exception as error:
            passage.fail()
            forget_frames(error)
        else:
            passage.finish(answer, self.activator.clock())

    def _upstream(self, node: Node) -> Upstream | None:
        """The channel to a node, None if it is gone since it was leased: nobody would close that one."""
        upstream = self.upstreams.get(node.id)
        if upstream is None and node.state is not NodeState.GONE:
            upstream = self.upstreams[node.id] = Upstream(node.address, self._max_answer_bytes, self.received)
        return upstream


class Passage:
    """One request on its way.

    `target` is there once its body is. While it is in a node that it got at once, `_lease` is of that;
    `patience` is its client's if it has to wait. `losses` are nodes that were lost with it inside, `deaths`
    those that maybe died of it.
    """

    # What most requests do not change, they need not set.
    patience: Patience | None = None
    waits: tuple[Lease, ...] = ()
    losses = deaths = 0
    _trace: Trace | None = None
    _found: Target | None = None
    _sharing: Target | None = None
    _within = False
    _inside = 0.0
    _number = -1
    _held = 0

    target: Target
    timeout: float
    deadline: float
    _lease: Lease
    _upstream: Upstream
    _allowance: Allowance
    _sent: float

    def __init__(self, forwarder: Forwarder, exchange: PredictionRequest, way: Way) -> None:
        self._forwarder = forwarder
        self._exchange = exchange
        self.way = way
        self._began = forwarder.activator.clock()
        self._id = identify(exchange.head)
        exchange.on_disconnect = self._gone
        tracing = forwarder.witnesses.tracing
        if tracing is not None:
            self._trace = tracing.begin(self._scope(), way.method.id)

    @property
    def body(self) -> bytes:
        """What the node is sent."""
        return self._exchange.body

    # ---- on the way in

    def begin(self) -> None:
        """Find out where it goes. Raises whatever it is refused with."""
        forwarder, head, way = self._forwarder, self._exchange.head, self.way
        if forwarder.access is not None:
            forwarder.access.authorize_prediction(self._scope(), way.permission, way.named)
        if way.problem is not None:
            raise way.problem
        if head.method != "POST" or head.method_override:
            raise wrong_method_error(head.effective_method, head.path, "POST")
        if head.encoding:
            check_encoding(head.encoding)
        self._found = target = forwarder.targets.find(way.goal)
        if forwarder.shares is not None:
            forwarder.shares.admit(target)
        if head.length > forwarder.max_body_bytes:
            raise body_too_large(forwarder.max_body_bytes)

    def proceed(self) -> None:
        """Go into a node that is free, or wait for one. Raises whatever it is refused with."""
        forwarder, exchange = self._forwarder, self._exchange
        if len(exchange.body) > forwarder.max_body_bytes:
            raise body_too_large(forwarder.max_body_bytes)
        self._hold(len(exchange.body))
        self.timeout = timeout = self._wanted(exchange.head)
        self.deadline = asyncio.get_running_loop().time() + timeout
        # Once more: the version may have been deleted while the body came.
        way = self.way
        self.target = target = forwarder.targets.find(way.goal)
        about = b"" if way.call is DEFAULT_METADATA else way.about(target.name.version)
        if forwarder.shares is not None:
            forwarder.shares.take(target)
            self._sharing = target
        lease = forwarder.activator.try_lease(target.spec)
        if lease is None:
            forwarder.insist(self)
            return
        upstream = forwarder.upstreams.get(lease.node.id)
        if upstream is None or not upstream.connected:
            lease.release()
            forwarder.insist(self)
            return
        self._lease, self._upstream, self._within = lease, upstream, True
        self._allowance = allowance = forwarder.deadlines.of(timeout)
        allowance.add(self)
        self.enters(lease, lease.granted)
        self._number = upstream.send(
            self,
            exchange.body,
            slot=lease.slot,
            timeout=timeout,
            never_batch=False,
            timing=self._trace is not None,
            about=about,
        )

    def _hold(self, size: int) -> None:
        """Count its body, from now to its answer. Raises ResourceExhausted if there are too many bytes."""
        self._forwarder.reserve_bytes(size)
        self._held = size

    def _wanted(self, head: RequestHead) -> float:
        """The seconds it has."""
        usual = self._forwarder.request_timeout
        given = head.prediction_headers.get(TIMEOUT)
        if given is None:
            return usual
        try:
            timeout = float(given)
        except ValueError:
            timeout = -1
        if not timeout > 0:
            raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
        return min(timeout, usual)

    # ---- in a node

    @property
    def traced(self) -> bool:
        """Whether it is to be known what it did in the node."""
        return self._trace is not None

    def enters(self, lease: Lease, now: float) -> None:
        """It is sent to a node."""
        self._sent = now
        if self._trace is not None:
            self._trace.enters(lease)

    def leaves(self, answer: Answer | None, now: float) -> None:
        """It is out of the node: with an answer, or for some reason without."""
        self._inside += now - self._sent
        if self._trace is not None:
            self._trace.leaves(answer)

    def answered(self, answer: Answer) -> None:
        """The node has answered."""
        self._allowance.remove(self)
        try:
            now = self._release(answer)
            if self._trace is not None:
                answer = replace(answer, headers=without_server_timing(answer.headers))
        except Exception:
            self.fail()
        else:
            self.finish(answer, now)

    def refused(self, error: ServingError) -> None:
        """The node has answered, but there is no memory for it."""
        self._allowance.remove(self)
        self._release(None)
        self.refuse(error)

    def lost(self) -> None:
        """The node died or hung up."""
        self._allowance.remove(self)
        self._within = False
        self.leaves(None, self._forwarder.activator.clock())
        self._forwarder.insist(self, self._lease)

    def expire(self) -> None:
        """Its time is out."""
        self._cancel()
        self._release(None)
        self.refuse(too_late(self.timeout))

    def _gone(self) -> None:
        """Its client is gone: it leaves its place at once."""
        late = self._exchange.is_past_deadline
        if self.patience is not None:
            self.patience.leave(late=late)
            return
        if self._within:
            self._allowance.remove(self)
            self._cancel()
            self._release(None)
        self.refuse(too_late(self.timeout) if late else left())

    def _cancel(self) -> None:
        self._upstream.cancel(self._number, self.hand_over_body())

    def hand_over_body(self) -> Callable[[], None]:
        """What is to be called once its body is free: that may be after its end."""
        held, self._held = self._held, 0
        return partial(self._forwarder.release_bytes, held)

    def _release(self, answer: Answer | None) -> float:
        self._within = False
        now = self._lease.release()
        self.leaves(answer, now)
        return now

    # ---- the end

    def finish(self, answer: Answer, now: float) -> None:
        """Hand the client what a node answered; raises nothing, since that would close the channel."""
        exchange, target = self._exchange, self.target
        self._give_back()
        body = exchange.body
        try:
            exchange.respond(answer.status, answer.body, (*answer.headers, (REQUEST_ID, self._id)))
        except Exception:
            self.fail()
            return
        fare = Fare(now - self._began, self._inside, self.waits)
        witnesses = self._forwarder.witnesses
        try:
            if self._trace is not None:
                self._trace.end(answer.status, version=str(target.name))
            if witnesses.answered(fare, target, body, answer):
                witnesses.tell(self._asked(target), fare.total, target, body, answer)
        except Exception:
            logger.exception("an answer could not be counted or logged")

    def refuse(self, error: ServingError) -> None:
        """Hand the client an error, if it is still there; raises nothing."""
        forwarder, found = self._forwarder, self._found
        self._give_back()
        self._exchange.respond_error(error, ((REQUEST_ID, self._id),))
        try:
            if self._trace is not None:
                self._trace.end(http_status(error), version="" if found is None else str(found.name))
            seconds = forwarder.activator.clock() - self._began
            forwarder.witnesses.on_refused(self._asked(found), seconds, found, error)
        except Exception:
            logger.exception("a refusal could not be counted or logged")

    def fail(self) -> None:
        """Answer with what an exception makes of the request, and give back all that it has."""
        logger.exception("a prediction could not be answered")
        if self._within:
            self._within = False
            self._allowance.remove(self)
            self._cancel()
            self._lease.release()
        self.refuse(Internal("Internal error encountered."))

    def _asked(self, found: Target | None) -> AuditedPrediction:
        """The request, for those who are told of it."""
        way = self.way
        resource = way.resource("" if found is None else str(found.name))
        return AuditedPrediction(self._scope(), way.method, resource, way.permission, way.call)

    def _scope(self) -> Scope:
        """Its head, with what was found out about it."""
        scope = self._exchange.scope
        note_id(scope, self._id)
        return scope

    def _give_back(self) -> None:
        """Let others have its share, and its memory."""
        self._forwarder.release_bytes(self._held)
        self._held = 0
        if self._sharing is not None and self._forwarder.shares is not None:
            self._forwarder.shares.give(self._sharing)
            self._sharing = None
