"""The autoscaler follows the catalog, and the catalog learns what the autoscaler finds out."""

from __future__ import annotations

import asyncio
import datetime
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autoscaler.activator import Activator
from autoscaler.pools import Node, PilotSpec
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from autoscaler.version_scaler import VersionScaler
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.catalog import Catalog, lookup
from serving.gateway.control import reconciler as reconciler_module
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.control.reconciler import Reconciler
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, DeploymentInfo, ModelRecord, VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import AutoScaling, ManualScaling, Model, Version, VersionState, format_timestamp
from tests.autoscaler.fakes import MIB, Asker, FakePool, settle
from tests.bounds import HANG_SECONDS

M = ModelName("p", "m")


class Disk:
    """A store that is full when a test says so."""

    def __init__(self, state: CatalogState) -> None:
        self.state = state
        self.full = False
        self.commits = 0

    def load(self) -> CatalogState:
        return self.state

    def commit(self, changes: Mapping[tuple[str, str], object]) -> None:
        if self.full:
            raise Unavailable("No space left on device")
        self.commits += 1

    def check_writable(self) -> None:
        pass

    def close(self) -> None:
        pass


def put(draft: StateDraft, _: ChangeStamp, record: VersionRecord) -> None:
    """A rule that makes of a version what a test wants."""
    draft.put(record)


def remove(draft: StateDraft, _: ChangeStamp, record: VersionRecord) -> None:
    draft.delete(record)


class World:
    """A gateway's parts as far as they have to do with each other's knowledge, put together as it does."""

    def __init__(self, folder: Path, state: CatalogState) -> None:
        config = ServeConfig(state_dir=folder, target_concurrency=16.0, max_nodes=3, idle_timeout=77.0)
        self.activator = Activator(queue_requests=10, queue_bytes=1000)
        self.pool = FakePool(time.monotonic)
        self.supervisor = Supervisor()
        self.autoscaler = Autoscaler(
            self.activator,
            self.pool,
            tick=1.0,
            memory_bytes=0,
            on_trouble=lambda uid, reason: self.reconciler.report_failure(self.catalog, uid, reason),
            supervisor=self.supervisor,
        )
        self.activator.connect_waker(self.autoscaler)
        self.pool.listeners += [self.activator.on_node_changed, self.autoscaler.on_node_changed]
        self.deployment = VersionDeployer(config, {}, self.activator, self.autoscaler, self.pool.count_cores)
        self.reconciler = Reconciler(self.deployment, self.autoscaler, self.pool, self.supervisor)
        self.disk = Disk(state)
        self.catalog = Catalog(self.disk, self.reconciler.apply_commit)

    async def create(self, name: str, **fields: Any) -> VersionRecord:
        """A version that is there and has had its first node, as creation leaves it."""
        record = version(name, state=VersionState.CREATING, **fields)
        await self.change(put, record)
        self.deployment.track_version(record)
        await self.use(record)
        return await self.patch(record, state=VersionState.READY)

    async def patch(self, record: VersionRecord, **fields: Any) -> VersionRecord:
        changed = msgspec.structs.replace(record, version=msgspec.structs.replace(record.version, **fields))
        await self.change(put, changed)
        return changed

    async def change(
        self, rule: Callable[[StateDraft, ChangeStamp, VersionRecord], None], record: VersionRecord
    ) -> None:
        await self.catalog.change(rule, record)

    async def use(self, record: VersionRecord, *, memory: int = 0) -> Node:
        """A request, answered by a node that is started for it if need be."""
        asker = Asker(self.activator, self.deployment.build_node_spec(record))
        await settle()
        if asker.node is None:
            self.pool.ready(self.pool.only(record.uid), memory=memory)
        await settle()
        asker.let_go.set()
        await asker.task
        assert asker.node is not None
        return asker.node

    async def settled(self) -> None:
        """Until nothing is being written."""
        while self.supervisor.tasks:
            await asyncio.wait(self.supervisor.tasks)

    def stored(self, record: VersionRecord) -> VersionRecord:
        return lookup.get_version(self.catalog.state, record.name)


