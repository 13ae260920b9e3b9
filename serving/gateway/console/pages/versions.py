"""One version: its nodes and why they are there, a prediction to try, and changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from autoscaler.pools import NodeState
from serving.errors import InvalidArgument, ServingError, http_status
from serving.gateway.console import api_calls
from serving.gateway.console.charts.history_view import (
    DEFAULT_WINDOW,
    WINDOW_LABELS,
    HistoryView,
    view_history,
)
from serving.gateway.console.charts.phase_bars import START_PHASES
from serving.gateway.console.field_parsers import (
    fill_description_and_labels,
    locate_error,
    parse_description_and_labels,
    parse_json_object,
)
from serving.gateway.console.forms import Form
from serving.gateway.console.pages.operations import OPERATION_PATH
from serving.gateway.console.pages.overview import describe_condition
from serving.gateway.console.pages.version_details import (
    VERSION_PATH,
    call_version,
    read_acceleration,
    read_log,
    read_name,
    read_phases,
    read_waits,
)
from serving.gateway.console.prediction_form.call_snippets import list_snippets
from serving.gateway.console.prediction_form.file_inputs import (
    MAX_FILE_BYTES,
    FileInput,
    decode_file,
    insert_file,
    list_file_inputs,
)
from serving.gateway.console.prediction_form.model_inputs import (
    PLACEHOLDER,
    ModelInputs,
    describe_model_inputs,
)
from serving.gateway.console.visit import REFUSED_TO_VISITOR, Visit, action, page
from serving.gateway.control.status import VersionSnapshot
from serving.gateway.observability.history import WINDOWS
from serving.gateway.state.records import VersionRecord
from serving.http_headers import WANTS_TIMING_HEADER
from serving.protocols import Reply

Json = dict[str, Any]

_EMPTY_REQUEST = f'{{"instances": [{PLACEHOLDER}]}}'
_MANUAL = "manual"
_COUNTS = ("nodes", "minNodes", "maxNodes")
_API_NAMES = {"min_nodes": "minNodes", "max_nodes": "maxNodes"}
_FILE_FIELD = "file-{}"
_REFUSALS = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class _Schema:
    """What the version takes, as the API returns it, or the reason why that is not known."""

    document: Json | None
    reason: str = ""

    @property
    def inputs(self) -> ModelInputs | None:
        return None if self.document is None else describe_model_inputs(self.document)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A prediction that is tried: the text of its request, and what came of it."""

    request: str
    schema: _Schema
    reply: Reply | None = None
    error: ServingError | None = None

    @property
    def file_inputs(self) -> Sequence[FileInput]:
        return () if self.schema.document is None else list_file_inputs(self.schema.document)


@dataclass(frozen=True, slots=True)
class _RefusedChange:
    """A change that was refused, with what was typed."""

    form: Form | None = None
    error: ServingError | None = None


_NO_CHANGE: Final = _RefusedChange()


async def show_version(visit: Visit) -> Response:
    return await _render_untried_page(visit)


async def _render_untried_page(visit: Visit, change: _RefusedChange = _NO_CHANGE) -> Response:
    """The page before a prediction is tried."""
    schema = await _read_schema(visit)
    request = _EMPTY_REQUEST if (inputs := schema.inputs) is None else inputs.request
    return await _render_page(visit, _Attempt(request, schema), change)


async def show_state(visit: Visit) -> Response:
    return visit.render_partial(
        "_version_state.html", **await _read_state(visit), bottleneck=read_phases(visit)["bottleneck"]
    )


async def show_history(visit: Visit) -> Response:
    return visit.render_partial("_version_history.html", **await _read_state(visit))


async def try_prediction(visit: Visit) -> Response:
    """The page with the answer. Raises what the API refuses the visitor."""
    form, schema = await visit.read_form(), await _read_schema(visit)
    attempt = _Attempt(form["request"], schema)
    try:
        body = _build_request_body(form, attempt)
    except InvalidArgument as error:
        return await _render_page(visit, replace(attempt, error=error))
    reply = await visit.call_raw(
        "projects.predict",
        body=body,
        headers={WANTS_TIMING_HEADER: b"1"},
        name=VERSION_PATH.format_map(visit.path_params).removeprefix("/projects/"),
    )
    if reply.status in _REFUSALS:
        api_calls.read_reply(reply)
    return await _render_page(visit, replace(attempt, reply=reply))


