"""Abuse of every route of the whole gateway, in this process: no failure of the server's own comes of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from serving.config import ServeConfig
from serving.gateway.app import Gateway
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.names import VersionName
from serving.resources import Model, Version, VersionState
from tests.conftest import Report
from tests.fuzz.abuse import Ask, ask, check, documents, some
from tests.wire.test_discovery import discovery, methods

NAME = VersionName("p", "m", "v")
# Seconds in which each request is answered, whatever else the machine does.
BOUND = 20
BASES: dict[str, dict[str, Any]] = {
    "GoogleCloudMlV1__Model": {"name": "m2", "description": "d", "labels": {"a": "b"}},
    "GoogleCloudMlV1__Version": {"name": "v2", "deploymentUri": "/nowhere", "runtimeVersion": "2.11"},
    "GoogleCloudMlV1__Job": {
        "jobId": "j2",
        "predictionInput": {
            "uri": "/nowhere",
            "dataFormat": "JSON",
            "inputPaths": ["/nowhere/*"],
            "outputPath": "/nowhere/out",
            "region": "us-central1",
        },
    },
    "GoogleIamV1__SetIamPolicyRequest": {
        "policy": {"bindings": [{"role": "roles/ml.viewer", "members": ["user:a@b.c"]}], "etag": "AAAA"}
    },
    "GoogleIamV1__TestIamPermissionsRequest": {"permissions": ["ml.models.get"]},
}


def run(folder: Path, main: Callable[[Gateway], Awaitable[None]]) -> None:
    """A test on a gateway with a model and a version, from its start to its stop."""
    version = Version(
        name=str(NAME), state=VersionState.FAILED, etag="AAAA", create_time="2026-01-01T00:00:00Z"
    )
    store = SqliteStore(folder / "state.db")
    model = ModelRecord(name=NAME.parent, model=Model(name=str(NAME.parent), etag="AAAA"))
    record = VersionRecord(name=NAME, uid="1", version=version)
    store.commit({("models", str(model.name)): model, ("versions", str(NAME)): record})

    async def bounded() -> None:
        # What is made in earnest comes to nothing, and soon: no process of ours gets anywhere.
        environment = {"PYTHONHOME": "/nowhere"}
        gateway = Gateway(
            ServeConfig(state_dir=folder, pilots="off"), store, environment, job_command=("/bin/true",)
        )
        async with gateway._router.router.lifespan_context(gateway._router):
            await main(gateway)

    asyncio.run(bounded())


async def hold(gateway: Gateway, asked: Ask) -> int:
    """Ask, and hold the answer against what all answers must be; its status."""
    async with asyncio.timeout(BOUND):
        told = await ask(gateway, asked)
    check(asked, told)
    return told.status


@pytest.mark.parametrize(
    "requests", [2000, pytest.param(200_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_no_request_does_harm(tmp_path: Path, report: Report, requests: int) -> None:
    """Any verb, path, query, header and body at any route: answered in time, and never with 5xx."""
    seen: Counter[int] = Counter()
    slowest = 0.0

    async def main(gateway: Gateway) -> None:
        nonlocal slowest
        routes = [(route.path, min(route.methods or {"GET"})) for route in gateway._build_api_routes()]
        routes += [
            ("/v1/projects/{project}/models/{model}:predict", "POST"),
            ("/v1/{x}", "GET"),
            ("/", "GET"),
        ]
        for number in range(requests):
            start = time.monotonic()
            seen[await hold(gateway, some(Random(f"routes {number}"), routes))] += 1
            slowest = max(slowest, time.monotonic() - start)

    run(tmp_path, main)
    report(f"{requests} bad requests: {dict(sorted(seen.items()))}; the slowest took {slowest:.2f} s")
    assert {200, 400, 404, 405} <= seen.keys()


def bodies() -> list[tuple[str, str, str]]:
    """The methods of the discovery document that take a body we know: id, verb and path."""
    found = []
    for method in methods():
        schema = method.get("request", {}).get("$ref", "")
        if schema in BASES:
            path = "/" + method.get("flatPath", method["path"])
            known = {"{projectsId}": "p", "{modelsId}": "m", "{versionsId}": "v", "{jobsId}": "j2"}
            for name, value in known.items():
                path = path.replace(name, value)
            found.append((method["httpMethod"], path, schema))
    return found


def test_no_field_does_harm(tmp_path: Path) -> None:
    """Each field of each body, at two depths, with values of every wrong kind."""
    schemas = discovery()["schemas"]
    seen: Counter[int] = Counter()

    async def main(gateway: Gateway) -> None:
        for verb, path, schema in bodies():
            for document in documents(schemas, schema, BASES[schema]):
                changed = ",".join(name for name in document if document[name] is not BASES[schema].get(name))
                query = f"updateMask={changed}" if verb == "PATCH" else ""
                seen[await hold(gateway, Ask(verb, path, query, {}, json.dumps(document).encode()))] += 1

    run(tmp_path, main)
    assert len(bodies()) == 10
    assert seen[400] > seen.total() // 4
    assert seen[200]
