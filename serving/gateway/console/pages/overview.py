"""The overview: every version that the visitor may see, and what it does now.

Its live parts are shared by all who see the same: however many watch, each is made once a second. Versions
are in the order of their names, so that no row moves while somebody is about to click it.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from autoscaler.pools import NodeState, PilotState, PilotStatus
from serving.gateway.console.charts.slow_versions import find_slow_limit, is_slow
from serving.gateway.console.projects import Elsewhere
from serving.gateway.console.rendering import SharedPart, iterate_in_turns
from serving.gateway.console.services import ConsoleServices
from serving.gateway.console.visit import Visit, page
from serving.gateway.control.status import VersionCondition, VersionSnapshot
from serving.gateway.observability.history import Figures
from serving.gateway.observability.history_recorder import RECENT_SECONDS
from serving.gateway.state.records import VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import VersionState

_METHOD = "projects.models.versions.get"
_RESOURCES_METHOD = "pilotlight.nodes"
_MODEL_OF = operator.attrgetter("name.project", "name.model")
_SERVABLE = frozenset(VersionCondition)
_PAGE_SIZE: Final = 100
_MAX_SEARCH: Final = 100
# So many are read, a tenth of a millisecond, before predictions get their turn.
_TURN: Final = 20
# So many are found at a glance.
_MOST_WITHOUT_SEARCH: Final = 10
# What a version may be filtered by, and which conditions are meant; "" is all.
_GROUPS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "awake": ("Awake", frozenset({VersionCondition.AWAKE, VersionCondition.WAKING})),
    "asleep": ("Asleep", frozenset({VersionCondition.ASLEEP})),
    "failing": ("Failing", frozenset({VersionCondition.FAILING, "failed"})),
}
_PILOT_STATES: Final[Mapping[PilotState, str]] = {
    PilotState.STARTING: "starting",
    PilotState.READY: "ready",
    PilotState.STOPPED: "stopped",
    PilotState.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class VisibleVersions:
    """Those that a visitor may see: all of `projects`, and besides those of `models`."""

    projects: frozenset[str]
    models: frozenset[ModelName]

    def has_model(self, name: ModelName) -> bool:
        return name.project in self.projects or name in self.models

    def select_project(self, project: str) -> VisibleVersions:
        """Those of them that are in one project."""
        return VisibleVersions(
            self.projects & {project}, frozenset(name for name in self.models if name.project == project)
        )


@dataclass(frozen=True, slots=True)
class VersionFilter:
    """Which versions are shown: of a project ("": of all), of a group of conditions ("": of all), whose names
    contain a text; and which page of them, from 1 on.
    """

    project: str
    group: str
    text: str
    page: int

    def matches_name(self, link: VersionLink) -> bool:
        """Whether a name contains the text, written as it is shown or as in an address."""
        if not self.text:
            return True
        text = self.text.lower().replace(" / ", "/")
        return text in f"{link.project}/{link.model}/{link.version}".lower()

    def build_query(self, **changes: Any) -> str:
        """The query of an address that shows the same but for the changes; "" for what is the default."""
        values = {"project": self.project, "state": self.group, "name": self.text, "page": self.page}
        values |= changes
        return urlencode(
            {key: value for key, value in values.items() if value and (key, value) != ("page", 1)}
        )


class VersionLink(NamedTuple):
    """A version by its name."""

    project: str
    model: str
    version: str
    is_default: bool

    @property
    def path(self) -> str:
        return f"/projects/{self.project}/models/{self.model}/versions/{self.version}"


class VersionRow(NamedTuple):
    """A version; `condition` is its state in words, `nodes` are the states of its nodes.

    `memory` is what these take, in bytes. `recent` has the figures of the last seconds, None for a version
    that did nothing for a day, or sleeps and has not answered in these seconds: one that falls asleep keeps
    its figures for that long. `is_slow`: beside the others, see `slow_versions`.
    """

    uid: str
    link: VersionLink
    condition: str
    nodes: tuple[str, ...] = ()
    running: int = 0
    queued: int = 0
    memory: int = 0
    recent: Figures | None = None
    is_slow: bool = False

    @property
    def p99(self) -> float:
        """0 without an answer."""
        return 0.0 if self.recent is None else self.recent.p99

    @property
    def rate(self) -> float | None:
        """Answers per second."""
        return None if self.recent is None else self.recent.requests / RECENT_SECONDS

    @property
    def is_servable(self) -> bool:
        """Whether it answers, or would with a node."""
        return self.condition in _SERVABLE


class PilotRow(NamedTuple):
    """A pilot; `trouble` says why it failed."""

    name: str
    state: str
    nodes: int
    trouble: str


async def show_overview(visit: Visit) -> Response:
    """Of one project where the address names it, else of all."""
    visible, chosen = find_visible_versions(visit), _read_filter(visit)
    return visit.render(
        "overview.html",
        versions=_build_versions_part(visit.console, visible, chosen),
        resources=_build_resources_part(visit.console) if visit.may(_RESOURCES_METHOD) else None,
        chosen=chosen,
        is_searchable=bool(chosen.text) or _count_versions(visit, visible) > _MOST_WITHOUT_SEARCH,
        is_of_many=len(visit.projects) > 1,
        elsewhere=_find_elsewhere(visit) if chosen.project else (),
        empty_models=list(_iter_empty_models(visit, chosen.project)),
    )


async def show_versions(visit: Visit) -> Response:
    """The table of versions, which the page fetches again."""
    return visit.render_shared(
        _build_versions_part(visit.console, find_visible_versions(visit), _read_filter(visit))
    )


async def show_resources(visit: Visit) -> Response:
    """Memory and pilots, which the page fetches again."""
    visit.require(_RESOURCES_METHOD)
    return visit.render_shared(_build_resources_part(visit.console))


def _read_filter(visit: Visit) -> VersionFilter:
    """What is not understood shows all."""
    group, number = visit.query.get("state", ""), visit.query.get("page", "")
    return VersionFilter(
        visit.named_project,
        group if group in _GROUPS else "",
        visit.query.get("name", "").strip()[:_MAX_SEARCH],
        int(number) if number.isdecimal() and len(number) < 7 else 1,
    )


def list_rows(visit: Visit, names: Iterable[VersionName]) -> Iterator[VersionRow]:
    """Those of the versions that the visitor may see."""
    state = visit.console.read_state()
    for name in names:
        if visit.may_on_resource(_METHOD, str(name)):
            is_default = state.models[name.parent].default == name.version
            link = VersionLink(name.project, name.model, name.version, is_default)
            record = state.versions[name]
            yield _build_row(visit.console, link, record, visit.console.server_status.get_version(record))


def _iter_empty_models(visit: Visit, project: str) -> Iterator[ModelName]:
    """The models without a version that the visitor may see, of a project if it is given."""
    state = visit.console.read_state()
    for name in sorted(one for one in state.models if not state.version_order.list_children(one)):
        if project in ("", name.project) and visit.may_on_resource("projects.models.get", str(name)):
            yield name


def _count_versions(visit: Visit, visible: VisibleVersions) -> int:
    order, models = visit.console.read_state().version_order, visit.console.read_state().models
    return sum(len(order.list_children(name)) for name in models if visible.has_model(name))


def _find_elsewhere(visit: Visit) -> Sequence[Elsewhere]:
    """What other projects hold, where this one has no version."""
    state = visit.console.read_state()

    def count(project: str) -> int:
        models = state.model_order.list_children(project)
        return sum(len(state.version_order.list_children(model)) for model in models)

    return (
        ()
        if count(visit.project)
        else visit.find_elsewhere("projects.models.list", count, "/?project={project}")
    )


def find_visible_versions(visit: Visit) -> VisibleVersions:
    """Asks for a project first: who may see all of it has the same rights as others who may."""
    models = visit.console.read_state().models
    projects = {name.project for name in models}
    whole = frozenset(one for one in projects if visit.may_on_resource(_METHOD, f"projects/{one}"))
    return VisibleVersions(
        whole,
        frozenset(
            name for name in models if name.project not in whole and visit.may_on_resource(_METHOD, str(name))
        ),
    )


def _build_versions_part(
    console: ConsoleServices, visible: VisibleVersions, chosen: VersionFilter
) -> SharedPart:
    shown = visible.select_project(chosen.project) if chosen.project else visible

    async def read_values() -> Mapping[str, Any]:
        counts: Counter[str] = Counter()
        matching: list[tuple[VersionLink, VersionRecord, VersionSnapshot | None]] = []
        projects = set()
        async for link, record in iterate_in_turns(_iter_visible(console, shown), _TURN):
            # Most sleep: what they do is not asked for.
            is_asleep = _is_asleep(console, record)
            snapshot = None if is_asleep else console.server_status.get_version(record)
            group = "asleep" if is_asleep else _find_group(describe_condition(record, snapshot))
            counts[group] += 1
            projects.add(link.project)
            if chosen.group in ("", group) and chosen.matches_name(link):
                matching.append((link, record, snapshot))
        pages = max(1, -(-len(matching) // _PAGE_SIZE))
        first = (min(max(chosen.page, 1), pages) - 1) * _PAGE_SIZE
        shown_rows = matching[first : first + _PAGE_SIZE]
        rows = [_build_row(console, *one) async for one in iterate_in_turns(shown_rows, _TURN)]
        return {
            "chosen": chosen,
            "rows": _mark_slow(console, rows),
            "filters": list(_list_filters(chosen, counts)),
            "all": counts.total(),
            "asleep": counts["asleep"],
            "matching": len(matching),
            "page": first // _PAGE_SIZE + 1,
            "pages": pages,
            "names_projects": len(projects) > 1,
        }

    return SharedPart("_versions.html", (shown, chosen), console.read_state(), read_values)


def _mark_slow(console: ConsoleServices, rows: Sequence[VersionRow]) -> list[VersionRow]:
    """The last minute is asked for of those alone that stand out now."""
    limit = find_slow_limit([row.p99 for row in rows])

    def stands_out(row: VersionRow) -> bool:
        if row.p99 < limit:
            return False
        seconds = console.history.read_last_minute(row.uid)
        return is_slow(limit, row.p99, [figures.p99 for figures in seconds])

    return [row._replace(is_slow=True) if stands_out(row) else row for row in rows]


def _find_group(condition: str) -> str:
    return next((name for name, (_, conditions) in _GROUPS.items() if condition in conditions), "other")


def _list_filters(chosen: VersionFilter, counts: Counter[str]) -> Iterator[tuple[str, int, str, bool]]:
    """Title, count, query and whether it is chosen; there is no way to failing versions without one."""
    yield "All", counts.total(), chosen.build_query(state="", page=1), not chosen.group
    for name, (title, _) in _GROUPS.items():
        if counts[name] or name == chosen.group or name != "failing":
            yield title, counts[name], chosen.build_query(state=name, page=1), name == chosen.group


def _build_resources_part(console: ConsoleServices) -> SharedPart:
    status = console.server_status

    async def read_values() -> Mapping[str, Any]:
        pilots = [_build_pilot_row(pilot) for pilot in status.list_pilots()]
        return {
            "taken": status.read_node_memory(),
            "free": status.read_free_memory(),
            "limit": console.config.memory_bytes,
            "pilots": pilots,
            "ready_pilots": sum(pilot.state == "ready" for pilot in pilots),
        }

    return SharedPart("_resources.html", None, None, read_values)


def _build_pilot_row(pilot: PilotStatus) -> PilotRow:
    return PilotRow(pilot.key, _PILOT_STATES[pilot.state], pilot.forked, pilot.reason)


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
    return record.version.state is VersionState.READY and console.server_status.is_asleep(record)


def _build_row(
    console: ConsoleServices, link: VersionLink, record: VersionRecord, snapshot: VersionSnapshot | None
) -> VersionRow:
    """Without a snapshot: of a version that is asleep, or cannot be served."""
    if snapshot is None:
        if not _is_asleep(console, record):
            return VersionRow(record.uid, link, describe_condition(record, None))
        recent = console.history.read_recent(record.uid)
        return VersionRow(record.uid, link, "asleep", recent=recent if recent and recent.requests else None)
    return VersionRow(
        uid=record.uid,
        link=link,
        condition=describe_condition(record, snapshot),
        nodes=tuple(node.state.value for node in snapshot.nodes if node.state is not NodeState.GONE),
        running=snapshot.running,
        queued=snapshot.queued,
        memory=snapshot.node_memory,
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
    page("/resources", show_resources),
)
