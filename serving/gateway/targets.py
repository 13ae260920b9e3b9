"""Where predictions go: from the path of a request to the version that answers it.

What the first request for a path has found is kept until a commit changes its model or a version of that, so
that the predict path is one dictionary look-up, and versions that sleep cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from autoscaler.pools import NodeSpec
from serving.errors import NotFound
from serving.exchange import PREDICT
from serving.gateway.catalog.lookup import resolve
from serving.gateway.records import Commit, State, VersionRecord
from serving.names import ModelName, VersionName, parse_target
from serving.resources import Model, RequestLoggingConfig

PREFIX = "/v1/"

# The label by which the owner of a custom routine says that its requests may be computed twice.
REPEATABLE = "pilotlight-repeatable"


@dataclass(frozen=True, slots=True)
class Target:
    """A READY version as the predict path needs it.

    `repeatable` says whether a request that may have been computed can be sent to another node (user code may
    have side effects, so only where its owner says so). `title` is the full name; `region` is what is told in
    logs.
    """

    name: VersionName
    spec: NodeSpec
    repeatable: bool
    logging: RequestLoggingConfig | None = None
    access_log: bool = False
    console_log: bool = False
    region: str = ""
    title: bytes = b""


class _Logs(NamedTuple):
    """What a version's logs take from its model."""

    access: bool
    console: bool
    region: str


def _logs(model: Model) -> _Logs:
    region = model.regions[0] if model.regions else "global"
    return _Logs(model.online_prediction_logging, model.online_prediction_console_logging, region)


@dataclass(slots=True)
class Targets:
    """The table: what was found by path. `spec_of` says how nodes of a version are started."""

    spec_of: Callable[[VersionRecord], NodeSpec]
    state: State = field(default_factory=State)
    _by_path: dict[str, Target] = field(default_factory=dict)
    _paths: dict[ModelName, list[str]] = field(default_factory=dict)  # those in the table

    def publish(self, commit: Commit) -> None:
        """Take note of a new state: what has changed is looked up again."""
        self.state = commit.after
        for table, text in commit.changes:
            if table in ("models", "versions"):
                name = parse_target(text)
                model = name.parent if isinstance(name, VersionName) else name
                for path in self._paths.pop(model, ()):
                    del self._by_path[path]

    def find(self, path: str) -> Target:
        """The target of a path that ends in `:predict`. Raises NotFound or FailedPrecondition."""
        target = self._by_path.get(path)
        if target is not None:
            return target
        if not path.startswith(PREFIX):
            raise NotFound(
                f"Nothing is at {path}. Predictions are at /v1/projects/PROJECT/models/MODEL:predict."
            )
        record = resolve(self.state, parse_target(path[len(PREFIX) : -len(PREDICT)]))
        target = self._by_path[path] = self._make(record, _logs(self.state.models[record.name.parent].model))
        self._paths.setdefault(record.name.parent, []).append(path)
        return target

    def of(self, record: VersionRecord) -> Target:
        """That of a READY version."""
        return self.find(f"{PREFIX}{record.name}{PREDICT}")

    def _make(self, record: VersionRecord, logs: _Logs) -> Target:
        config = record.version.request_logging_config
        return Target(
            name=record.name,
            spec=self.spec_of(record),
            repeatable=not record.version.prediction_class or record.version.labels.get(REPEATABLE) == "on",
            logging=config if config is not None and config.sampling_percentage > 0 else None,
            access_log=logs.access,
            console_log=logs.console,
            region=logs.region,
            title=str(record.name).encode(),
        )
