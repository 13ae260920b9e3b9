"""The pages that every page leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """A page; `path` may contain `{project}`. It is offered to callers who may call `method`, "": to all.

    `model_method`: also to those who may call that on any one model of the project.
    """

    title: str
    path: str
    method: str = ""
    model_method: str = ""


NAVIGATION: Sequence[NavigationItem] = (
    NavigationItem("Overview", "/"),
    NavigationItem("Jobs", "/projects/{project}/jobs", "projects.jobs.list"),
    NavigationItem(
        "Deploy",
        "/projects/{project}/deploy",
        "projects.models.create",
        model_method="projects.models.versions.create",
    ),
    NavigationItem("Operations", "/projects/{project}/operations", "projects.operations.list"),
    NavigationItem("Access", "/projects/{project}/access", "pilotlight.projects.getIamPolicy"),
    NavigationItem("Audit", "/audit", "pilotlight.projects.getIamPolicy"),
    NavigationItem("Doctor", "/doctor", "pilotlight.server.getIamPolicy"),
    NavigationItem("Settings", "/settings", "pilotlight.server.getIamPolicy"),
)
