"""A catalog's state and the rules at work on it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from serving.errors import (
    LoadFailed,
)
from serving.gateway.catalog import lookup, versions
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp, DeploymentInfo
from serving.names import ModelName, VersionName
from serving.resources import Model, Operation, Version

M = ModelName("p", "m")
V1, V2 = VersionName("p", "m", "v1"), VersionName("p", "m", "v2")
DEPLOYED = DeploymentInfo(model_dir="/x", framework="SCIKIT_LEARN")
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


class World:
    """A state and the rules at work on it, with a clock that goes on by a second per change."""

    def __init__(self) -> None:
        self.state = CatalogState()
        self.changes = 0

    def do(self, rule_: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Apply a rule; nothing is left of it when it raises."""
        self.changes += 1
        stamp = ChangeStamp(START + datetime.timedelta(seconds=self.changes), f"{self.changes:016x}")
        draft = StateDraft(self.state)
        answer = rule_(draft, stamp, *arguments, **more)
        self.state = draft.to_state()
        return answer

    def create(self, name: VersionName, **fields: Any) -> str:
        """Begin to create a version; returns the operation's name."""
        version = Version(name=name.version, **{"deployment_uri": "gs://b/m", **fields})
        operation: Operation = self.do(versions.create_version, name.parent, version)
        return operation.name

    def ready(self, name: VersionName, **fields: Any) -> None:
        """Create a version up to READY."""
        self.do(versions.complete_create, self.create(name, **fields), DEPLOYED, ())

    def failed(self, name: VersionName) -> None:
        """Create a version up to FAILED."""
        self.do(versions.fail_create, self.create(name), LoadFailed("no"))

    def delete(self, name: VersionName) -> None:
        """Delete a version to the end."""
        self.do(versions.finish_delete, self.do(versions.delete_version, name).name)

    def version(self, name: VersionName) -> Version:
        return lookup.render_version(self.state, lookup.get_version(self.state, name))

    def model(self) -> Model:
        return lookup.render_model(self.state, lookup.get_model(self.state, M))

    @property
    def default(self) -> str:
        return self.state.models[M].default
