from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from autoscaler.supervision import Supervisor
from serving.config import ServeConfig
from serving.errors import LoadFailed
from serving.gateway.catalog import Catalog, lookup, models, versions
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.control.operation_runner import OperationRunner
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import DeploymentInfo, VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import Model, Operation, Version, VersionState
from tests.bounds import HANG_SECONDS

M = ModelName("p", "m")


class Disk:
    """A store that is full when a test says so."""

    full = False

    def load(self) -> CatalogState:
        return CatalogState()

    def commit(self, changes: Mapping[tuple[str, str], object]) -> None:
        if self.full:
            raise OSError("No space left on device")

    def check_writable(self) -> None:
        pass

    def close(self) -> None:
        pass


class Deployer:
    """Deploys when a test says so, or does not."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.failure: Exception | None = None
        self.stopped: list[str] = []

    async def deploy(self, record: VersionRecord, enter_phase: Any) -> tuple[DeploymentInfo, tuple[str, ...]]:
        await enter_phase("LOADING")
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return DeploymentInfo(model_dir="/x"), ("a warning",)

    async def stop(self, record: VersionRecord) -> None:
        self.stopped.append(record.name.version)

    async def remove(self, record: VersionRecord) -> None:
        await self.stop(record)


class World:
    def __init__(self, supervisor: Supervisor) -> None:
        self.disk = Disk()
        self.deployer = Deployer()
        self.supervisor = supervisor
        self.catalog = Catalog(self.disk, lambda _: None)
        self.operations = OperationRunner(
            self.catalog,
            cast(VersionDeployer, self.deployer),
            supervisor,
            ServeConfig(deployments=2),
            retry_after=0.01,
        )

    async def create(self, name: str) -> str:
        version = Version(name=name, deployment_uri="x")
        operation = await self.catalog.change(versions.create_version, M, version)
        self.operations.begin(operation)
        return operation.name

    def operation(self, name: str) -> Operation:
        return self.catalog.state.operations[name].operation

    def state(self, name: str) -> VersionState | None:
        return lookup.get_version(self.catalog.state, VersionName("p", "m", name)).version.state

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110  the store's thread takes part: there is no event for it
            await asyncio.sleep(0.001)


def run(main: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS), Supervisor() as supervisor:
            world = World(supervisor)
            await world.catalog.open()
            await world.catalog.change(models.create_model, "p", Model(name="m"))
            await main(world)
            world.operations.suspend()
        world.catalog.close()

    asyncio.run(bounded())


def test_a_creation_tells_its_phase_and_then_its_result() -> None:
    """The version is READY when the operation is done."""

    async def main(world: World) -> None:
        name = await world.create("v1")
        await world.until(lambda: world.operation(name).metadata.phase == "LOADING")
        assert world.state("v1") is VersionState.CREATING

        world.deployer.go.set()
        await world.until(lambda: world.operation(name).done)

        assert world.state("v1") is VersionState.READY
        assert world.operation(name).metadata.phase == ""
        assert world.operation(name).metadata.warnings == ("a warning",)

    run(main)


@pytest.mark.parametrize(
    ("failure", "code", "says"),
    [
        (LoadFailed("cut off"), 3, "Failed to load model: cut off"),
        (ValueError("a bug"), 13, "ValueError: a bug"),
    ],
)
def test_a_creation_that_fails_says_why(failure: Exception, code: int, says: str) -> None:
    """Whatever was raised; its nodes are stopped."""

    async def main(world: World) -> None:
        world.deployer.failure = failure
        world.deployer.go.set()
        name = await world.create("v1")
        await world.until(lambda: world.operation(name).done)

        error = world.operation(name).error
        assert error is not None
        assert error.code == code
        assert says in error.message
        assert world.state("v1") is VersionState.FAILED
        assert world.deployer.stopped == ["v1"]

    run(main)


def test_as_many_creations_at_once_as_the_setting_says() -> None:
    """The others wait and are no less cancellable."""

    async def main(world: World) -> None:
        names = [await world.create(f"v{number}") for number in range(3)]
        await world.until(lambda: world.operation(names[1]).metadata.phase == "LOADING")
        assert [world.operation(name).metadata.phase for name in names] == ["LOADING", "LOADING", ""]

        await world.operations.cancel(names[2])
        await world.until(lambda: world.operation(names[2]).done)
        world.deployer.go.set()
        await world.until(lambda: all(world.operation(name).done for name in names))

        assert [world.state(f"v{number}") for number in range(3)] == ["READY", "READY", "FAILED"]

    run(main)


def test_a_cancelled_creation_ends() -> None:
    """With CANCELLED; cancelling it again, or when it is done, changes nothing."""

    async def main(world: World) -> None:
        name = await world.create("v1")
        await world.until(lambda: world.operation(name).metadata.phase == "LOADING")
        await world.operations.cancel(name)
        await world.operations.cancel(name)
        await world.until(lambda: world.operation(name).done)
        before = world.operation(name)
        await world.operations.cancel(name)

        assert before.error is not None
        assert before.error.code == 1
        assert world.operation(name) == before
        assert world.state("v1") is VersionState.FAILED

    run(main)


def test_work_that_was_suspended_is_resumed() -> None:
    """Nothing is told of the interruption; what somebody cancelled meanwhile is not taken up."""

    async def main(world: World) -> None:
        first, second = await world.create("v1"), await world.create("v2")
        await world.until(lambda: world.operation(second).metadata.phase == "LOADING")
        world.operations.suspend()
        await asyncio.sleep(0)
        await world.operations.cancel(second)
        assert not world.operation(first).done

        world.deployer.go.set()
        world.operations.resume()
        await world.until(lambda: world.operation(first).done and world.operation(second).done)

        assert [world.state("v1"), world.state("v2")] == ["READY", "FAILED"]

    run(main)


def test_an_operation_that_cannot_be_written_down_is_taken_up_again() -> None:
    """A full disk does not take the server with it; with room the work is done, without a restart."""

    async def main(world: World) -> None:
        name = await world.create("v1")
        await world.until(lambda: world.operation(name).metadata.phase == "LOADING")
        world.disk.full = True
        world.deployer.go.set()
        await world.until(lambda: world.supervisor.errors.get("operation", 0) > 1)  # it is tried again
        assert not world.operation(name).done

        world.disk.full = False
        later = await world.create("v2")
        await world.until(lambda: world.operation(later).done and world.operation(name).done)

        assert [world.state("v1"), world.state("v2")] == ["READY", "READY"]
        assert world.deployer.stopped == []  # as a failed version's nodes would have been

    run(main)
