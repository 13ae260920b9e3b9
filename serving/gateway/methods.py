"""Every method of the gateway in one table: its paths, required permission and kind of access.

Ids are those of the discovery document without `ml.`; those of our own routes begin with `pilotlight.`, and
those of other protocols are the full names of their gRPC methods, over HTTP too.
Source: sections 1.1 and 9.1 of the AI Platform contract. It does not define the permission of some methods on
trials: those that change a trial require `ml.trials.update`, and `suggest`, which creates trials,
`ml.trials.create`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from serving.protocols.paths import LOG_ENTRIES_PATH

# The resource above all projects: a role on it is a role everywhere.
SERVER = "server"


class Activity(StrEnum):
    """Kinds of access, as in Cloud Audit Logs."""

    ADMIN_WRITE = "ADMIN_WRITE"
    ADMIN_READ = "ADMIN_READ"
    DATA_READ = "DATA_READ"
    DATA_WRITE = "DATA_WRITE"


@dataclass(frozen=True, slots=True)
class ApiMethod:
    """A method: `verb` and `path`, in Starlette's syntax; `also` are more paths of the same method.

    The caller needs `permission` ("": none) on `resource`, a template of a resource name with the parameters
    of `path` ("": none). A path without a project means that of `--default-project`.
    """

    id: str
    verb: str
    path: str
    permission: str
    resource: str
    activity: Activity
    also: tuple[str, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether it belongs to another protocol than AI Platform's, and is not our own."""
        return self.id.startswith(("tensorflow.", "inference."))

    @property
    def paths(self) -> tuple[str, ...]:
        """All HTTP paths; none for methods of gRPC only."""
        return (self.path, *self.also) if self.path else ()


_PROJECT = "projects/{project}"
_MODEL = _PROJECT + "/models/{model}"
_VERSION = _MODEL + "/versions/{version}"
_JOB = _PROJECT + "/jobs/{job}"
_OPERATION = _PROJECT + "/operations/{operation}"
_LOCATION = _PROJECT + "/locations/{location}"
_REGIONAL_OPERATION = _LOCATION + "/operations/{operation}"
_STUDY = _LOCATION + "/studies/{study}"
_TRIAL = _STUDY + "/trials/{trial}"
# Any resource of a project: the rest of the name, slashes included.
_ANY = "projects/{name:path}"

_INFERENCE = "inference.GRPCInferenceService"

# The default activity follows from the verb.
_READS = "GET"


def _api_method(
    name: str,
    verb: str,
    permission: str,
    resource: str,
    suffix: str = "",
    *,
    activity: Activity | None = None,
) -> ApiMethod:
    """A method of the API, on `resource`."""
    return _make_method(name, verb, permission, resource, path=f"/v1/{resource}{suffix}", activity=activity)


def _own_route(name: str, permission: str, resource: str, path: str, *also: str) -> ApiMethod:
    """A route of our own, outside the API."""
    return replace(_make_method(f"pilotlight.{name}", _READS, permission, resource, path=path), also=also)


def _make_method(
    name: str, verb: str, permission: str, resource: str, *, path: str, activity: Activity | None = None
) -> ApiMethod:
    by_verb = Activity.ADMIN_READ if verb == _READS else Activity.ADMIN_WRITE
    return ApiMethod(
        id=name,
        verb=verb,
        # One segment without ":", so that `{model}` never matches the verb in `m:verb`.
        path=path.replace("}", ":id}").replace(":path:id}", ":path}"),
        permission=permission,
        resource=resource.replace(":path}", "}"),
        activity=activity or by_verb,
    )


def _foreign_method(
    name: str,
    verb: str,
    permission: str,
    paths: Iterable[str],
    activity: Activity = Activity.ADMIN_READ,
    *,
    resource: str = _MODEL,
) -> ApiMethod:
    """A method of another protocol."""
    path, *also = (path.replace("}", ":id}") for path in paths)
    return ApiMethod(name, verb, path, permission, resource if permission else "", activity, tuple(also))


