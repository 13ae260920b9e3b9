"""Prometheus metrics, node status and scaling explanations: `/metrics`, `/nodes`, `/why/…`.

Not part of the AI Platform API.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from autoscaler import machine
from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.pools import MemoryUsage, NodeState, PilotStatus
from autoscaler.version_scaler import VersionScaler
from serving.errors import FailedPrecondition
from serving.gateway.api.request_io import json_response, model_name, version_name
from serving.gateway.catalog.lookup import get_model, get_version
from serving.gateway.control.status import (
    COLD,
    FORKED,
    NodeSnapshot,
    ServerScope,
    ServerStatus,
    VersionCondition,
    VersionSnapshot,
)
from serving.gateway.observability.metrics import CONTENT_TYPE, Metrics
from serving.gateway.state.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.names import VersionName

Json = dict[str, Any]
MeasureMemory = Callable[[Iterable[int]], MemoryUsage | None]

_MAX_QUEUED = 31


class StatusApi:
    """`find_server_scope` is given where servers share the state: it gets the uid of a version, or ""."""

    def __init__(
        self,
        overview: ServerStatus,
        metrics: Metrics,
        find_server_scope: Callable[[str], ServerScope] | None = None,
    ) -> None:
        self._find_server_scope = find_server_scope
        self._overview = overview
        self._metrics = metrics
        self._threads = ThreadPool("nodes", 1, queue=_MAX_QUEUED)

    async def get_metrics(self, _: Request) -> Response:
        """`GET /metrics`, for Prometheus."""
        return Response(await self._metrics.render_text(), headers={"content-type": CONTENT_TYPE})

    async def list_nodes(self, _: Request) -> Response:
        """`GET /nodes`: every version that is scaled, its nodes, all pilots, and their memory."""
        versions, pilots = self._overview.list_versions(), self._overview.list_pilots()

        def render_nodes() -> Json:
            measure, pid = self._overview.measure_memory, os.getpid()
            return {
                **({} if self._find_server_scope is None else {"server": self._find_server_scope("").server}),
                "versions": [_render_version(view, measure) for view in versions],
                "pilots": [_render_pilot(pilot, measure) for pilot in pilots],
                "gateway": {"pid": pid, **_render_memory(machine.measure_memory(pid))},
            }

        return json_response(await self._threads.run(render_nodes))

    async def explain_version(self, request: Request) -> Response:
        """`GET /why/…/versions/V`: the condition of a version, and its causes."""
        return self._explain_record(get_version(self._overview.state, version_name(request)))

    async def explain_model(self, request: Request) -> Response:
        """`GET /why/…/models/M`: the same of the default version."""
        state, name = self._overview.state, model_name(request)
        default = get_model(state, name).default
        if not default:
            raise FailedPrecondition(f"The model {name} has no default version yet.")
        return self._explain_record(get_version(state, VersionName(name.project, name.model, default)))

    def _explain_record(self, record: VersionRecord) -> Response:
        view, tracked = self._overview.get_version(record), self._overview.get_tracked(record)
        if view is None or tracked is None:
            return json_response({**_explain_unready(record), **self._render_scope(record)})
        story = _explain_scaled(view, tracked, self._overview.now) | self._render_scope(record)
        warnings = list(record.version.warnings)
        return json_response({**story, "warnings": warnings} if warnings else story)

    def _render_scope(self, record: VersionRecord) -> Json:
        if self._find_server_scope is None:
            return {}
        scope = self._find_server_scope(record.uid)
        return {"server": scope.server, "owners": list(scope.owners)}


# ---- /nodes


def _render_version(view: VersionSnapshot, measure: MeasureMemory) -> Json:
    return {
        "version": str(view.name),
        "exact": view.exact,
        "state": view.condition.value,
        "desired": view.desired,
        "ready": view.count_nodes(NodeState.READY),
        "starting": view.count_nodes(NodeState.STARTING),
        "draining": view.count_nodes(NodeState.DRAINING),
        "running": view.running,
        "queued": view.queued,
        "idleSeconds": _round_optional(view.idle_seconds),
        "nodeSeconds": _round_optional(view.node_seconds),
        "wakeups": dict(view.wakeups),
        "startSeconds": _render_start_seconds(view),
        "reason": view.reason,
        "nodes": [_render_node(node, measure) for node in view.nodes],
    }


def _render_node(node: NodeSnapshot, measure: MeasureMemory) -> Json:
    return {
        "id": node.id,
        "pid": node.pid,
        "state": node.state.value,
        "forked": node.forked,
        "ageSeconds": _round_optional(node.age),
        "inFlight": node.in_flight,
        **_render_memory(None if node.pid is None else measure((node.pid,))),
    }


def _render_pilot(pilot: PilotStatus, measure: MeasureMemory) -> Json:
    return {
        "pilot": pilot.key,
        "pid": pilot.pid,
        "state": pilot.state.value,
        "ageSeconds": _round_optional(pilot.age),
        "litSeconds": _round_optional(pilot.seconds),
        "nodesForked": pilot.forked,
        **({"reason": pilot.reason} if pilot.reason else {}),
        **_render_memory(measure(pilot.pids)),
    }


def _render_memory(memory: MemoryUsage | None) -> Json:
    """Render a process's memory; the process may have ended before it was measured."""
    return {
        "privateBytes": memory.private if memory else 0,
        "proportionalBytes": memory.proportional if memory else 0,
    }


