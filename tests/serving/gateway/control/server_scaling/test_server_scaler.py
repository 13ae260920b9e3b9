"""How many servers are wanted, and what Kubernetes hears of it, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field

import pytest

from autoscaler.placement.server_count import ServerCountSpec
from autoscaler.supervision import Supervisor
from serving.config import ServeConfig
from serving.errors import Aborted, InvalidArgument, PermissionDenied, ServingError, Unavailable
from serving.gateway.control.placement.server_placement import ServerView
from serving.gateway.control.server_scaling import server_scaler
from serving.gateway.control.server_scaling.kubernetes_deployment import DeploymentName, DeploymentScale
from serving.gateway.control.server_scaling.server_scaler import ServerScaler
from serving.gateway.state.shared.membership import ServerRecord

GET = PermissionDenied("may not get")
PATCH = PermissionDenied("may not patch")


def view(load: float, *, is_alive: bool = True, starting: bool = False) -> ServerView:
    record = ServerRecord(
        id="a", name="a", host="10.0.0.7", port=8090, machine="m", folder="/state", memory_bytes=1,
        processors=1, weight=16, load=load, starting=starting,
    )  # fmt: skip
    return ServerView(record=record, age=0.0, is_alive=is_alive, is_reached=None)


@dataclass
class FakeDeployment:
    """`errors` are raised by the verb that they are of."""

    pods: int = 1
    name: DeploymentName = DeploymentName("serving", "pilotlight")
    errors: dict[str, ServingError] = field(default_factory=dict)
    changes: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    is_changed: threading.Event = field(default_factory=threading.Event)

    def read_scale(self) -> DeploymentScale:
        self.threads.add(threading.current_thread().name)
        if "get" in self.errors:
            raise self.errors["get"]
        return DeploymentScale(self.pods, str(len(self.changes)))

    def set_pods(self, pods: int, seen: DeploymentScale) -> DeploymentScale:
        assert seen == DeploymentScale(self.pods, str(len(self.changes)))
        if "patch" in self.errors:
            raise self.errors["patch"]
        self.changes.append(pods)
        self.is_changed.set()
        self.pods = pods
        return self.read_scale()


class World:
    def __init__(self, deployment: FakeDeployment | None = None) -> None:
        self.deployment = deployment
        self.now = 1000.0
        self.servers = [view(0.5)]
        self.scaler = ServerScaler(
            ServerCountSpec(), lambda: self.servers, deployment, clock=lambda: self.now
        )
        self.scaler.resume()

    def decide(self, *, after: float = 5.0) -> int | None:
        self.now += after
        asyncio.run(self.scaler.decide())
        return self.scaler.desired


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_it_scales_up_at_once_and_down_after_five_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """On a thread of its own; a line of the log for each change."""
    caplog.set_level(logging.INFO)
    deployment = FakeDeployment()
    world = World(deployment)
    assert world.decide() == 1
    world.servers = [view(1.2)]
    assert world.decide() == 2
    world.servers = [view(0.1), view(0.1)]
    assert [world.decide(after=60) for _ in range(6)] == [2] * 5 + [1]
    assert deployment.changes == [2, 1]
    assert [one.getMessage().partition(", and 0.75")[0] for one in caplog.records] == [
        "the Deployment serving/pilotlight is scaled from 1 to 2: their loads add up to 1.20",
        "the Deployment serving/pilotlight is scaled from 2 to 1: their loads add up to 0.20",
    ]
    assert all(name.startswith("kubernetes") for name in deployment.threads)


def test_servers_that_are_silent_or_start_are_known_as_such() -> None:
    deployment = FakeDeployment(pods=3)
    world = World(deployment)
    world.servers = [view(0.1), view(0.1), view(0.1, starting=True)]
    assert world.decide(after=400) == 3
    # What a silent one said last counts no more; as long as it is missing, it is taken for busy.
    world.servers = [view(0.1), view(0.1), view(5.0, is_alive=False)]
    assert world.decide() == 2


def test_it_decides_only_while_it_owns_the_work() -> None:
    deployment = FakeDeployment()
    world = World(deployment)
    world.servers = [view(3.0)]
    asyncio.run(world.scaler.hand_over())
    assert world.decide() is None
    assert not deployment.threads
    world.scaler.resume()
    assert world.decide() == 4


def test_work_that_is_handed_over_while_the_scale_is_read_changes_nothing() -> None:
    deployment = FakeDeployment()
    world = World(deployment)
    world.servers = [view(3.0)]
    read_scale = deployment.read_scale

    def read_late() -> DeploymentScale:
        asyncio.run(world.scaler.hand_over())
        return read_scale()

    deployment.read_scale = read_late  # type: ignore[method-assign]
    assert world.decide() is None
    assert not deployment.changes


def test_it_reports_what_was_wanted_and_what_came_of_it() -> None:
    deployment = FakeDeployment(errors={"get": GET})
    world = World(deployment)
    world.servers = [view(1.2)]

    def describe() -> str:
        world.decide()
        report = world.scaler.report
        assert report is not None
        return report.describe().replace("their loads add up to 1.20, and 0.75 is the aim for each", "REASON")

    assert describe() == (
        "2 servers are wanted: REASON; the Deployment serving/pilotlight is set to an unknown number of "
        "pods; the last error: may not get."
    )
    deployment.errors = {"patch": PATCH}
    assert "is set to 1 pods; the last error: may not patch." in describe()
    deployment.errors = {}
    assert describe() == "2 servers are wanted: REASON; the Deployment serving/pilotlight is set to 2 pods."
    asyncio.run(world.scaler.hand_over())
    assert world.scaler.report is None

    told = World()
    told.decide()
    assert told.scaler.report is not None
    assert told.scaler.report.describe() == (
        "1 server is wanted: their loads add up to 0.50, and 0.75 is the aim for each. No Deployment is "
        "scaled (setting scaled_deployment)."
    )


def test_without_a_right_it_is_told_once_what_is_wanted_and_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deployment = FakeDeployment(errors={"get": GET})
    world = World(deployment)
    world.servers = [view(1.2)]
    assert [world.decide() for _ in range(3)] == [2, 2, 2]
    assert len(warnings(caplog)) == 1
    assert "may not get" in warnings(caplog)[0]

    deployment.errors = {"patch": PATCH}
    assert [world.decide() for _ in range(3)] == [2, 2, 2]
    assert warnings(caplog)[1:] == [
        "the number of servers can be read again, after 3 errors",
        "the number of servers stays as it is; more such errors are only counted: may not patch",
    ]
    assert world.scaler.errors == {"get": 3, "patch": 3}

    deployment.errors = {"patch": Unavailable("away")}
    world.decide()
    deployment.errors = {}
    world.decide()
    assert deployment.changes == [2]
    assert warnings(caplog)[3:] == [
        "the number of servers stays as it is; more such errors are only counted: away",
        "the number of servers can be changed again, after 4 errors",
    ]


def test_a_server_that_could_not_be_taken_away_goes_in_the_next_round() -> None:
    deployment = FakeDeployment(pods=2, errors={"patch": PATCH})
    world = World(deployment)
    world.servers = [view(0.1)] * 2
    world.decide(after=400)
    deployment.errors = {}
    world.decide()
    assert deployment.changes == [1]


def test_what_somebody_else_changes_meanwhile_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    deployment = FakeDeployment(errors={"patch": Aborted("was changed")})
    world = World(deployment)
    world.servers = [view(1.2)]
    world.decide()
    assert not world.scaler.errors
    assert not warnings(caplog)


def test_a_call_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop never waits for it."""
    monkeypatch.setattr(server_scaler, "_CALL_SECONDS", 0.05)
    is_over = threading.Event()
    deployment = FakeDeployment()
    world = World(deployment)
    world.servers = [view(1.2)]

    def hang() -> DeploymentScale:
        is_over.wait(30)
        return DeploymentScale(1, "0")

    deployment.read_scale = hang  # type: ignore[method-assign]
    try:
        assert world.decide() == 2
    finally:
        is_over.set()
    assert warnings(caplog)[0].endswith("Kubernetes has not answered within 0.05 s.")


def test_without_a_deployment_it_only_says_what_is_wanted() -> None:
    """For an operator or an autoscaler, whose number comes later."""
    world = World()
    world.servers = [view(1.6)]
    assert [world.decide() for _ in range(2)] == [3, 3]
    world.servers = [view(0.1)] * 3
    assert [world.decide(after=60) for _ in range(8)] == [3] * 5 + [2, 1, 1]


def test_it_is_a_background_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_scaler, "_INTERVAL", 0.0)
    deployment = FakeDeployment()
    world = World(deployment)
    world.servers = [view(1.2)]

    async def main() -> None:
        async with asyncio.timeout(10), Supervisor() as supervisor:
            loop = world.scaler.start(supervisor)
            await asyncio.to_thread(deployment.is_changed.wait, 10)
            await loop.stop()

    asyncio.run(main())
    assert deployment.changes == [2]


def test_settings_that_contradict_each_other_are_refused() -> None:
    config = ServeConfig(min_servers=3, max_servers=2)
    with pytest.raises(InvalidArgument, match="they are 3 and 2"):
        ServerScaler.from_settings(config, list)