def _tensorflow_method(name: str, verb: str, permission: str, suffix: str, **more: Activity) -> ApiMethod:
    versions = ("", "/versions/{version}", "/labels/{label}")
    paths = [f"/v1/models/{{model}}{version}{suffix}" for version in versions]
    return _foreign_method(f"tensorflow.serving.{name}", verb, permission, paths, **more)


def _inference_method(name: str, verb: str, permission: str, suffix: str, **more: Activity) -> ApiMethod:
    """A method of the Open Inference Protocol on a model, which may be named in full."""
    paths = [
        f"/v2/models/{model}{version}{suffix}"
        for model in ("{model}", _MODEL)
        for version in ("", "/versions/{version}")
    ]
    return _foreign_method(f"{_INFERENCE}.{name}", verb, permission, paths, **more)


def _list_foreign_methods() -> Iterable[ApiMethod]:
    """Methods of TensorFlow Serving and the Open Inference Protocol; see docs/protocols.md."""
    predicts = {"activity": Activity.DATA_READ}
    for verb in ("Predict", "Classify", "Regress"):
        yield _tensorflow_method(
            f"PredictionService.{verb}", "POST", "ml.models.predict", f":{verb.lower()}", **predicts
        )
    yield _foreign_method(
        "tensorflow.serving.PredictionService.MultiInference", "POST", "ml.models.predict", [""], **predicts
    )
    yield _tensorflow_method("PredictionService.GetModelMetadata", _READS, "ml.models.get", "/metadata")
    yield _tensorflow_method("ModelService.GetModelStatus", _READS, "ml.models.get", "")
    yield _foreign_method(f"{_INFERENCE}.ServerLive", _READS, "", ["/v2/health/live"])
    yield _foreign_method(f"{_INFERENCE}.ServerReady", _READS, "", ["/v2/health/ready"])
    yield _foreign_method(f"{_INFERENCE}.ServerMetadata", _READS, "", ["/v2"])
    yield from _list_triton_methods()
    yield _inference_method("ModelReady", _READS, "ml.models.get", "/ready")
    yield _inference_method("ModelMetadata", _READS, "ml.models.get", "")
    yield _inference_method("ModelInfer", "POST", "ml.models.predict", "/infer", **predicts)


def _list_triton_methods() -> Iterable[ApiMethod]:
    """Triton's extensions of the protocol. They hide the metadata of a model called "stats"."""
    for name, verb, path in (
        ("AllModelStatistics", _READS, "/v2/models/stats"),
        ("RepositoryIndex", "POST", "/v2/repository/index"),
    ):
        yield _foreign_method(f"{_INFERENCE}.{name}", verb, "ml.models.list", [path], resource=_PROJECT)
    yield _inference_method("ModelStatistics", _READS, "ml.models.get", "/stats")
    yield _inference_method("ModelConfig", _READS, "ml.models.get", "/config")
    for name in ("Load", "Unload"):
        yield _foreign_method(
            f"{_INFERENCE}.RepositoryModel{name}",
            "POST",
            "ml.models.update",
            [f"/v2/repository/models/{{model}}/{name.lower()}"],
            Activity.ADMIN_WRITE,
        )


def _list_trial_methods() -> Iterable[ApiMethod]:
    """Methods of studies and their trials. These are data, not settings of the server."""
    reading, writing = Activity.DATA_READ, Activity.DATA_WRITE
    study, trial = "projects.locations.studies.", "projects.locations.studies.trials."
    yield _api_method(study + "create", "POST", "ml.studies.create", _LOCATION, "/studies", activity=writing)
    yield _api_method(study + "list", "GET", "ml.studies.list", _LOCATION, "/studies", activity=reading)
    yield _api_method(study + "get", "GET", "ml.studies.get", _STUDY, activity=reading)
    yield _api_method(study + "delete", "DELETE", "ml.studies.delete", _STUDY, activity=writing)
    yield _api_method(trial + "create", "POST", "ml.trials.create", _STUDY, "/trials", activity=writing)
    yield _api_method(trial + "list", "GET", "ml.trials.list", _STUDY, "/trials", activity=reading)
    yield _api_method(
        trial + "listOptimalTrials",
        "POST",
        "ml.trials.list",
        _STUDY,
        "/trials:listOptimalTrials",
        activity=reading,
    )
    yield _api_method(
        trial + "suggest", "POST", "ml.trials.create", _STUDY, "/trials:suggest", activity=writing
    )
    yield _api_method(trial + "get", "GET", "ml.trials.get", _TRIAL, activity=reading)
    yield _api_method(trial + "delete", "DELETE", "ml.trials.delete", _TRIAL, activity=writing)
    for verb in ("addMeasurement", "checkEarlyStoppingState", "complete", "stop"):
        yield _api_method(trial + verb, "POST", "ml.trials.update", _TRIAL, f":{verb}", activity=writing)


