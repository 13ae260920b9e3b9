"""The description of the gateway's routes in `/openapi.json`, for each method of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from serving.gateway.access.policy import Policy
from serving.gateway.api.log_entries import ListLogEntriesRequest
from serving.gateway.api.policies import (
    GetIamPolicyRequest,
    SetIamPolicyRequest,
    TestIamPermissionsRequest,
)
from serving.gateway.methods import METHODS, PREDICT_METHOD, ApiMethod
from serving.gateway.observability.metrics import CONTENT_TYPE
from serving.gateway.state.records import JobKindName, VersionRecord
from serving.http_headers import JSON
from serving.model_schema import unpack_outline, with_bare_answers
from serving.openapi import prediction_operations
from serving.openapi.document import (
    ANY_ERRORS,
    OBJECT,
    STRING,
    WRITE_ERRORS,
    OpenApiOperation,
    array_schema,
    build_document,
    object_schema,
    query_parameter,
    schema_ref,
    to_path_template,
)
from serving.resources import Job, Model, Version
from serving.resources import Operation as LongOperation
from serving.study_resources import (
    AddTrialMeasurementRequest,
    CompleteTrialRequest,
    StudyBody,
    SuggestTrialsRequest,
    TrialBody,
)

Json = dict[str, Any]

_TITLE = "Pilotlight"
_DESCRIPTION = (
    "Models in production: AI Platform's API, TensorFlow Serving's and the Open Inference Protocol. With the "
    "general routes come the predictions of the versions that the caller may see, in the order of their "
    "names, `pageSize` of them; `info.x-next-page-token`, if it is there, is the `pageToken` of the next. "
    "`parent` narrows them to those of a project or of a model."
)

# Longest packed schema whose description is cached: those of models with many columns are long.
_MAX_CACHED_SCHEMA = 1 << 11
_TEMPLATE = "#/components/schemas/{name}"
_PREDICTED = "/v1/{name}:predict"

_PAGE = (
    query_parameter(
        "pageSize", {"type": "integer", "minimum": 0}, "How many to answer at most: 20, up to 100."
    ),
    query_parameter("pageToken", STRING, "The nextPageToken of the page before."),
    query_parameter("filter", STRING, "Which to answer, such as `state:READY`."),
)
_MOST_ROWS = query_parameter(
    "pageSize", {"type": "integer", "minimum": 0}, "How many to answer at most: all in 8 MiB, or up to 100."
)
_MASK = (query_parameter("updateMask", STRING, "The fields to change, with commas between.", required=True),)
_PARENT: Json = {
    "type": "string",
    "pattern": r"^(projects/[A-Za-z0-9_]+(/models/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9_-])?)?)?$",
}
_POLICY_VERSION = (
    query_parameter(
        "options.requestedPolicyVersion", {"type": "integer", "enum": [0, 1, 3]}, "Of the policy."
    ),
)


def _read_operation(
    summary: str, tag: str, response: Json, *, query: tuple[Json, ...] = ()
) -> OpenApiOperation:
    return OpenApiOperation(summary, tag, {JSON: response}, query=query)


def _write_operation(
    summary: str, tag: str, request: Json | None, response: Json, *, query: tuple[Json, ...] = ()
) -> OpenApiOperation:
    return OpenApiOperation(
        summary, tag, {JSON: response}, {JSON: request} if request else None, query, WRITE_ERRORS
    )


def _list_operation(summary: str, tag: str, key: str, item: Json) -> OpenApiOperation:
    return _read_operation(
        summary, tag, object_schema({key: array_schema(item), "nextPageToken": STRING}), query=_PAGE
    )


def _whole_list_operation(summary: str, key: str, item: Json) -> OpenApiOperation:
    """A list that is answered as a whole where no size is asked for."""
    listed = object_schema({key: array_schema(item), "nextPageToken": STRING})
    return _read_operation(summary, "Studies", listed, query=(_MOST_ROWS, _PAGE[1]))


def _health_operation(state: str) -> OpenApiOperation:
    body = object_schema({"status": {"const": state}}, ["status"])
    refusals = (*ANY_ERRORS, 503) if state == "ready" else ANY_ERRORS
    return OpenApiOperation(
        f"Whether the server is {state}", "Server", {JSON: body}, refusals=refusals, is_public=True
    )


def _make_info_operation(
    summary: str, properties: Mapping[str, Json], required: Iterable[str]
) -> OpenApiOperation:
    return _read_operation(summary, "Server", object_schema(properties, required, allow_others=True))


_NUMBER: Json = {"type": "number"}
_COUNT: Json = {"type": "integer"}
_MAYBE: Json = {"type": ["number", "null"]}
_LINES = array_schema(STRING)

_WHY = {"version": STRING, "state": STRING, "summary": STRING}
_LONG, _MODEL, _VERSION = schema_ref("Operation"), schema_ref("Model"), schema_ref("Version")
_JOB, _KEPT_JOB, _POLICY = schema_ref("Job"), schema_ref("JobResource"), schema_ref("Policy")
_STUDY, _TRIAL = schema_ref("StudyBody"), schema_ref("TrialBody")
_DONE = object_schema({"name": STRING, "metadata": OBJECT, "done": {"const": True}, "response": OBJECT})
_LOCATION = object_schema({"name": STRING, "capabilities": array_schema(OBJECT)}, ["name"])

_STUDY_OPERATIONS: Mapping[str, OpenApiOperation] = {
    f"projects.locations.{name}": operation
    for name, operation in {
        "operations.get": _read_operation("A suggestion, or a check of early stopping", "Studies", _DONE),
        "operations.cancel": _write_operation("Nothing: they are done", "Studies", None, OBJECT),
        "studies.create": _write_operation(
            "Make a study",
            "Studies",
            _STUDY,
            _STUDY,
            query=(query_parameter("studyId", STRING, "The id of the study.", required=True),),
        ),
        "studies.list": _whole_list_operation("The studies of a location", "studies", _STUDY),
        "studies.get": _read_operation("A study", "Studies", _STUDY),
        "studies.delete": _write_operation("Delete a study with its trials", "Studies", None, OBJECT),
        "studies.trials.create": _write_operation("Add a trial of one's own", "Studies", _TRIAL, _TRIAL),
        "studies.trials.list": _whole_list_operation("The trials of a study", "trials", _TRIAL),
        "studies.trials.listOptimalTrials": _write_operation(
            "The best trial, or the Pareto front of several metrics",
            "Studies",
            None,
            object_schema({"trials": array_schema(_TRIAL)}),
        ),
        "studies.trials.suggest": _write_operation(
            "Trials to run next", "Studies", schema_ref("SuggestTrialsRequest"), _DONE
        ),
        "studies.trials.get": _read_operation("A trial", "Studies", _TRIAL),
        "studies.trials.delete": _write_operation("Delete a trial", "Studies", None, OBJECT),
        "studies.trials.addMeasurement": _write_operation(
            "Report how a trial goes", "Studies", schema_ref("AddTrialMeasurementRequest"), _TRIAL
        ),
        "studies.trials.complete": _write_operation(
            "End a trial", "Studies", schema_ref("CompleteTrialRequest"), _TRIAL
        ),
        "studies.trials.checkEarlyStoppingState": _write_operation(
            "Whether a trial should end early", "Studies", None, _DONE
        ),
        "studies.trials.stop": _write_operation("Ask for a trial to end", "Studies", None, _TRIAL),
    }.items()
}

_OPERATIONS: Mapping[str, OpenApiOperation] = {
    "pilotlight.root": OpenApiOperation(
        "Where to go on",
        "Server",
        {JSON: object_schema({"service": STRING, "docs": STRING}, ["service", "docs"], allow_others=True)},
        refusals=ANY_ERRORS,
        is_public=True,
    ),
    "pilotlight.healthz": _health_operation("live"),
    "pilotlight.readyz": _health_operation("ready"),
    "pilotlight.stats": _make_info_operation(
        "Counts of what there is",
        {"models": _COUNT, "versions": _COUNT, "jobs": OBJECT},
        ["models", "versions"],
    ),
    "pilotlight.metrics": OpenApiOperation("Metrics for Prometheus", "Server", {CONTENT_TYPE: STRING}),
    "pilotlight.nodes": _make_info_operation(
        "Versions with their nodes, and the memory of each process",
        {"versions": array_schema(OBJECT), "pilots": array_schema(OBJECT), "gateway": OBJECT},
        ["versions", "pilots", "gateway"],
    ),
    "pilotlight.servers": _make_info_operation(
        "The servers that share the database, as this one sees them",
        {"servers": array_schema(OBJECT)},
        ["servers"],
    ),
    "pilotlight.events": OpenApiOperation(
        "What happens, as it happens: a stream of server-sent events without an end",
        "Server",
        {"text/event-stream": STRING},
        query=(
            query_parameter("parent", STRING, "A project, model, version, job or operation: its events."),
            query_parameter("lastEventId", STRING, "The id of an event: those after it, as by the header."),
        ),
    ),
    "pilotlight.models.why": _make_info_operation("How the default version is, and why", _WHY, _WHY),
    "pilotlight.versions.why": _make_info_operation("How a version is, and why", _WHY, _WHY),
    "pilotlight.versions.history": _read_operation(
        "What a version did lately",
        "Server",
        object_schema(
            {
                "version": STRING,
                "window": STRING,
                "firstEnd": {"type": "integer"},
                "grainSeconds": {"type": "integer"},
                **dict.fromkeys(("requests", "errors", "nodes"), array_schema({"type": "integer"})),
                **dict.fromkeys(("p50Ms", "p99Ms"), array_schema({"type": ["number", "null"]})),
            },
            [
                "version",
                "window",
                "firstEnd",
                "grainSeconds",
                "requests",
                "errors",
                "p50Ms",
                "p99Ms",
                "nodes",
            ],
        ),
        query=(
            query_parameter(
                "window",
                {"type": "string", "enum": ["10m", "1h", "1d"]},
                "How far back: ten minutes by the second, an hour by the minute, a day by the half hour.",
            ),
        ),
    ),
    "pilotlight.versions.waits": _read_operation(
        "Why the last requests waited",
        "Server",
        object_schema(
            {
                "version": STRING,
                "waits": array_schema(
                    object_schema(
                        {
                            **dict.fromkeys(("time", "requestId", "summary"), STRING),
                            "status": {"type": "integer"},
                            "ms": {"type": "number"},
                            "phasesMs": {"type": "object", "additionalProperties": {"type": "number"}},
                        },
                        ["time", "requestId", "summary", "status", "ms", "phasesMs"],
                    )
                ),
            },
            ["version", "waits"],
        ),
    ),
    "pilotlight.versions.logs": _read_operation(
        "What a version has logged",
        "Server",
        object_schema(
            {"entries": array_schema(OBJECT), "cursor": STRING, "nextPageToken": STRING},
            ["entries", "cursor"],
        ),
        query=(
            query_parameter(
                "kind", {"type": "string", "enum": ["requests", "access", "console"]}, "Which log."
            ),
            query_parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many entries."),
            query_parameter("since", {"type": "string", "format": "date-time"}, "From this time on."),
            query_parameter("cursor", STRING, "The cursor of an earlier answer: those after its entries."),
            query_parameter(
                "pageToken", STRING, "The nextPageToken of an earlier answer: those before its entries."
            ),
        ),
    ),
    "pilotlight.versions.acceleration": _make_info_operation(
        "How a version computes its predictions", {"version": STRING, "way": STRING}, ["version", "way"]
    ),
    "pilotlight.models.schema": _read_operation(
        "What the default version takes and answers", "Models and versions", schema_ref("Schema")
    ),
    "pilotlight.versions.schema": _read_operation(
        "What a version takes and answers, with an instance that predicts",
        "Models and versions",
        schema_ref("Schema"),
    ),
    "pilotlight.openapi": _read_operation(
        "This document",
        "Server",
        OBJECT,
        query=(
            query_parameter(
                "parent", _PARENT, "A project or a model: tell the predictions of its versions only."
            ),
            *_PAGE[:2],
        ),
    ),
    "pilotlight.docs": OpenApiOperation(
        "A page to try predictions",
        "Server",
        {"text/html; charset=utf-8": STRING},
        refusals=ANY_ERRORS,
        is_public=True,
    ),
    "pilotlight.discovery.rest": OpenApiOperation(
        "This API as Google's clients read it",
        "Server",
        {JSON: OBJECT},
        query=(query_parameter("version", {"type": "string", "enum": ["v1"]}, "Of the API."),),
        refusals=(400, 404, *ANY_ERRORS),
        is_public=True,
    ),
    "pilotlight.discovery.list": OpenApiOperation(
        "The APIs there are, as Google's clients read it",
        "Server",
        {JSON: OBJECT},
        refusals=(400, *ANY_ERRORS),
        is_public=True,
    ),
    "pilotlight.batch": OpenApiOperation(
        "Several requests in one, each answered by itself",
        "Server",
        {"multipart/mixed": STRING},
        {"multipart/mixed": STRING},
        refusals=(400, 401, 413, 415, 429, *ANY_ERRORS),
    ),
    "pilotlight.entries.list": _write_operation(
        "What a job has logged, as Cloud Logging tells it",
        "Jobs",
        schema_ref("ListLogEntriesRequest"),
        object_schema({"entries": array_schema(OBJECT), "nextPageToken": STRING}),
    ),
    "pilotlight.jobs.models": _make_info_operation(
        "The folders with models that a training job has made", {"models": array_schema(STRING)}, ["models"]
    ),
    "pilotlight.jobs.importance": _make_info_operation(
        "The share of each parameter of a tuning job in its metric", {"shares": OBJECT}, ["shares"]
    ),
    "pilotlight.jobs.progress": _make_info_operation(
        "How far a job is",
        {
            "state": STRING,
            "phase": STRING,
            "attempt": _COUNT,
            "waitReason": STRING,
            "replicas": array_schema(OBJECT),
            "predictions": _COUNT,
            "errors": _COUNT,
            "bytes": _COUNT,
            "bytesTotal": _COUNT,
            "workers": _COUNT,
            "recordsPerSecond": _MAYBE,
            "secondsLeft": _MAYBE,
            "log": _LINES,
        },
        ["state", "log"],
    ),
    "projects.getConfig": _read_operation(
        "The account that the server acts as",
        "Projects",
        object_schema({"serviceAccount": STRING, "serviceAccountProject": STRING, "config": OBJECT}),
    ),
    "projects.locations.list": _list_operation("The regions there are", "Projects", "locations", _LOCATION),
    "projects.locations.get": _read_operation("A region", "Projects", _LOCATION),
    "projects.models.create": _write_operation("Make a model", "Models and versions", _MODEL, _MODEL),
    "projects.models.list": _list_operation(
        "The models of a project", "Models and versions", "models", _MODEL
    ),
    "projects.models.get": _read_operation("A model", "Models and versions", _MODEL),
    "projects.models.patch": _write_operation(
        "Change a model", "Models and versions", _MODEL, _LONG, query=_MASK
    ),
    "projects.models.delete": _write_operation("Delete a model", "Models and versions", None, _LONG),
    "projects.models.versions.create": _write_operation(
        "Make a version; the operation tells how it goes", "Models and versions", _VERSION, _LONG
    ),
    "projects.models.versions.list": _list_operation(
        "The versions of a model", "Models and versions", "versions", _VERSION
    ),
    "projects.models.versions.get": _read_operation("A version", "Models and versions", _VERSION),
    "projects.models.versions.patch": _write_operation(
        "Change a version", "Models and versions", _VERSION, _LONG, query=_MASK
    ),
    "projects.models.versions.delete": _write_operation(
        "Delete a version", "Models and versions", None, _LONG
    ),
    "projects.models.versions.setDefault": _write_operation(
        "Make a version the one that answers for its model", "Models and versions", None, _VERSION
    ),
    "projects.jobs.create": _write_operation("Queue a batch prediction", "Jobs", _JOB, _KEPT_JOB),
    "projects.jobs.list": _list_operation(
        "The batch predictions of a project, newest first", "Jobs", "jobs", _KEPT_JOB
    ),
    "projects.jobs.get": _read_operation("A batch prediction", "Jobs", _KEPT_JOB),
    "projects.jobs.patch": _write_operation(
        "Change the labels of a job", "Jobs", _JOB, _KEPT_JOB, query=_MASK
    ),
    "projects.jobs.cancel": _write_operation("Cancel a job", "Jobs", None, OBJECT),
    "projects.operations.list": _list_operation(
        "What is going on in a project", "Operations", "operations", _LONG
    ),
    "projects.operations.get": _read_operation("How a change goes", "Operations", _LONG),
    "projects.operations.cancel": _write_operation(
        "Cancel the creation of a version", "Operations", None, OBJECT
    ),
    **_STUDY_OPERATIONS,
    PREDICT_METHOD.id: prediction_operations.PREDICT_OPERATION,
    **prediction_operations.OPERATIONS_BY_METHOD,
}


def _policy_operation(name: str, method: ApiMethod) -> OpenApiOperation | None:
    match name.rpartition(".")[2]:
        case "getIamPolicy" if method.verb == "GET":
            return _read_operation("Who may do what", "Access", _POLICY, query=_POLICY_VERSION)
        case "getIamPolicy":
            return _write_operation("Who may do what", "Access", schema_ref("GetIamPolicyRequest"), _POLICY)
        case "setIamPolicy":
            return _write_operation(
                "Say who may do what", "Access", schema_ref("SetIamPolicyRequest"), _POLICY
            )
        case "testIamPermissions":
            asked = schema_ref("TestIamPermissionsRequest")
            return _write_operation(
                "What the caller may do", "Access", asked, object_schema({"permissions": _LINES})
            )
    return None


def _unimplemented_operation(method: ApiMethod) -> OpenApiOperation:
    return OpenApiOperation(
        f"Not offered: ml.{method.id}", "Not offered", {}, refusals=(401, 403, 404, 429, *ANY_ERRORS)
    )


def _build_components() -> Mapping[str, Json]:
    """The resources. Their unknown fields are rejected in requests, and do not occur in responses."""
    kinds = (Model, Version, Job, LongOperation, Policy, StudyBody, TrialBody)
    asked = (
        GetIamPolicyRequest,
        SetIamPolicyRequest,
        TestIamPermissionsRequest,
        ListLogEntriesRequest,
        SuggestTrialsRequest,
        AddTrialMeasurementRequest,
        CompleteTrialRequest,
    )
    _, found = msgspec.json.schema_components((*kinds, *asked), ref_template=_TEMPLATE)
    for component in found.values():
        for field in component.get("properties", {}).values():
            field.pop("default", None)
        if component.get("type") == "object":
            component["additionalProperties"] = False
            component.pop("required", None)
    found["OperationMetadata"]["properties"]["@type"] = STRING
    # These are echoed as they were sent.
    as_sent = {field: OBJECT for kind in JobKindName for field in (kind.input_field, kind.options_field)}
    found["JobResource"] = {**found["Job"], "properties": {**found["Job"]["properties"], **as_sent}}
    return {**found, **prediction_operations.COMPONENTS}


def build_server_document(*, tokens: bool, project: str, old_errors: bool) -> Json:
    """Build the document without the predictions of versions.

    `tokens` says whether callers have some, `project` is that of protocols without projects, and `old_errors`
    whether errors of models have the form that AI Platform gave them.
    """
    paths: dict[str, Json] = {}
    for name, method in METHODS.items():
        operation = (
            _OPERATIONS.get(name) or _policy_operation(name, method) or _unimplemented_operation(method)
        )
        for number, path in enumerate(_list_paths(method)):
            found = operation.to_json(f"{name}.{number}" if number else name, path)
            if old_errors and method is PREDICT_METHOD:
                found = prediction_operations.add_legacy_errors(found)
            paths.setdefault(to_path_template(path), {})[method.verb.lower()] = found
    found = build_document(_TITLE, _DESCRIPTION, paths, _build_components(), tokens=tokens)
    found["info"]["x-default-project"] = project
    return found


def iter_prediction_paths(
    records: Iterable[VersionRecord], *, old_errors: bool, single_output: str
) -> Iterator[tuple[str, orjson.Fragment]]:
    """The paths of predictions with these versions, as far as their schemas are known.

    `old_errors` and `single_output` are settings of the server.
    """
    for record in records:
        if record.deployed is not None and record.deployed.schema:
            name = str(record.name)
            packed = record.deployed.schema
            make = _cached_prediction if len(packed) <= _MAX_CACHED_SCHEMA else _render_prediction
            rendered = make(name, packed, old_errors, record.deployed.answers_bare_output(single_output))
            yield _PREDICTED.format(name=name), orjson.Fragment(rendered)


def _render_prediction(name: str, packed: str, old_errors: bool, bare: bool) -> bytes:
    """Describe predictions with a version, as JSON: this takes a fraction of a millisecond."""
    schema = with_bare_answers(unpack_outline(packed), bare=bare)
    rendered = prediction_operations.build_predict_operation(schema, name).to_json(
        f"{PREDICT_METHOD.id}/{name}", ""
    )
    about = {"x-version": name, "x-schema": f"/v1/{name}:schema"}
    rendered = prediction_operations.add_example(rendered, schema)
    return orjson.dumps(
        {
            "post": {
                **(prediction_operations.add_legacy_errors(rendered) if old_errors else rendered),
                **about,
            }
        }
    )


_cached_prediction = lru_cache(maxsize=1024)(_render_prediction)


def _list_paths(method: ApiMethod) -> Iterable[str]:
    if method is not PREDICT_METHOD:
        return method.paths
    model = "/v1/projects/{project}/models/{model}"
    return f"{model}:predict", f"{model}/versions/{{version}}:predict"
