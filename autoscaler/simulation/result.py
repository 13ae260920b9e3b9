"""What a simulation is given besides its traces, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConditions:
    """What nodes and requests are like, and the server's limits. Times are in seconds, memory in bytes.

    A node computes one request at a time, each for `service_seconds`, and holds `node_concurrency` of them
    at most. Nodes take `start_seconds` from the decision until they are ready: one number for each node,
    from the first again after the last. A request that is not answered in `request_timeout` has failed; at
    most `queue_requests` of a version wait. `tick` is the time between two looks at the load. Nodes take
    `node_bytes` each of `memory_bytes` (None: there is always enough).
    """

    start_seconds: Sequence[float] = (0.2,)
    service_seconds: float = 0.01
    node_concurrency: int = 128
    request_timeout: float = 60.0
    queue_requests: int = 4096
    tick: float = 1.0
    node_bytes: int = 0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What a replay came to.

    `seconds` were simulated, until after the trace the last node went or nothing happened any more. Of
    `requests`, so many were `answered`, `refused` (no room to wait, or no node in time) or `timed_out`.
    `cold_starts` are nodes started for a version that had none while a request waited, `held` the requests
    that found no node with room. `wait_…` are percentiles, in seconds, of the time from a request's coming
    to its being computed. `most_nodes` were there at the same time, of all versions. `node_seconds` go from
    the start of a process to its end; `idle_share` is the part of them in which a ready node had nothing
    to compute. `looks` counts decisions, a tick of one version each; `policy_seconds` is the real time that
    seeing, deciding and allocating took, and the one number that differs from run to run.
    """

    versions: int
    seconds: float
    requests: int
    answered: int
    refused: int
    timed_out: int
    cold_starts: int
    held: int
    wait_p50: float
    wait_p99: float
    wait_max: float
    nodes_started: int
    most_nodes: int
    node_seconds: float
    idle_share: float
    looks: int
    policy_seconds: float = field(compare=False)

    @property
    def policy_microseconds(self) -> float:
        """The cost of the policy per tick and version."""
        return 1e6 * self.policy_seconds / self.looks if self.looks else 0.0


def wait_percentile(waits: Sequence[float], zeros: int, share: float) -> float:
    """The smallest wait that a `share` of all did not exceed; `waits` ascend, `zeros` more were none."""
    rank = math.ceil(share * (len(waits) + zeros))
    # A moment late in a day is known to some 10 picoseconds: what comes after the ninth digit is noise.
    return round(waits[rank - zeros - 1], 9) if rank > zeros else 0.0
