"""Where predictions go, and what a commit costs the versions that it does not change."""

from __future__ import annotations

import msgspec
import pytest

from autoscaler.pools import NodeSpec
from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.gateway.proxy import routing_table
from serving.gateway.proxy.routing_table import RoutingTable
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.names import ModelName, VersionName
from serving.protocols.addresses import ModelAddress
from serving.resources import Model, Version, VersionState


class World:
    """Targets, and the versions whose nodes' specifications were asked for."""

    def __init__(self, models: int, versions: int) -> None:
        self.made: list[VersionName] = []
        self.targets = RoutingTable(self._spec)
        names = [
            VersionName("p", f"m{model}", f"v{one}") for model in range(models) for one in range(versions)
        ]
        records = [
            VersionRecord(name=name, uid=str(name), version=Version(state=VersionState.READY))
            for name in names
        ]
        parents = [
            ModelRecord(name=ModelName("p", f"m{n}"), model=Model(), default="v0") for n in range(models)
        ]
        self.state = CatalogState(
            {record.name: record for record in parents}, {record.name: record for record in records}
        )
        self.targets.apply_commit(Commit.from_state(self.state))

    def _spec(self, record: VersionRecord) -> NodeSpec:
        self.made.append(record.name)
        return NodeSpec(record.uid, str(record.name), "", {}, {}, start_timeout=1, concurrency=1)

    def change(self, name: VersionName, state: VersionState | None) -> None:
        """A version comes into a state; None: it is gone."""
        versions = dict(self.state.versions)
        if state is None:
            del versions[name]
        else:
            version = msgspec.structs.replace(versions[name].version, state=state)
            versions[name] = msgspec.structs.replace(versions[name], version=version)
        after = CatalogState(self.state.models, versions)
        self.targets.apply_commit(Commit(self.state, after, {("versions", str(name)): versions.get(name)}))
        self.state = after

    def find(self, name: object) -> VersionName:
        """The version that answers predictions for a name."""
        return self.targets.find_target(f"/v1/{name}:predict").name


def test_targets_are_made_when_they_are_asked_for() -> None:
    """Those of sleeping versions are not there, and each is made once."""
    world = World(10, 100)
    assert world.made == []
    for _ in range(3):
        assert world.find("projects/p/models/m7/versions/v3") == VersionName("p", "m7", "v3")
    assert world.made == [VersionName("p", "m7", "v3")]


def test_a_commit_makes_nothing_anew_but_what_it_changed() -> None:
    """Among a thousand versions."""
    world = World(100, 10)
    changed, other = VersionName("p", "m1", "v1"), VersionName("p", "m2", "v1")
    world.find(changed)
    kept = world.targets.find_target(f"/v1/{other}:predict")
    world.made.clear()

    world.change(changed, VersionState.READY)

    assert world.targets.find_target(f"/v1/{other}:predict") is kept
    assert world.made == []
    world.find(changed)
    assert world.made == [changed]


def test_addresses_are_found_as_paths_are() -> None:
    """By number, label or default; kept until their model changes."""
    world = World(2, 20)
    model = ModelName("p", "m1")

    def found(version: str = "", label: str = "") -> str:
        return world.targets.find_target(ModelAddress(model, version, label)).name.version

    assert [found(), found("7"), found("007"), found("v7"), found(label="v7")] == [
        "v0",
        "v7",
        "v7",
        "v7",
        "v7",
    ]
    for missing in (ModelAddress(model, "20"), ModelAddress(ModelName("p", "m9"))):
        with pytest.raises(NotFound, match="Servable not found for request"):
            world.targets.find_target(missing)
    with pytest.raises(InvalidArgument, match="Unrecognized servable version label: x"):
        found(label="x")

    kept = world.targets.find_target(ModelAddress(model, "7"))
    world.change(VersionName("p", "m0", "v7"), VersionState.FAILED)
    assert world.targets.find_target(ModelAddress(model, "7")) is kept
    world.change(VersionName("p", "m1", "v7"), VersionState.FAILED)
    with pytest.raises(FailedPrecondition, match="is not ready: it is FAILED"):
        found("7")
    world.change(VersionName("p", "m1", "v7"), None)
    with pytest.raises(NotFound):
        found("7")


def test_what_clients_write_does_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun anew when it is full."""
    monkeypatch.setattr(routing_table, "_MAX_ENTRIES", 10)
    world = World(1, 2)
    for zeros in range(100):
        assert (
            world.targets.find_target(ModelAddress(ModelName("p", "m0"), "0" * zeros + "1")).name.version
            == "v1"
        )
        assert len(world.targets._targets) <= 10
    world.change(VersionName("p", "m0", "v1"), VersionState.FAILED)
    assert not world.targets._targets


def test_what_a_model_leads_to_follows_its_versions() -> None:
    """Its default version, for as long as that is READY and there."""
    world = World(2, 2)
    default = VersionName("p", "m1", "v0")
    assert world.find(default.parent) == world.find(default) == default

    world.change(default, VersionState.DELETING)
    for name in (default, default.parent):
        with pytest.raises(FailedPrecondition):
            world.find(name)

    world.change(default, VersionState.READY)
    assert world.find(default.parent) == default
    world.change(VersionName("p", "m1", "v1"), None)
    with pytest.raises(NotFound):
        world.find("projects/p/models/m1/versions/v1")
    with pytest.raises(NotFound):
        world.targets.find_target("/v2/projects/p/models/m1:predict")