def version(name: str, **fields: Any) -> VersionRecord:
    full = VersionName("p", "m", name)
    deployed = fields.pop(
        "deployed", DeploymentInfo(model_dir="/x", framework="SCIKIT_LEARN", files_bytes=3 * MIB)
    )
    fields.setdefault("state", VersionState.READY)
    return VersionRecord(
        name=full, uid=f"uid-{name}", version=Version(name=str(full), **fields), deployed=deployed
    )


def state_of(*records: VersionRecord) -> CatalogState:
    models = {M: ModelRecord(name=M, model=Model(name="m"))}
    return CatalogState(models, {record.name: record for record in records})


def run(
    tmp_path: Path, main: Callable[[World], Awaitable[None]], *, before: Sequence[VersionRecord] = ()
) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            world = World(tmp_path, state_of(*before))
            await world.catalog.open()
            try:
                await main(world)
            finally:
                world.catalog.close()

    asyncio.run(bounded())


# ---- the autoscaler follows


def test_versions_are_scaled_as_the_catalog_says(tmp_path: Path) -> None:
    """From the start: those that are ready, by their own bounds or else by the settings."""

    async def main(world: World) -> None:
        tracked = world.autoscaler.versions
        assert sorted(tracked) == ["uid-auto", "uid-manual", "uid-plain"]
        assert (tracked["uid-plain"].scaling.min_nodes, tracked["uid-plain"].scaling.max_nodes) == (0, 3)
        assert tracked["uid-plain"].scaling.idle_window == 77.0
        assert (tracked["uid-auto"].scaling.min_nodes, tracked["uid-auto"].scaling.max_nodes) == (2, 5)
        assert tracked["uid-manual"].scaling.exact_nodes == 4
        world.autoscaler.reconcile()
        await settle()
        assert sorted(world.pool.orders) == [("uid-auto", 2), ("uid-manual", 4)]

    before = [
        version("plain"),
        version("auto", auto_scaling=AutoScaling(min_nodes=2, max_nodes=5)),
        version("manual", manual_scaling=ManualScaling(nodes=4)),
        version("broken", state=VersionState.FAILED, auto_scaling=AutoScaling(min_nodes=1)),
        version("coming", state=VersionState.CREATING),
    ]
    run(tmp_path, main, before=before)


def test_what_was_measured_before_the_restart_is_known(tmp_path: Path) -> None:
    """A node's memory and the time it takes to start; without, memory is guessed from the files."""

    async def main(world: World) -> None:
        known, new = (world.autoscaler.versions[uid] for uid in ("uid-known", "uid-new"))
        assert (known.memory, known.start_seconds(forked=True)) == (123 * MIB, 1.5)
        assert (new.memory, new.start_seconds(forked=True)) == ((48 + 2 * 3) * MIB, None)

    deployed = DeploymentInfo(model_dir="/x", framework="SCIKIT_LEARN", memory=123 * MIB, start_seconds=1.5)
    run(tmp_path, main, before=[version("known", deployed=deployed), version("new")])


def test_an_only_output_is_answered_as_it_was_when_its_version_was_created(tmp_path: Path) -> None:
    """Versions of a release before there was a choice keep objects, whatever their machine type."""

    async def main(world: World) -> None:
        specs = [world.autoscaler.versions[uid].spec for uid in ("uid-old", "uid-new")]
        assert [spec.arguments["settings"]["single_output"] for spec in specs] == ["object", "bare"]

    old, new = (
        DeploymentInfo(model_dir="/x", framework="TENSORFLOW"),
        DeploymentInfo(model_dir="/x", bare=True),
    )
    assert [old.answers_bare_output(setting) for setting in ("auto", "bare", "object")] == [
        False,
        True,
        False,
    ]
    assert [new.answers_bare_output(setting) for setting in ("auto", "bare", "object")] == [True, True, False]
    before = [version("old", deployed=old, machine_type="n1-standard-4"), version("new", deployed=new)]
    run(tmp_path, main, before=before)


