"""What is known of a version besides its state: where its time goes, its faster way, and its logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from starlette.responses import Response

from serving.acceleration_record import PLAIN_STRATEGY
from serving.errors import FailedPrecondition, ResourceExhausted
from serving.gateway.console.charts.bottleneck import Bottleneck, find_bottleneck
from serving.gateway.console.charts.phase_bars import START_PHASES, view_answers, view_starts
from serving.gateway.console.rendering import shorten
from serving.gateway.console.visit import Visit, page
from serving.gateway.observability.phase_sums import add_up_phases
from serving.gateway.observability.prediction_stats import PhaseHistograms
from serving.names import VersionName

Json = dict[str, Any]

VERSION_PATH: Final = "/projects/{project}/models/{model}/versions/{version}"
_LOG_LABELS: Final[Mapping[str, str]] = {
    "console": "what nodes print",
    "requests": "requests and answers",
    "access": "access",
}
_DEFAULT_LOG: Final = "console"
_LOG_LINES: Final = 50
_MOST_CHARACTERS: Final = 1000


def read_name(visit: Visit) -> VersionName:
    return VersionName(visit.path_params["project"], visit.path_params["model"], visit.path_params["version"])


async def call_version(
    visit: Visit, method: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
) -> Any:
    """A method of the page's version."""
    name = read_name(visit)
    return await visit.call(
        method, query=query, body=body, project=name.project, model=name.model, version=name.version
    )


async def show_phases(visit: Visit) -> Response:
    await call_version(visit, "projects.models.versions.get")
    return visit.render_partial("_version_phases.html", path=_format_path(visit), **read_phases(visit))


async def show_acceleration(visit: Visit) -> Response:
    found = await read_acceleration(visit)
    return visit.render_partial("_version_acceleration.html", path=_format_path(visit), **found)


async def show_log(visit: Visit) -> Response:
    found = await read_log(visit)
    done = bool(found["log"]["message"])
    return visit.render_partial("_version_log.html", done=done, path=_format_path(visit), **found)


async def show_waits(visit: Visit) -> Response:
    return visit.render_partial("_version_waits.html", path=_format_path(visit), **await read_waits(visit))


async def read_waits(visit: Visit) -> Json:
    """The last requests that waited, newest first."""
    return {"waits": (await call_version(visit, "pilotlight.versions.waits"))["waits"]}


def read_phases(visit: Visit) -> Json:
    """Of starts and answers since the server was started, for a visitor who may see the version."""
    console = visit.console
    record = console.read_state().versions.get(read_name(visit))
    stats = None if record is None else console.prediction_stats.find_version(record.uid)
    snapshot = None if record is None else console.server_status.get_version(record)
    nodes = () if snapshot is None else snapshot.nodes
    counted = None if stats is None else stats.take_snapshot(node.counters for node in nodes)
    phases, started = ((), ()) if counted is None else (counted.phases, counted.started)
    return {
        "starts": () if record is None else view_starts(console.metrics.summarize_starts(record.uid)),
        "start_phases": list(START_PHASES.values()),
        "wakeups": {} if snapshot is None else dict(snapshot.wakeups),
        "answers": view_answers(phases, started),
        "bottleneck": None if record is None else _find_bottleneck(visit, record.uid, phases, started),
    }


def _find_bottleneck(
    visit: Visit, uid: str, phases: PhaseHistograms, started: PhaseHistograms
) -> Bottleneck | None:
    """Of the last minutes, where these had an answer."""
    name, sums = read_name(visit), add_up_phases(phases, started)
    if sampled := visit.console.history.read_older_sample(uid):
        sample, seconds = sampled
        minutes = round(seconds / 60)
        period = f"in the last {minutes} minutes" if minutes > 1 else "in the last minute"
        if recent := find_bottleneck(name, sample.subtract_from(sums), period=period):
            return recent
    return find_bottleneck(name, sums, period="since the server was started")


async def read_acceleration(visit: Visit) -> Json:
    try:
        found = await call_version(visit, "pilotlight.versions.acceleration")
    except ResourceExhausted as error:
        found = {"way": PLAIN_STRATEGY, "reason": error.message}
    return {"acceleration": found, "plain": PLAIN_STRATEGY}


async def read_log(visit: Visit) -> Json:
    """The last lines of the log that the query names, newest first, or why there are none."""
    kind = visit.query.get("log", _DEFAULT_LOG)
    kind = kind if kind in _LOG_LABELS else _DEFAULT_LOG
    log: Json = {"kind": kind, "lines": [], "message": ""}
    try:
        page = await call_version(
            visit, "pilotlight.versions.logs", query={"kind": kind, "limit": str(_LOG_LINES)}
        )
    except (FailedPrecondition, ResourceExhausted) as error:
        log["message"] = error.message
    else:
        log["lines"] = list(_format_entries(reversed(page["entries"])))
    return {"log": log, "log_labels": _LOG_LABELS}


def _format_entries(entries: Iterable[Json]) -> Iterator[str]:
    for entry in entries:
        if "message" in entry:
            words = [str(entry.get("severity", "")), shorten(str(entry["message"]), _MOST_CHARACTERS)]
        else:
            asked, answered = (
                shorten(str(entry.get(name)), _MOST_CHARACTERS) for name in ("raw_data", "raw_prediction")
            )
            words = [asked, "→", answered]
        yield " ".join([str(entry.get("time", "")), *words])


def _format_path(visit: Visit) -> str:
    return VERSION_PATH.format_map(visit.path_params)


ROUTES = (
    page(f"{VERSION_PATH}/phases", show_phases),
    page(f"{VERSION_PATH}/waits", show_waits),
    page(f"{VERSION_PATH}/acceleration", show_acceleration),
    page(f"{VERSION_PATH}/log", show_log),
)
