"""The routing table: path or address of a model -> version and node spec.

An entry is made by its first request and kept until a commit changes its model or a version of that model, so
that a prediction takes one dictionary lookup, and versions without requests cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from autoscaler.pools import NodeSpec
from serving.errors import NotFound
from serving.gateway.catalog.lookup import resolve_address, resolve_version
from serving.gateway.state.catalog_state import CatalogState, Commit
from serving.gateway.state.records import VersionRecord
from serving.names import ModelName, VersionName, parse_model_or_version_name
from serving.protocols.addresses import ModelAddress
from serving.resources import Model, RequestLoggingConfig
from serving.transport.request import PREDICT_SUFFIX

PREFIX = "/v1/"
# Bounded because clients can write the number of a version in many ways.
_MAX_ENTRIES = 1 << 17

# The label with which the owner of a custom routine allows that a request is computed twice.
REPEATABLE = "pilotlight-repeatable"


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A READY version as the data plane needs it.

    `repeatable`: a request that may have been computed can be sent to another node (user code may have side
    effects, so its owner must allow it). `title` is the full name, `region` a field of log entries.
    """

    name: VersionName
    spec: NodeSpec
    repeatable: bool
    logging: RequestLoggingConfig | None = None
    access_log: bool = False
    console_log: bool = False
    region: str = ""
    title: bytes = b""


class _LogSettings(NamedTuple):
    """The log settings that a version has from its model."""

    access: bool
    console: bool
    region: str


def _get_log_settings(model: Model) -> _LogSettings:
    region = model.regions[0] if model.regions else "global"
    return _LogSettings(model.online_prediction_logging, model.online_prediction_console_logging, region)


@dataclass(slots=True)
class RoutingTable:
    """Targets by path or address, in the state of the last commit."""

    build_node_spec: Callable[[VersionRecord], NodeSpec]
    state: CatalogState = field(default_factory=CatalogState)
    _targets: dict[str | ModelAddress, RouteTarget] = field(default_factory=dict)
    _keys_by_model: dict[ModelName, list[str | ModelAddress]] = field(default_factory=dict)

    def apply_commit(self, commit: Commit) -> None:
        """Replace the state and drop the entries of the models that changed."""
        self.state = commit.after
        for table, text in commit.changes:
            if table in ("models", "versions"):
                name = parse_model_or_version_name(text)
                model = name.parent if isinstance(name, VersionName) else name
                for key in self._keys_by_model.pop(model, ()):
                    del self._targets[key]

    def find_target(self, key: str | ModelAddress) -> RouteTarget:
        """The target of a path that ends in `:predict`, or of an address.

        Raises NotFound, FailedPrecondition, or InvalidArgument for a malformed name.
        """
        target = self._targets.get(key)
        if target is not None:
            return target
        record = self._resolve_key(key)
        if len(self._targets) >= _MAX_ENTRIES:
            self._targets.clear()
            self._keys_by_model.clear()
        target = self._targets[key] = self._build_target(
            record, _get_log_settings(self.state.models[record.name.parent].model)
        )
        self._keys_by_model.setdefault(record.name.parent, []).append(key)
        return target

    def _resolve_key(self, key: str | ModelAddress) -> VersionRecord:
        if isinstance(key, ModelAddress):
            return resolve_address(self.state, key)
        if not key.startswith(PREFIX):
            raise NotFound(
                f"Nothing is at {key}. Predictions are at /v1/projects/PROJECT/models/MODEL:predict."
            )
        return resolve_version(
            self.state, parse_model_or_version_name(key[len(PREFIX) : -len(PREDICT_SUFFIX)])
        )

    def find_version_target(self, record: VersionRecord) -> RouteTarget:
        """The target of a READY version."""
        return self.find_target(f"{PREFIX}{record.name}{PREDICT_SUFFIX}")

    def _build_target(self, record: VersionRecord, logs: _LogSettings) -> RouteTarget:
        config = record.version.request_logging_config
        return RouteTarget(
            name=record.name,
            spec=self.build_node_spec(record),
            repeatable=not (record.version.prediction_class or record.version.container)
            or record.version.labels.get(REPEATABLE) == "on",
            logging=config if config is not None and config.sampling_percentage > 0 else None,
            access_log=logs.access,
            console_log=logs.console,
            region=logs.region,
            title=str(record.name).encode(),
        )
