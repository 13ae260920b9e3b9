"""The discovery document of this server, from which clients build themselves; made from the table of methods.

It has the form of Google's document `ml` v1; a test compares the paths, parameters and messages of each
method with that.
"""

from __future__ import annotations

import builtins
import functools
import re
import typing
from collections.abc import Iterator, Mapping
from enum import EnumType
from typing import Any

import msgspec

from serving.gateway.access.policy import Binding, Policy
from serving.gateway.api.policies import SetIamPolicyRequest, TestIamPermissionsRequest
from serving.gateway.methods import METHODS, ApiMethod
from serving.resources import HyperparameterMetric, Job, Model, NumberText, Operation, RpcStatus, Version
from serving.study_resources import (
    AddTrialMeasurementRequest,
    CategoricalValueSpec,
    CompleteTrialRequest,
    DecayCurveStoppingConfig,
    DiscreteValueSpec,
    DoubleValueSpec,
    IntegerValueSpec,
    MeasuredMetric,
    MeasurementBody,
    MedianStoppingConfig,
    ParentCategoricalValueSpec,
    ParentDiscreteValueSpec,
    ParentIntValueSpec,
    StudyBody,
    StudyMetricSpec,
    StudyParameterSpec,
    SuggestTrialsRequest,
    TrialBody,
    TrialParameter,
)

Json = dict[str, Any]

