"""What `/openapi.json` tells, and whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.gateway.access.policy import ADMIN
from serving.gateway.api.documents.openapi_document import build_server_document
from serving.gateway.methods import METHODS
from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec, pack_schema
from serving.names import VersionName
from serving.openapi.document import to_path_template
from serving.resources import Model, Version, VersionState
from tests.serving.gateway.access.world import Api, run

NUMBERS = ModelSignature(
    (TensorSpec("instances", "FP64", (-1, 2)),), (TensorSpec("predictions", "INT64", (-1,)),)
)
SCHEMA = ModelSchema("sklearn", {DEFAULT_SIGNATURE: NUMBERS}, example=[0.5, 1.0], answer=1)
LONG = ModelSchema("sklearn", {DEFAULT_SIGNATURE: NUMBERS}, example=[0.0] * 10_000)
READER = "user:reader@tests.dev"


def fill(folder: Path, *names: str, schema: ModelSchema | None = SCHEMA, state: str = "READY") -> None:
    """Versions, as `project/model/version`, as if they had been made."""
    store = SqliteStore(folder / "state.db")
    for text in names:
        name = VersionName(*text.split("/"))
        deployed = DeploymentInfo(
            model_dir="/nowhere", framework="SCIKIT_LEARN", schema=pack_schema(schema) if schema else ""
        )
        version = VersionRecord(
            name=name,
            uid=text.replace("/", "-"),
            version=Version(name=str(name), state=VersionState(state), deployment_uri="/nowhere"),
            deployed=deployed,
        )
        model = ModelRecord(name=name.parent, model=Model(name=str(name.parent)))
        store.commit({("models", str(name.parent)): model, ("versions", str(name)): version})
    store.close()


def versions(document: dict[str, Any]) -> list[str]:
    """The versions whose predictions are told, in short."""
    found = (path["post"].get("x-version") for path in document["paths"].values() if "post" in path)
    return ["/".join(name.split("/")[1::2]) for name in found if name]


def told(folder: Path, *queries: str, principal: str = ADMIN.principal, reader_of: str = "") -> list[Any]:
    """The documents for these queries."""
    found: list[Any] = []

    async def main(api: Api) -> None:
        if reader_of:
            await api.bind(reader_of, ml_viewer=READER)
        found.extend([await api.call(principal, "GET", f"/openapi.json{query}") for query in queries])

    run(folder, main)
    return found


def test_every_method_is_told_at_every_path() -> None:
    paths = build_server_document(tokens=True, project="p", old_errors=False)["paths"]

    for method in METHODS.values():
        for path in method.paths:
            if "{name:path}" not in path:
                assert method.verb.lower() in paths[to_path_template(path)], method.id
    ids = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(ids) == len(set(ids))
    assert {"/v1/projects/{project}/models/{model}:predict", "/v2/models/{model}/infer"} <= paths.keys()


def test_what_is_open_to_all_says_so() -> None:
    document = build_server_document(tokens=True, project="p", old_errors=False)
    open_to_all = {
        path
        for path, told in document["paths"].items()
        if all(one.get("security") == [] for one in told.values())
    }

    assert document["security"] == [{"bearer": []}]
    assert open_to_all == {
        *("/", "/healthz", "/readyz", "/docs", "/v2", "/v2/health/live", "/v2/health/ready"),
        *("/$discovery/rest", "/discovery/v1/apis", "/discovery/v1/apis/{api}/{version}/rest"),
    }
    assert "security" not in build_server_document(tokens=False, project="p", old_errors=False)


def test_errors_in_the_old_form_are_told_too() -> None:
    """Of predictions, with 200."""
    paths = build_server_document(tokens=False, project="p", old_errors=True)["paths"]
    post = paths["/v1/projects/{project}/models/{model}:predict"]["post"]

    _, text = post["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert text == {"$ref": "#/components/schemas/ErrorText"}


def test_versions_come_with_their_schemas_and_examples(tmp_path: Path) -> None:
    fill(tmp_path, "p/m/v1")
    fill(tmp_path, "p/m/v2", schema=None)
    fill(tmp_path, "p/m/v3", state="CREATING")
    fill(tmp_path, "p/m/v4", schema=LONG)
    [document] = told(tmp_path, "")

    assert versions(document) == ["p/m/v1", "p/m/v4"]
    post = document["paths"]["/v1/projects/p/models/m/versions/v1:predict"]["post"]
    [asked, answered] = (
        one["content"]["application/json"] for one in (post["requestBody"], post["responses"]["200"])
    )
    assert asked["example"] == {"instances": [[0.5, 1.0]]}
    assert answered["example"] == {"predictions": [1]}
    assert asked["schema"]["properties"]["instances"]["items"]["minItems"] == 2
    assert post["x-schema"] == "/v1/projects/p/models/m/versions/v1:schema"


def test_pages_and_parents(tmp_path: Path) -> None:
    fill(tmp_path, "a/m/v1", "b/m/v1", "b/m/v2", "b/n/v1", "c/m/v1")
    first, ours, model, none = told(
        tmp_path,
        "?pageSize=2",
        "?parent=projects/b",
        "?parent=projects/b/models/m",
        "?parent=projects/nobody",
    )
    token = first["info"]["x-next-page-token"]
    second, third = told(tmp_path, f"?pageSize=2&pageToken={token}", f"?pageToken={token}")

    assert versions(first) == ["a/m/v1", "b/m/v1"]
    assert versions(second) == ["b/m/v2", "b/n/v1"]
    assert versions(third) == ["b/m/v2", "b/n/v1", "c/m/v1"]
    assert "x-next-page-token" in second["info"] and "x-next-page-token" not in third["info"]
    assert versions(ours) == ["b/m/v1", "b/m/v2", "b/n/v1"]
    assert versions(model) == ["b/m/v1", "b/m/v2"]
    assert versions(none) == []


def test_a_document_is_bounded_in_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for one version at least."""
    monkeypatch.setattr("serving.gateway.api.openapi._MAX_SCHEMA_BYTES", 10)
    fill(tmp_path, "p/m/v1", "p/m/v2")
    [document] = told(tmp_path, "")

    assert versions(document) == ["p/m/v1"]
    assert "x-next-page-token" in document["info"]


