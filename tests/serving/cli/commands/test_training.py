"""`pilotlight jobs submit training` against a real server."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from serving.cli.commands.jobs import summarize_job
from serving.cli.local.trainer_package import build_trainer_wheel, upload_archives
from serving.errors import InvalidArgument
from tests.serving.cli.conftest import Run

PROGRAM = """
import argparse, importlib.resources, logging
parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--name")
args = parser.parse_args()
logging.warning("a warning")
text = importlib.resources.files("trainer").joinpath("greeting.txt").read_text()
print(text.strip(), args.name, flush=True)
"""

SKLEARN = """
import joblib, pathlib, sys
from sklearn.linear_model import LinearRegression
folder = pathlib.Path(sys.argv[sys.argv.index("--job-dir") + 1]) / "model"
folder.mkdir()
joblib.dump(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]), folder / "model.joblib")
"""

XGBOOST = """
import numpy, pathlib, sys, xgboost
folder = pathlib.Path(sys.argv[sys.argv.index("--job-dir") + 1]) / "model"
folder.mkdir()
rows = xgboost.DMatrix(numpy.array([[0.0], [2.0]]), label=[1.0, 5.0])
options = {"eta": 1, "lambda": 0, "min_child_weight": 0, "base_score": 0, "max_depth": 1}
xgboost.train(options, rows, 1).save_model(folder / "model.bst")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a data file, and what says that the file belongs to it."""
    folder = tmp_path / "code" / "trainer"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "task.py").write_text(PROGRAM)
    (folder / "greeting.txt").write_text("hello\n")
    setup = "setup(name='trainer', packages=['trainer'], include_package_data=True)"
    (folder.parent / "setup.py").write_text(f"from setuptools import setup\n{setup}\n")
    (folder.parent / "MANIFEST.in").write_text("include trainer/*.txt\n")
    return folder


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_program_from_its_folder_to_its_end(pilotlight: Run, package: Path, tmp_path: Path) -> None:
    """Its log is printed as gcloud prints it, and its folder stays as it was."""
    before = files_below(package.parent)
    flags = f"--package-path {package} --module-name trainer.task --job-dir {tmp_path / 'out'}"
    submitted = pilotlight(f"jobs submit training greet {flags} --stream-logs -- --name you")
    followed = pilotlight("jobs stream-logs greet --task-name master-replica-0")
    summarized = pilotlight("jobs describe greet --summarize")

    assert submitted.code == 0, submitted.err
    lines = [line.split("\t") for line in submitted.out.splitlines()]
    assert {"Job is running.", "hello you", "Job completed successfully."} <= {line[-1] for line in lines}
    assert files_below(package.parent) == before
    printed = [line.split("\t") for line in followed.out.splitlines()]
    assert sorted((line[0], line[2], line[-1]) for line in printed) == [
        ("INFO", "master-replica-0", "hello you"),
        ("WARNING", "master-replica-0", "WARNING:root:a warning"),
    ]
    table = dict(line.split(maxsplit=1) for line in summarized.out.splitlines())
    assert (table["state"], table["module"]) == ("SUCCEEDED", "trainer.task")


def test_a_job_of_a_file_and_flags(pilotlight: Run, tmp_path: Path) -> None:
    """Flags go before the file; what the server refuses is told with its field."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "trainingInput: {scaleTier: BASIC, pythonModule: a.b, workerCount: 2}\nlabels: {team: ads}\n"
    )
    refused = pilotlight(
        f"jobs submit training wrong --config {file} --packages /x/t.tar.gz --module-name c.d"
    )

    assert refused.code == 1
    assert "training_input.worker_count" in refused.err