def test_a_changed_version_is_scaled_by_its_new_rules(tmp_path: Path) -> None:
    """Those that did not change are left alone."""

    async def main(world: World) -> None:
        one, other = world.stored(version("one")), world.stored(version("other"))
        specs = [world.autoscaler.versions[record.uid].spec for record in (one, other)]
        await world.patch(one, auto_scaling=AutoScaling(min_nodes=2))
        assert world.autoscaler.versions[one.uid].scaling.min_nodes == 2
        assert world.autoscaler.versions[one.uid].spec is not specs[0]
        assert world.autoscaler.versions[other.uid].spec is specs[1]

        world.autoscaler.reconcile()
        await settle()
        assert world.pool.orders == [(one.uid, 2)]

    run(tmp_path, main, before=[version("one"), version("other")])


def test_the_pilots_that_versions_need_are_lit(tmp_path: Path) -> None:
    """Those of versions that are being created too, and none that nobody needs any more."""

    async def main(world: World) -> None:
        assert world.pool.running_pilots == []
        record = version("v", state=VersionState.CREATING)
        await world.change(put, record)
        assert world.pool.running_pilots == ["tabular"]
        await world.patch(record, state=VersionState.READY)
        assert world.pool.running_pilots == ["tabular"]
        await world.patch(record, state=VersionState.FAILED)
        assert world.pool.running_pilots == []

    run(tmp_path, main)


# ---- the catalog learns


def test_the_last_use_is_shown_at_once_and_written_down_now_and_then(tmp_path: Path) -> None:
    """The request that creation makes is no use; what was written down is not written again."""

    async def main(world: World) -> None:
        begin = format_timestamp(datetime.datetime.now(datetime.UTC))
        record = await world.create("v")
        assert world.reconciler.with_usage(world.stored(record)) is world.stored(record)
        await world.use(record)
        end = format_timestamp(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1))

        shown = world.reconciler.with_usage(world.stored(record)).version.last_use_time
        assert begin <= shown <= end
        assert world.stored(record).version.last_use_time == ""
        await world.reconciler.persist_usage(world.catalog)
        assert world.stored(record).version.last_use_time == shown
        commits = world.disk.commits
        await world.reconciler.persist_usage(world.catalog)
        assert world.disk.commits == commits
        assert world.reconciler.with_usage(world.stored(record)) is world.stored(record)

    run(tmp_path, main)


def test_what_use_has_shown_is_written_down_with_it(tmp_path: Path) -> None:
    """What a node took, and how long its start; a cold start is no measure for a forked one."""

    async def main(world: World) -> None:
        forked, cold = world.stored(version("forked")), world.stored(version("cold"))
        await world.use(forked, memory=200 * MIB)
        world.pool.forked = False
        await world.use(cold, memory=300 * MIB)
        world.autoscaler.reconcile()
        await world.reconciler.persist_usage(world.catalog)

        learned = [world.stored(record).deployed for record in (forked, cold)]
        assert [deployed and deployed.memory for deployed in learned] == [200 * MIB, 300 * MIB]
        assert learned[0] is not None
        assert 0 < learned[0].start_seconds < 1
        assert learned[1] is not None
        assert learned[1].start_seconds == 0

    run(tmp_path, main, before=[version("forked"), version("cold")])


def test_a_version_that_is_deleted_takes_its_uses_with_it(tmp_path: Path) -> None:
    """Before its nodes are gone, and after."""

    async def main(world: World) -> None:
        record = world.stored(version("v"))
        await world.use(record)
        await world.change(remove, record)
        await world.reconciler.persist_usage(world.catalog)
        forgetting = asyncio.create_task(world.autoscaler.stop_version(record.uid))
        await settle()
        world.pool.end(world.pool.living[0])
        await forgetting

        assert world.reconciler.find_record(record.uid) is None
        assert world.reconciler.with_usage(record) is record
        world.reconciler.report_failure(world.catalog, record.uid, "too late")
        assert not world.supervisor.tasks

    run(tmp_path, main, before=[version("v")])