def _build_request_body(form: Form, attempt: _Attempt) -> bytes:
    """The body to send, with the files that were chosen. Raises InvalidArgument, BodyTooLarge."""
    chosen = [
        (one, text)
        for number, one in enumerate(attempt.file_inputs)
        if (text := form[_FILE_FIELD.format(number)])
    ]
    request, is_filled_in = attempt.request, _is_filled_in(attempt.request)
    if not chosen or attempt.schema.document is None:
        if not is_filled_in:
            raise InvalidArgument(
                f'Write an instance in place of {PLACEHOLDER}: "Input and output" says what one is.',
                field="request",
            )
        return request.encode()
    body = parse_json_object(request if is_filled_in else request.replace(PLACEHOLDER, "null"), "request")
    for file_input, text in chosen:
        body = insert_file(body, file_input, decode_file(text), attempt.schema.document["defaultSignature"])
    return json.dumps(body).encode()


def _is_filled_in(request: str) -> bool:
    """Whether it is not the form with the placeholder in it; as a part of a text that is none."""
    if PLACEHOLDER not in request:
        return True
    try:
        json.loads(request)
    except ValueError:
        return False
    return True


async def set_default(visit: Visit) -> Response:
    await call_version(visit, "projects.models.versions.setDefault", body={})
    return visit.redirect(
        VERSION_PATH.format_map(visit.path_params), notice="This version is the default of its model."
    )


async def update_version(visit: Visit) -> Response:
    """Change the labels, the description, and by what bounds the version is scaled."""
    form = await visit.read_form()
    try:
        mask, body = _build_change(form)
        await call_version(visit, "projects.models.versions.patch", query={"updateMask": mask}, body=body)
    except REFUSED_TO_VISITOR:
        raise
    except ServingError as error:
        return await _render_untried_page(visit, change=_RefusedChange(form, error))
    return visit.redirect(VERSION_PATH.format_map(visit.path_params), notice="The version is changed.")


def _build_change(form: Form) -> tuple[str, Json]:
    """The update mask and the body. Raises InvalidArgument."""
    body: Json = parse_description_and_labels(form)
    if form["scaling"] == _MANUAL:
        body["manualScaling"] = {"nodes": _parse_count(form, "nodes")}
        mask = "manualScaling.nodes"
    else:
        bounds = {name: _parse_count(form, name) for name in ("minNodes", "maxNodes")}
        body["autoScaling"] = bounds
        mask = ",".join(f"autoScaling.{name}" for name in bounds)
    return f"description,labels,{mask}", body


async def delete_version(visit: Visit) -> Response:
    deletion = await call_version(visit, "projects.models.versions.delete")
    path = OPERATION_PATH.format(project=visit.project, operation=deletion["name"].rpartition("/")[2])
    return visit.redirect(path, notice="The deletion of the version was begun.")


def _parse_count(form: Form, name: str) -> int:
    """0 for an empty field, which stands for the default. Raises InvalidArgument."""
    text = form[name] or "0"
    if not text.isdecimal():
        raise InvalidArgument(f"{text[:50]!r} is no number of nodes.", field=name)
    return int(text)


def _fill_scaling(visit: Visit, version: Json, form: Form | None) -> Json:
    """What the fields of scaling show: what was typed, else what is in force."""
    manual, automatic = version.get("manualScaling"), version.get("autoScaling", {})
    config = visit.console.config
    shown = {
        "kind": "automatic" if manual is None else _MANUAL,
        "nodes": (manual or {}).get("nodes") or 1,
        "minNodes": automatic.get("minNodes", 0),
        "maxNodes": automatic.get("maxNodes", ""),
    }
    if form is not None:
        shown = {"kind": form["scaling"], **{name: form[name] for name in _COUNTS}}
    return {
        **shown,
        "most": config.max_nodes or "the number of its cores",
        "idle": config.idle_timeout,
    }


