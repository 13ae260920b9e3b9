"""What workers on other machines are given to install."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from batch.beam import staging
from batch.messages import ModelSource
from serving.errors import FailedPrecondition, InvalidArgument
from tests.bounds import HANG_SECONDS
from tests.test_layout import MODULES, OURS, find_imports

# Where what is imported comes from, if its name does not say it.
SOURCES = {
    "google.api_core": "google-cloud-storage",
    "google.auth": "google-cloud-storage",
    "google.cloud": "google-cloud-storage",
    "google.protobuf": "tensorflow",
    "google_crc32c": "google-crc32c",
    "simdjson": "pysimdjson",
    "sklearn": "scikit-learn",
}
# Beam is in its containers; settings files are read by servers alone, and only nodes go faster ways.
# What has bfloat16 comes with TensorFlow.
NOT_FOR_WORKERS = {"apache_beam", "ml_dtypes", "treelite", "yaml"}
# Other interpreters are of the server's machine: workers elsewhere are never given one.
NOT_ON_WORKERS = {"serving.runtimes.external"}


def names(model: ModelSource) -> set[str]:
    return {requirement.partition("==")[0] for requirement in staging.list_requirements(model)}


def imported_by(*roots: str) -> set[str]:
    """The distributions that these modules of ours import, and whatever of ours they import."""
    found: set[str] = set()
    seen = set(NOT_ON_WORKERS)
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for one in find_imports()[module]:
            if one.module in MODULES:
                waiting.append(one.module)
            elif one.module.partition(".")[0] not in sys.stdlib_module_names:
                found.add(one.module)
    tops = {".".join(name.split(".")[: 2 if name.startswith("google.") else 1]) for name in found}
    return {SOURCES.get(name, name) for name in tops - NOT_FOR_WORKERS - {*OURS}}


@pytest.mark.parametrize(
    ("framework", "module"),
    [
        ("TENSORFLOW", "serving.runtimes.tensorflow_runtime.runtime"),
        ("SCIKIT_LEARN", "serving.runtimes.sklearn_runtime.runtime"),
        ("XGBOOST", "serving.runtimes.xgboost_runtime.runtime"),
        ("CUSTOM", "serving.runtimes.custom_runtime.runtime"),
    ],
)
def test_workers_are_given_what_their_code_imports(framework: str, module: str) -> None:
    """Each library that the steps and the model's runtime import is required, in the version that is here."""
    required = staging.list_requirements(ModelSource(framework=framework))

    assert imported_by("batch.beam.pipeline", module) <= names(ModelSource(framework=framework))
    assert f"numpy=={metadata.version('numpy')}" in required
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", one) for one in required)


def test_the_libraries_follow_from_the_models_files(tmp_path: Path) -> None:
    """Where nobody says the framework, TensorFlow is for SavedModels, and for nothing else."""
    saved_model, booster = tmp_path / "saved_model", tmp_path / "booster"
    for folder, file in ((saved_model, "saved_model.pb"), (booster, "model.bst")):
        folder.mkdir()
        (folder / file).touch()

    assert "tensorflow" in names(ModelSource(uri=str(saved_model)))
    assert "xgboost" not in names(ModelSource(model_dir=f"{saved_model}/", uri="gs://gone/model"))
    assert "xgboost" in names(ModelSource(uri=str(booster)))
    assert "tensorflow" not in names(ModelSource(uri=str(tmp_path / "missing")))


def test_the_source_archive_installs_without_an_index_and_runs(tmp_path: Path) -> None:
    """What a worker's steps are unpickled with is in the archive, whole, and asks for the libraries."""
    archive = staging.build_source_archive(["numpy==1.2.3"], tmp_path)
    target = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--target", target, archive], check=True, timeout=HANG_SECONDS)
    # Without site there is nothing of this checkout; libraries come from where they are.
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + sys.argv[1:]; "
        "import batch.beam.pipeline, serving.runtimes; "
        "print(batch.__file__); print(serving.__file__)"
    )
    libraries = sysconfig.get_path("purelib")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "ignore", "-c", code, target, libraries],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout.split() == [str(target / "batch/__init__.py"), str(target / "serving/__init__.py")], (
        done.stderr
    )
    (described,) = metadata.distributions(name="pilotlight", path=[str(target)])
    assert described.version == metadata.version("pilotlight")
    assert described.requires == ["numpy==1.2.3"]


def test_archives_are_ours_and_then_the_users(tmp_path: Path) -> None:
    """The user's packages are fetched, and come in their order, after what they stand on."""
    for name in ("b.tar.gz", "a.whl"):
        (tmp_path / name).write_bytes(name.encode())
    model = ModelSource(
        prediction_class="routine.Class",
        package_uris=(str(tmp_path / "b.tar.gz"), str(tmp_path / "a.whl")),
    )
    folder = tmp_path / "archives"
    staging.build_archives(model, folder)
    found = [Path(path) for path in staging.build_archives(model, folder)]

    assert [path.name for path in found[1:]] == ["b.tar.gz", "a.whl"]
    assert found[1].read_bytes() == b"b.tar.gz"
    with tarfile.open(found[0]) as archive:
        kinds = {Path(name).suffix or Path(name).name for name in archive.getnames()}
        assert kinds == {".py", ".toml", ".typed", ".binpb"}


@pytest.mark.parametrize(
    ("uris", "reason"),
    [
        (["a.tgz"], "whose names end in .tar, .tar.gz, .whl, .zip"),
        (["x/a.zip", "y/a.zip"], "Two packages are called a.zip"),
    ],
)
def test_packages_that_beam_would_not_take_are_refused(tmp_path: Path, uris: list[str], reason: str) -> None:
    """The error says so before anything is sent."""
    for uri in uris:
        (tmp_path / uri).parent.mkdir(exist_ok=True)
        (tmp_path / uri).touch()
    model = ModelSource(prediction_class="a.B", package_uris=tuple(str(tmp_path / uri) for uri in uris))

    with pytest.raises(InvalidArgument, match=re.escape(reason)):
        staging.build_archives(model, tmp_path / "archives")


def test_a_library_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version cannot be told to the workers."""
    monkeypatch.setattr(staging, "_CORE", ("no-such-library",))

    with pytest.raises(FailedPrecondition, match="no-such-library is not installed here"):
        staging.list_requirements(ModelSource(framework="XGBOOST"))