def _list_policy_methods(resources: str, kind: str, template: str, get: str = "GET") -> Iterable[ApiMethod]:
    """The three methods of a resource's policy; `testIamPermissions` requires no permission."""
    yield _api_method(
        f"{resources}.getIamPolicy",
        get,
        f"{kind}.getIamPolicy",
        template,
        ":getIamPolicy",
        activity=Activity.ADMIN_READ,
    )
    yield _api_method(f"{resources}.setIamPolicy", "POST", f"{kind}.setIamPolicy", template, ":setIamPolicy")
    yield _api_method(
        f"{resources}.testIamPermissions",
        "POST",
        "",
        template,
        ":testIamPermissions",
        activity=Activity.ADMIN_READ,
    )


_ALL_METHODS = (
    _own_route("root", "", "", "/"),
    _own_route("healthz", "", "", "/healthz"),
    _own_route("readyz", "", "", "/readyz"),
    # The document describes only versions that the caller may see.
    _own_route("openapi", "", SERVER, "/openapi.json"),
    _own_route("docs", "", "", "/docs"),
    # Figures of all projects require a role on the server.
    _own_route("stats", "ml.models.list", SERVER, "/stats"),
    # Also at TensorFlow Serving's default path.
    _own_route("metrics", "ml.models.list", SERVER, "/metrics", "/monitoring/prometheus/metrics"),
    _own_route("nodes", "ml.models.list", SERVER, "/nodes"),
    _own_route("servers", "ml.models.list", SERVER, "/servers"),
    # The stream has only what the caller may see.
    _own_route("events", "", SERVER, "/events"),
    _own_route("models.why", "ml.models.get", _MODEL, f"/why/{_MODEL}"),
    _own_route("versions.why", "ml.versions.get", _VERSION, f"/why/{_VERSION}"),
    _own_route("versions.history", "ml.versions.get", _VERSION, f"/history/{_VERSION}"),
    _own_route("versions.waits", "ml.versions.get", _VERSION, f"/waits/{_VERSION}"),
    _own_route("versions.logs", "logging.logEntries.list", _VERSION, f"/logs/{_VERSION}"),
    _own_route("versions.acceleration", "ml.versions.get", _VERSION, f"/acceleration/{_VERSION}"),
    _own_route("models.schema", "ml.models.get", _MODEL, f"/v1/{_MODEL}:schema"),
    _own_route("versions.schema", "ml.versions.get", _VERSION, f"/v1/{_VERSION}:schema"),
    _own_route("jobs.progress", "ml.jobs.get", _JOB, f"/jobs/{_JOB}"),
    _own_route("jobs.models", "ml.jobs.get", _JOB, f"/jobs/{_JOB}/models"),
    _own_route("jobs.importance", "ml.jobs.get", _JOB, f"/jobs/{_JOB}/importance"),
    # A method of Cloud Logging; it requires `ml.jobs.get` on the job that its filter names.
    ApiMethod("pilotlight.entries.list", "POST", LOG_ENTRIES_PATH, "", SERVER, Activity.DATA_READ),
    # Clients fetch it before they have a token.
    ApiMethod(
        "pilotlight.discovery.rest",
        "GET",
        "/$discovery/rest",
        "",
        "",
        Activity.ADMIN_READ,
        ("/discovery/v1/apis/{api:id}/{version:id}/rest",),
    ),
    _own_route("discovery.list", "", "", "/discovery/v1/apis"),
    # Access is checked for each part.
    ApiMethod("pilotlight.batch", "POST", "/batch", "", SERVER, Activity.ADMIN_READ, ("/batch/ml/v1",)),
    # In Google's API, projects belong to Resource Manager, which gets policies by POST.
    *_list_policy_methods("pilotlight.projects", "resourcemanager.projects", _PROJECT, "POST"),
    *_list_policy_methods("pilotlight.server", "resourcemanager.projects", SERVER, "POST"),
    _api_method(
        "projects.predict", "POST", "ml.models.predict", _ANY, ":predict", activity=Activity.DATA_READ
    ),
    _api_method(
        "projects.explain", "POST", "ml.models.predict", _ANY, ":explain", activity=Activity.DATA_READ
    ),
    _api_method("projects.getConfig", "GET", "ml.projects.getConfig", _PROJECT, ":getConfig"),
    _api_method("projects.locations.list", "GET", "ml.locations.list", _PROJECT, "/locations"),
    _api_method("projects.locations.get", "GET", "ml.locations.get", _LOCATION),
    _api_method("projects.locations.operations.get", "GET", "ml.operations.get", _REGIONAL_OPERATION),
    _api_method(
        "projects.locations.operations.cancel", "POST", "ml.operations.cancel", _REGIONAL_OPERATION, ":cancel"
    ),
    *_list_trial_methods(),
    _api_method("projects.models.create", "POST", "ml.models.create", _PROJECT, "/models"),
    _api_method("projects.models.list", "GET", "ml.models.list", _PROJECT, "/models"),
    _api_method("projects.models.get", "GET", "ml.models.get", _MODEL),
    _api_method("projects.models.patch", "PATCH", "ml.models.update", _MODEL),
    _api_method("projects.models.delete", "DELETE", "ml.models.delete", _MODEL),
    *_list_policy_methods("projects.models", "ml.models", _MODEL),
    _api_method("projects.models.versions.create", "POST", "ml.versions.create", _MODEL, "/versions"),
    _api_method("projects.models.versions.list", "GET", "ml.versions.list", _MODEL, "/versions"),
    _api_method("projects.models.versions.get", "GET", "ml.versions.get", _VERSION),
    _api_method("projects.models.versions.patch", "PATCH", "ml.versions.update", _VERSION),
    _api_method("projects.models.versions.delete", "DELETE", "ml.versions.delete", _VERSION),
    # It changes the model.
    _api_method("projects.models.versions.setDefault", "POST", "ml.models.update", _VERSION, ":setDefault"),
    _api_method("projects.jobs.create", "POST", "ml.jobs.create", _PROJECT, "/jobs"),
    _api_method("projects.jobs.list", "GET", "ml.jobs.list", _PROJECT, "/jobs"),
    _api_method("projects.jobs.get", "GET", "ml.jobs.get", _JOB),
    _api_method("projects.jobs.patch", "PATCH", "ml.jobs.update", _JOB),
    _api_method("projects.jobs.cancel", "POST", "ml.jobs.cancel", _JOB, ":cancel"),
    *_list_policy_methods("projects.jobs", "ml.jobs", _JOB),
    _api_method("projects.operations.list", "GET", "ml.operations.list", _PROJECT, "/operations"),
    _api_method("projects.operations.get", "GET", "ml.operations.get", _OPERATION),
    _api_method("projects.operations.cancel", "POST", "ml.operations.cancel", _OPERATION, ":cancel"),
    *_list_foreign_methods(),
)

METHODS: Mapping[str, ApiMethod] = {method.id: method for method in _ALL_METHODS}
PREDICT_METHOD = METHODS["projects.predict"]
# Methods that go to a node: the `PredictionProxy` handles them without a route.
PREDICTION_METHODS = frozenset(
    method
    for method in _ALL_METHODS
    if method.permission == "ml.models.predict" and method.id != "projects.explain"
)
