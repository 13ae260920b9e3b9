from __future__ import annotations

import pytest

from serving.gateway.audit.method_names import format_log_name, parse_project, to_audit_method
from serving.gateway.methods import METHODS

# As Cloud Audit Logs has them.
KNOWN = {
    "projects.models.create": "google.cloud.ml.v1.ModelService.CreateModel",
    "projects.models.list": "google.cloud.ml.v1.ModelService.ListModels",
    "projects.models.patch": "google.cloud.ml.v1.ModelService.UpdateModel",
    "projects.models.versions.create": "google.cloud.ml.v1.ModelService.CreateVersion",
    "projects.models.versions.setDefault": "google.cloud.ml.v1.ModelService.SetDefaultVersion",
    "projects.models.setIamPolicy": "google.iam.v1.IAMPolicy.SetIamPolicy",
    "projects.jobs.create": "google.cloud.ml.v1.JobService.CreateJob",
    "projects.jobs.cancel": "google.cloud.ml.v1.JobService.CancelJob",
    "projects.operations.get": "google.longrunning.Operations.GetOperation",
    "projects.predict": "google.cloud.ml.v1.OnlinePredictionService.Predict",
    "projects.getConfig": "google.cloud.ml.v1.ProjectManagementService.GetConfig",
    "projects.locations.studies.create": "google.cloud.ml.v1.VizierService.CreateStudy",
    "projects.locations.studies.trials.complete": "google.cloud.ml.v1.VizierService.CompleteTrial",
    "pilotlight.nodes": "pilotlight.v1.ServerService.Nodes",
    "pilotlight.tokens.revoke": "pilotlight.v1.TokenService.RevokeToken",
}


@pytest.mark.parametrize(("method", "name"), KNOWN.items())
def test_the_names_of_methods(method: str, name: str) -> None:
    """The rule, and what it does not fit."""
    assert to_audit_method(method) == name


def test_every_method_has_a_name_of_its_own() -> None:
    """Those on policies, and on operations wherever they are, share one."""
    names = [
        to_audit_method(method)
        for method in METHODS
        if "Iam" not in method and not method.startswith("projects.locations.operations")
    ]

    assert len(set(names)) == len(names)


def test_the_names_of_logs() -> None:
    """By project; what belongs to none is the server's."""
    assert format_log_name("p", "activity") == "projects/p/logs/cloudaudit.googleapis.com%2Factivity"
    assert format_log_name("", "activity") == "projects/-/logs/cloudaudit.googleapis.com%2Factivity"
    assert parse_project("projects/p/models/m") == "p"
    assert parse_project("nodes") == ""
