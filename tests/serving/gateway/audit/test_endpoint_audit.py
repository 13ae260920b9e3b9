"""What a real gateway records, without nodes: calls of the API from all sides."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.config import ServeConfig
from serving.gateway.access.policy import ADMIN
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import mint_token
from serving.gateway.app import Gateway
from serving.gateway.audit.endpoint_audit import status_from_response
from serving.gateway.audit.log_entry import OK_STATUS, CallStatus
from serving.gateway.audit.log_folder import audit_log_path, list_log_files
from serving.gateway.state.store import SqliteStore
from tests.bounds import HANG_SECONDS
from tests.http_requests import through
from tests.server import running_server

MODELS = "/v1/projects/p/models"
HEADERS = {"x-request-id": "req-1", "user-agent": "tester/1"}


def run(
    main: Callable[[httpx.AsyncClient], Awaitable[None]],
    folder: Path,
    data_access: str = "off",
    tokens: TokenStore | None = None,
) -> Any:
    """Use a gateway from its start to its stop; returns the entries in its log."""

    async def bounded() -> None:
        config = ServeConfig(state_dir=folder, audit_data_access=data_access, pilots="off")
        gateway = Gateway(config, SqliteStore(folder / "state.db"), {}, tokens=tokens)
        transport = httpx.ASGITransport(
            through(gateway, gateway.prediction_handler), client=("10.0.0.7", 5000)
        )
        async with (
            asyncio.timeout(HANG_SECONDS),
            gateway._lifespan(gateway._router),
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=HEADERS) as client,
        ):
            await main(client)

    asyncio.run(bounded())
    return entries(folder)


def entries(folder: Path) -> list[Any]:
    found = list_log_files(audit_log_path(folder))
    return [json.loads(line) for file in found for line in file.read_bytes().splitlines()]


def told(entry: Any) -> tuple[str, str, int | None]:
    """Method, resource and status of an entry; no status is None."""
    payload = entry["protoPayload"]
    status = payload.get("status")
    method = payload["methodName"].rpartition(".")[2]
    return method, payload["resourceName"], None if status is None else status.get("code", 0)


def test_a_change_has_two_entries(tmp_path: Path) -> None:
    """With the client's request, address, program and request id."""

    async def main(client: httpx.AsyncClient) -> None:
        response = await client.post(MODELS, json={"name": "m", "labels": {"team": "ads"}})
        assert response.status_code == 200
        assert [told(entry)[2] for entry in entries(tmp_path)] == [None, 0]  # before the server stops

    before, after = run(main, tmp_path)
    assert told(before) == ("CreateModel", "projects/p/models/m", None)
    assert told(after) == ("CreateModel", "projects/p/models/m", 0)
    assert after["operation"]["id"] == before["operation"]["id"]
    for entry in (before, after):
        payload = entry["protoPayload"]
        assert entry["labels"] == {"request_id": "req-1"}
        assert payload["requestMetadata"] == {
            "callerIp": "10.0.0.7",
            "callerSuppliedUserAgent": "tester/1",
        }
        assert payload["request"] == {"name": "m", "labels": {"team": "ads"}}


def test_every_kind_of_change(tmp_path: Path) -> None:
    """Create, change and delete, each with the resource's full name; reading leaves no trace."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.post(MODELS, json={"name": "m"})
        await client.patch(MODELS + "/m?updateMask=description", json={"description": "x"})
        await client.get(MODELS)
        await client.get(MODELS + "/m")
        await client.get("/nodes")
        await client.delete(MODELS + "/m")

    assert [told(entry) for entry in run(main, tmp_path) if "last" in entry["operation"]] == [
        ("CreateModel", "projects/p/models/m", 0),
        ("UpdateModel", "projects/p/models/m", 0),
        ("DeleteModel", "projects/p/models/m", 0),
    ]


def test_failed_changes(tmp_path: Path) -> None:
    """What failed on its way is told with its error; what was wrong as it came has one entry."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.delete(MODELS + "/none")
        await client.post(MODELS, content=b"{")
        await client.post("/v1/projects/p/locations/here/studies?studyId=s", json={})

    gone, fault, bad, begun, missing = run(main, tmp_path)
    assert told(gone)[2] is None
    assert told(fault) == ("DeleteModel", "projects/p/models/none", 5)
    assert "not found" in fault["protoPayload"]["status"]["message"]
    assert told(bad) == ("CreateModel", "projects/p/models", 3)
    assert told(begun) == ("CreateStudy", "projects/p/locations/here/studies/s", None)
    assert told(missing) == ("CreateStudy", "projects/p/locations/here/studies/s", 3)


def test_the_end_of_an_operation_is_told(tmp_path: Path) -> None:
    """As a third entry of the call that began it, with the same request id, also after a restart."""

    name = "projects/p/models/m/versions/v"
    folder = tmp_path / "state"
    with running_server(folder, "--pilots", "off") as server:
        server.create_model("projects/p/models/m")
        reply = server.call(
            "POST",
            "projects/p/models/m/versions",
            json={"name": "v", "deploymentUri": "/nowhere", "runtimeVersion": "2.11"},
            headers=HEADERS,
        )
        server.kill()
    with running_server(folder, "--pilots", "off") as server:
        server.wait(reply.json["name"])
        assert server.stop() == 0

    *_, before, begun, ended = entries(folder)
    assert [told(entry) for entry in (before, begun)] == [
        ("CreateVersion", name, None),
        ("CreateVersion", name, 0),
    ]
    method, resource, code = told(ended)
    assert (method, resource) == ("CreateVersion", name)
    assert code
    assert "last" not in begun["operation"]
    assert ended["operation"] == {**begun["operation"], "last": True}
    assert ended["labels"] == {"request_id": "req-1"}
    for entry in (begun, ended):
        assert entry["protoPayload"]["metadata"] == {"operation": reply.json["name"]}


