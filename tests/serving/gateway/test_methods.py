"""The table of methods, beside the discovery document and the routes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from serving.config import ServeConfig
from serving.gateway.app import Gateway
from serving.gateway.methods import METHODS, PREDICTION_METHODS, Activity
from serving.gateway.state.store import SqliteStore
from tests.wire.test_discovery import DISCOVERED

WITH_POLICIES = ("projects.models", "projects.jobs", "pilotlight.projects", "pilotlight.server")


def test_every_route_is_in_the_table_and_every_row_is_a_route(tmp_path: Path) -> None:
    """By its id and its paths; predictions alone take the short way."""
    gateway = Gateway(ServeConfig(state_dir=tmp_path), SqliteStore(tmp_path / "state.db"), {})

    assert Counter(route.name for route in gateway._build_api_routes()) == {
        method.id: len(method.paths) for method in METHODS.values() if method not in PREDICTION_METHODS
    }


def test_every_method_of_the_api_is_in_the_table() -> None:
    """All 46."""
    assert {f"ml.{name}" for name in METHODS if name.startswith("projects.")} == DISCOVERED.keys()


def test_a_resource_is_named_by_parameters_of_the_path() -> None:
    """So that the name on which a permission is checked can be filled in; the project there is by default."""
    for method in METHODS.values():
        wanted = set(re.findall(r"\{(\w+)\}", method.resource))
        for path in method.paths:
            # Other protocols know no project, or name a model in full.
            given = set(re.findall(r"\{(\w+):", path)) | ({"project"} if method.is_foreign else set())
            assert wanted <= given, method.id


def test_a_permission_has_a_resource() -> None:
    """Open to all is what tells of no resource, or of no more than the caller may see."""
    open_to_all = {name for name, method in METHODS.items() if not method.permission}

    assert open_to_all == {
        "pilotlight.root",
        "pilotlight.healthz",
        "pilotlight.readyz",
        "pilotlight.openapi",
        "pilotlight.docs",
        "pilotlight.events",
        "pilotlight.discovery.rest",
        "pilotlight.discovery.list",
        "pilotlight.batch",
        "pilotlight.entries.list",
        "inference.GRPCInferenceService.ServerLive",
        "inference.GRPCInferenceService.ServerReady",
        "inference.GRPCInferenceService.ServerMetadata",
        *(f"{kind}.testIamPermissions" for kind in WITH_POLICIES),
    }
    assert all(method.resource for method in METHODS.values() if method.permission)


def test_what_changes_something_is_a_write() -> None:
    """A read is a GET, a question that goes by POST, or a prediction."""
    asked_by_post = {
        name
        for name, method in METHODS.items()
        if method.verb != "GET" and method.activity in {Activity.ADMIN_READ, Activity.DATA_READ}
    }

    assert asked_by_post == {
        *(method.id for method in PREDICTION_METHODS),
        "projects.explain",
        "inference.GRPCInferenceService.RepositoryIndex",
        "pilotlight.batch",
        "pilotlight.entries.list",
        *(f"{kind}.testIamPermissions" for kind in WITH_POLICIES),
        "pilotlight.projects.getIamPolicy",
        "pilotlight.server.getIamPolicy",
        "projects.locations.studies.trials.listOptimalTrials",
    }
    assert not [
        name
        for name, method in METHODS.items()
        if method.verb == "GET" and method.activity in {Activity.ADMIN_WRITE, Activity.DATA_WRITE}
    ]
