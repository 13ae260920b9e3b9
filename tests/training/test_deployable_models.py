"""Which folders of a job can be deployed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from serving.artifacts.storage import FileStore
from serving.scratch_folders import remove_folder
from tests.emulator import Emulator
from training.deployable_models import (
    ModelSearchRequest,
    ModelSearchResult,
    choose_model_folders,
    find_deployable_models,
)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["model.joblib"], ["."]),
        (["model/model.bst", "processed_data/training.csv"], ["model"]),
        (["export/e/9/saved_model.pb", "export/e/10/saved_model.pb", "export/e/x"], ["export/e/10"]),
        (["export/a/1/saved_model.pb", "export/b/1/saved_model.pb"], ["export/a/1", "export/b/1"]),
        (["keras_export/saved_model.pb", "keras_export/assets/model.pkl"], ["keras_export"]),
        (["checkpoint", "model.ckpt-1.index", "events.out.tfevents.1"], []),
    ],
)
def test_model_folders(paths: list[str], expected: list[str]) -> None:
    assert choose_model_folders(paths) == [PurePosixPath(path) for path in expected]


def test_many_exports_take_no_longer_each() -> None:
    """A program makes as many folders as it likes."""
    paths = [f"export/{number}/saved_model.pb" for number in range(50_000)]
    begin = time.process_time()

    assert choose_model_folders(paths) == [PurePosixPath("export/49999")]
    assert time.process_time() - begin < 10


def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / "model.joblib").touch()
    models = [f"{tmp_path}/out/model"]

    assert find_deployable_models(f"{tmp_path}/out/", FileStore()) == models
    assert find_deployable_models(f"file://{tmp_path}/out", FileStore()) == models
    assert find_deployable_models(f"{tmp_path}/out/model", FileStore()) == models
    assert find_deployable_models(f"{tmp_path}/none", FileStore()) == []


def test_what_a_program_may_leave_beside_its_model(tmp_path: Path) -> None:
    """Links that lead nowhere or in a circle, pipes, names that are no text, folders deeper than any path."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.joblib").touch()
    (tmp_path / "latest").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    no_text = tmp_path / os.fsdecode(b"\xff")
    no_text.mkdir()
    (no_text / "model.joblib").touch()
    parent = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=parent)
        child = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    os.close(parent)

    assert find_deployable_models(str(tmp_path), FileStore()) == [str(tmp_path / "model")]
    remove_folder(tmp_path)


def test_a_folder_of_a_bucket(emulator: Emulator) -> None:
    bucket = f"gs://{emulator.bucket()}"
    emulator.put(f"{bucket}/job_1/model/model.bst", b"x")

    assert find_deployable_models(f"{bucket}/job_1", FileStore()) == [f"{bucket}/job_1/model"]
    assert find_deployable_models(f"{bucket}/none", FileStore()) == []


def ask(request: ModelSearchRequest) -> ModelSearchResult:
    done = subprocess.run(
        [sys.executable, "-m", "training.deployable_models"],
        input=msgspec.json.encode(request),
        capture_output=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=ModelSearchResult)


def test_the_server_asks_a_process(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").touch()

    assert ask(ModelSearchRequest(str(tmp_path))).models == (str(tmp_path),)
    refused = ask(ModelSearchRequest(str(tmp_path), allowed_folders=("/elsewhere",)))
    assert refused.status == "FAILED_PRECONDITION"
    assert str(tmp_path) in refused.message