NAME, API_VERSION = "ml", "v1"
_TITLE = "AI Platform Training & Prediction API"
_DESCRIPTION = "Models in production, by Pilotlight."
_SCOPES = {
    "https://www.googleapis.com/auth/cloud-platform": {"description": "What the token's roles allow."},
}
# Request and response of each method; a message is of the API itself unless it has a prefix.
_MESSAGES: Mapping[str, tuple[str, str]] = {
    "projects.explain": ("ExplainRequest", "api.HttpBody"),
    "projects.getConfig": ("", "GetConfigResponse"),
    "projects.predict": ("PredictRequest", "api.HttpBody"),
    "projects.jobs.cancel": ("CancelJobRequest", "protobuf.Empty"),
    "projects.jobs.create": ("Job", "Job"),
    "projects.jobs.get": ("", "Job"),
    "projects.jobs.list": ("", "ListJobsResponse"),
    "projects.jobs.patch": ("Job", "Job"),
    "projects.locations.get": ("", "Location"),
    "projects.locations.list": ("", "ListLocationsResponse"),
    "projects.locations.operations.cancel": ("", "protobuf.Empty"),
    "projects.locations.operations.get": ("", "longrunning.Operation"),
    "projects.locations.studies.create": ("Study", "Study"),
    "projects.locations.studies.delete": ("", "protobuf.Empty"),
    "projects.locations.studies.get": ("", "Study"),
    "projects.locations.studies.list": ("", "ListStudiesResponse"),
    "projects.locations.studies.trials.addMeasurement": ("AddTrialMeasurementRequest", "Trial"),
    "projects.locations.studies.trials.checkEarlyStoppingState": (
        "CheckTrialEarlyStoppingStateRequest",
        "longrunning.Operation",
    ),
    "projects.locations.studies.trials.complete": ("CompleteTrialRequest", "Trial"),
    "projects.locations.studies.trials.create": ("Trial", "Trial"),
    "projects.locations.studies.trials.delete": ("", "protobuf.Empty"),
    "projects.locations.studies.trials.get": ("", "Trial"),
    "projects.locations.studies.trials.list": ("", "ListTrialsResponse"),
    "projects.locations.studies.trials.listOptimalTrials": (
        "ListOptimalTrialsRequest",
        "ListOptimalTrialsResponse",
    ),
    "projects.locations.studies.trials.stop": ("StopTrialRequest", "Trial"),
    "projects.locations.studies.trials.suggest": ("SuggestTrialsRequest", "longrunning.Operation"),
    "projects.models.create": ("Model", "Model"),
    "projects.models.delete": ("", "longrunning.Operation"),
    "projects.models.get": ("", "Model"),
    "projects.models.list": ("", "ListModelsResponse"),
    "projects.models.patch": ("Model", "longrunning.Operation"),
    "projects.models.versions.create": ("Version", "longrunning.Operation"),
    "projects.models.versions.delete": ("", "longrunning.Operation"),
    "projects.models.versions.get": ("", "Version"),
    "projects.models.versions.list": ("", "ListVersionsResponse"),
    "projects.models.versions.patch": ("Version", "longrunning.Operation"),
    "projects.models.versions.setDefault": ("SetDefaultVersionRequest", "Version"),
    "projects.operations.cancel": ("", "protobuf.Empty"),
    "projects.operations.get": ("", "longrunning.Operation"),
    "projects.operations.list": ("", "longrunning.ListOperationsResponse"),
}
_PREFIXES = {
    "": "GoogleCloudMlV1__",
    "inner": "GoogleCloudMlV1_",
    "api": "GoogleApi__",
    "iam": "GoogleIamV1__",
    "longrunning": "GoogleLongrunning__",
    "protobuf": "GoogleProtobuf__",
    "rpc": "GoogleRpc__",
}
_STRUCTS: Mapping[type[msgspec.Struct], str] = {
    Model: "Model",
    Version: "Version",
    Job: "Job",
    HyperparameterMetric: "inner.HyperparameterOutput_HyperparameterMetric",
    Operation: "longrunning.Operation",
    Policy: "iam.Policy",
    SetIamPolicyRequest: "iam.SetIamPolicyRequest",
    TestIamPermissionsRequest: "iam.TestIamPermissionsRequest",
    RpcStatus: "rpc.Status",
    StudyBody: "Study",
    TrialBody: "Trial",
    SuggestTrialsRequest: "SuggestTrialsRequest",
    AddTrialMeasurementRequest: "AddTrialMeasurementRequest",
    CompleteTrialRequest: "CompleteTrialRequest",
}
# Messages in those, whose names are not those of their structs.
_INNER_STRUCTS: Mapping[type[msgspec.Struct], str] = {
    Binding: "iam.Binding",
    CategoricalValueSpec: "inner.StudyConfigParameterSpec_CategoricalValueSpec",
    DecayCurveStoppingConfig: "inner.AutomatedStoppingConfig_DecayCurveAutomatedStoppingConfig",
    DiscreteValueSpec: "inner.StudyConfigParameterSpec_DiscreteValueSpec",
    DoubleValueSpec: "inner.StudyConfigParameterSpec_DoubleValueSpec",
    IntegerValueSpec: "inner.StudyConfigParameterSpec_IntegerValueSpec",
    MeasuredMetric: "inner.Measurement_Metric",
    MeasurementBody: "Measurement",
    MedianStoppingConfig: "inner.AutomatedStoppingConfig_MedianAutomatedStoppingConfig",
    ParentCategoricalValueSpec: "inner.StudyConfigParameterSpec_MatchingParentCategoricalValueSpec",
    ParentDiscreteValueSpec: "inner.StudyConfigParameterSpec_MatchingParentDiscreteValueSpec",
    ParentIntValueSpec: "inner.StudyConfigParameterSpec_MatchingParentIntValueSpec",
    StudyMetricSpec: "inner.StudyConfig_MetricSpec",
    StudyParameterSpec: "inner.StudyConfig_ParameterSpec",
    TrialParameter: "inner.Trial_Parameter",
}
# Lists without pages.
_WHOLE_LISTS = {
    "ListStudiesResponse": ("studies", "Study"),
    "ListTrialsResponse": ("trials", "Trial"),
    "ListOptimalTrialsResponse": ("trials", "Trial"),
}
_LISTS = {
    "ListModelsResponse": ("models", "Model"),
    "ListVersionsResponse": ("versions", "Version"),
    "ListJobsResponse": ("jobs", "Job"),
    "ListLocationsResponse": ("locations", "Location"),
    "longrunning.ListOperationsResponse": ("operations", "longrunning.Operation"),
}
# Methods whose resource name is in a parameter that is not called `name`.
_ON_PARENTS = frozenset({"create", "list", "suggest", "listOptimalTrials"})
_ON_RESOURCES = frozenset({"getIamPolicy", "setIamPolicy", "testIamPermissions"})
_IAM = {
    "getIamPolicy": ("", "iam.Policy"),
    "setIamPolicy": ("iam.SetIamPolicyRequest", "iam.Policy"),
    "testIamPermissions": ("iam.TestIamPermissionsRequest", "iam.TestIamPermissionsResponse"),
}

_TEXT: Json = {"type": "string"}
_ANY: Json = {"type": "any"}
_INT32: Json = {"type": "integer", "format": "int32"}
_MAP: Json = {"type": "object", "additionalProperties": _ANY}
_FORMATS = {"etag": "byte", "createTime": "google-datetime", "startTime": "google-datetime"}
_FORMATS |= {"endTime": "google-datetime", "lastUseTime": "google-datetime"}
_FORMATS |= {"lastMigrationTime": "google-datetime", "elapsedTime": "google-duration"}
# Fields of Google's messages that ours lack or have in another form: `fields=` may name them.
_OF_GOOGLE: Mapping[type[msgspec.Struct], Json] = {
    Operation: {"metadata": _MAP},
    RpcStatus: {"details": {"type": "array", "items": _MAP}},
}
_PAGE = {"pageSize": _INT32, "pageToken": _TEXT}
_MASK: Json = {"type": "string", "format": "google-fieldmask"}


