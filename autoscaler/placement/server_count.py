"""How many servers there should be: a pure function of their loads, the state before it, and time.

It decides as the chart's HorizontalPodAutoscaler does. All times are in seconds on one clock that the caller
chooses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Seconds between two servers that go.
_STEP_SECONDS = 60.0
# Sums of rounded loads: 3 servers of 0.1 and a target of 0.1 must not count as 3.0000000000000004.
_ROUNDING_ERROR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCountSpec:
    """`target_load` is the load that each server should have; see `autoscaler.placement.server_load`.

    A server goes when fewer were enough for `scale_down_delay`.
    """

    minimum: int = 1
    maximum: int = 10
    target_load: float = 0.75
    scale_down_delay: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingServer:
    """`is_changing`: it starts, so that it does not have its share of the load yet, or drains."""

    load: float
    is_changing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCountState:
    """What one decision leaves for the next.

    `known_since` is when the first one was. `wanted` are the recent (time, servers) that were enough, no
    older than the delay; each is less than those before it, for only such ones can still become the most.
    `lowered_at` is when a server was last taken away.
    """

    known_since: float
    wanted: tuple[tuple[float, int], ...] = ()
    lowered_at: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCountDecision:
    """How many servers there should be now, why, in words, and the state to hand on."""

    servers: int
    reason: str
    state: ServerCountState


def decide_server_count(
    spec: ServerCountSpec,
    servers: Sequence[LivingServer],
    current: int,
    state: ServerCountState,
    now: float,
) -> ServerCountDecision:
    """`current` is how many there are to be as of now, more than `servers` while some are missing.

    More come at once, as many as are needed; of too many one goes at a time. Whether fewer are enough is
    asked as if missing servers had the load that each should have, for nobody knows what they do.
    """
    load = sum(one.load for one in servers)
    needed = math.ceil(load / spec.target_load - _ROUNDING_ERROR)
    missing = max(0, current - len(servers))
    enough = _clamp(spec, needed + missing)
    state = dataclasses.replace(
        state, wanted=_recent_maxima(state.wanted, now, enough, spec.scale_down_delay)
    )
    explained = f"their loads add up to {load:.2f}, and {spec.target_load:g} is the aim for each"

    def decide(count: int, reason: str) -> ServerCountDecision:
        return ServerCountDecision(servers=count, reason=reason, state=state)

    if not current:
        return decide(0, "somebody has set it to 0, where it stays until somebody sets it to another number")
    within = _clamp(spec, current)
    if needed > within:
        capped = _clamp(spec, needed)
        return decide(capped, explained + (f"; at most {capped} are allowed" if capped < needed else ""))
    if within != current:
        return decide(within, f"it must be within {spec.minimum} and {spec.maximum}")
    if enough >= current:
        return decide(current, explained)
    if why := _find_hold(spec, servers, current, state, now):
        return decide(current, f"{enough} would be enough: {explained}; but {why}")
    lowered = dataclasses.replace(state, lowered_at=now)
    return ServerCountDecision(servers=current - 1, reason=explained, state=lowered)


def _clamp(spec: ServerCountSpec, servers: int) -> int:
    return min(max(servers, spec.minimum), spec.maximum)


def _find_hold(
    spec: ServerCountSpec,
    servers: Sequence[LivingServer],
    current: int,
    state: ServerCountState,
    now: float,
) -> str:
    """Why none of too many servers goes now; "" when one may."""
    delay, most = spec.scale_down_delay, state.wanted[0][1]
    if any(one.is_changing for one in servers):
        return "one starts or drains"
    if now - state.known_since < delay:
        return f"what was needed within the last {delay:g} s is not known yet"
    if most >= current:
        return f"{most} were needed within the last {delay:g} s"
    if now - state.lowered_at < min(_STEP_SECONDS, delay):
        return "another one has gone just now"
    return ""


def _recent_maxima(
    wanted: tuple[tuple[float, int], ...], now: float, servers: int, delay: float
) -> tuple[tuple[float, int], ...]:
    """The wanted numbers that can still be a maximum within the delay, and `servers`."""
    return (*[one for one in wanted if one[1] > servers and one[0] >= now - delay], (now, servers))