@pytest.mark.parametrize(
    ("principal", "seen"), [("", []), (READER, ["a/m/v1"]), (ADMIN.principal, ["a/m/v1", "b/m/v1"])]
)
def test_nobody_is_told_of_versions_that_they_may_not_see(
    principal: str, seen: list[str], tmp_path: Path
) -> None:
    fill(tmp_path, "a/m/v1", "b/m/v1")
    [document] = told(tmp_path, "", principal=principal, reader_of="projects/a")

    assert versions(document) == seen


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pageSize=x", "not a number of rows"),
        ("pageToken=x", "not a token"),
        ("pageToken=cHJvamVjdHMvcC9tb2RlbHMvbQ", "not a token"),
        ("parent=projects/p/models/m/versions/v", "no version"),
        ("parent=projects/-", "Invalid project id"),
        ("parent=nothing", "Invalid resource name"),
    ],
)
def test_queries_that_make_no_sense(query: str, said: str, tmp_path: Path) -> None:
    async def main(api: Api) -> None:
        answer = await api.call(ADMIN.principal, "GET", f"/openapi.json?{query}", status=400)
        assert said in answer["error"]["message"]

    run(tmp_path, main)


def test_a_token_that_is_no_good_is_refused_and_the_page_is_open(tmp_path: Path) -> None:
    async def main(api: Api) -> None:
        refused = await api.client.get("/openapi.json", headers={"authorization": "Bearer nobody's"})
        page = await api.client.get("/docs", headers={"authorization": "Bearer nobody's"})
        assert (refused.status_code, page.status_code) == (401, 200)
        assert page.headers["content-type"] == "text/html; charset=utf-8"

    run(tmp_path, main)
