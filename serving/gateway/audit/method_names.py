"""Names of methods in the audit log: those of the gRPC methods behind the REST API.

The rule: `google.cloud.ml.v1.SERVICE.VERB + NOUN`, as the real service logs it. A method's id has both: its
last part is the verb, the part before it the noun in the plural (`projects.models.create` is
`ModelService.CreateModel`, `...list` is `ModelService.ListModels`). Methods of other APIs, and our own, have
another prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_ML = "google.cloud.ml.v1."
_IAM = frozenset({"getIamPolicy", "setIamPolicy", "testIamPermissions"})
_SERVICES: Mapping[str, str] = {
    "models": "ModelService",
    "versions": "ModelService",
    "jobs": "JobService",
    "locations": "ProjectManagementService",
    "studies": "VizierService",
    "trials": "VizierService",
}
# Methods that the rule does not fit.
_NAMES: Mapping[str, str] = {
    "projects.predict": "OnlinePredictionService.Predict",
    "projects.explain": "OnlinePredictionService.Explain",
    "projects.getConfig": "ProjectManagementService.GetConfig",
    "projects.models.versions.setDefault": "ModelService.SetDefaultVersion",
    "projects.locations.studies.trials.addMeasurement": "VizierService.AddTrialMeasurement",
    "projects.locations.studies.trials.checkEarlyStoppingState": (
        "VizierService.CheckTrialEarlyStoppingState"
    ),
    "projects.locations.studies.trials.listOptimalTrials": "VizierService.ListOptimalTrials",
    "projects.locations.studies.trials.suggest": "VizierService.SuggestTrials",
}
_SINGULAR: Mapping[str, str] = {"studies": "study"}
# Other people's protocols: the ids of their methods are their full names.
_OTHERS = frozenset({"tensorflow", "inference"})
_VERBS: Mapping[str, str] = {"patch": "update"}


@lru_cache
def to_audit_method(method: str) -> str:
    """Convert a method's id (`projects.models.create`, `pilotlight.tokens.revoke`) to its full name."""
    *path, verb = method.split(".")
    if path[0] in _OTHERS:
        return method
    if verb in _IAM:
        return f"google.iam.v1.IAMPolicy.{_capitalize_first(verb)}"
    if method in _NAMES:
        return _ML + _NAMES[method]
    if path[0] == "pilotlight":
        return _own_method(path[1:], verb)
    noun = path[-1]
    name = _capitalize_first(_VERBS.get(verb, verb)) + _capitalize_first(
        noun if verb == "list" else _to_singular(noun)
    )
    if noun == "operations":
        return f"google.longrunning.Operations.{name}"
    return f"{_ML}{_SERVICES.get(noun, 'ProjectManagementService')}.{name}"


def format_log_name(project: str, log: str) -> str:
    """The name of a project's log; what belongs to no project is in the server's, `projects/-`."""
    return f"projects/{project or '-'}/logs/cloudaudit.googleapis.com%2F{log}"


def parse_project(resource: str) -> str:
    """Return the project in a resource's full name, "" if there is none."""
    found = re.match(r"projects/([^/:]+)", resource)
    return found[1] if found else ""


def _own_method(path: list[str], verb: str) -> str:
    """Name `pilotlight.nodes` and `pilotlight.tokens.create` in the same layout."""
    if not path:
        return f"pilotlight.v1.ServerService.{_capitalize_first(verb)}"
    noun = _capitalize_first(_to_singular(path[-1]))
    return f"pilotlight.v1.{noun}Service.{_capitalize_first(verb)}{noun}"


def _to_singular(noun: str) -> str:
    return _SINGULAR.get(noun, noun.removesuffix("s"))


def _capitalize_first(word: str) -> str:
    return word[:1].upper() + word[1:]
