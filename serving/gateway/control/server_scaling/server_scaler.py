"""Keeps the number of servers at what their loads need, while this server owns the work of all.

What it wants is decided in `autoscaler.placement.server_count`. Without a Deployment it is only told, as a
metric.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from autoscaler.placement.server_count import (
    LivingServer,
    ServerCountDecision,
    ServerCountSpec,
    ServerCountState,
    decide_server_count,
)
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.config import ServeConfig
from serving.errors import Aborted, InvalidArgument, ServingError
from serving.gateway.control.placement.server_placement import ServerView
from serving.gateway.control.server_scaling.kubernetes_deployment import (
    DeploymentName,
    DeploymentScale,
    KubernetesDeployment,
    parse_deployment_name,
)
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.shared.membership import ScalingReport
from serving.gateway.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Loads are measured as often.
_INTERVAL = 5.0
# Of one call, whatever hangs: the first one imports the client, which takes its time on a busy machine.
_CALL_SECONDS = 20.0
_MAX_PAUSE = 60.0
_LONGEST_ERROR = 500


class ScaledDeployment(Protocol):
    """See `KubernetesDeployment`. Both calls block, and raise ServingError."""

    @property
    def name(self) -> DeploymentName: ...

    def read_scale(self) -> DeploymentScale: ...

    def set_pods(self, pods: int, seen: DeploymentScale) -> DeploymentScale: ...


class _Failure(NamedTuple):
    """How often a call has failed in a row, and the last time."""

    kind: type[Exception]
    text: str
    times: int


class ServerScaler:
    """Implements `CommitAwareWork`. An error changes nothing but the number of servers, which stays as it is.

    `desired` is how many servers there should be, None while another server decides that. `errors` are calls
    of Kubernetes that failed, by their verb. `report` is what operators are told of the last decision.
    """

    def __init__(
        self,
        spec: ServerCountSpec,
        list_servers: Callable[[], Sequence[ServerView]],
        deployment: ScaledDeployment | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._list_servers = list_servers
        self._deployment = deployment
        self._clock = clock
        self._thread = ThreadPool("kubernetes", 1)
        self._pods: int | None = None  # of the Deployment, as last read or set
        self._state: ServerCountState | None = None  # None while the work is another server's
        self._failing: dict[str, _Failure] = {}  # by verb
        self.report: ScalingReport | None = None
        self.desired: int | None = None
        self.errors: Counter[str] = Counter()

    @classmethod
    def from_settings(
        cls, config: ServeConfig, list_servers: Callable[[], Sequence[ServerView]]
    ) -> ServerScaler:
        """Raises InvalidArgument for settings that cannot be used, and what `KubernetesDeployment` raises."""
        if config.min_servers > config.max_servers:
            raise InvalidArgument(
                f"min_servers must be at most max_servers; they are {config.min_servers} and "
                f"{config.max_servers}."
            )
        spec = ServerCountSpec(
            minimum=config.min_servers,
            maximum=config.max_servers,
            target_load=config.server_target_load,
            scale_down_delay=config.server_scale_down_delay,
        )
        deployment = None
        if config.scaled_deployment:
            name = parse_deployment_name(config.scaled_deployment)
            deployment = KubernetesDeployment(name, config.kubernetes_credentials)
        return cls(spec, list_servers, deployment)

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        async def wait_interval() -> None:
            await asyncio.sleep(_INTERVAL)

        return supervisor.start_loop("server-count", wait_interval, self.decide, within=_MAX_PAUSE)

    # ---- as the work of one server

    def resume(self) -> None:
        self._state = ServerCountState(known_since=self._clock())

    async def hand_over(self) -> None:
        """A call on its way may still change the number once, to what both servers want."""
        self._state = self.desired = self.report = None

    def apply_commit(self, commit: Commit) -> None:
        """It does not depend on the catalog."""

    # ---- rounds

    async def decide(self) -> None:
        if self._state is not None:
            deployment = self._deployment
            scale = None if deployment is None else await self._call("get", deployment.read_scale)
            decision = await self._decide_and_scale(scale)
            if decision is not None and self._state is not None:
                self._update_report(decision)

    async def _decide_and_scale(self, scale: DeploymentScale | None) -> ServerCountDecision | None:
        before = self._state
        servers = [
            LivingServer(load=view.record.load, is_changing=view.record.starting or view.record.draining)
            for view in self._list_servers()
            if view.is_alive
        ]
        if before is None or not servers:
            return None
        # Where it cannot be read, what was wanted last is what there is to be.
        self._pods = self._pods if scale is None else scale.pods
        current = (self.desired or len(servers)) if scale is None else scale.pods
        decision = decide_server_count(self._spec, servers, current, before, self._clock())
        self._state, self.desired = decision.state, decision.servers
        if self._deployment is None or scale is None or decision.servers == scale.pods:
            return decision
        changed = await self._call("patch", self._deployment.set_pods, decision.servers, scale)
        if changed is not None:
            self._pods = changed.pods
            logger.info(
                "the Deployment %s is scaled from %d to %d: %s",
                *(self._deployment.name, scale.pods, decision.servers, decision.reason),
            )
        elif self._state is decision.state:
            # None has gone: the next round tries again.
            self._state = dataclasses.replace(decision.state, lowered_at=before.lowered_at)
        return decision

    def _update_report(self, decision: ServerCountDecision) -> None:
        deployment, failures = self._deployment, list(self._failing.values())
        self.report = ScalingReport(
            wanted=decision.servers,
            reason=decision.reason,
            deployment="" if deployment is None else str(deployment.name),
            pods=self._pods,
            error=failures[-1].text[:_LONGEST_ERROR] if failures else "",
        )

    async def _call(self, verb: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What a call returns, None if it fails."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                result = await self._thread.run(work, *args, **kwargs)
        except Aborted as error:
            logger.info("the number of servers is decided anew: %s", error)
            return None
        except (ServingError, TimeoutError) as error:
            self._count_error(verb, error)
            return None
        if verb in self._failing:
            logger.warning(
                "the number of servers can be %s again, after %d errors",
                *("read" if verb == "get" else "changed", self._failing.pop(verb).times),
            )
        return result

    def _count_error(self, verb: str, error: Exception) -> None:
        """Log the first one of a kind in a row."""
        self.errors[verb] += 1
        text = str(error) or f"Kubernetes has not answered within {_CALL_SECONDS:g} s."
        before = self._failing.pop(verb, _Failure(Exception, "", 0))
        self._failing[verb] = _Failure(type(error), text, before.times + 1)
        if before.kind is not type(error):
            logger.warning(
                "the number of servers stays as it is; more such errors are only counted: %s", text
            )
