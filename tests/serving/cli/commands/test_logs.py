"""`pilotlight logs`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import Server, until
from tests.serving.cli.conftest import Run

MODEL = "projects/local/models/talkative"
VERSION = f"{MODEL}/versions/v1"


@pytest.fixture(scope="module")
def talkative(server: Server, models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version with all logs, asked three times."""
    folder = tmp_path_factory.mktemp("requests")
    server.create_model(MODEL, onlinePredictionLogging=True, onlinePredictionConsoleLogging=True)
    server.create_version(
        VERSION, predictionClass="cli_routine.Predictor", packageUris=[str(models_dir / "routine.tar.gz")]
    )
    config = {"requestLoggingConfig": {"bigqueryTableName": str(folder), "samplingPercentage": 1}}
    server.call("PATCH", f"{VERSION}?updateMask=requestLoggingConfig", json=config)
    for number in range(3):
        assert server.predict(VERSION, [number], headers={"X-Request-Id": f"r{number}"}).status == 200
    assert server.predict(VERSION, ["raise"]).status == 500

    def there(kind: str) -> bool:
        found = server.call("GET", f"/logs/{VERSION}?kind={kind}").json["entries"]
        return len(found) >= 4

    until(lambda: all(there(kind) for kind in ("requests", "access", "console")), "all is logged")
    return "talkative/v1"


def test_requests(pilotlight: Run, talkative: str) -> None:
    """When, what was asked, what was answered: the last ones."""
    result = pilotlight(f"logs {talkative} --limit 3")
    rows = result.out.splitlines()

    assert result.code == 0
    assert len(rows) == 3
    assert '{"instances":[1]}' in rows[0].replace(" ", "")
    assert '{"value":1' in rows[0].replace(" ", "")
    assert "Failed to run the provided model" in rows[2]


def test_access(pilotlight: Run, talkative: str) -> None:
    """Every request with what became of it."""
    rows = pilotlight(f"logs {talkative} --kind access").out.splitlines()

    assert [row.split()[2] for row in rows] == ["INFO", "INFO", "INFO", "ERROR"]
    assert f"POST /v1/{VERSION}:predict 200" in rows[0]
    assert ":predict 500" in rows[3]


def test_console(pilotlight: Run, talkative: str) -> None:
    """What the nodes have printed."""
    rows = pilotlight(f"logs {talkative} --kind console").out.splitlines()

    assert len([row for row in rows if row.endswith("DEFAULT  printed by the model")]) == 4


def test_json(pilotlight: Run, talkative: str) -> None:
    """The entries as they are in the log."""
    result = pilotlight(f"logs {VERSION} --format json --since 1h")
    entries = [json.loads(line) for line in result.out.splitlines()]

    assert [entry["request_id"] for entry in entries][:3] == ["r0", "r1", "r2"]
    assert list(entries[0])[:3] == ["model", "model_version", "time"]
    assert pilotlight(f"logs {VERSION} --since 2100-01-01").out == ""


def test_nothing_of_a_kind(pilotlight: Run, talkative: str) -> None:
    """It is said, with where else there may be something."""
    result = pilotlight(f"logs {talkative} --kind access --since 2100-01-01")
    assert (result.code, result.out) == (0, "")
    assert "Nothing of that time is in the access log of talkative/v1." in result.err
    assert "--kind requests, --kind console" in result.err


@pytest.fixture
def following(server: Server, talkative: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from serving.cli import main; main()", "logs", talkative, "--follow"]
    with subprocess.Popen(
        [*command, "--limit", "1", "--server", server.url], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_follow(server: Server, following: subprocess.Popen[str]) -> None:
    """What comes is shown when it comes."""
    assert following.stdout is not None
    assert "raise" in following.stdout.readline()
    server.predict(VERSION, ["now"])

    assert "now" in following.stdout.readline()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("logs talkative", "MODEL/VERSION"),
        ("logs talkative/none", "not"),
        ("logs {forest}/v1", "are not logged"),
        ("logs {forest}/v1 --kind access", "--enable-logging"),
        ("logs {forest}/v1 --kind console", "--enable-console-logging"),
    ],
)
def test_what_is_not_logged(pilotlight: Run, talkative: str, forest: str, line: str, words: str) -> None:
    """It is said, and how to switch it on."""
    result = pilotlight(line.format(forest=forest))

    assert result.code == 1
    assert words in result.err


def test_a_log_elsewhere_is_read_there(pilotlight: Run, server: Server, models_dir: Path) -> None:
    """In a bucket or a table."""
    server.create_model("projects/local/models/elsewhere")
    name = "projects/local/models/elsewhere/versions/v1"
    server.create_version(name, deploymentUri=str(models_dir / "forest"))
    for address in ("gs://bucket/logs", "a.b.c"):
        config = {"requestLoggingConfig": {"bigqueryTableName": address, "samplingPercentage": 1}}
        server.call("PATCH", f"{name}?updateMask=requestLoggingConfig", json=config)
        result = pilotlight("logs elsewhere/v1")
        assert result.code == 1
        assert address in result.err


@pytest.mark.parametrize(
    "query", ["kind=x", "limit=0", "limit=1001", "limit=x", "since=x", "cursor=x", "pageToken=x"]
)
def test_bad_queries(server: Server, talkative: str, query: str) -> None:
    """Each names the field."""
    reply = server.call("GET", f"/logs/{VERSION}?{query}")

    assert reply.status == 400
    field = query.partition("=")[0].replace("pageToken", "page_token")
    assert field in reply.error["message"]


def test_requests_that_are_not_logged(pilotlight: Run, server: Server, talkative: str) -> None:
    """What else there is to see is told of. The last test: from now on they are not."""
    reply = server.call("PATCH", f"{VERSION}?updateMask=requestLoggingConfig", json={})
    assert reply.status == 200, reply.json
    result = pilotlight(f"logs {talkative}")
    assert result.code == 1
    assert "are not logged." in result.err
    assert "pilotlight logs talkative/v1 --kind console" in result.err