async def _render_page(visit: Visit, attempt: _Attempt, change: _RefusedChange = _NO_CHANGE) -> Response:
    state, request, reply = await _read_state(visit), attempt.request, attempt.reply
    error = attempt.error or change.error
    may_read_logs = visit.may("pilotlight.versions.logs", **visit.path_params)
    return visit.render(
        "version.html",
        status=200 if error is None else http_status(error),
        error=attempt.error,
        change_error=change.error,
        field_errors={
            **locate_error(attempt.error, ("request",), {}),
            **locate_error(change.error, (*_COUNTS, "description", "labels"), _API_NAMES),
        },
        placeholder=PLACEHOLDER,
        inputs=attempt.schema.inputs,
        inputs_reason=attempt.schema.reason,
        file_inputs=attempt.file_inputs,
        most_file_bytes=MAX_FILE_BYTES,
        **state,
        **read_phases(visit),
        **await read_waits(visit),
        **await read_acceleration(visit),
        **(await read_log(visit) if may_read_logs else {}),
        may_read_logs=may_read_logs,
        request=request,
        snippets=list_snippets(str(visit.request.base_url).rstrip("/"), read_name(visit), request),
        answer=None if reply is None else reply.body.decode(errors="replace"),
        answer_status=0 if reply is None else reply.status,
        phases=[] if reply is None else _parse_server_timing(reply),
        may_predict=visit.may(
            "projects.predict", name=VERSION_PATH.format_map(visit.path_params).removeprefix("/projects/")
        ),
        may_update=visit.may("projects.models.versions.patch", **visit.path_params),
        texts=fill_description_and_labels(state["details"], change.form),
        scaling=_fill_scaling(visit, state["details"], change.form),
        may_set_default=visit.may("projects.models.versions.setDefault", **visit.path_params),
        may_delete=visit.may("projects.models.versions.delete", **visit.path_params),
    )


async def _read_state(visit: Visit) -> Json:
    """Raises NotFound and PermissionDenied."""
    version = await call_version(visit, "projects.models.versions.get")
    name = read_name(visit)
    record = visit.console.read_state().versions.get(name)
    snapshot = None if record is None else visit.console.server_status.get_version(record)
    return {
        "project": name.project,
        "model": name.model,
        "version": name.version,
        "path": VERSION_PATH.format_map(visit.path_params),
        "details": version,
        "condition": "deleted" if record is None else describe_condition(record, snapshot),
        "warnings": () if record is None else record.version.warnings,
        "snapshot": snapshot,
        "history": _read_history(visit, record),
        "window_labels": WINDOW_LABELS,
        "nodes": _list_nodes(snapshot),
    }


def _read_history(visit: Visit, record: VersionRecord | None) -> HistoryView | None:
    """None for a version that is not scaled: it was deleted, or cannot be served."""
    tracked = None if record is None else visit.console.server_status.get_tracked(record)
    if record is None or tracked is None:
        return None
    window = visit.query.get("window", DEFAULT_WINDOW)
    window = window if window in WINDOWS else DEFAULT_WINDOW
    first_end, figures = visit.console.history.read_figures(record.uid, WINDOWS[window])
    return view_history(window, first_end, figures, tracked.events)


def _list_nodes(snapshot: VersionSnapshot | None) -> list[Json]:
    return [
        {
            "id": node.id,
            "state": node.state.value,
            "age": node.age,
            "in_flight": node.in_flight,
            "started": "forked" if node.forked else "cold",
        }
        for node in (() if snapshot is None else snapshot.nodes)
        if node.state is not NodeState.GONE
    ]


async def _read_schema(visit: Visit) -> _Schema:
    """Without a start of a node, which the API begins for versions of releases that stored no schema."""
    record = visit.console.read_state().versions.get(read_name(visit))
    deployed = None if record is None else record.deployed
    if deployed is not None and not deployed.schema:
        return _Schema(None, "It is not known yet: it is found out when a node of the version starts.")
    try:
        return _Schema(await call_version(visit, "pilotlight.versions.schema"))
    except ServingError as error:
        return _Schema(None, error.message)


def _parse_server_timing(reply: Reply) -> list[tuple[str, float]]:
    """The phases of `Server-Timing`, with their milliseconds."""
    timing = b", ".join(value for name, value in reply.headers if name.lower() == b"server-timing")
    pairs = (phase.partition(";dur=") for phase in timing.decode("latin-1").split(", ") if phase)
    return [(START_PHASES.get(name, name), float(milliseconds)) for name, _, milliseconds in pairs]


ROUTES = (
    page(VERSION_PATH, show_version),
    page(f"{VERSION_PATH}/state", show_state),
    page(f"{VERSION_PATH}/history", show_history),
    action(f"{VERSION_PATH}/predictions", try_prediction),
    action(f"{VERSION_PATH}/default", set_default),
    action(f"{VERSION_PATH}/settings", update_version),
    action(f"{VERSION_PATH}/deletion", delete_version),
)
