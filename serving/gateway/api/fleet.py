"""What the server has running, and why: `/metrics`, `/nodes`, `/why/…`. Not part of the AI Platform API."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from autoscaler.errors import QueueFullError, RetiredError, StartFailedError, TooLateError
from autoscaler.pools import MemoryUsage, NodeState
from autoscaler.pools.pilots import PilotStatus
from autoscaler.tracking import VersionScaler
from serving.errors import FailedPrecondition
from serving.gateway.api.requests import answer_json, model_name, version_name
from serving.gateway.catalog.lookup import get_model, get_version
from serving.gateway.metrics import CONTENT_TYPE, Metrics
from serving.gateway.overview import (
    COLD,
    FORKED,
    Condition,
    NodeView,
    Overview,
    VersionView,
    memory_of,
    memory_of_gateway,
    memory_of_pilot,
)
from serving.gateway.records import VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.names import VersionName

Json = dict[str, Any]

_QUEUE = 31


class Fleet:
    """The endpoints."""

    def __init__(self, overview: Overview, metrics: Metrics) -> None:
        self._overview = overview
        self._metrics = metrics
        self._threads = ThreadPool("nodes", 1, queue=_QUEUE)

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics`, for Prometheus."""
        return Response(await self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def nodes(self, _: Request) -> Response:
        """`GET /nodes`: every version that is scaled, its nodes, all pilots, and what memory they take."""
        versions, pilots = self._overview.versions(), self._overview.list_pilots()

        def measured() -> Json:
            return {
                "versions": [_version(view) for view in versions],
                "pilots": [_pilot(pilot) for pilot in pilots],
                "gateway": {"pid": os.getpid(), **_memory(memory_of_gateway())},
            }

        return answer_json(await self._threads.run(measured))

    async def why_version(self, request: Request) -> Response:
        """`GET /why/…/versions/V`: how a version is, and how that came about."""
        return self._why(get_version(self._overview.state, version_name(request)))

    async def why_model(self, request: Request) -> Response:
        """`GET /why/…/models/M`: the same of the default version."""
        state, name = self._overview.state, model_name(request)
        default = get_model(state, name).default
        if not default:
            raise FailedPrecondition(f"The model {name} has no default version yet.")
        return self._why(get_version(state, VersionName(name.project, name.model, default)))

    def _why(self, record: VersionRecord) -> Response:
        view, tracked = self._overview.version(record), self._overview.tracked(record)
        if view is None or tracked is None:
            return answer_json(_unscaled(record))
        story = _story(view, tracked, self._overview.now)
        warnings = list(record.version.warnings)
        return answer_json({**story, "warnings": warnings} if warnings else story)


# ---- /nodes


def _version(view: VersionView) -> Json:
    return {
        "version": str(view.name),
        "exact": view.exact,
        "state": view.condition.value,
        "desired": view.desired,
        "ready": view.count(NodeState.READY),
        "starting": view.count(NodeState.STARTING),
        "draining": view.count(NodeState.DRAINING),
        "running": view.running,
        "queued": view.queued,
        "idleSeconds": _rounded(view.idle_seconds),
        "nodeSeconds": _rounded(view.node_seconds),
        "wakeups": dict(view.wakeups),
        "startSeconds": _start_seconds(view),
        "reason": view.reason,
        "nodes": [_node(node) for node in view.nodes],
    }


def _node(node: NodeView) -> Json:
    return {
        "id": node.id,
        "pid": node.pid,
        "state": node.state.value,
        "forked": node.forked,
        "ageSeconds": _rounded(node.age),
        "inFlight": node.in_flight,
        **_memory(memory_of((node.pid,))),
    }


def _pilot(pilot: PilotStatus) -> Json:
    return {
        "pilot": pilot.key,
        "pid": pilot.pid,
        "state": pilot.state.value,
        "ageSeconds": _rounded(pilot.age),
        "litSeconds": _rounded(pilot.seconds),
        "nodesForked": pilot.forked,
        **({"reason": pilot.reason} if pilot.reason else {}),
        **_memory(memory_of_pilot(pilot)),
    }


def _memory(memory: MemoryUsage | None) -> Json:
    """A process's memory; it may have ended before it was looked at."""
    return {
        "privateBytes": memory.private if memory else 0,
        "proportionalBytes": memory.proportional if memory else 0,
    }


def _start_seconds(view: VersionView) -> Json:
    return {how: _rounded(seconds) for how, seconds in view.start_seconds.items()}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# ---- /why


def _unscaled(record: VersionRecord) -> Json:
    """A version that is being made or removed, or could not be made."""
    version = record.version
    state = version.state.value if version.state is not None else "STATE_UNSPECIFIED"
    return {
        "version": str(record.name),
        "state": state.lower(),
        "summary": f"It has no nodes, for it is {state}. {version.error_message}".rstrip(),
    }


def _story(view: VersionView, tracked: VersionScaler, now: float) -> Json:
    story: Json = {
        "version": str(view.name),
        "state": view.condition.value,
        "summary": " ".join(_summary(view)),
        "desired": view.desired,
        "reason": view.reason,
        "startSeconds": _start_seconds(view),
        "starts": [
            {"how": FORKED if forked else COLD, "seconds": _rounded(seconds)}
            for forked, seconds in tracked.starts
        ],
        "decisions": [
            {"time": _timestamp(event.at), "nodes": event.nodes, "reason": event.reason}
            for event in tracked.events
        ],
        "refusals": [
            {"time": _timestamp(refusal.at), "count": refusal.count, "reason": _refusal(refusal.reason)}
            for refusal in tracked.refusals
        ],
    }
    failures = tracked.failures
    if failures.count:
        story["failures"] = {
            "count": failures.count,
            "reason": failures.reason,
            "nextTrySeconds": _rounded(max(0.0, failures.next_try - now)),
        }
    return story


def _summary(view: VersionView) -> Iterator[str]:
    """How a version is, in sentences."""
    yield _HOW_IT_IS[view.condition]
    if view.nodes:
        states = (NodeState.READY, NodeState.STARTING, NodeState.DRAINING)
        counts = [f"{count} {state.value}" for state in states if (count := view.count(state))]
        yield f"Nodes: {', '.join(counts)}."
    if view.running or view.queued:
        yield f"Requests: {view.running} running, {view.queued} waiting."
    else:
        yield f"Idle for {view.idle_seconds:.0f} s."


_HOW_IT_IS: Mapping[Condition, str] = {
    Condition.AWAKE: "It is awake.",
    Condition.WAKING: "It wakes up.",
    Condition.FAILING: "Its nodes cannot be started.",
    Condition.ASLEEP: "It is asleep: it has no node, and gets one with the next request.",
}


# The autoscaler notes an error by its class.
_REFUSALS: Mapping[str, str] = {
    QueueFullError.__name__: "too many requests waited:",
    TooLateError.__name__: "a node would have been ready too late:",
    StartFailedError.__name__: "no node could be started:",
    RetiredError.__name__: "it was gone:",
}


def _refusal(reason: str) -> str:
    kind, _, rest = reason.partition(": ")
    return f"{_REFUSALS[kind]} {rest}" if kind in _REFUSALS else reason


def _timestamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
