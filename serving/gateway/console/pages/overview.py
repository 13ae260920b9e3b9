"""The overview: every version that the visitor may see, and what it does now.

Both of its parts are shared by all who see the same versions: however many watch, each is made once a second.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.responses import Response

from autoscaler.pools import NodeState
from serving.gateway.console.rendering import SharedPart
from serving.gateway.console.services import ConsoleServices
from serving.gateway.console.visit import Visit, page
from serving.gateway.control.status import VersionCondition, VersionSnapshot
from serving.gateway.observability.history import Figures
from serving.gateway.observability.history_recorder import RECENT_SECONDS
from serving.gateway.state.records import VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import VersionState

_METHOD = "projects.models.versions.get"
_MODEL_OF = operator.attrgetter("name.project", "name.model")
_SERVABLE = frozenset(VersionCondition)


@dataclass(frozen=True, slots=True)
class VisibleVersions:
    """Those that a visitor may see: all of `projects`, and besides those of `models`."""

    projects: frozenset[str]
    models: frozenset[ModelName]

    def has_model(self, name: ModelName) -> bool:
        return name.project in self.projects or name in self.models


class VersionLink(NamedTuple):
    """A version by its name."""

    project: str
    model: str
    version: str
    is_default: bool

    @property
    def path(self) -> str:
        return f"/projects/{self.project}/models/{self.model}/versions/{self.version}"


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version; `condition` is its state in words, `nodes` are the states of its nodes.

    `recent` has the figures of the last seconds, None for a version that did nothing for a day.
    """

    uid: str
    link: VersionLink
    condition: str
    nodes: tuple[str, ...]
    running: int
    queued: int
    recent: Figures | None

    @property
    def rate(self) -> float | None:
        """Answers per second."""
        return None if self.recent is None else self.recent.requests / RECENT_SECONDS

    @property
    def is_servable(self) -> bool:
        """Whether it answers, or would with a node."""
        return self.condition in _SERVABLE


async def show_overview(visit: Visit) -> Response:
    visible = find_visible_versions(visit)
    return visit.render(
        "overview.html",
        versions=_share_versions(visit.console, visible),
        sleeping_versions=_share_sleeping_versions(visit.console, visible),
        empty_models=list(_iter_empty_models(visit)),
    )


async def show_versions(visit: Visit) -> Response:
    """The table of versions that do not sleep, which the page fetches again."""
    return visit.render_shared(_share_versions(visit.console, find_visible_versions(visit)))


async def show_sleeping_versions(visit: Visit) -> Response:
    """The list of those that sleep, which the page fetches again."""
    return visit.render_shared(_share_sleeping_versions(visit.console, find_visible_versions(visit)))


def list_rows(visit: Visit, names: Iterable[VersionName]) -> Iterator[VersionRow]:
    """Those of the versions that the visitor may see."""
    state = visit.console.read_state()
    for name in names:
        if visit.may_below(_METHOD, str(name)):
            is_default = state.models[name.parent].default == name.version
            link = VersionLink(name.project, name.model, name.version, is_default)
            yield _build_row(visit.console, link, state.versions[name])


def _iter_empty_models(visit: Visit) -> Iterator[ModelName]:
    """The models without a version that the visitor may see."""
    state = visit.console.read_state()
    for name in sorted(one for one in state.models if not state.version_order.list_children(one)):
        if visit.may_below("projects.models.get", str(name)):
            yield name


def find_visible_versions(visit: Visit) -> VisibleVersions:
    """Asks for a project first: who may see all of it has the same rights as others who may."""
    models = visit.console.read_state().models
    projects = {name.project for name in models}
    whole = frozenset(one for one in projects if visit.may_below(_METHOD, f"projects/{one}"))
    return VisibleVersions(
        whole,
        frozenset(
            name for name in models if name.project not in whole and visit.may_below(_METHOD, str(name))
        ),
    )


def _share_versions(console: ConsoleServices, visible: VisibleVersions) -> SharedPart:
    def read_values() -> Mapping[str, Any]:
        rows: list[VersionRow] = []
        asleep = 0
        for link, record in _iter_visible(console, visible):
            if _is_asleep(console, record):
                asleep += 1
            else:
                rows.append(_build_row(console, link, record))
        return {"rows": rows, "asleep": asleep}

    return SharedPart("_versions.html", visible, console.read_state(), read_values)


def _share_sleeping_versions(console: ConsoleServices, visible: VisibleVersions) -> SharedPart:
    def read_values() -> Mapping[str, Any]:
        links = [link for link, record in _iter_visible(console, visible) if _is_asleep(console, record)]
        return {"links": links}

    return SharedPart("_sleeping_versions.html", visible, console.read_state(), read_values)


def _iter_visible(
    console: ConsoleServices, visible: VisibleVersions
) -> Iterator[tuple[VersionLink, VersionRecord]]:
    state = console.read_state()
    for parts, records in itertools.groupby(state.sorted_versions, _MODEL_OF):
        name = ModelName(*parts)
        if visible.has_model(name):
            default = state.models[name].default
            for record in records:
                version = record.name.version
                yield VersionLink(*parts, version, version == default), record


def _is_asleep(console: ConsoleServices, record: VersionRecord) -> bool:
    return record.version.state is VersionState.READY and console.cluster_status.is_asleep(record)


def _build_row(console: ConsoleServices, link: VersionLink, record: VersionRecord) -> VersionRow:
    snapshot = console.cluster_status.get_version(record)
    nodes = () if snapshot is None else snapshot.nodes
    return VersionRow(
        uid=record.uid,
        link=link,
        condition=describe_condition(record, snapshot),
        nodes=tuple(node.state.value for node in nodes if node.state is not NodeState.GONE),
        running=snapshot.running if snapshot else 0,
        queued=snapshot.queued if snapshot else 0,
        recent=console.history.read_recent(record.uid),
    )


def describe_condition(record: VersionRecord, snapshot: VersionSnapshot | None) -> str:
    """Awake, asleep, waking or failing; for a version that cannot be served, its state."""
    if record.version.state is VersionState.READY and snapshot is not None:
        return snapshot.condition.value
    return record.version.state.value.lower() if record.version.state is not None else "unknown"


ROUTES = (
    page("/", show_overview),
    page("/versions", show_versions),
    page("/sleeping-versions", show_sleeping_versions),
)
