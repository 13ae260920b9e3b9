"""The overview: every version that the visitor may see, and what it does now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.responses import Response

from autoscaler.pools import NodeState
from serving.gateway.console.visit import Visit, page
from serving.gateway.control.status import VersionSnapshot
from serving.gateway.observability.history import Figures
from serving.gateway.observability.history_recorder import RECENT_SECONDS
from serving.gateway.state.records import VersionRecord
from serving.resources import VersionState


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version on the overview; `condition` is its state in words, `nodes` are the states of its nodes.

    `recent` has the figures of the last seconds, None for a version that did nothing for a day.
    """

    project: str
    model: str
    version: str
    is_default: bool
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
    def path(self) -> str:
        return f"/projects/{self.project}/models/{self.model}/versions/{self.version}"


async def show_overview(visit: Visit) -> Response:
    return visit.render("overview.html", rows=list(_iter_rows(visit)))


async def show_versions(visit: Visit) -> Response:
    """The table of versions, which the page fetches again."""
    return visit.render_partial("_versions.html", rows=list(_iter_rows(visit)))


def _iter_rows(visit: Visit) -> Iterator[VersionRow]:
    state = visit.console.read_state()
    for record in state.versions_by_name():
        name = record.name
        if visit.may(
            "projects.models.versions.get", project=name.project, model=name.model, version=name.version
        ):
            yield _build_row(visit, record, is_default=state.models[name.parent].default == name.version)


def _build_row(visit: Visit, record: VersionRecord, *, is_default: bool) -> VersionRow:
    name, snapshot = record.name, visit.console.cluster_status.get_version(record)
    nodes = () if snapshot is None else snapshot.nodes
    return VersionRow(
        project=name.project,
        model=name.model,
        version=name.version,
        is_default=is_default,
        condition=describe_condition(record, snapshot),
        nodes=tuple(node.state.value for node in nodes if node.state is not NodeState.GONE),
        running=snapshot.running if snapshot else 0,
        queued=snapshot.queued if snapshot else 0,
        recent=visit.console.history.read_recent(record.uid),
    )


def describe_condition(record: VersionRecord, snapshot: VersionSnapshot | None) -> str:
    """Awake, asleep, waking or failing; for a version that cannot be served, its state."""
    if record.version.state is VersionState.READY and snapshot is not None:
        return snapshot.condition.value
    return record.version.state.value.lower() if record.version.state is not None else "unknown"


ROUTES = (page("/", show_overview), page("/versions", show_versions))
