"""Jobs whose programs come as archives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Emulator
from tests.end_to_end.models import wheel
from tests.serving.artifacts.test_packages import sdist
from tests.training.jobs import JobRun

TASK = "import sys\nimport hypertune\nprint(hypertune.__file__, sys.argv[1:])\n"


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def run(folder: Path, archive: Path, **fields: Any) -> JobRun:
    folder.mkdir(exist_ok=True)
    return JobRun(folder, "", module="user.task", packages=(str(archive),), **fields)


def archive_of(folder: Path, requires: str = "") -> Path:
    files = {"user/__init__.py": "", "user/task.py": TASK}
    return sdist(folder, "user", f"packages=['user'], install_requires={requires.split()}", files)


def test_packages_are_installed_once(tmp_path: Path) -> None:
    """The server ships hypertune, so that a package may require it without an index."""
    archive = archive_of(tmp_path, "cloudml-hypertune")
    cache = str(tmp_path / "cache")
    with run(tmp_path / "first", archive, cache_dir=cache) as first:
        assert first.finish().done is not None
    with run(tmp_path / "second", archive, cache_dir=cache) as second:
        assert second.finish().done is not None

    for job in (first, second):
        assert "training/provided/hypertune.py" in job.lines()[0]
    assert any("Building wheel" in line for line in first.lines("service"))
    assert [line for line in second.lines("service") if "Installing" in line or "wheel" in line] == []


def test_packages_come_from_a_bucket(tmp_path: Path, emulator: Emulator) -> None:
    archive = wheel(tmp_path, "user", "1.0", {"user/__init__.py": "", "user/task.py": TASK})
    uri = f"gs://{emulator.bucket()}/staging/{archive.name}"
    emulator.put(uri, archive.read_bytes())
    with JobRun(tmp_path, "", module="user.task", packages=(uri,)) as job:
        last = job.finish()

    assert last.done is not None, last
    assert "hypertune.py" in job.lines()[0]


def test_an_archive_that_cannot_be_built_fails_the_job(tmp_path: Path) -> None:
    archive = sdist(tmp_path, "user", "x=1/0")
    with run(tmp_path / "job", archive) as job:
        failed = job.finish().failed

    assert failed is not None
    assert failed.message.startswith(
        "User-provided package user-0.1.tar.gz failed to install: ZeroDivisionError"
    )
    assert job.replica_events() == []


@pytest.mark.soak
def test_a_conflict_names_both_versions(tmp_path: Path) -> None:
    archive = wheel(tmp_path, "user", "1.0", {"user/task.py": TASK}, requires="numpy<1.0")
    with run(tmp_path / "job", archive) as job:
        failed = job.finish().failed

    assert failed is not None
    assert "the server has numpy" in failed.message
    assert "user 1.0 depends on numpy<1.0" in failed.message


def test_a_job_folder_that_no_caller_may_use_is_refused(tmp_path: Path) -> None:
    with JobRun(tmp_path, "", allowed_folders=(str(tmp_path / "other"),)) as job:
        failed = job.finish().failed

    assert failed is not None
    assert failed.status == "FAILED_PRECONDITION"
    assert str(job.job_dir) in failed.message


def test_large_archives_are_read_beside_the_supervisor(tmp_path: Path) -> None:
    """It reports and can be cancelled meanwhile."""
    archive = tmp_path / "user-1.0-py3-none-any.whl"
    with archive.open("wb") as file:
        file.truncate(65 << 20)

    with run(tmp_path / "job", archive) as job:
        failed = job.finish().failed

    assert failed is not None
    assert "Installing packages." in job.lines("service")


def test_a_job_folder_by_its_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    uri = f"file://{tmp_path}/a%20b"
    with JobRun(tmp_path, "import sys; print(sys.argv[-1])", job_dir=uri) as job:
        assert job.finish().done is not None

    assert job.lines() == [str(folder)]
    assert folder.is_dir()


def test_hypertune_reports_as_the_service_expects(tmp_path: Path) -> None:
    file = tmp_path / "metrics" / "3" / "output.metrics"
    source = """
        import hypertune
        tuner = hypertune.HyperTune()
        for step in range(120):
            tuner.report_hyperparameter_tuning_metric("loss", step / 2, step)
        tuner.report_hyperparameter_tuning_metric("", float("nan"))
    """
    variables = {"CLOUD_ML_HP_METRIC_FILE": str(file), "CLOUD_ML_TRIAL_ID": "3"}
    with JobRun(tmp_path, source, variables=variables) as job:
        assert job.finish().done is not None
    lines = [json.loads(line) for line in file.read_text().splitlines()]

    assert len(lines) == 100
    assert (
        lines[-2].items()
        >= {"loss": "59.5", "global_step": "119", "trial": "3", "checkpoint_path": ""}.items()
    )
    assert lines[-1]["training/hptuning/metric"] == "nan"
    assert lines[-1]["global_step"] == "0"
