from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from serving.artifacts.prepare import (
    PreparationPhase,
    PreparationReport,
    PreparationRequest,
    PreparedVersion,
    ReportedError,
    prepare_version,
)
from serving.errors import InvalidArgument, LoadFailed
from tests.emulator import Emulator
from tests.end_to_end.models import archive, wheel

OLD_MODELS = Path(__file__).parents[2] / "data" / "xgboost"

# google-api-core wishes for a package that only gRPC clients use.
pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index is in reach."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def asking(tmp_path: Path, uri: str, *packages: str) -> PreparationRequest:
    return PreparationRequest(uri, packages, str(tmp_path / "version"), str(tmp_path / "cache"), 1 << 30)


def reports(request: bytes) -> list[PreparationReport]:
    """What the program prints for this input; it must succeed, and print nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", "serving.artifacts.prepare"], input=request, capture_output=True, check=True
    )
    return [msgspec.json.decode(line, type=PreparationReport) for line in done.stdout.splitlines()]


def test_model_and_packages_are_made_ready(emulator: Emulator, tmp_path: Path) -> None:
    """A model and a package from a bucket become two folders, and each phase is reported as it begins."""
    uri = f"gs://{emulator.bucket()}"
    archive = wheel(tmp_path, "user", "1.0", {"predictor.py": "", "json.py": ""})
    emulator.put(f"{uri}/model/weights/part", b"12345")
    emulator.put(f"{uri}/{archive.name}", archive.read_bytes())

    *phases, last = reports(msgspec.json.encode(asking(tmp_path, f"{uri}/model", f"{uri}/{archive.name}")))

    version = tmp_path / "version"
    assert phases == [
        PreparationReport(phase=PreparationPhase.FETCHING),
        PreparationReport(phase=PreparationPhase.INSTALLING),
    ]
    assert last.done is not None
    assert last.done.model_dir == str(version / "model")
    assert last.done.packages == (str(version / "code/packages"),)
    assert (last.done.files, last.done.bytes, len(last.done.digest)) == (1, 5, 64)
    assert [text.split(" of its own")[0] for text in last.done.warnings] == ["The server has a module json"]
    assert (version / "model/weights/part").read_bytes() == b"12345"
    assert (version / "code/packages/predictor.py").exists()
    assert sorted(path.name for path in version.iterdir()) == ["code", "model"]


def test_the_lines_on_the_wire(tmp_path: Path) -> None:
    """The format between the processes: one JSON object per line, with one field."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.pkl").write_bytes(b"1")
    request = {
        "deployment_uri": str(tmp_path / "model"),
        "package_uris": [],
        "destination": str(tmp_path / "version"),
        "cache_dir": str(tmp_path / "cache"),
        "cache_bytes": 1000,
    }
    done = subprocess.run(
        [sys.executable, "-m", "serving.artifacts.prepare"],
        input=msgspec.json.encode(request),
        capture_output=True,
        check=True,
    )

    first, second = map(msgspec.json.decode, done.stdout.splitlines())

    assert first == {"phase": "FETCHING"}
    digest = second["done"].pop("digest")
    assert second == {
        "done": {
            "model_dir": str(tmp_path / "version/model"),
            "packages": [],
            "files": 1,
            "bytes": 1,
            "warnings": [],
            "pilot": "tabular",
            "interpreter": "",
            "image": "",
        }
    }
    assert len(digest) == 64


def test_what_a_killed_attempt_left_is_removed(tmp_path: Path) -> None:
    """A destination that exists is started afresh."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/new").write_bytes(b"1")
    for name in ("model/old", ".model.part/old", "code/old"):
        (tmp_path / "version" / name).mkdir(parents=True)

    prepare_version(asking(tmp_path, str(tmp_path / "model")), print)

    assert [path.name for path in (tmp_path / "version").iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "version/model").iterdir()] == ["new"]


def test_packages_alone_will_do(tmp_path: Path) -> None:
    """A custom routine may need no files: its model folder is then empty."""
    archive = wheel(tmp_path, "user", "1.0", {"predictor.py": ""})
    phases: list[PreparationPhase] = []

    prepared = prepare_version(asking(tmp_path, "", str(archive)), phases.append)

    assert prepared == PreparedVersion(
        model_dir=str(tmp_path / "version/model"),
        packages=(str(tmp_path / "version/code/packages"),),
        files=0,
        bytes=0,
        digest="",
        warnings=(),
        pilot="tabular",
    )
    assert phases == [PreparationPhase.FETCHING, PreparationPhase.INSTALLING]
    assert not list((tmp_path / "version/model").iterdir())


def test_packages_that_import_tensorflow_are_told(tmp_path: Path) -> None:
    """So that the version's nodes start from a process that has it."""
    archive = wheel(tmp_path, "user", "1.0", {"predictor.py": "import tensorflow as tf"})

    assert prepare_version(asking(tmp_path, "", str(archive)), print).pilot == "tensorflow"


