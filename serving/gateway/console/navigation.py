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

    @property
    def is_of_project(self) -> bool:
        return "{project}" in self.path

    def build_path(self, project: str) -> str:
        """The page of a project; "": of no certain one, for pages that need none."""
        if self.is_of_project:
            return self.path.format(project=project)
        return f"{self.path}?project={project}" if project else self.path

    def contains(self, path: str) -> bool:
        """Whether a path below the console, of any project, is this page or one below it."""
        if not self.is_of_project:
            return path == self.path
        _, _, mine = self.path.partition("{project}")
        _, _, page = path.removeprefix("/projects/").partition("/")
        return path.startswith("/projects/") and f"/{page}/".startswith(f"{mine}/")


OVERVIEW = NavigationItem("Overview", "/")
NAVIGATION: Sequence[NavigationItem] = (
    OVERVIEW,
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
