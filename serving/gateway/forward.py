"""`:predict` on the gateway, the straight line: name -> leased node -> bytes through.

The body is held until the node's answer begins and is never parsed. It is sent again only when the node
died or hung up before any byte of an answer, never after a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoscaler.activator import Activator, Lease
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.pools import Mark, Node, NodeState
from serving.config import Limits
from serving.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ModelFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
    wrong_method,
)
from serving.gateway.access.gate import Access
from serving.gateway.identity import as_header
from serving.gateway.limits import PredictionLimits
from serving.gateway.patience import Patience
from serving.gateway.server_timing import with_server_timing, without_server_timing
from serving.gateway.tallies import Course
from serving.gateway.targets import Target, Targets
from serving.gateway.upstream import Answer, ConnectError, ConnectionLostError, Upstream
from serving.gateway.witnesses import Witnesses
from serving.wire import Receive, Scope, Send, header, read_body, send_error, send_json

logger = logging.getLogger(__name__)

# A request is given up when this many nodes died while they computed it, or so many more with it inside: that
# may be chance, but also what it takes to read it or to write its answer.
_DEATHS, _LOSSES = 3, 10
# Seconds within which the pool knows of the end of a node that hung up.
_NOTICED_WITHIN = 2.0


_FREE = contextlib.nullcontext()


@dataclass(slots=True)
class _Story:
    """What has become of a request so far: nodes lost with it inside, and those that maybe died of it."""

    course: Course
    losses: int = 0
    deaths: int = 0


class Forwarder:
    """Answers prediction requests with the nodes of their version."""

    def __init__(
        self,
        targets: Targets,
        activator: Activator,
        witnesses: Witnesses,
        limits: Limits,
        *,
        shares: PredictionLimits | None = None,
        access: Access | None = None,
    ) -> None:
        self._targets = targets
        self._activator = activator
        self._witnesses = witnesses
        self._limits = limits
        self._shares = shares
        self._access = access
        self._upstreams: dict[str, Upstream] = {}

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        account = self._witnesses.begin(scope)
        try:
            if self._access is not None:
                self._access.admit_prediction(scope)
            account.target = target = self._find(scope)  # so that no body is read for nothing
            if self._shares is not None:
                self._shares.admit(target)
            body = await read_body(scope, receive, self._limits.max_body_bytes)
            story = _Story(Course(len(body), account.trace))
            patience = Patience(receive, self._timeout(scope))
            with _FREE if self._shares is None else self._shares.hold(target):
                target, answer = await self._ask(scope["path"], body, patience, story)
        except Cancelled as error:
            account.refused(error)  # nobody is there any more to be told
        except ServingError as error:
            account.refused(error)
            await send_error(send, error, (as_header(scope),))
        except Exception:
            logger.exception("forwarding failed")
            internal = Internal("Internal error encountered.")
            account.refused(internal)
            await send_error(send, internal, (as_header(scope),))
        else:
            headers = (*answer.headers, as_header(scope))
            await send_json(send, answer.status, answer.body, headers)
            account.answered(target, story.course, body, answer)

    def node_gone(self, node: Node) -> None:
        """Close what was open to a node that is gone."""
        upstream = self._upstreams.pop(node.id, None)
        if upstream is not None:
            upstream.close()

    def _find(self, scope: Scope) -> Target:
        if scope["method"] != "POST":
            raise wrong_method(scope["method"], scope["path"], "POST")
        return self._targets.find(scope["path"])

    async def _ask(self, path: str, body: bytes, patience: Patience, story: _Story) -> tuple[Target, Answer]:
        """The answer, and who gave it."""
        while True:
            # Anew for each attempt, with nothing in between: a lease would wake a deleted version.
            target = self._targets.find(path)
            with _in_words(target):
                async with self._activator.lease(target.spec, len(body), patience) as lease:
                    try:
                        return target, await self._exchange(lease, body, patience, story)
                    except ConnectError:
                        logger.warning("%s: node %s cannot be reached", target.name, lease.node.id)
                        await _noticed(lease.node, patience)
                    except ConnectionLostError:
                        logger.warning("%s: node %s hung up", target.name, lease.node.id)
                        await _noticed(lease.node, patience)
                        _judge(lease, target, story)
            if patience.remaining <= 0:
                raise DeadlineExceeded(f"No node lived long enough to answer. {lease.node.reason}".rstrip())

    async def _exchange(self, lease: Lease, body: bytes, patience: Patience, story: _Story) -> Answer:
        node, course = lease.node, story.course
        upstream = self._upstream(node)
        await upstream.connect()
        held = lease.arrived is not None and node.ready_at is not None and node.ready_at > lease.arrived
        course.enters(lease)
        asker = _Asker()
        number = upstream.send(
            asker,
            body,
            slot=lease.slot,
            timeout=max(patience.remaining, 0.001),
            alone=story.deaths > 0,
            timing=held or course.trace is not None,
        )
        answer: Answer | None = None
        try:
            answer = await patience.wait(asker.answer)
        finally:
            upstream.cancel(number)
            course.leaves(answer)
        if held:
            return replace(answer, headers=with_server_timing(lease, answer.headers))
        if course.trace is not None:
            return replace(answer, headers=without_server_timing(answer.headers))
        return answer

    def _upstream(self, node: Node) -> Upstream:
        if node.state is NodeState.GONE:
            raise ConnectError  # since it was leased; `node_gone` would not come again
        upstream = self._upstreams.get(node.id)
        if upstream is None:
            upstream = self._upstreams[node.id] = Upstream(node.address)
        return upstream

    def _timeout(self, scope: Scope) -> float:
        given = header(scope, b"x-request-timeout")
        if given is None:
            return self._limits.request_timeout
        try:
            timeout = float(given)
        except ValueError:
            timeout = -1
        if not timeout > 0:
            raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
        return min(timeout, self._limits.request_timeout)


class _Asker:
    """Waits for an answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def answered(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def lost(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(ConnectionLostError())


async def _noticed(node: Node, patience: Patience) -> None:
    """Wait until the pool knows of the end of a node: that comes a moment after its connections close."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_NOTICED_WITHIN, patience.remaining)):
            await node.gone.wait()


def _judge(lease: Lease, target: Target, story: _Story) -> None:
    """Decide whether a request may be sent again after its node died; raises ModelFailed if not.

    The board tells what the node was doing: a request it had not begun is innocent and unseen. While the
    node lives it may still begin.
    """
    node, mark = lease.node, lease.node.board[lease.slot]
    story.losses += 1
    story.deaths += mark == Mark.COMPUTING
    unseen = mark == Mark.UNTOUCHED and node.state is NodeState.GONE
    hopeless = story.deaths >= _DEATHS or story.losses >= _LOSSES
    if hopeless or not (unseen or target.repeatable):
        raise ModelFailed(f"The node died while it worked on the request. {node.reason}".rstrip())


@contextlib.contextmanager
def _in_words(target: Target) -> Iterator[None]:
    """The autoscaler's errors as the client is told of them."""
    try:
        yield
    except QueueFullError as error:
        raise ResourceExhausted(
            f"Too many requests wait for {target.name} (setting {error.setting} = {error.limit}).",
            retry_after=1,
        ) from error
    except StartFailedError as error:
        raise Unavailable(
            f"No node of {target.name} could be started. {error.reason}",
            retry_after=math.ceil(error.retry_after),
        ) from error
    except TooLateError as error:
        raise Unavailable(
            f"{error.reason} The request could not wait that long (X-Request-Timeout, setting "
            "request_timeout).",
            retry_after=math.ceil(error.retry_after),
        ) from error
    except RetiredError as error:
        raise NotFound(f"The version {target.name} was deleted.") from error