def _render_start_seconds(view: VersionSnapshot) -> Json:
    return {how: _round_optional(seconds) for how, seconds in view.start_seconds.items()}


def _round_optional(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# ---- /why


def _explain_unready(record: VersionRecord) -> Json:
    """Explain a version that is being created or deleted, or failed."""
    version = record.version
    state = version.state.value if version.state is not None else "STATE_UNSPECIFIED"
    return {
        "version": str(record.name),
        "state": state.lower(),
        "summary": f"It has no nodes, for it is {state}. {version.error_message}".rstrip(),
    }


def _explain_scaled(view: VersionSnapshot, tracked: VersionScaler, now: float) -> Json:
    story: Json = {
        "version": str(view.name),
        "state": view.condition.value,
        "summary": " ".join(_describe_condition(view)),
        "desired": view.desired,
        "reason": view.reason,
        "startSeconds": _render_start_seconds(view),
        "starts": [
            {"how": FORKED if forked else COLD, "seconds": _round_optional(seconds)}
            for forked, seconds in tracked.starts
        ],
        "decisions": [
            {"time": _format_timestamp(event.at), "nodes": event.nodes, "reason": event.reason}
            for event in tracked.events
        ],
        "refusals": [
            {
                "time": _format_timestamp(refusal.at),
                "count": refusal.count,
                "reason": _describe_refusal(refusal.reason),
            }
            for refusal in tracked.refusals
        ],
    }
    failures = tracked.failures
    if failures.count:
        story["failures"] = {
            "count": failures.count,
            "reason": failures.reason,
            "nextTrySeconds": _round_optional(max(0.0, failures.next_try - now)),
        }
    return story


def _describe_condition(view: VersionSnapshot) -> Iterator[str]:
    """The condition of a version, in sentences."""
    yield _CONDITION_SENTENCES[view.condition]
    if view.nodes:
        states = (NodeState.READY, NodeState.STARTING, NodeState.DRAINING)
        counts = [f"{count} {state.value}" for state in states if (count := view.count_nodes(state))]
        yield f"Nodes: {', '.join(counts)}."
    if view.running or view.queued:
        yield f"Requests: {view.running} running, {view.queued} waiting."
    else:
        yield f"Idle for {view.idle_seconds:.0f} s."


_CONDITION_SENTENCES: Mapping[VersionCondition, str] = {
    VersionCondition.AWAKE: "It is awake.",
    VersionCondition.WAKING: "It wakes up.",
    VersionCondition.FAILING: "Its nodes cannot be started.",
    VersionCondition.ASLEEP: "It is asleep: it has no node, and gets one with the next request.",
}


# The autoscaler records an error by its class.
_REFUSAL_SENTENCES: Mapping[str, str] = {
    QueueFullError.__name__: "too many requests waited:",
    TooLateError.__name__: "a node would have been ready too late:",
    StartFailedError.__name__: "no node could be started:",
    RetiredError.__name__: "it was gone:",
}


def _describe_refusal(reason: str) -> str:
    kind, _, rest = reason.partition(": ")
    return f"{_REFUSAL_SENTENCES[kind]} {rest}" if kind in _REFUSAL_SENTENCES else reason


def _format_timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