def test_reading_by_setting(tmp_path: Path) -> None:
    """One entry each, in the other log; what tells of no project is left out."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.get(MODELS)
        await client.get(MODELS + "/none")
        await client.get("/nodes")
        await client.get("/healthz")

    found = run(main, tmp_path, "read")
    assert [told(entry) for entry in found] == [
        ("ListModels", "projects/p/models", 0),
        ("GetModel", "projects/p/models/none", 5),
    ]
    assert {entry["logName"].rpartition("%2F")[2] for entry in found} == {"data_access"}


def test_predictions_by_setting(tmp_path: Path) -> None:
    """Without their instances."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.post(MODELS + "/none:predict", json={"instances": ["secret"]})
        await client.get(MODELS)

    (entry,) = run(main, tmp_path, "predict")
    assert told(entry) == ("Predict", "projects/p/models/none", 5)
    assert "secret" not in json.dumps(entry)


def test_nothing_of_predictions_by_default(tmp_path: Path) -> None:
    """Not even a file."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.post(MODELS + "/none:predict", json={"instances": []})

    assert run(main, tmp_path) == []


def test_nothing_is_done_unrecorded(tmp_path: Path) -> None:
    """While the log cannot be written, changes are refused with 503, and reading works."""
    audit_log_path(tmp_path).write_text("in the way")

    async def main(client: httpx.AsyncClient) -> None:
        refused = await client.post(MODELS, json={"name": "m"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "audit" in refused.json()["error"]["message"]
        assert (await client.get(MODELS)).json() == {}
        audit_log_path(tmp_path).unlink()
        assert (await client.post(MODELS, json={"name": "m"})).status_code == 200

    done = [entry for entry in run(main, tmp_path) if "operation" in entry]
    assert [told(entry)[2] for entry in done] == [None, 0]


@pytest.mark.parametrize("body", [b"<html>", b'{"error": 5}', b'{"error": {"status": "ODD"}}', b"[]"])
def test_answers_in_another_form(body: bytes) -> None:
    """A model may answer what it likes."""
    assert status_from_response(500, body) == CallStatus(2, "HTTP status 500")
    assert status_from_response(200, body) == OK_STATUS


def test_answers_in_the_forms_of_other_protocols() -> None:
    """A text beside the status of HTTP, and what goes to a client of gRPC."""
    assert status_from_response(400, b'{"error": "text"}') == CallStatus(3, "text")
    assert status_from_response(503, b'{"error": "text"}') == CallStatus(14, "text")
    assert status_from_response(418, b'{"error": "text"}') == CallStatus(2, "text")
    assert status_from_response(404, b"text", [(b"grpc-status", b"9")]) == CallStatus(9, "text")


def test_who_it_was_and_who_was_refused(tmp_path: Path) -> None:
    """Calls by token have their caller; those that were not let in are told of, predictions too."""
    store = TokenStore(tmp_path / "state.db")
    bearers = {}
    for name, principal in (("admin", ADMIN.principal), ("bob", "user:bob@example.com")):
        token, record = mint_token(principal, time.time())
        store.put(record)
        bearers[name] = {"authorization": f"Bearer {token}"}

    async def main(client: httpx.AsyncClient) -> None:
        bob, admin = bearers["bob"], bearers["admin"]
        statuses = [
            await client.post(MODELS, json={"name": "m"}),
            await client.get(MODELS, headers={"authorization": "Bearer nonsense"}),
            await client.post(MODELS, json={"name": "m"}, headers=bob),
            await client.post(MODELS + "/m/versions/v:predict", json={"instances": []}, headers=bob),
            await client.post(MODELS, json={"name": "m"}, headers=admin),
            await client.get(MODELS, headers=admin),
        ]
        assert [response.status_code for response in statuses] == [401, 401, 403, 403, 200, 200]

    found = run(main, tmp_path, tokens=store)
    refused = {
        told(entry): entry["protoPayload"] for entry in found if entry["protoPayload"].get("status", {})
    }
    assert sorted(refused) == sorted(
        [
            ("CreateModel", "projects/p/models", 16),
            ("ListModels", "projects/p/models", 16),
            ("CreateModel", "projects/p/models", 7),
            ("Predict", "projects/p/models/m/versions/v", 7),
        ]
    )
    bob = {"principalEmail": "bob@example.com", "principalSubject": "user:bob@example.com"}
    for payload in refused.values():
        if payload["status"]["code"] == 7:
            assert payload["authenticationInfo"] == bob
        assert not any(checked["granted"] for checked in payload.get("authorizationInfo", ()))
    predict = refused["Predict", "projects/p/models/m/versions/v", 7]
    assert predict["authorizationInfo"][0]["permission"] == "ml.versions.predict"
    *_, before, after = [entry["protoPayload"] for entry in found if "operation" in entry]
    for payload in (before, after):
        assert payload["authenticationInfo"]["principalSubject"] == ADMIN.principal
        assert payload["authorizationInfo"] == [
            {"resource": "projects/p", "permission": "ml.models.create", "granted": True}
        ]
    assert all(bearer["authorization"][7:] not in json.dumps(found) for bearer in bearers.values())


def test_counts_are_told(tmp_path: Path) -> None:
    """At /stats."""

    async def main(client: httpx.AsyncClient) -> None:
        await client.post(MODELS, json={"name": "m"})
        stats = (await client.get("/stats")).json()
        assert stats["auditLog"] == {"written": 2, "waiting": 0, "dropped": 0}

    run(main, tmp_path)
