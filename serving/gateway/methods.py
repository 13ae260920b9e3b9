"""Every route of the gateway in one table: where it is, the permission it takes, and the kind of access.

Ids are those of the discovery document without `ml.`; those of our own routes begin with `pilotlight.`, and
those of other people's protocols are the full names of their gRPC methods, over HTTP too.
Source: sections 1.1 and 9.1 of the AI Platform contract. It leaves open which permission some methods on
trials take: those that change one take `ml.trials.update`, and `suggest`, which makes some,
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
    """Kinds of access, as Cloud Audit Logs tells them apart."""

    ADMIN_WRITE = "ADMIN_WRITE"
    ADMIN_READ = "ADMIN_READ"
    DATA_READ = "DATA_READ"
    DATA_WRITE = "DATA_WRITE"


@dataclass(frozen=True, slots=True)
class ApiMethod:
    """One route: `verb` and `path`, as Starlette has paths; `also` are more paths of the same method.

    `permission` is what a caller needs, "" where nothing is needed. `resource` is the template of the name
    on which it is checked, with the parameters of `path`; "" where there is none. Where a path has no project
    it is that of `--default-project`.
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
        """Whether it is of another protocol than AI Platform's, and not our own."""
        return self.id.startswith(("tensorflow.", "inference."))

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths it has over HTTP; none for what there is over gRPC alone."""
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
# The rest of a name, slashes included.
_ANY = "projects/{name:path}"

_INFERENCE = "inference.GRPCInferenceService"

# The verb of a row tells the activity, except where the row says it.
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
    """A route beside the API."""
    return replace(_make_method(f"pilotlight.{name}", _READS, permission, resource, path=path), also=also)


def _make_method(
    name: str, verb: str, permission: str, resource: str, *, path: str, activity: Activity | None = None
) -> ApiMethod:
    by_verb = Activity.ADMIN_READ if verb == _READS else Activity.ADMIN_WRITE
    return ApiMethod(
        id=name,
        verb=verb,
        # One segment without ":", so that `{model}` never swallows the verb of `m:verb`.
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
    """A method of another protocol, on a model or another `resource` unless it takes no permission."""
    path, *also = (path.replace("}", ":id}") for path in paths)
    return ApiMethod(name, verb, path, permission, resource if permission else "", activity, tuple(also))


def _tensorflow_method(name: str, verb: str, permission: str, suffix: str, **more: Activity) -> ApiMethod:
    """A method of TensorFlow Serving."""
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
    """TensorFlow Serving and the Open Inference Protocol, as docs/protocols.md has them."""
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
    """What Triton has beside the protocol. A model that is called stats has no metadata."""
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
    """Studies and their trials: data of an optimisation, not settings of the server."""
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
    """The three methods on the policy of a resource; whoever asks what they may do needs no permission."""
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
    # Who may see a version is told of its predictions.
    _own_route("openapi", "", SERVER, "/openapi.json"),
    _own_route("docs", "", "", "/docs"),
    # What is told of all projects takes a role on the server.
    _own_route("stats", "ml.models.list", SERVER, "/stats"),
    # Also where TensorFlow Serving has them by default.
    _own_route("metrics", "ml.models.list", SERVER, "/metrics", "/monitoring/prometheus/metrics"),
    _own_route("nodes", "ml.models.list", SERVER, "/nodes"),
    _own_route("models.why", "ml.models.get", _MODEL, f"/why/{_MODEL}"),
    _own_route("versions.why", "ml.versions.get", _VERSION, f"/why/{_VERSION}"),
    _own_route("versions.logs", "logging.logEntries.list", _VERSION, f"/logs/{_VERSION}"),
    _own_route("versions.acceleration", "ml.versions.get", _VERSION, f"/acceleration/{_VERSION}"),
    _own_route("models.schema", "ml.models.get", _MODEL, f"/v1/{_MODEL}:schema"),
    _own_route("versions.schema", "ml.versions.get", _VERSION, f"/v1/{_VERSION}:schema"),
    _own_route("jobs.progress", "ml.jobs.get", _JOB, f"/jobs/{_JOB}"),
    # Cloud Logging's; it takes `ml.jobs.get` on the job that its filter names.
    ApiMethod("pilotlight.entries.list", "POST", LOG_ENTRIES_PATH, "", SERVER, Activity.DATA_READ),
    # Clients ask for it before they have a token.
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
    # Each of its parts is let in by itself.
    ApiMethod("pilotlight.batch", "POST", "/batch", "", SERVER, Activity.ADMIN_READ, ("/batch/ml/v1",)),
    # Google's API for projects is another one, and asks for policies by POST.
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
    # What changes is the model: which of its versions answers.
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
# Those that go to a node; they have no route, but take the short way.
PREDICTION_METHODS = frozenset(
    method
    for method in _ALL_METHODS
    if method.permission == "ml.models.predict" and method.id != "projects.explain"
)