def build_directory(root: str) -> Json:
    """Build the list of APIs below a URL, which ends with a slash."""
    item = {
        "kind": "discovery#directoryItem",
        "id": f"{NAME}:{API_VERSION}",
        "name": NAME,
        "version": API_VERSION,
        "title": _TITLE,
        "description": _DESCRIPTION,
        "discoveryRestUrl": f"{root}discovery/v1/apis/{NAME}/{API_VERSION}/rest",
        "preferred": True,
    }
    return {"kind": "discovery#directoryList", "discoveryVersion": "v1", "items": [item]}


def build_document(root: str, *, tokens: bool) -> Json:
    """Build the document of a server at a URL, which ends with a slash.

    Where callers need no `tokens` it names no scopes: then Google's client asks for no credentials.
    """
    found = {**_build_base_document(), "rootUrl": root, "baseUrl": root}
    return {**found, "auth": {"oauth2": {"scopes": _SCOPES}}} if tokens else found


@functools.cache
def get_response_schema(method: str) -> Json | None:
    """The schema of a method's response; None where it is not known."""
    name = get_message_names(method)[1]
    return _build_base_document()["schemas"].get(_qualify_message(name)) if name else None


def get_schema(name: str) -> Json:
    """A schema, by its name in the document."""
    found: Json = _build_base_document()["schemas"][name]
    return found


def get_message_names(method: str) -> tuple[str, str]:
    """The request and response of a method, "" for none or an unknown one."""
    return _MESSAGES.get(method) or _IAM.get(method.rpartition(".")[2], ("", ""))


@functools.cache
def _build_base_document() -> Json:
    """The parts that do not depend on the server's URL."""
    resources: Json = {}
    for name, method in METHODS.items():
        if name.startswith("projects."):
            *collections, verb = name.split(".")
            place: Json = {"resources": resources}
            for collection in collections:
                place = place.setdefault("resources", {}).setdefault(collection, {})
            place.setdefault("methods", {})[verb] = _describe_method(method)
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": f"{NAME}:{API_VERSION}",
        "name": NAME,
        "version": API_VERSION,
        "title": _TITLE,
        "description": _DESCRIPTION,
        "canonicalName": "Cloud Machine Learning Engine",
        "protocol": "rest",
        "servicePath": "",
        "basePath": "",
        "batchPath": "batch",
        "fullyEncodeReservedExpansion": True,
        "parameters": _common_parameters(),
        "schemas": {
            _qualify_message(name): {"id": _qualify_message(name), **shape} for name, shape in _iter_schemas()
        },
        "resources": resources,
    }


def _common_parameters() -> Json:
    """The parameters of all methods."""
    found: Json = {
        "alt": {**_TEXT, "enum": ["json"], "default": "json", "description": "The form of the answer."},
        "fields": {**_TEXT, "description": "Which fields the answer is to have."},
        "prettyPrint": {"type": "boolean", "default": "true", "description": "Accepted."},
    }
    accepted = "$.xgafv access_token callback key oauth_token quotaUser uploadType upload_protocol"
    found |= {name: {**_TEXT, "description": "Accepted."} for name in accepted.split()}
    return {name: {**shape, "location": "query"} for name, shape in found.items()}


# ---- methods


def _describe_method(method: ApiMethod) -> Json:
    verb = method.id.rpartition(".")[2]
    parameter = _name_parameter(method.id)
    plain = re.sub(r":(id|path)\}", "}", method.path)
    suffix = plain.removeprefix(f"/v1/{method.resource}")
    pattern = "^" + method.resource.replace("{name}", ".*") + "$"
    rendered: Json = {
        "id": f"{NAME}.{method.id}",
        "httpMethod": method.verb,
        "path": f"v1/{{+{parameter}}}{suffix}",
        "flatPath": re.sub(r"(\w+)/\{\w+\}", r"\1/{\1Id}", plain.removeprefix("/")),
        "parameters": {
            parameter: {
                **_TEXT,
                "location": "path",
                "required": True,
                "pattern": re.sub(r"\{\w+\}", "[^/]+", pattern),
                "description": "Required. A name in full.",
            },
            **{
                name: {**shape, "location": "query"}
                for name, shape in _query_parameters(method.id, verb).items()
            },
        },
        "parameterOrder": [parameter],
        "description": f"The method ml.{method.id}.",
        "scopes": list(_SCOPES),
    }
    for key, message in zip(("request", "response"), get_message_names(method.id), strict=True):
        if message:
            rendered[key] = {"$ref": _qualify_message(message)}
    return rendered


