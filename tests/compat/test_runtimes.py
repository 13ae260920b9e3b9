"""Estimators of old versions, computed by an interpreter that has them, answer as their own library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat import protocols
from tests.compat.environments import RUNTIME_1_15, Environment, Unavailable, python_of
from tests.server import Server, running_server, until

PROGRAM = Path(__file__).with_name("estimator_models.py")
ENVIRONMENTS = {
    "scikit-learn 0.22": RUNTIME_1_15,
    "scikit-learn 1.0": Environment("3.9", ("scikit-learn==1.0.2", "numpy<1.24", "pandas<2", "scipy<1.11")),
    "scikit-learn 1.2": Environment("3.9", ("scikit-learn==1.2.2", "numpy<2", "pandas<2.3", "scipy<1.12")),
    "scikit-learn 1.3": Environment("3.10", ("scikit-learn==1.3.2", "numpy<2", "pandas<2.3", "scipy<1.12")),
    "scikit-learn 1.7": Environment("3.12", ("scikit-learn==1.7.2", "pandas")),
    "xgboost 0.90": RUNTIME_1_15,
}
SHORT = {"scikit-learn 0.22": ("labels", "text", "columns"), "xgboost 0.90": ("classes", "booster")}
MODELS = 21
RUNTIME = "1.15"


@dataclass(frozen=True)
class Case:
    """A model, what it is asked and what its own library answers."""

    name: str
    folder: Path
    rows: list[Any]
    predictions: list[Any]

    def is_equal(self, answers: Any) -> bool:
        """To the bit: XGBoost computes in float32, which has fewer digits here than in a list of Python."""
        if self.folder.parent.name == "xgboost":
            return np.array_equal(np.array(answers, np.float32), np.array(self.predictions, np.float32))
        return bool(answers == self.predictions)


@dataclass(frozen=True)
class World:
    """A server that has all models of a library's version."""

    server: Server
    cases: list[Case]


def world(library: str, folder: Path, *only: str) -> Iterator[World]:
    """Skips where there is no such interpreter or no index."""
    try:
        python = python_of(ENVIRONMENTS[library])
    except Unavailable as error:
        pytest.skip(f"{library}: {error}")
    name = library.partition(" ")[0]
    subprocess.run([python, PROGRAM, name, folder / name], check=True, capture_output=True, timeout=600)
    cases = []
    for expected in sorted((folder / name).glob("*/expected.json")):
        told = json.loads(expected.read_text())
        if not only or expected.parent.name in only:
            cases.append(Case(expected.parent.name, expected.parent, told["rows"], told["predictions"]))
    flags = (
        "--runtime",
        f"{RUNTIME}={python}",
        "--idle-timeout",
        "600",
        "--deployments",
        "2",
        "--grpc-port",
        "0",
    )
    with running_server(folder / "state", *flags) as server:
        begun = {}
        for case in cases:
            server.create_model(f"projects/local/models/{_id(case)}")
            begun[case.name] = server.begin_version(
                f"projects/local/models/{_id(case)}/versions/v1",
                deploymentUri=str(case.folder),
                runtimeVersion=RUNTIME,
                pythonVersion="3.7",
            )
        for operation in begun.values():
            ended = server.wait(operation, seconds=300)
            assert "error" not in ended, ended
        yield World(server, cases)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", SHORT)
def test_a_few_models_of_two_libraries(library: str, tmp_path: Path) -> None:
    """The short form: online, by every protocol."""
    for found in world(library, tmp_path, *SHORT[library]):
        assert len(found.cases) == len(SHORT[library])
        check_online(found)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", ENVIRONMENTS)
def test_every_model_of_every_library(library: str, tmp_path: Path) -> None:
    """Online, by every protocol, and in batch."""
    for found in world(library, tmp_path):
        assert len(found.cases) == MODELS
        check_online(found)
        check_batch(found, tmp_path)


def check_online(world: World) -> None:
    """By every protocol in which rows have a form: tensors have values of one type."""
    for case in world.cases:
        for name, ask_rows in protocols.ROWS.items():
            answers = ask_rows(world.server, _id(case), case.rows)
            assert case.is_equal(answers), (name, case, answers)
        if not protocols.is_tensor(case.rows):
            continue
        for name, ask_tensor in protocols.TENSORS.items():
            answers = ask_tensor(world.server, _id(case), np.array(case.rows))
            assert case.is_equal(answers), (name, case, answers)


def check_batch(world: World, folder: Path) -> None:
    """A job for each."""
    for case in world.cases:
        rows = folder / f"{case.name}.jsonl"
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in case.rows))
        given = {
            "versionName": f"projects/local/models/{_id(case)}/versions/v1",
            "dataFormat": "JSON",
            "inputPaths": [str(rows)],
            "outputPath": str(folder / "out" / case.name),
            "region": "us-central1",
        }
        body = {"jobId": _id(case), "predictionInput": given}
        assert world.server.call("POST", "projects/local/jobs", json=body).status == 200
    for case in world.cases:
        job = until(lambda case=case: _ended(world.server, case), f"the job of {case.name}", seconds=600)  # type: ignore[misc]
        assert job["state"] == "SUCCEEDED", job
        (file,) = (folder / "out" / case.name).glob("prediction.results-*")
        assert case.is_equal([json.loads(line) for line in file.read_text().splitlines()]), case


def _ended(server: Server, case: Case) -> dict[str, Any] | None:
    job: dict[str, Any] = server.call("GET", f"projects/local/jobs/{_id(case)}").json
    return job if job["state"] in ("SUCCEEDED", "FAILED") else None


def _id(case: Case) -> str:
    return case.name.replace("-", "_")
