"""The packages of a model for workers on other machines."""

from __future__ import annotations

import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from batch.beam import package_archive
from batch.beam.model_handler import RuntimeHandler, SharedModel
from batch.beam.package_archive import PackageArchive, unpack_packages, write_packages
from batch.failures import StepFailed, extract_failure
from batch.messages import ModelSource
from serving.artifacts.storage import FileStore
from serving.errors import FailedPrecondition, Unavailable


def install(folder: Path, name: str = "scorer.py") -> ModelSource:
    """A model with an installed package, as `serving.artifacts.packages` leaves it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "data/__pycache__").mkdir(parents=True)
    (folder / name).write_text("number = 1\n")
    (folder / "bin/script.py").write_text("number = 2\n")
    (folder / "data/weights.json").write_text("[3]")
    (folder / "data/__pycache__/x.pyc").write_bytes(b"code")
    return ModelSource(
        packages=(str(folder), str(folder / "bin")),
        package_uris=("gs://bucket/scorer-0.1.tar.gz", "/archives/other-0.2.whl"),
    )


def pack(model: ModelSource, folder: Path) -> PackageArchive:
    archive = write_packages(model, FileStore(), str(folder))
    assert archive is not None
    return archive


def test_workers_have_what_was_installed(tmp_path: Path) -> None:
    """Modules and data, in the same search order, and nothing that another Python may have compiled."""
    archive = pack(install(tmp_path / "code"), tmp_path / "job")
    target = tmp_path / "worker"
    target.mkdir()
    first, second = unpack_packages(archive, target)

    found = {path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file()}
    assert found == {"scorer.py", "bin/script.py", "data/weights.json"}
    assert [path.name for path in second.iterdir()] == ["script.py"]
    assert sorted(path.name for path in target.iterdir()) == ["0", "1"]


def test_an_archive_is_the_same_for_the_next_attempt(tmp_path: Path) -> None:
    """A worker of the one before may be reading it."""
    model = install(tmp_path / "code")

    assert pack(model, tmp_path / "job") == pack(model, tmp_path / "job")
    assert write_packages(ModelSource(), FileStore(), str(tmp_path / "job")) is None


def test_code_of_others_is_not_used(tmp_path: Path) -> None:
    """Who may write to the job's output is not who may run code on the workers. The job is told."""
    archive = pack(install(tmp_path / "code"), tmp_path / "job")
    changed = pack(install(tmp_path / "others", "evil.py"), tmp_path / "elsewhere")
    Path(changed.uri).replace(archive.uri)
    target = tmp_path / "worker"
    target.mkdir()

    told = (
        f"The packages scorer-0.1.tar.gz, other-0.2.whl in {archive.uri} are not those that the job has "
        "written there"
    )
    with pytest.raises(Unavailable, match=re.escape(told)):
        unpack_packages(archive, target)
    assert not list(target.rglob("*.py"))

    model = SharedModel(ModelSource(prediction_class="scorer.Scorer"), "", 0, archive=archive)
    with pytest.raises(StepFailed) as raised:
        RuntimeHandler(model, {}, 0).load_model()
    failed = extract_failure(str(raised.value))
    assert failed is not None
    assert failed.status == "UNAVAILABLE"
    assert told in failed.message


def test_compiled_modules_are_for_one_kind_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would only say that there is no such module."""
    pure = pack(install(tmp_path / "pure"), tmp_path / "job")
    compiled = pack(install(tmp_path / "compiled", f"fast{EXTENSION_SUFFIXES[0]}"), tmp_path / "other-job")
    here = compiled.compiled_for
    assert here.startswith("cpython-3")
    assert unpack_packages(compiled, tmp_path / "same")

    monkeypatch.setattr(package_archive, "_describe_python", lambda: "cpython-311-aarch64-linux-gnu")
    told = f"The packages scorer-0.1.tar.gz, other-0.2.whl have modules that are compiled for {here}, and "
    with pytest.raises(FailedPrecondition, match=re.escape(told)):
        unpack_packages(compiled, tmp_path / "worker")
    assert unpack_packages(pure, tmp_path / "worker")


def test_a_worker_without_room_says_so(tmp_path: Path) -> None:
    """The next attempt may have others."""
    archive = pack(install(tmp_path / "code"), tmp_path / "job")
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker/0").write_text("in the way")

    with pytest.raises(Unavailable, match=r"^The packages scorer-0.1.tar.gz, .* cannot be unpacked on "):
        unpack_packages(archive, tmp_path / "worker")
