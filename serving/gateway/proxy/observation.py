"""What the proxy tells of each prediction, and whom: statistics, traces, logs and audit stand behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoscaler.activator import Lease
from serving.errors import ServingError
from serving.gateway.methods import ApiMethod
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.routing_table import RouteTarget
from serving.http_headers import Scope
from serving.protocols import RequestMetadata

# Seconds that one request took in total, and inside nodes, and the leases that it waited for. One is made for
# every request: a plain tuple costs least.
RequestTiming = tuple[float, float, tuple[Lease, ...]]


@dataclass(frozen=True, slots=True)
class ObservedPrediction:
    """The request of a prediction: its method, its resource, and the permission that it needs."""

    scope: Scope
    method: ApiMethod
    resource: str
    permission: str
    metadata: RequestMetadata


class RequestTrace(Protocol):
    """The trace of one request, from its beginning to `end`."""

    @property
    def traceparent(self) -> bytes:
        """The header with which another server goes on with the trace."""

    def begin_node_span(self, lease: Lease) -> None:
        """The request is sent to the node of a lease."""

    def end_node_span(self, reply: NodeReply | None) -> None:
        """It has left the node; `reply` is None if it was lost or cancelled."""

    def end(self, status: int, *, version: str = "") -> None: ...


class RequestTracer(Protocol):
    def begin_trace(self, scope: Scope, name: str) -> RequestTrace | None:
        """None if the request is not sampled."""


class PredictionObserver(Protocol):
    """Called once for each prediction, when it is answered or refused, on the event loop. Must not block.

    What is raised is logged, and changes no answer.
    """

    @property
    def tracing(self) -> RequestTracer | None:
        """None where traces are switched off."""

    def count_answer(
        self, timing: RequestTiming, target: RouteTarget, body: bytes, reply: NodeReply, request_id: bytes
    ) -> bool:
        """Count a request that a node answered; returns whether `on_answered` must be called too.

        It is called for every request, so the description of one is made for `on_answered` only.
        """

    def on_answered(
        self,
        prediction: ObservedPrediction,
        timing: RequestTiming,
        target: RouteTarget,
        body: bytes,
        reply: NodeReply,
    ) -> None: ...

    def on_refused(
        self,
        prediction: ObservedPrediction,
        timing: RequestTiming,
        target: RouteTarget | None,
        error: ServingError,
    ) -> None:
        """A request that no node answered; `target` is None if its version is not known."""
