"""Every method of the discovery document is offered, or refused on purpose, and docs/api.md says which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from serving.config import ServeConfig
from serving.errors import ModelError, ServingError, http_status
from serving.gateway.app import Gateway
from serving.gateway.proxy.routing_table import PREFIX
from serving.gateway.state.store import SqliteStore
from serving.transport.request import PREDICT_SUFFIX
from tests.server import Server, running_server

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def discovery() -> dict[str, Any]:
    """The document as Google's client packages it."""
    import googleapiclient

    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    document: dict[str, Any] = json.loads((folder / "ml.v1.json").read_text())
    return document


def methods(resources: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """All methods of the document, at any depth."""
    for resource in (resources or discovery()["resources"]).values():
        yield from resource.get("methods", {}).values()
        if "resources" in resource:
            yield from methods(resource["resources"])


DISCOVERED = {
    method["id"]: (method["httpMethod"], "/" + method.get("flatPath", method["path"])) for method in methods()
}


@pytest.fixture
def routes(tmp_path: Path) -> dict[str, Route]:
    """The gateway's named routes."""
    gateway = Gateway(ServeConfig(state_dir=tmp_path), SqliteStore(tmp_path / "state.db"), {})
    return {route.name: route for route in gateway._build_api_routes() if route.name.startswith("projects.")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("wire") / "state") as server:
        yield server


def documented() -> dict[str, tuple[str, str, str]]:
    """The table of docs/api.md: verb, path and state of each method."""
    row = re.compile(r"^\| `(ml\.\S+)` \| ([A-Z]+) \| `(\S+)` \| (works|404) \|$", re.MULTILINE)
    return {method: (verb, path, state) for method, verb, path, state in row.findall(PAGE.read_text())}


REFUSED = sorted(method for method, (_, _, state) in documented().items() if state == "404")


def test_the_table_has_every_method() -> None:
    """46 of them, with the verb and the path of the document."""
    table = {method: (verb, path) for method, (verb, path, _) in documented().items()}

    assert len(DISCOVERED) == 46
    assert table == DISCOVERED


def test_every_method_has_a_route(routes: dict[str, Route]) -> None:
    """Named by the method, with its verb; predict takes the short way and has none."""
    offered = {f"ml.{name}" for name in routes}

    assert offered | {"ml.projects.predict"} == DISCOVERED.keys()
    for name, route in routes.items():
        verb, path = DISCOVERED[f"ml.{name}"]
        assert verb in (route.methods or ()), name
        assert re.sub(r"\{[^}]*\}", "{}", route.path) == re.sub(r"\{[^}]*\}", "{}", path), name
    assert DISCOVERED["ml.projects.predict"][1].startswith(PREFIX)
    assert DISCOVERED["ml.projects.predict"][1].endswith(PREDICT_SUFFIX)


def test_the_table_says_what_the_routes_do(routes: dict[str, Route]) -> None:
    """Exactly the refused ones are told as 404."""
    refused = {
        f"ml.{name}"
        for name, route in routes.items()
        if route.endpoint.__module__ == "serving.gateway.api.discovery"
    }

    assert refused == set(REFUSED)


def test_the_page_has_every_error() -> None:
    """Each status with its name; that of a client who has left is seen by nobody."""
    kinds, waiting = set(), [ServingError]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += kind.__subclasses__()
    told = set(re.findall(r"^\| (\d{3}) \| `([A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE))

    raised = {
        (str(http_status(kind.__new__(kind))), kind.status) for kind in kinds - {ServingError, ModelError}
    }

    assert told == raised - {("499", "CANCELLED")}


@pytest.mark.parametrize("method", REFUSED)
def test_what_is_not_offered_is_refused_with_404(server: Server, method: str) -> None:
    """In Google's form, naming the method."""
    verb, path = DISCOVERED[method]
    path = path.replace("{projectsId}:explain", "p/models/m:explain")

    reply = server.call(verb, re.sub(r"\{[^}]*\}", "a1", path), json=None if verb == "GET" else {})

    assert (reply.status, reply.error["status"]) == (404, "NOT_FOUND")
    assert method in reply.error["message"]


def test_all_but_one_work() -> None:
    assert REFUSED == ["ml.projects.explain"]