def _name_parameter(method: str) -> str:
    verb = method.rpartition(".")[2]
    if verb in _ON_RESOURCES:
        return "resource"
    return "parent" if verb in _ON_PARENTS and method != "projects.operations.list" else "name"


def _query_parameters(method: str, verb: str) -> Mapping[str, Json]:
    match verb:
        case "list" if ".studies." in method:
            return {}
        case "list":
            partial = {"returnPartialSuccess": {"type": "boolean"}} if ".operations." in method else {}
            return _PAGE if ".locations." in method else {"filter": _TEXT, **_PAGE, **partial}
        case "patch":
            return {"updateMask": _MASK}
        case "getIamPolicy":
            return {"options.requestedPolicyVersion": _INT32}
        case "create" if method == "projects.locations.studies.create":
            return {"studyId": _TEXT}
    return {}


# ---- messages


def _qualify_message(name: str) -> str:
    """Return a message's name in the document."""
    package, _, last = name.rpartition(".")
    return _PREFIXES[package] + last


def _iter_schemas() -> Iterator[tuple[str, Json]]:
    named = {name for pair in (*_MESSAGES.values(), *_IAM.values()) for name in pair if name}
    yield from ((name, {"type": "object", "properties": {}}) for name in sorted(named))
    capability = {"type": "object", "properties": {"type": _TEXT}}
    location = {"name": _TEXT, "capabilities": {"type": "array", "items": capability}}
    yield "Location", {"type": "object", "properties": location}
    account = {"serviceAccount": _TEXT, "serviceAccountProject": {**_TEXT, "format": "int64"}}
    yield "GetConfigResponse", {"type": "object", "properties": {**account, "config": _MAP}}
    body = {"contentType": _TEXT, "data": {**_TEXT, "format": "byte"}}
    yield "api.HttpBody", {"type": "object", "properties": body}
    for name in ("PredictRequest", "ExplainRequest"):
        yield name, {"type": "object", "properties": {"httpBody": {"$ref": _qualify_message("api.HttpBody")}}}
    for name, (key, item) in {**_LISTS, **_WHOLE_LISTS}.items():
        listed = {"type": "array", "items": {"$ref": _qualify_message(item)}}
        paging = {"nextPageToken": _TEXT} if name in _LISTS else {}
        yield name, {"type": "object", "properties": {key: listed, **paging}}
    permissions = {"type": "array", "items": _TEXT}
    yield "iam.TestIamPermissionsResponse", {"type": "object", "properties": {"permissions": permissions}}
    waiting, seen = list(_STRUCTS), set[type[msgspec.Struct]]()
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            yield _struct_name(kind), _struct_schema(kind, waiting)


def _struct_name(kind: type[msgspec.Struct]) -> str:
    return _STRUCTS.get(kind) or _INNER_STRUCTS.get(kind) or kind.__name__


def _struct_schema(kind: type[msgspec.Struct], found: list[type[msgspec.Struct]]) -> Json:
    """The structs in it are added to `found`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {
        field.encode_name: _field_schema(field.encode_name, hints[field.name], found)
        for field in msgspec.structs.fields(kind)
    }
    return {"type": "object", "properties": {**properties, **_OF_GOOGLE.get(kind, {})}}


_SCALARS: Mapping[Any, Json] = {
    NumberText: {"type": "string", "format": "int64"},
    bool: {"type": "boolean"},
    int: _INT32,
    float: {"type": "number", "format": "double"},
    str: _TEXT,
    Any: _ANY,
}


def _field_schema(name: str, hint: Any, found: list[type[msgspec.Struct]]) -> Json:
    """The structs in it are added to `found`."""
    if hint in _SCALARS:
        return {**_SCALARS[hint], "format": _FORMATS[name]} if name in _FORMATS else _SCALARS[hint]
    arguments = [argument for argument in typing.get_args(hint) if argument not in (Ellipsis, type(None))]
    match typing.get_origin(hint):
        case None if isinstance(hint, EnumType):
            return {"type": "string", "enum": list(hint.__members__)}
        case None:
            found.append(hint)
            return {"$ref": _qualify_message(_struct_name(hint))}
        case builtins.tuple:
            return {"type": "array", "items": _field_schema("", arguments[0], found)}
        case builtins.dict:
            return {"type": "object", "additionalProperties": _field_schema("", arguments[1], found)}
        case _:  # it may be missing
            return _field_schema(name, arguments[0], found)
