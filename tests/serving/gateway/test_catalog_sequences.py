"""Any sequence of rules: what holds of the catalog's state after each."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.errors import (
    Cancelled,
    LoadFailed,
    ServingError,
)
from serving.gateway.catalog import models, operations, versions
from serving.names import VersionName
from serving.resources import Model, Version, VersionState
from tests.serving.gateway.catalog_world import DEPLOYED, M, World


class AnySequence(RuleBasedStateMachine):
    """Whatever is asked for in whatever order, the state makes sense."""

    names = st.sampled_from([VersionName("p", "m", f"v{number}") for number in range(4)])

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.do(models.create_model, "p", Model(name="m"))

    def attempt(self, *call: Any) -> None:
        before = self.world.state
        try:
            self.world.do(*call)
        except ServingError:
            assert self.world.state is before

    def unfinished(self, kind: str) -> list[str]:
        found = operations.list_unfinished_operations(self.world.state)
        return [record.name for record in found if record.operation.metadata.operation_type == kind]

    @rule(name=names)
    def create(self, name: VersionName) -> None:
        self.attempt(versions.create_version, M, Version(name=name.version, deployment_uri="x"))

    @precondition(lambda self: self.unfinished("CREATE_VERSION"))
    @rule(data=st.data(), works=st.booleans())
    def end_a_creation(self, data: st.DataObject, works: bool) -> None:
        name = data.draw(st.sampled_from(self.unfinished("CREATE_VERSION")))
        if works:
            self.world.do(versions.complete_create, name, DEPLOYED, ())
        else:
            self.world.do(versions.fail_create, name, LoadFailed("no"))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if names := sorted(self.world.state.operations):
            name = data.draw(st.sampled_from(names))
            self.world.do(operations.cancel_operation, name)
            if name in self.unfinished("CREATE_VERSION") or "create_" in name:
                self.attempt(versions.fail_create, name, Cancelled("cancelled"))

    @rule(name=names)
    def set_default(self, name: VersionName) -> None:
        self.attempt(versions.set_default, name)

    @rule(name=names)
    def patch_default(self, name: VersionName) -> None:
        given = Model(default_version=Version(name=name.version))
        self.attempt(models.update_model, M, given, ["default_version.name"])

    @rule(name=names)
    def delete(self, name: VersionName) -> None:
        self.attempt(versions.delete_version, name)

    @precondition(lambda self: self.unfinished("DELETE_VERSION"))
    @rule(data=st.data())
    def end_a_deletion(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.unfinished("DELETE_VERSION")))
        self.world.do(versions.finish_delete, name)

    @rule()
    def delete_the_model(self) -> None:
        self.attempt(models.delete_model, M)
        if M not in self.world.state.models:
            self.world.do(models.create_model, "p", Model(name="m"))

    @invariant()
    def the_default_is_one_ready_version(self) -> None:
        shown = [self.world.version(name) for name in self.world.state.versions]
        defaults = [version for version in shown if version.is_default]
        ready = [version for version in shown if version.state is VersionState.READY]
        assert len(defaults) == (1 if self.world.default else 0)
        assert all(version.state is VersionState.READY for version in defaults)
        assert not ready or defaults, "a model with a version that can answer has a default"

    @invariant()
    def versions_in_motion_have_one_operation(self) -> None:
        moving = {VersionState.CREATING: "CREATE_VERSION", VersionState.DELETING: "DELETE_VERSION"}
        wanted = sorted(
            (str(record.name), moving[record.version.state])
            for record in self.world.state.versions.values()
            if record.version.state in moving
        )
        assert wanted == sorted(
            (str(record.target), record.operation.metadata.operation_type)
            for record in operations.list_unfinished_operations(self.world.state)
        )


AnySequence.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnySequence = AnySequence.TestCase