def test_a_saved_model_takes_tensorflow(tmp_path: Path) -> None:
    """Whether or not a framework was named."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").write_bytes(b"")

    assert prepare_version(asking(tmp_path, str(tmp_path / "model")), print).pilot == "tensorflow"


def test_failures_are_reported_with_their_status(tmp_path: Path) -> None:
    """A missing model, a package that cannot be installed and a bad request each end in `failed`."""
    (tmp_path / "broken-0.1.tar.gz").write_bytes(b"garbage")
    missing = asking(tmp_path, str(tmp_path / "missing"))
    broken = asking(tmp_path, "", str(tmp_path / "broken-0.1.tar.gz"))

    [*_, not_found] = reports(msgspec.json.encode(missing))
    [*_, load_failed] = reports(msgspec.json.encode(broken))
    [unreadable] = reports(b"{}")

    assert not_found.failed is not None
    assert not_found.failed.status == "NOT_FOUND"
    assert load_failed.failed is not None
    assert load_failed.failed.status == "INVALID_ARGUMENT"
    assert load_failed.failed.message.startswith(
        "Failed to load model: User-provided package broken-0.1.tar.gz failed to install: "
    )
    message = "Not a request to prepare: Object missing required field `deployment_uri`"
    assert unreadable.failed == ReportedError("INVALID_ARGUMENT", message)


def test_impossible_requests_touch_nothing(tmp_path: Path) -> None:
    """Neither model nor packages, or two archives of one name, are refused before anything is fetched."""
    twice = asking(tmp_path, "", "gs://a/user-1.0.tar.gz", "gs://b/user-1.0.tar.gz")

    with pytest.raises(InvalidArgument, match="both are empty"):
        prepare_version(asking(tmp_path, ""), print)
    with pytest.raises(
        InvalidArgument, match=r"Several packageUris end in user-1\.0\.tar\.gz\. Their file names"
    ):
        prepare_version(twice, print)
    assert not list(tmp_path.iterdir())


# Leaves a process behind that has pip's pipe, in a session of its own.
LEAVING = """
import os, pathlib, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path({!r}).write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
"""


def test_a_build_that_never_ends_leaves_nothing(tmp_path: Path) -> None:
    """Whatever it started, wherever that went, ends with the preparation, which says why it failed."""
    pid = tmp_path / "pid"
    package = tmp_path / "slow-0.1.tar.gz"
    package.write_bytes(archive("slow", {}, setup=LEAVING.format(str(pid))))
    request = msgspec.structs.replace(asking(tmp_path, "", str(package)), build_timeout=4)
    remote_lifeline, lifeline = os.pipe()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "autoscaler.module_process",
            str(remote_lifeline),
            "serving.artifacts.prepare",
        ],
        input=msgspec.json.encode(request),
        pass_fds=(remote_lifeline,),
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60,
        check=True,
    )
    os.close(remote_lifeline)
    os.close(lifeline)
    last = msgspec.json.decode(done.stdout.splitlines()[-1], type=PreparationReport)

    assert last.failed is not None
    assert "not done after 4 s, and was ended (setting build_timeout)" in last.failed.message
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_unforeseen_is_reported_too(tmp_path: Path) -> None:
    """An error that is nobody's mistake is INTERNAL, with its type and text, and its traceback on stderr."""
    (tmp_path / "version").write_text("a file where a folder should be")
    request = msgspec.json.encode(asking(tmp_path, "/nowhere"))

    done = subprocess.run(
        [sys.executable, "-m", "serving.artifacts.prepare"], input=request, capture_output=True, check=True
    )

    failed = msgspec.json.decode(done.stdout, type=PreparationReport).failed
    assert failed is not None
    assert failed.status == "INTERNAL"
    assert failed.message.startswith("NotADirectoryError: ")
    assert b"Traceback" in done.stderr


def test_importing_it_costs_the_gateway_nothing() -> None:
    """The gateway shares the messages without a storage client or pip being loaded."""
    script = (
        "import sys, serving.artifacts.prepare\n"
        "assert not {'google.cloud.storage', 'google.auth', 'requests', 'pip'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_binary_file_of_xgboost_is_converted_once(tmp_path: Path) -> None:
    """The version's file is what today's XGBoost reads; the owner's stays as it is."""
    folder = tmp_path / "model"
    folder.mkdir()
    original = (OLD_MODELS / "1.7.6-logistic.bst").read_bytes()
    (folder / "model.bst").write_bytes(original)

    prepared = prepare_version(asking(tmp_path, str(folder)), lambda _: None)

    assert (Path(prepared.model_dir) / "model.bst").read_bytes().startswith(b"{L")
    assert sorted(path.name for path in Path(prepared.model_dir).iterdir()) == ["model.bst"]
    assert prepared.warnings == ("model.bst is in the old binary format of XGBoost 1.7; it was converted.",)
    assert (folder / "model.bst").read_bytes() == original


def test_what_cannot_be_converted_is_refused_with_a_command(tmp_path: Path) -> None:
    """A version is not created with a model that nobody can vouch for."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.bst").write_bytes((OLD_MODELS / "1.7.6-logistic.bst").read_bytes()[:-500])

    with pytest.raises(
        LoadFailed, match=r"could not be converted: it is cut off after.*pip install 'xgboost<3.1'"
    ):
        prepare_version(asking(tmp_path, str(folder)), lambda _: None)


def test_the_files_of_a_routine_are_left_alone(tmp_path: Path) -> None:
    """Code of a user reads its files itself."""
    folder = tmp_path / "model"
    folder.mkdir()
    original = (OLD_MODELS / "1.7.6-logistic.bst").read_bytes()
    (folder / "model.bst").write_bytes(original)
    archive = wheel(tmp_path, "user", "1.0", {"predictor.py": ""})

    prepared = prepare_version(asking(tmp_path, str(folder), str(archive)), lambda _: None)

    assert (Path(prepared.model_dir) / "model.bst").read_bytes() == original
