"""One server for all tests of the commands, small models, and the commands run in this process."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serving.cli import main
from serving.config import FRAMEWORK_ENVIRONMENT
from tests.end_to_end.models import archive, write_sklearn
from tests.server import Server, running_server

PREDICTOR = '''
class Predictor:
    """Answers with objects; what it is told to refuse, it refuses."""

    def predict(self, instances, **kwargs):
        print("printed by the model")
        if "raise" in instances:
            raise RuntimeError("refused")
        return [{"value": value, "more": kwargs} for value in instances]

    @classmethod
    def from_path(cls, model_dir):
        return cls()
'''


@dataclass(frozen=True)
class Result:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, all of it JSON."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `forest` and the archive of a custom routine."""
    folder = tmp_path_factory.mktemp("models")
    write_sklearn(folder / "forest")
    (folder / "routine.tar.gz").write_bytes(archive("cli_routine", {"cli_routine": PREDICTOR}))
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that commands talk to. Tests make models of their own on it."""
    with running_server(tmp_path_factory.mktemp("server") / "state") as server:
        yield server


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `pilotlight LINE`, in an empty folder and with no server. `stdin` is what it may read."""
    monkeypatch.setenv("PILOTLIGHT_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    # `local predict` loads a model in this process: let it leave nothing behind.
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in FRAMEWORK_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def run(line: str, stdin: str | bytes = "") -> Result:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(shlex.split(line))
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def pilotlight(offline: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `pilotlight LINE` against the server."""
    monkeypatch.setenv("PILOTLIGHT_SERVER", server.url)
    return offline


@pytest.fixture(scope="session")
def forest(server: Server, models_dir: Path) -> str:
    """The id of a model on the server whose version v1 is a forest. Tests only predict with it."""
    server.create_model("projects/local/models/forest")
    server.create_version(
        "projects/local/models/forest/versions/v1", deploymentUri=str(models_dir / "forest")
    )
    return "forest"
