"""Projects: which there are, what they hold, and how a page leads from one to another. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from serving.errors import InvalidArgument
from serving.gateway.state.catalog_state import CatalogState
from serving.names import check_project


@dataclass(frozen=True, slots=True)
class ProjectSwitch:
    """The project in force, and pages of the others by their names.

    `pages` is empty where there is one project only, and `whole`, the page about all projects, is "".
    `further` counts those that are left out.
    """

    project: str
    pages: Mapping[str, str]
    whole: str
    further: int


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """So many things of a kind are in another project; `path` is the page that shows them."""

    project: str
    count: int
    path: str


def parse_project(text: str) -> str:
    """The project of an address; "" if it is none."""
    try:
        return check_project(text)
    except InvalidArgument:
        return ""


def list_projects(state: CatalogState, default: str) -> Sequence[str]:
    """Sorted: those that hold something, and the default one."""
    return sorted({default, *find_filled_projects(state)})


def find_filled_projects(state: CatalogState) -> Collection[str]:
    """Those that hold a model, a job or an operation."""
    return {
        *state.model_order.parents,
        *state.job_index.by_project.parents,
        *state.operation_index.by_project.parents,
    }


def choose_project(visible: Sequence[str], filled: Collection[str], default: str) -> str:
    """The project of a page whose address names none: the default one, unless only others hold something."""
    found = [one for one in visible if one in filled]
    return default if default in found or not found else found[0]
