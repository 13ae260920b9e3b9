"""Where predictions go: from the path of a request to the version that answers it.

The table is made anew after each commit, so that the predict path is one dictionary look-up and touches
neither SQL nor disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autoscaler.pools import NodeSpec
from serving.errors import NotFound
from serving.gateway.catalog.lookup import resolve
from serving.gateway.records import State, VersionRecord
from serving.names import VersionName, parse_target
from serving.resources import Model, RequestLoggingConfig, VersionState

PREFIX = "/v1/"
PREDICT = ":predict"

# The label by which the owner of a custom routine says that its requests may be computed twice.
REPEATABLE = "pilotlight-repeatable"


@dataclass(frozen=True, slots=True)
class Target:
    """A READY version as the predict path needs it.

    `head` is the beginning of the HTTP request to its nodes; `repeatable` whether a request that may have
    been computed can be sent to another node (user code may have side effects, so only where its owner says
    so). `title` is the full name; `region` is what is told in logs.
    """

    name: VersionName
    spec: NodeSpec
    head: bytes
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
    """The table. `spec_of` says how nodes of a version are started."""

    spec_of: Callable[[VersionRecord], NodeSpec]
    state: State = field(default_factory=State)
    _by_path: Mapping[str, Target] = field(default_factory=dict)
    _made: dict[str, tuple[VersionRecord, _Logs, Target]] = field(default_factory=dict)

    def publish(self, state: State) -> None:
        """Make the table for a new state; versions that did not change keep their target."""
        self.state = state
        made: dict[str, tuple[VersionRecord, _Logs, Target]] = {}
        by_path: dict[str, Target] = {}
        for name, record in state.versions.items():
            if record.version.state is not VersionState.READY:
                continue
            model = state.models[name.parent]
            known = self._made.get(record.uid)
            logs = _logs(model.model)
            if known is None or known[0] is not record or known[1] != logs:
                known = (record, logs, self._make(record, logs))
            made[record.uid] = known
            by_path[f"{PREFIX}{name}{PREDICT}"] = known[2]
            if model.default == name.version:
                by_path[f"{PREFIX}{name.parent}{PREDICT}"] = known[2]
        self._made = made
        self._by_path = by_path

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
        return self._made[record.uid][2]

    def of(self, uid: str) -> Target | None:
        """That of the version with this uid, None when it is not READY."""
        made = self._made.get(uid)
        return None if made is None else made[2]

    def _make(self, record: VersionRecord, logs: _Logs) -> Target:
        config = record.version.request_logging_config
        return Target(
            name=record.name,
            spec=self.spec_of(record),
            head=f"POST {PREFIX}{record.name}{PREDICT} HTTP/1.1\r\nhost: node\r\n".encode(),
            repeatable=not record.version.prediction_class or record.version.labels.get(REPEATABLE) == "on",
            logging=config if config is not None and config.sampling_percentage > 0 else None,
            access_log=logs.access,
            console_log=logs.console,
            region=logs.region,
            title=str(record.name).encode(),
        )