@pytest.mark.parametrize("source", [SKLEARN, XGBOOST], ids=["sklearn", "xgboost"])
def test_a_job_that_is_deployed(
    pilotlight: Run, package: Path, tmp_path: Path, source: str, request: pytest.FixtureRequest
) -> None:
    """The model is made too; where there is none of the files, that is said."""
    name = f"fit_{request.node.callspec.id}"
    (package / "task.py").write_text(source)
    flags = f"--package-path {package} --module-name trainer.task --job-dir {tmp_path / 'out'}"
    trained = pilotlight(f"jobs submit training {name} {flags} --stream-logs")
    missing = pilotlight(f"jobs deploy {name} --model {name} --path other")
    deployed = pilotlight(f"jobs deploy {name} --model {name} --version v1")
    predicted = pilotlight(f"predict --model {name} --json-instances -", stdin="[2.0]\n")

    assert trained.code == 0, trained.err
    assert missing.code == 1
    assert "no model" in missing.err
    assert deployed.code == 0, deployed.err
    assert f"Created model {name}." in deployed.err
    assert json.loads(predicted.out) == [pytest.approx(5.0)]


def test_the_same_source_is_the_same_wheel(package: Path, tmp_path: Path) -> None:
    """So that the server installs it once."""
    uris = []
    for _ in range(2):
        with build_trainer_wheel(package) as wheel:
            uris += upload_archives([wheel, "gs://b/more.whl"], str(tmp_path / "staged"))

    assert uris[0] == uris[2]
    assert uris[1] == "gs://b/more.whl"
    assert Path(uris[0]).is_file()


def test_a_wheel_of_all_that_setup_names(package: Path) -> None:
    """Packages and data beside the trainer are in it; what is no source is not even looked at."""
    parent = package.parent
    (parent / "setup.py").write_text(
        "from setuptools import find_namespace_packages, setup\n"
        "setup(name='trainer', version=open('VERSION').read(), packages=find_namespace_packages(),\n"
        "      package_data={'': ['*.txt', '*.csv']}, data_files=[('etc', ['conf/columns.json'])])\n"
    )
    for path, text in {
        "VERSION": "3.1", "common/__init__.py": "", "common/words.csv": "a", "conf/columns.json": "[]",
        ".git/config.txt": "", "env/pyvenv.cfg": "", "env/lib/module.py": "", "out/model.txt": "",
        "build/lib/trainer/stale.py": "", "trainer/build/__init__.py": "",
    }.items():  # fmt: skip
        (parent / path).parent.mkdir(parents=True, exist_ok=True)
        (parent / path).write_text(text)
    (parent / "trainer" / "loop").symlink_to(parent)
    (parent / "trainer" / "nothing.txt").symlink_to("missing.txt")

    with build_trainer_wheel(package, leave_out=parent / "out") as wheel, zipfile.ZipFile(wheel) as archive:
        assert wheel.name == "trainer-3.1-py3-none-any.whl"
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == {
        "trainer/__init__.py", "trainer/task.py", "trainer/greeting.txt", "trainer/build/__init__.py",
        "common/__init__.py", "common/words.csv", "trainer-3.1.data/data/etc/columns.json",
    }  # fmt: skip


def test_a_folder_that_is_too_large(package: Path) -> None:
    with (package.parent / "images.bin").open("w") as file:
        file.truncate(1 << 30)

    with (
        pytest.raises(InvalidArgument, match=r"512 MiB.*images\.bin.*--packages"),
        build_trainer_wheel(package),
    ):
        pass


def test_what_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no __init__\.py"), build_trainer_wheel(tmp_path):
        pass
    with pytest.raises(InvalidArgument, match="no archive"):
        upload_archives(["missing.whl"], str(tmp_path))


def test_a_summary() -> None:
    job = {"jobId": "j", "state": "QUEUED", "trainingInput": {"pythonModule": "a.b", "jobDir": "gs://b/o"}}

    rows = summarize_job(job, now=None)  # type: ignore[arg-type]

    assert dict(rows) == {
        "job": "j",
        "state": "QUEUED",
        "module": "a.b",
        "tier": "BASIC",
        "job dir": "gs://b/o",
    }
