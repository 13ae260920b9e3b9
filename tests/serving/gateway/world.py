"""Versions, requests and nodes as the gateway has them, except that nodes are only said to be there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

from autoscaler import machine
from autoscaler.activator import Activator
from autoscaler.child_launcher import RunningChild
from autoscaler.decision import ScalingSpec
from autoscaler.node_process import LaunchSpec
from autoscaler.placement.server_load import ServerLoad
from autoscaler.pools import (
    MemoryUsage,
    Node,
    NodeSpec,
    NodeState,
    PilotSpec,
    PilotState,
    PilotStatus,
)
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from serving.gateway.control.status import ServerStatus
from serving.gateway.observability.metric_definitions import ServerCounts, SuggestionCounts
from serving.gateway.observability.metrics import Metrics, MetricSources, RefusalCountingWaker
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.observability.request_log import LogCounts
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.job_map import JobMap
from serving.gateway.state.records import JobRecord, ModelRecord, VersionRecord
from serving.latency_histograms import NODE_BYTES
from serving.names import ModelName, VersionName
from serving.resources import Job, JobState, Model, PredictionOutput, Version, VersionState
from tests.autoscaler.fakes import memory
from tests.bounds import HANG_SECONDS


class FakePool:
    """Nodes start when they are asked for, and become ready or die when a test says so.

    `pid` is what all of them have: this process, so that there is memory to measure.
    """

    def __init__(self, listener: Callable[[Node], None]) -> None:
        self._listener = listener
        self._nodes: list[Node] = []
        self._started = 0
        self.forked = True
        self.running_pilots = [
            PilotStatus(
                key="tabular",
                state=PilotState.READY,
                pid=os.getpid(),
                spare=None,
                age=60.0,
                seconds=2.5,
                forked=3,
                reason="",
            )
        ]

    def nodes(self, key: str) -> Sequence[Node]:
        return [node for node in self._nodes if node.key == key]

    async def scale(self, spec: NodeSpec, count: int) -> None:
        nodes = self.nodes(spec.key)
        for _ in range(len(nodes), count):
            self.start(spec.key)
        for node in nodes[count:]:
            self.end(node)

    def kill_hung(self, node: Node, reason: str) -> None:
        raise NotImplementedError

    def cpu_seconds(self, node: Node) -> float | None:
        return None

    def can_fork(self, spec: NodeSpec) -> bool:
        return self.forked

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        pass

    def list_pilots(self) -> Sequence[PilotStatus]:
        return self.running_pilots

    async def wait_for_pilots(self, within: float) -> None:
        pass

    def run_forked(
        self, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
    ) -> AbstractAsyncContextManager[RunningChild | None]:
        return nullcontext()

    def count_cores(self) -> int:
        return 2

    def available_memory(self) -> int:
        return 1 << 40

    def measure_memory(self, pids: Iterable[int]) -> MemoryUsage | None:
        found = list(pids)
        return machine.measure_memory(*found) if found else None

    def run_delay_seconds(self, node: Node) -> float:
        return 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        pass

    def start(self, key: str) -> Node:
        self._started += 1
        node = Node(
            id=str(self._started),
            key=key,
            address="",
            shared=memory(4, counter_bytes=NODE_BYTES),
            asked_at=time.monotonic(),
        )
        node.pid, node.forked = os.getpid(), self.forked
        self._nodes.append(node)
        self._listener(node)
        return node

    def ready(self, node: Node, *, load: float = 0.0, warm: float = 0.0, total: float = 0.0) -> Node:
        """`total` seconds after it was asked for, `load` and `warm` of them as it says itself."""
        node.ready_at = node.asked_at + total
        node.report = {"load_seconds": load, "warm_seconds": warm}
        node.state = NodeState.READY
        self._listener(node)
        return node

    def fail_pilot(self, reason: str) -> None:
        """The pilot is there no more."""
        self.running_pilots = [
            replace(
                self.running_pilots[0],
                state=PilotState.FAILED,
                pid=None,
                age=None,
                seconds=None,
                forked=0,
                reason=reason,
            )
        ]

    def end(self, node: Node, reason: str = "") -> None:
        """It is gone; with a reason it said itself that it cannot start."""
        self._nodes.remove(node)
        node.state, node.reason = NodeState.GONE, reason
        node.crashed = node.permanent_failure = bool(reason)
        self._listener(node)
        node.gone.set()


class Patient:
    """A request that waits as long as it is told to."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.remaining = seconds

    async def wait(self, granted: asyncio.Future[Node]) -> Node:
        return await granted


