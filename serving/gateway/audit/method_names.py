"""What methods are called in the audit log: the names of the gRPC methods behind the REST API.

The rule: `google.cloud.ml.v1.SERVICE.VERB + NOUN`, as the real service logs it. A method's id says both: its
last part is the verb, the part before it the noun in the plural (`projects.models.create` is
`ModelService.CreateModel`, `...list` is `ModelService.ListModels`). Where the method is from another
API, or is our own, the prefix says so.
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
    """The full name of a method, by its id: `projects.models.create`, `pilotlight.tokens.revoke`."""
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
    """The name of a log of a project; what belongs to no project is the server's, `projects/-`."""
    return f"projects/{project or '-'}/logs/cloudaudit.googleapis.com%2F{log}"


def parse_project(resource: str) -> str:
    """The project of a resource's full name, "" for what belongs to none."""
    found = re.match(r"projects/([^/:]+)", resource)
    return found[1] if found else ""


def _own_method(path: list[str], verb: str) -> str:
    """`pilotlight.nodes` and `pilotlight.tokens.create`, in the same layout."""
    if not path:
        return f"pilotlight.v1.ServerService.{_capitalize_first(verb)}"
    noun = path[-1]
    return f"pilotlight.v1.{_capitalize_first(_to_singular(noun))}Service.{_capitalize_first(verb)}{_capitalize_first(_to_singular(noun))}"


def _to_singular(noun: str) -> str:
    return _SINGULAR.get(noun, noun.removesuffix("s"))


def _capitalize_first(word: str) -> str:
    return word[:1].upper() + word[1:]
