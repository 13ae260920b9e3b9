"""Why requests waited: the last ones of each version that waited for a node, or that took long.

Others cost one comparison. What is kept is bounded, and lost when the server stops.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from serving.errors import ServingError, http_status
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.observation import RequestTiming
from serving.gateway.proxy.server_timing import compute_wait_phases, parse_node_phases
from serving.latency_histograms import NODE_PHASES

# Seconds: who took less has not waited, who waited for a node for so long has, and who took so long is kept
# even if it waited for no node.
HELD_SECONDS: Final = 0.01
SLOW_SECONDS: Final = 1.0
# Of a version, and of all. Those of the version that had none for the longest time go first.
MOST_WAITS: Final = 50
MOST_WAITS_OF_ALL: Final = 5000
_MAX_MESSAGE: Final = 300
# What a wait for a node is made of, in order; `in_node` is in place of the node's own phases, where these are
# not known, and `in_vain` what a request waited that got no node.
WAIT_PHASES: Final = ("queue", "start", "load", "warm")
IN_VAIN: Final = "in_vain"
IN_NODE: Final = "in_node"
_GATEWAY: Final = "gateway"
_START_WORDS: Final[Mapping[str, str]] = {
    "queue": "before it began",
    "start": "launch",
    "load": "load",
    "warm": "warm-up",
}
_NODE_WORDS: Final[Mapping[str, str]] = {
    "parse": "reading it",
    "wait": "waiting in the node's queue",
    "infer": "computing",
    "encode": "writing the answer",
    IN_NODE: "in the node, which reads, queues and computes",
    _GATEWAY: "on the way to the node and back",
}


class RecordedWait(NamedTuple):
    """A request that waited, or took long.

    `at` is when it came, in seconds since the epoch, `seconds` what it took in all, and `phases` where,
    without those that took no time. `forked`: the node that it waited for was forked, not started cold.
    `message` says why it was refused.
    """

    at: float
    request_id: str
    status: int
    seconds: float
    phases: Mapping[str, float]
    forked: bool = False
    message: str = ""


class WaitRecorder:
    """The waits of all versions, by uid. `clock` is in seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # The version that had one last is the last.
        self._waits: OrderedDict[str, deque[RecordedWait]] = OrderedDict()
        self._count = 0

    def record_answer(self, uid: str, timing: RequestTiming, reply: NodeReply, request_id: str) -> None:
        phases = _measure_phases(timing, dict(parse_node_phases(reply.headers)))
        seconds, at = timing[0], self._clock() - timing[0]
        self._add(uid, RecordedWait(at, request_id, reply.status, seconds, phases, _is_forked(timing)))

    def record_refusal(self, uid: str, timing: RequestTiming, error: ServingError, request_id: str) -> None:
        phases = _measure_phases(timing, {})
        # Whatever was no wait for a node that came, and not in one, was a wait in vain.
        if rest := phases.pop(_GATEWAY, 0.0):
            phases[IN_VAIN] = rest
        seconds, at = timing[0], self._clock() - timing[0]
        status, message = http_status(error), error.message[:_MAX_MESSAGE]
        self._add(uid, RecordedWait(at, request_id, status, seconds, phases, _is_forked(timing), message))

    def list_waits(self, uid: str) -> Sequence[RecordedWait]:
        """Those of a version, the newest first."""
        return tuple(reversed(self._waits.get(uid, ())))

    def forget_version(self, uid: str) -> None:
        self._count -= len(self._waits.pop(uid, ()))

    def _add(self, uid: str, wait: RecordedWait) -> None:
        waits = self._waits.setdefault(uid, deque())
        waits.append(wait)
        self._waits.move_to_end(uid)
        self._count += 1
        if len(waits) > MOST_WAITS:
            waits.popleft()
            self._count -= 1
        elif self._count > MOST_WAITS_OF_ALL:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        uid, waits = next(iter(self._waits.items()))
        waits.popleft()
        self._count -= 1
        if not waits:
            del self._waits[uid]


def is_wait(timing: RequestTiming) -> bool:
    """Whether a request waited for a node, or took long: whether it is recorded."""
    seconds, _, leases = timing
    if not leases:
        return seconds >= SLOW_SECONDS
    return seconds >= SLOW_SECONDS or sum(lease.seconds_waited for lease in leases) >= HELD_SECONDS


def _is_forked(timing: RequestTiming) -> bool:
    """Whether a request waited for the start of a forked node."""
    return any(lease.node.forked for lease in timing[2] if lease.waited_for_start)


def _measure_phases(timing: RequestTiming, told: Mapping[str, float]) -> dict[str, float]:
    """`told` are the phases of which a node has told."""
    seconds, inside, leases = timing
    phases: dict[str, float] = {}
    for lease in leases:
        for name, duration in compute_wait_phases(lease):
            phases[name] = phases.get(name, 0.0) + duration
    known = {name: told[name] for name in NODE_PHASES if name in told} or {IN_NODE: inside}
    phases[_GATEWAY] = max(0.0, seconds - sum(phases.values()) - sum(known.values()))
    found = {**phases, **known}
    return {name: duration for name, duration in found.items() if duration > 0}


def describe_wait(wait: RecordedWait) -> str:
    """Where the time of a request went, in a sentence."""
    return " ".join([*_describe_node(wait), *_describe_rest(wait), *([wait.message] if wait.message else [])])


def _describe_node(wait: RecordedWait) -> Iterator[str]:
    phases = wait.phases
    waited = sum(phases.get(name, 0.0) for name in WAIT_PHASES)
    if any(phases.get(name) for name in WAIT_PHASES[1:]):
        parts = _join_parts(phases, _START_WORDS, least=waited / 100)
        kind = "forked" if wait.forked else "cold"
        yield f"Waited {format_milliseconds(waited)} for the {kind} start of a node: {parts}."
    elif waited:
        yield f"Waited {format_milliseconds(waited)} for a place in a node: all were taken."
    if vain := phases.get(IN_VAIN):
        yield f"Waited {format_milliseconds(vain)}, and no node answered."
    elif not waited:
        yield "Waited for no node."


def _describe_rest(wait: RecordedWait) -> Iterator[str]:
    if parts := _join_parts(wait.phases, _NODE_WORDS, least=wait.seconds / 100):
        yield f"Then {parts}."


def _join_parts(phases: Mapping[str, float], words: Mapping[str, str], *, least: float) -> str:
    """The phases that took so many seconds, in the order of the words."""
    found = [
        f"{format_milliseconds(phases[name])} {text}"
        for name, text in words.items()
        if phases.get(name, 0.0) > least
    ]
    return ", ".join(found)


def format_milliseconds(seconds: float) -> str:
    """In milliseconds below a second, with at most three digits: 0.4 ms, 92 ms, 1.25 s."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
