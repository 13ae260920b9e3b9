"""Versions tell what they take and answer, awake or asleep, made today or by an earlier release."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Files
from tests.server import Server, running_server, until

MODEL = "projects/local/models/forest"
VERSION = f"{MODEL}/versions/v1"
# Nothing stays awake.
FLAGS = ("--idle-timeout", "0.2", "--scale-down-delay", "0", "--tick", "0.05")


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schemas") / "state"


@pytest.fixture(scope="module")
def told(state_dir: Path, files: Files) -> Iterator[dict[str, Any]]:
    """What a version tells of itself, once its nodes are gone."""
    with running_server(state_dir, *FLAGS) as server:
        server.create_model(MODEL)
        version = server.create_version(VERSION, deploymentUri=str(files.root / "sklearn"))
        until(lambda: not server.nodes(VERSION), "it sleeps")
        schema = server.call("GET", f"{VERSION}:schema")
        assert server.nodes(VERSION) == []
        assert server.call("GET", f"{MODEL}:schema").json == schema.json
        assert server.predict(VERSION, [schema.json["example"]]).json["predictions"] == [
            schema.json["answer"]
        ]
        # What the contract knows of versions stays all that GET tells.
        assert version.keys() >= server.call("GET", VERSION).json.keys() - {"lastUseTime"}
        server.create_model("projects/local/models/empty")
        errors = {
            "empty:schema": "has no default version yet",
            "none:schema": "was not found",
            "forest/versions/v2:schema": "was not found",
        }
        for name, said in errors.items():
            assert said in server.call("GET", f"projects/local/models/{name}").error["message"].lower()
        assert server.stop() == 0
    yield schema.json


def test_a_version_that_sleeps_tells_what_it_takes(told: dict[str, Any]) -> None:
    [signature] = told["signatures"].values()

    assert told["version"] == VERSION
    assert (told["platform"], told["defaultSignature"], told["strict"]) == (
        "sklearn",
        "serving_default",
        True,
    )
    assert signature["inputs"][0]["shape"][0] == -1
    assert signature["outputs"][0]["name"] == "predictions"


def test_a_version_of_an_earlier_release_is_woken_to_tell(told: dict[str, Any], state_dir: Path) -> None:
    """Once: it is kept then."""
    assert "schema" in kept(state_dir)
    forget(state_dir)
    with running_server(state_dir, *FLAGS) as server:
        assert server.call("GET", f"{VERSION}:schema").json == told
        until(lambda: "schema" in kept(state_dir), "it is written down")
        until(lambda: not server.nodes(VERSION), "it sleeps")
        assert server.call("GET", f"{VERSION}:schema").json == told
        assert woken(server) == 1


def woken(server: Server) -> int:
    [version] = server.get_status()["versions"]
    return sum(version["wakeups"].values())


def kept(state_dir: Path) -> dict[str, Any]:
    """What the server has found out about the version."""
    with closing(sqlite3.connect(state_dir / "state.db")) as database:
        ((document,),) = database.execute("SELECT document FROM versions")
    found: dict[str, Any] = json.loads(document)["deployed"]
    return found


def forget(state_dir: Path) -> None:
    """Make the version one that was made before there were schemas."""
    with closing(sqlite3.connect(state_dir / "state.db")) as database:
        ((document,),) = database.execute("SELECT document FROM versions")
        record = json.loads(document)
        del record["deployed"]["schema"]
        database.execute("UPDATE versions SET document = ?", (json.dumps(record),))
        database.commit()