def test_trouble_with_nodes_is_shown_until_one_starts(tmp_path: Path) -> None:
    """On the version, and each is written down once."""

    async def main(world: World) -> None:
        record = world.stored(version("v"))
        commits = world.disk.commits
        for reason in ("no such file", "no such file", "no memory"):
            world.reconciler.report_failure(world.catalog, record.uid, reason)
        await world.settled()
        assert world.stored(record).version.error_message == "no memory"
        assert world.disk.commits == commits + 2

        await world.use(record)
        await world.settled()
        assert world.stored(record).version.error_message == ""
        assert world.disk.commits == commits + 3
        world.pool.crash(world.pool.only(record.uid))
        await settle()
        world.pool.ready(world.pool.only(record.uid))
        await world.settled()
        assert world.disk.commits == commits + 3

    run(tmp_path, main, before=[version("v")])


def test_trouble_from_before_the_restart_goes_with_the_first_node(tmp_path: Path) -> None:
    """Whatever it was, it is over."""

    async def main(world: World) -> None:
        record = world.stored(version("v"))
        assert record.version.error_message == "no such file"
        await world.use(record)
        await world.settled()
        assert world.stored(record).version.error_message == ""

    run(tmp_path, main, before=[version("v", error_message="no such file")])


def test_a_full_disk_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and tried again with the next use."""

    async def main(world: World) -> None:
        record = world.stored(version("v"))
        world.disk.full = True
        await world.use(record)
        await world.reconciler.persist_usage(world.catalog)
        world.reconciler.report_failure(world.catalog, record.uid, "no such file")
        await world.settled()
        assert caplog.text.count("No space left on device") >= 2
        assert world.stored(record).version.last_use_time == ""

        world.disk.full = False
        await world.reconciler.persist_usage(world.catalog)
        assert world.stored(record).version.last_use_time != ""

    run(tmp_path, main, before=[version("v")])


def test_uses_are_written_down_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill loses little."""
    monkeypatch.setattr(reconciler_module, "_PERSIST_INTERVAL", 0.001)

    async def main(world: World) -> None:
        record = world.stored(version("v"))
        loop = world.reconciler.start(world.catalog)
        await world.use(record)
        while not world.stored(record).version.last_use_time:
            await settle()
        await loop.stop()

    run(tmp_path, main, before=[version("v")])


# ---- what sleeps costs nothing


class Counted(VersionDeployer):
    """Counts the versions that it is asked about."""

    asked: list[str]

    def select_pilot(self, record: VersionRecord) -> PilotSpec:
        self.asked.append(record.uid)
        return super().select_pilot(record)

    def track_version(self, record: VersionRecord) -> None:
        self.asked.append(record.uid)
        super().track_version(record)


def test_work_is_for_versions_that_change_or_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among a thousand that sleep: a commit, a look, what is shown and what is written down."""
    monkeypatch.setattr(Counted, "asked", [], raising=False)
    monkeypatch.setattr(sys.modules[__name__], "VersionDeployer", Counted)
    looked_up, decided = [], []
    use_of, decide = Reconciler._get_unsaved_usage, Autoscaler._decide_version

    def count_use(reconciler: Reconciler, uid: str) -> Any:
        looked_up.append(uid)
        return use_of(reconciler, uid)

    def count_decision(autoscaler: Autoscaler, tracked: VersionScaler, now: float) -> Any:
        decided.append(tracked.spec.key)
        return decide(autoscaler, tracked, now)

    monkeypatch.setattr(Reconciler, "_get_unsaved_usage", count_use)
    monkeypatch.setattr(Autoscaler, "_decide_version", count_decision)

    async def main(world: World) -> None:
        one, other = world.stored(version("v1")), world.stored(version("v2"))
        Counted.asked.clear()
        await world.patch(one, description="changed")
        world.autoscaler.reconcile()
        await world.reconciler.persist_usage(world.catalog)
        assert set(Counted.asked) == {one.uid}
        assert decided == looked_up == []

        await world.use(other)
        world.autoscaler.reconcile()
        await world.reconciler.persist_usage(world.catalog)
        assert set(decided) == set(looked_up) == {other.uid}
        assert world.stored(other).version.last_use_time

    run(tmp_path, main, before=[version(f"v{number}") for number in range(1000)])
