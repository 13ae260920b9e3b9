"""The rules, as pure functions on a draft: no files, no processes, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from serving.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    LoadFailed,
    NotFound,
    ResourceExhausted,
    ServingError,
)
from serving.gateway.catalog import Catalog, lookup, models, operations, versions
from serving.gateway.catalog.checks import check_etag
from serving.gateway.state.catalog_state import CatalogState, Commit, StateDraft
from serving.gateway.state.records import ChangeStamp, VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import Model, Version, VersionState, resource_from_json, resource_to_json
from tests.serving.gateway.catalog_world import DEPLOYED, START, V1, V2, M, World


@pytest.fixture
def world() -> World:
    world = World()
    world.do(models.create_model, "p", Model(name="m"))
    return world


def wire(kind: type[Any], body: Mapping[str, Any]) -> Any:
    return resource_from_json(kind, dict(body))


# ---- models


def test_a_project_has_so_many_models_and_versions(world: World) -> None:
    """Versions of all its models together; other projects have their own. What is deleted makes room."""
    world.do(models.create_model, "p", Model(name="n"), most=2)
    with pytest.raises(ResourceExhausted, match=r"2 models already \(setting max_models_per_project = 2\)"):
        world.do(models.create_model, "p", Model(name="o"), most=2)
    world.do(models.create_model, "q", Model(name="o"), most=2)
    world.do(models.delete_model, ModelName("p", "n"))
    world.do(models.create_model, "p", Model(name="n"), most=2)

    world.ready(V1)
    other, version = ModelName("p", "n"), Version(name="v", deployment_uri="gs://b/m")
    with pytest.raises(
        ResourceExhausted, match=r"1 versions already \(setting max_versions_per_project = 1\)"
    ):
        world.do(versions.create_version, other, version, most=1)
    world.do(versions.create_version, other, version, most=2)


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        ({}, InvalidArgument, "model.name"),
        ({"name": "1m"}, InvalidArgument, "model.name"),
        ({"name": "m-1."}, InvalidArgument, "model.name"),
        ({"name": "a" * 129}, InvalidArgument, "model.name"),
        ({"name": "ü"}, InvalidArgument, "model.name"),
        ({"name": "projects/p/models/n"}, InvalidArgument, "model.name"),
        ({"name": "m"}, AlreadyExists, "model.name"),
        ({"name": "n", "regions": ["a", "b"]}, InvalidArgument, "model.regions"),
        ({"name": "n", "labels": {"Upper": "x"}}, InvalidArgument, "labels"),
        ({"name": "n", "labels": {"key": "Upper"}}, InvalidArgument, "labels"),
        ({"name": "n", "labels": {f"k{n}": "" for n in range(65)}}, InvalidArgument, "labels"),
    ],
)
def test_a_model_that_cannot_be(
    world: World, body: dict[str, Any], error: type[ServingError], field: str
) -> None:
    """The field at fault is named."""
    with pytest.raises(error) as caught:
        world.do(models.create_model, "p", wire(Model, body))

    assert caught.value.field == field


def test_an_id_may_have_128_characters(world: World) -> None:
    """Letters, digits and underscores, a letter first; case matters."""
    for name in ("a" * 128, "M", "a_1"):
        world.do(models.create_model, "p", Model(name=name))

    assert len(models.list_model_names(world.state, "p")) == 4


def test_what_only_the_server_says_is_not_taken_over(world: World) -> None:
    """A client may send back what it has read."""
    echoed = Model(name="n", etag="AAAA", default_version=Version(name="x"))

    created = world.do(models.create_model, "p", echoed)

    assert created.default_version is None
    assert created.etag != "AAAA"


def test_projects_do_not_see_each_other(world: World) -> None:
    """The same id may be in both."""
    world.do(models.create_model, "q", Model(name="m"))

    assert [str(name) for name in models.list_model_names(world.state, "q")] == ["projects/q/models/m"]


def test_a_model_with_versions_stays(world: World) -> None:
    """Whatever their state."""
    operation = world.create(V1)
    with pytest.raises(FailedPrecondition):
        world.do(models.delete_model, M)
    world.do(versions.fail_create, operation, LoadFailed("no"))
    with pytest.raises(FailedPrecondition):
        world.do(models.delete_model, M)

    world.delete(V1)
    world.do(models.delete_model, M)

    assert world.state.models == {}


@pytest.mark.parametrize(
    ("mask", "body", "error"),
    [
        (["name"], {"name": "n"}, InvalidArgument),
        (["description", "etag"], {}, InvalidArgument),
        (["regions"], {"regions": ["a"]}, InvalidArgument),
        (["defaultVersion"], {"defaultVersion": {"name": "v1"}}, InvalidArgument),
        (["default_version.name"], {"defaultVersion": {"name": "nowhere"}}, NotFound),
        (["default_version.name"], {"defaultVersion": {"name": "failed"}}, FailedPrecondition),
        (["default_version.name"], {"defaultVersion": {"name": "projects/p/models/n/versions/v1"}}, NotFound),
        (["default_version.name"], {}, NotFound),
        (["labels"], {"labels": {"A": ""}}, InvalidArgument),
        (["description"], {"etag": "AAAA"}, Aborted),
    ],
)
def test_a_patch_that_cannot_be(
    world: World, mask: list[str], body: dict[str, Any], error: type[ServingError]
) -> None:
    """Nothing of it is done, not even the paths before the bad one."""
    world.ready(V1)
    world.failed(VersionName("p", "m", "failed"))
    before = world.state

    with pytest.raises(error):
        world.do(models.update_model, M, wire(Model, {"description": "new", **body}), mask)

    assert world.state == before


@pytest.mark.parametrize("other", ["-_8_", "-_8_====", "+/8/"])
def test_etags_are_compared_as_bytes(other: str) -> None:
    """gcloud reads them as bytes, and writes these in the other alphabet of base64."""
    check_etag(other, "+/8/")

    with pytest.raises(Aborted):
        check_etag(other, "+/8A")
    with pytest.raises(Aborted):
        check_etag("é", "+/8/")


def test_an_etag_is_good_once(world: World) -> None:
    """Every change gives a new one; without one the last writer wins."""
    etag = world.model().etag
    world.do(models.update_model, M, Model(description="one", etag=etag), ["description"])

    with pytest.raises(Aborted):
        world.do(models.update_model, M, Model(description="two", etag=etag), ["description"])
    world.do(models.update_model, M, Model(description="three"), ["description"])

    assert world.model().description == "three"


# ---- versions


@pytest.mark.parametrize(
    ("body", "error", "field"),
    [
        ({"name": ""}, InvalidArgument, "version.name"),
        ({"name": "v-1/"}, InvalidArgument, "version.name"),
        ({"name": "taken"}, AlreadyExists, "version.name"),
        ({"deploymentUri": ""}, InvalidArgument, "version.deployment_uri"),
        ({"framework": "TORCH"}, InvalidArgument, "version.framework"),
        ({"runtimeVersion": "new"}, InvalidArgument, "version.runtime_version"),
        ({"pythonVersion": "3"}, InvalidArgument, "version.python_version"),
        ({"predictionClass": "a.B"}, InvalidArgument, "version.package_uris"),
        ({"container": {}}, InvalidArgument, "version.container.image"),
        ({"autoScaling": {}, "manualScaling": {}}, InvalidArgument, "version.manual_scaling"),
        ({"autoScaling": {"minNodes": -1}}, InvalidArgument, "version.auto_scaling"),
        ({"autoScaling": {"minNodes": 3, "maxNodes": 2}}, InvalidArgument, "version.auto_scaling"),
        ({"manualScaling": {"nodes": -1}}, InvalidArgument, "version.auto_scaling"),
        ({"labels": {"": ""}}, InvalidArgument, "labels"),
    ],
)
def test_a_version_that_cannot_be(
    world: World, body: dict[str, Any], error: type[ServingError], field: str
) -> None:
    """The field at fault is named, and no operation begins."""
    world.create(VersionName("p", "m", "taken"))
    before = world.state

    with pytest.raises(error) as caught:
        world.do(
            versions.create_version, M, wire(Version, {"name": "v", "deploymentUri": "gs://b/m", **body})
        )

    assert caught.value.field == field
    assert world.state == before


@pytest.mark.parametrize(
    "body",
    [
        {"framework": "FRAMEWORK_UNSPECIFIED"},
        {"runtimeVersion": "1.4", "pythonVersion": "2.7"},
        {"runtimeVersion": "2.11.1", "machineType": "n1-highmem-32"},
        {"autoScaling": {"minNodes": 2, "maxNodes": 2}},
        {"manualScaling": {"nodes": 3}},
        {"deploymentUri": "", "predictionClass": "a.B", "packageUris": ["gs://b/p"]},
        {"predictionClass": "a.B", "packageUris": ["gs://b/p"], "framework": "TENSORFLOW"},
    ],
)
def test_a_version_that_can_be(world: World, body: dict[str, Any]) -> None:
    """Runtime versions of all times, and routines without files."""
    created = world.do(
        versions.create_version, M, wire(Version, {"name": "v1", "deploymentUri": "gs://b/m/", **body})
    )

    shown = resource_to_json(world.version(V1))
    assert shown["state"] == "CREATING"
    assert created.metadata.version.state is None
    assert not world.version(V1).deployment_uri.endswith("/")
    assert "FRAMEWORK_UNSPECIFIED" not in shown.values()
    for name, value in body.items():
        if value not in ("", "FRAMEWORK_UNSPECIFIED"):
            assert shown[name] == (tuple(value) if isinstance(value, list) else value)


def test_the_first_to_be_ready_is_the_default(world: World) -> None:
    """Not the first to be asked for, and none that failed."""
    slow = world.create(V1)
    world.failed(VersionName("p", "m", "v0"))
    assert world.model().default_version is None

    world.ready(V2)
    world.do(versions.complete_create, slow, DEPLOYED, ("old pickle",))

    assert world.default == "v2"
    assert world.version(V2).is_default
    assert not world.version(V1).is_default
    assert world.state.operations[slow].operation.metadata.warnings == ("old pickle",)


def test_a_framework_that_was_found_out_is_shown(world: World) -> None:
    """Except for a custom routine, which has the one that its owner named, or none."""
    v3 = VersionName("p", "m", "v3")
    world.ready(V1)
    world.ready(V2, prediction_class="a.B", package_uris=("gs://b/p",))
    world.ready(v3, prediction_class="a.B", package_uris=("gs://b/p",), framework="TENSORFLOW")

    assert world.version(V1).framework == "SCIKIT_LEARN"
    assert world.version(V2).framework == ""
    assert world.version(v3).framework == "TENSORFLOW"


def test_only_a_ready_version_can_be_the_default(world: World) -> None:
    """CREATING and FAILED ones cannot."""
    world.ready(V1)
    world.create(V2)
    with pytest.raises(FailedPrecondition):
        world.do(versions.set_default, V2)
    world.failed(VersionName("p", "m", "v3"))
    with pytest.raises(FailedPrecondition):
        world.do(versions.set_default, VersionName("p", "m", "v3"))

    assert world.default == "v1"


def test_the_default_goes_last(world: World) -> None:
    """While there are others it stays; as the last one it may go, and the next one takes its place."""
    world.ready(V1)
    world.ready(V2)
    with pytest.raises(FailedPrecondition):
        world.do(versions.delete_version, V1)

    world.delete(V2)
    operation = world.do(versions.delete_version, V1)
    assert world.default == ""
    assert world.version(V1).state is VersionState.DELETING
    world.ready(V2)
    world.do(versions.finish_delete, operation.name)

    assert world.default == "v2"


@pytest.mark.parametrize("state", [VersionState.CREATING, VersionState.DELETING])
def test_a_version_in_motion_is_not_touched(world: World, state: VersionState) -> None:
    """It can be neither changed nor deleted until its operation is done."""
    world.create(V1) if state is VersionState.CREATING else world.ready(V1)
    if state is VersionState.DELETING:
        world.do(versions.delete_version, V1)

    with pytest.raises(FailedPrecondition, match=state):
        world.do(versions.delete_version, V1)
    with pytest.raises(FailedPrecondition, match=state):
        world.do(versions.update_version, V1, Version(), ["description"])


def test_a_name_can_be_used_again(world: World) -> None:
    """The new version has another uid, so that nothing of the old one is taken for it."""
    world.ready(V1)
    before = world.state.versions[V1].uid
    world.delete(V1)
    world.ready(V1)

    assert world.state.versions[V1].uid != before


@pytest.mark.parametrize(
    ("mask", "body", "error", "field"),
    [
        ([], {}, None, ""),
        (["description"], {"description": "x"}, None, ""),
        (["framework"], {"framework": "XGBOOST"}, InvalidArgument, "update_mask"),
        (["deployment_uri"], {}, InvalidArgument, "update_mask"),
        (["autoScaling.nodes"], {}, InvalidArgument, "update_mask"),
        (["manualScaling.nodes"], {"manualScaling": {"nodes": -1}}, InvalidArgument, "version.auto_scaling"),
        (
            ["requestLoggingConfig"],
            {"requestLoggingConfig": {"samplingPercentage": 0.1}},
            InvalidArgument,
            "version.request_logging_config.bigquery_table_name",
        ),
        (
            ["requestLoggingConfig.samplingPercentage"],
            {"requestLoggingConfig": {"bigqueryTableName": "p.d.t", "samplingPercentage": 1.1}},
            InvalidArgument,
            "version.request_logging_config.sampling_percentage",
        ),
        (
            ["requestLoggingConfig"],
            {"requestLoggingConfig": {"bigqueryTableName": "s3://b/p", "samplingPercentage": 1}},
            InvalidArgument,
            "version.request_logging_config.bigquery_table_name",
        ),
        *(
            (
                ["requestLoggingConfig"],
                {"requestLoggingConfig": {"bigqueryTableName": table, "samplingPercentage": 1}},
                InvalidArgument,
                "version.request_logging_config.bigquery_table_name",
            )
            for table in ("gs://", "gs:///prefix", "file://relative", "/with\0nul")
        ),
        *(
            (
                ["requestLoggingConfig"],
                {"requestLoggingConfig": {"bigqueryTableName": table, "samplingPercentage": 1}},
                None,
                "",
            )
            for table in ("p.d.t", "gs://b/p", "file:///logs", "/logs")
        ),
        (["requestLoggingConfig"], {}, None, ""),
        (["labels"], {"labels": {"x": "Y"}}, InvalidArgument, "labels"),
    ],
)
def test_a_patch_of_a_version(
    world: World, mask: list[str], body: dict[str, Any], error: type[ServingError] | None, field: str
) -> None:
    """What the mask may name, and what values are taken."""
    world.ready(V1)

    try:
        world.do(versions.update_version, V1, wire(Version, body), mask)
    except ServingError as raised:
        assert (type(raised), raised.field) == (error, field)
    else:
        assert error is None


def test_one_kind_of_scaling_at_a_time(world: World) -> None:
    """Setting a part keeps the other parts; setting the other kind drops this one."""

    def patched(mask: str, body: dict[str, Any]) -> dict[str, Any]:
        world.do(versions.update_version, V1, wire(Version, body), mask.split(","))
        shown = resource_to_json(world.version(V1))
        return {name: shown[name] for name in ("autoScaling", "manualScaling") if name in shown}

    world.ready(V1)

    auto = {"minNodes": 1, "maxNodes": 4}
    assert patched("auto_scaling", {"autoScaling": auto}) == {"autoScaling": auto}
    assert patched("autoScaling.maxNodes", {"autoScaling": {"maxNodes": 9}}) == {
        "autoScaling": {"minNodes": 1, "maxNodes": 9}
    }
    assert patched("manualScaling.nodes", {"manualScaling": {"nodes": 2}}) == {"manualScaling": {"nodes": 2}}
    assert patched("autoScaling.minNodes", {"autoScaling": {"minNodes": 3}}) == {
        "autoScaling": {"minNodes": 3}
    }
    assert patched("autoScaling", {}) == {}


# ---- operations


def test_an_operation_that_ended_stays_as_it_is(world: World) -> None:
    """A cancel that comes while success is being written changes nothing."""
    name = world.create(V1)
    world.do(versions.complete_create, name, DEPLOYED, ())
    world.do(operations.cancel_operation, name)
    before = world.state

    world.do(versions.fail_create, name, Cancelled("The operation was cancelled."))

    assert world.state == before
    assert world.default == "v1"
    assert operations.list_unfinished_operations(world.state) == []


def test_a_failure_is_told_in_the_contracts_words(world: World) -> None:
    """In the operation and in the version."""
    name = world.create(V1)
    world.do(versions.fail_create, name, LoadFailed("REASON"))

    status = world.state.operations[name].operation.error
    assert status is not None
    assert status.code == 3
    assert status.message == (
        "Create Version failed. Bad model detected with error:  "
        '"Failed to load model: REASON (Error code: 0)"'
    )
    assert world.version(V1).error_message == status.message


def test_operations_of_one_moment_have_names_of_their_own() -> None:
    """Two creations in the same millisecond do not meet."""
    stamp = ChangeStamp(START, "0" * 16)
    draft = StateDraft(CatalogState())
    models.create_model(draft, stamp, "p", Model(name="m"))
    named = Version(name="v1", deployment_uri="x")
    first = versions.create_version(draft, stamp, M, named)
    versions.fail_create(draft, stamp, first.name, LoadFailed("no"))
    versions.finish_delete(draft, stamp, versions.delete_version(draft, stamp, V1).name)

    second = versions.create_version(draft, stamp, M, named)

    assert first.name == "projects/p/operations/create_m_v1-1893456000000"
    assert second.name != first.name


# ---- the catalog itself


class MemoryStore:
    """A store that fails on demand."""

    def __init__(self) -> None:
        self.commits: list[Mapping[tuple[str, str], object]] = []
        self.failure: Exception | None = None

    def load(self) -> CatalogState:
        return CatalogState()

    def commit(self, changes: Mapping[tuple[str, str], object]) -> None:
        if self.failure is not None:
            raise self.failure
        self.commits.append(changes)

    def check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        pass


def test_a_change_is_published_after_it_is_on_disk() -> None:
    """What could not be written has not happened, and the next change goes on from before it."""
    store, published = MemoryStore(), list[Commit]()

    async def main() -> None:
        catalog = Catalog(store, published.append)
        await catalog.open()
        await catalog.change(models.create_model, "p", Model(name="one"))
        store.failure = OSError("disk full")
        with pytest.raises(OSError, match="disk full"):
            await catalog.change(models.create_model, "p", Model(name="two"))
        store.failure = None
        with pytest.raises(AlreadyExists):
            await catalog.change(models.create_model, "p", Model(name="one"))
        await catalog.change(models.create_model, "p", Model(name="three"))
        catalog.close()

    asyncio.run(main())

    states = [commit.after for commit in published]
    assert [sorted(name.model for name in state.models) for state in states] == [
        [],
        ["one"],
        ["one", "three"],
    ]
    assert [commit.before for commit in published] == [CatalogState(), *states[:-1]]
    assert len(store.commits) == 2


def test_a_change_goes_through_although_its_client_left() -> None:
    """Memory and disk must not come apart."""

    async def main() -> CatalogState:
        catalog = Catalog(MemoryStore(), lambda _: None)
        await catalog.open()
        change = asyncio.create_task(catalog.change(models.create_model, "p", Model(name="m")))
        await asyncio.sleep(0)
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        await catalog.change(models.create_model, "p", Model(name="n"))
        catalog.close()
        return catalog.state

    assert sorted(name.model for name in asyncio.run(main()).models) == ["m", "n"]


def test_a_version_that_is_not_ready_tells_why() -> None:
    """Predictions of a failed version get its reason."""
    failed = Version(name="v", state=VersionState.FAILED, error_message="cut off")
    record = VersionRecord(name=V1, uid="1", version=failed)
    state = msgspec.structs.replace(record, version=failed)

    with pytest.raises(FailedPrecondition, match=r"is FAILED\. cut off"):
        lookup.resolve_version(CatalogState(versions={V1: state}), V1)