class World:
    """A gateway's parts, put together as it does."""

    def __init__(self) -> None:
        self.state = CatalogState()
        self.pool = FakePool(self._node_changed)
        self.activator = Activator(queue_requests=1, queue_bytes=1000)
        self.autoscaler = Autoscaler(
            self.activator,
            self.pool,
            tick=1.0,
            memory_bytes=0,
            on_trouble=lambda *_: None,
            supervisor=Supervisor(),
        )
        self.status = ServerStatus(lambda: self.state, self.activator, self.autoscaler, self.pool)
        self.stats = PredictionStats()
        self.spans: dict[str, int] = {}
        self.audit: dict[str, int] = {}
        self.logs: list[LogCounts] = []
        self.suggestions = SuggestionCounts({}, 0.0)
        self.server_load = ServerLoad()
        self.server_counts = ServerCounts()
        self.disk = asyncio.Event()
        self.disk.set()
        self.metrics = Metrics(
            self.status,
            self.stats,
            MetricSources(
                lambda: self.spans,
                lambda: self.audit,
                self._logged,
                suggestions=lambda: self.suggestions,
                server_load=lambda: self.server_load,
                server_counts=lambda: self.server_counts,
            ),
        )
        self.activator.connect_waker(RefusalCountingWaker(self.autoscaler, self.metrics))
        self._requests: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def _logged(self) -> list[LogCounts]:
        await self.disk.wait()
        return self.logs

    def _node_changed(self, node: Node) -> None:
        self.activator.on_node_changed(node)
        self.autoscaler.on_node_changed(node)
        self.metrics.on_node_changed(node)

    def add(self, version: str, *, tracked: bool = True, **fields: Any) -> NodeSpec:
        """A version `MODEL/VERSION` of the project p, scaled from now on; the first is the default."""
        model, _, last = version.partition("/")
        name = VersionName("p", model, last)
        state = fields.pop("state", VersionState.READY)
        record = VersionRecord(name=name, uid=version, version=Version(name=str(name), state=state, **fields))
        known = self.state.models.get(name.parent)
        models = {name.parent: known or ModelRecord(name=name.parent, model=Model(), default=last)}
        versions = {**self.state.versions, name: record}
        self.state = replace(self.state, models={**self.state.models, **models}, versions=versions)
        spec = NodeSpec(version, str(name), "", {}, {}, start_timeout=1, concurrency=1)
        if tracked:
            self.autoscaler.track_version(spec, ScalingSpec(), memory=1, start_seconds=None)
        return spec

    def remove(self, version: str) -> None:
        """Take a version out of the catalog."""
        versions = {name: record for name, record in self.state.versions.items() if record.uid != version}
        self.state = replace(self.state, versions=versions)

    def empty_model(self, model: str) -> None:
        """A model without versions."""
        name = ModelName("p", model)
        models = {**self.state.models, name: ModelRecord(name=name, model=Model())}
        self.state = replace(self.state, models=models)

    def add_job(self, job: str, state: JobState, predictions: int = 0, errors: int = 0) -> None:
        """A job of the project p, in a state, with counts."""
        output = PredictionOutput(prediction_count=str(predictions or ""), error_count=str(errors or ""))
        name = f"projects/p/jobs/{job}"
        record = JobRecord(
            name=name,
            project="p",
            uid=job,
            number=len(self.state.jobs) + 1,
            job=Job(job_id=job, state=state, prediction_output=output),
        )
        self.state = replace(self.state, jobs=JobMap.from_mapping({**self.state.jobs, name: record}))

    def answered(self, version: str, status: int = 200) -> None:
        """A node of it answers a request."""
        self.stats.get_or_create(version).count_answer((0.001, 0.001, ()), status, 10, 20)

    async def ask(self, spec: NodeSpec, seconds: float = 60.0) -> asyncio.Task[None]:
        """A request, which stays in its node until the end of the test."""

        async def inside() -> None:
            async with self.activator.lease(spec, 1, Patient(seconds)):
                await self._over.wait()

        task = asyncio.create_task(inside())
        self._requests.append(task)
        await settle()
        return task

    async def end(self) -> None:
        """Let all requests go."""
        self._over.set()
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(main: Callable[[World], Awaitable[None]]) -> None:
    """A test on an event loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            world = World()
            await main(world)
            await world.end()

    asyncio.run(bounded())
