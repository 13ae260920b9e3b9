"""`pilotlight why`."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.commands import why
from serving.config import ClientConfig
from tests.server import Server
from tests.serving.cli.conftest import Run

NOW = datetime.datetime.now().astimezone()
STORY: dict[str, Any] = {
    "version": "projects/local/models/flowers/versions/v1",
    "state": "awake",
    "summary": "It is awake. Nodes: 1 ready. Requests: 2 running, 0 waiting.",
    "desired": 1,
    "reason": "1 node: a request waits",
    "startSeconds": {"forked": 0.1654, "cold": 2.31},
    "starts": [],
    "decisions": [
        {"time": "2021-03-04T05:06:07.089Z", "nodes": 0, "reason": "asleep: no request for 301 s"},
        {"time": NOW.isoformat(), "nodes": 1, "reason": "1 node: a request waits"},
    ],
    "refusals": [
        {"time": NOW.isoformat(), "count": 12, "reason": "too many requests waited: queue_requests = 1"}
    ],
}


class Told(ApiClient):
    """A client whose server always tells the same story."""

    def __init__(self, story: dict[str, Any]) -> None:
        super().__init__(ClientConfig())
        self.story = story
        self.asked = ""

    def get_unversioned(self, path: str, query: Any = None) -> dict[str, Any]:
        self.asked = path
        return self.story


def tell(capsys: pytest.CaptureFixture[str], story: dict[str, Any], limit: int = 20) -> list[str]:
    why.why(Told(story), CommandOutput(), "flowers/v1", limit=limit)
    return capsys.readouterr().out.splitlines()


def test_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    """How it is now; decisions and refusals with their local times, and the date where it is not today."""
    long_ago = datetime.datetime.fromisoformat("2021-03-04T05:06:07.089Z").astimezone()

    assert tell(capsys, STORY) == [
        "Version v1 of model flowers. It is awake. Nodes: 1 ready. Requests: 2 running, 0 waiting.",
        "Last decision: 1 node: a request waits.",
        "A node takes about 0.17s (forked) or 2.3s (cold) to start.",
        "",
        "What was decided, newest last:",
        "TIME                 NODES  WHY",
        f"{long_ago:%Y-%m-%d %H:%M:%S}  0      asleep: no request for 301 s",
        f"{NOW:%H:%M:%S}             1      1 node: a request waits",
        "",
        "Requests that were refused:",
        "TIME      HOW_MANY  WHY",
        f"{NOW:%H:%M:%S}  12        too many requests waited: queue_requests = 1",
    ]


def test_of_several_servers_it_says_which_one_knows_this(capsys: pytest.CaptureFixture[str]) -> None:
    told = tell(capsys, {**STORY, "server": "a:8080", "owners": ["b:8080", "c:8080"]})

    line = "This is what a:8080 alone knows and has decided. The version is placed on b:8080 and c:8080."
    assert line in told


def test_only_the_last_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """As many as were asked for."""
    told = tell(capsys, STORY, limit=1)

    assert [line for line in told if "asleep" in line] == []
    assert [line for line in told if line.endswith("a request waits")]


@pytest.mark.parametrize(
    ("count", "wait", "lines"),
    [
        (1, 0.0, ["Once a node could not start. It is cut off.", "The next try is not held back."]),
        (4, 7.5, ["4 times in a row a node could not start. It is cut off.", "The next try is in 7.5s."]),
    ],
)
def test_failures(capsys: pytest.CaptureFixture[str], count: int, wait: float, lines: list[str]) -> None:
    """Why nodes do not start, and when it is tried again."""
    failures = {"count": count, "reason": "It is cut off.", "nextTrySeconds": wait}
    story = {**STORY, "state": "failing", "summary": "Its nodes cannot be started.", "startSeconds": {}}

    assert tell(capsys, {**story, "failures": failures, "decisions": [], "refusals": []}) == [
        "Version v1 of model flowers. Its nodes cannot be started.",
        *lines,
    ]


def test_a_version_that_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    """Has a summary only."""
    summary = "It has no nodes, for it is FAILED. No such file."

    assert tell(capsys, {"version": STORY["version"], "state": "failed", "summary": summary}) == [
        f"Version v1 of model flowers. {summary}"
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("flowers", "/why/projects/local/models/flowers"),
        ("flowers/v1", "/why/projects/local/models/flowers/versions/v1"),
        ("projects/p/models/m", "/why/projects/p/models/m"),
        ("projects/p/models/m/versions/v", "/why/projects/p/models/m/versions/v"),
    ],
)
def test_names(capsys: pytest.CaptureFixture[str], name: str, path: str) -> None:
    """A model or a version, by id or by full name."""
    client = Told(STORY)
    why.why(client, CommandOutput(), name)

    assert client.asked == path
    assert capsys.readouterr().out


def test_why_on_a_server(pilotlight: Run, server: Server, forest: str) -> None:
    """Of the version and of the model; JSON is what the server sent; unknown names are refused."""
    assert server.predict(f"projects/local/models/{forest}", [[1, 2, 3, 4]]).status == 200

    by_version = pilotlight("why forest/v1")
    by_model = pilotlight("why forest --limit 1")
    json = pilotlight("why forest --format json")
    unknown = pilotlight("why forest/v9")
    wrong = pilotlight("why forest/v9/x")

    assert (by_version.code, by_model.code, json.code) == (0, 0, 0)
    assert by_version.out.startswith("Version v1 of model forest. It is awake. Nodes: 1 ready.")
    assert "What was decided, newest last:\n" in by_version.out
    assert "1 node: a request waits" in by_version.out
    assert by_model.out.startswith("Version v1 of model forest. It is awake.")
    assert json.json["version"] == "projects/local/models/forest/versions/v1"
    assert json.json["starts"]
    assert (unknown.code, wrong.code) == (1, 1)
    assert "was not found" in unknown.err
    assert "Invalid" in wrong.err


def test_warnings_of_a_version_are_told(pilotlight: Run, models_dir: Path, tmp_path: Path) -> None:
    """When it is made, by `describe` and by `why`, in text and in JSON."""
    shutil.copytree(models_dir / "forest", tmp_path / "picky")
    (tmp_path / "picky" / "example.json").write_text('["a", "b"]')
    pilotlight("models create picky")

    created = pilotlight("versions create v1 --model picky --origin picky")
    described = pilotlight("versions describe v1 --model picky")
    warnings = pilotlight("versions describe v1 --model picky --format json").json["warnings"]
    told = pilotlight("why picky")

    assert created.code == 0, created.err
    assert len(warnings) == 1
    assert warnings[0].startswith("example.json was not answered: ")
    assert warnings[0] in created.err
    assert yaml.safe_load(described.out)["warnings"] == warnings
    assert f"Warning: {warnings[0]}" in told.out.splitlines()
    assert pilotlight("why picky --format json").json["warnings"] == warnings
