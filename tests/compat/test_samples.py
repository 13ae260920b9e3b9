"""Google's two sample repositories: what of them deploys or predicts runs against this server.

They are not part of this repository: `TESTS_SAMPLES` names a folder with checkouts of `cloudml-samples` and
`ai-platform-samples` (github.com/GoogleCloudPlatform).
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compat.credentials import running_credentials
from tests.compat.environments import Unavailable, python_of
from tests.compat.samples import data
from tests.compat.samples.cases import NAMES, SAMPLES, Sample
from tests.compat.samples.environment import FIRST, SECOND, TORCH
from tests.compat.samples.uses import find_uses, read_cells
from tests.containers import engine as engine_module
from tests.emulator import Emulator
from tests.server import Server, running_server, until

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "samples.md"
HERE = Path(__file__).parent / "samples"
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
_RUNTIMES = {"1.4": FIRST, "1.13": FIRST, "1.14": FIRST, "2.1": SECOND}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def checkouts() -> Path:
    """The folder of both."""
    folder = os.environ.get("TESTS_SAMPLES")
    if not folder:
        pytest.skip("TESTS_SAMPLES does not name a folder with cloudml-samples and ai-platform-samples")
    return Path(folder).resolve()


@dataclass
class World:
    """A server with the interpreters that samples ask for, an emulator of Cloud Storage, made-up data."""

    server: Server
    emulator: Emulator
    folder: Path
    checkouts: Path
    credentials: Path

    @functools.cached_property
    def models(self) -> Path:
        """The folder of SavedModels, which is made when the first sample needs one."""
        return _write_models(self.folder, self.checkouts)


@pytest.fixture(scope="module")
def world(
    checkouts: Path, emulator_server: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Skips where there is no such interpreter or no index."""
    folder = tmp_path_factory.mktemp("samples")
    try:
        runtimes = [f"--runtime={number}={python_of(found)}" for number, found in _RUNTIMES.items()]
        runtimes.append(f"--runtime=1.15={python_of(TORCH)}")
    except Unavailable as error:
        pytest.skip(str(error))
    _write_data(folder / "data", emulator_server)
    engine = _write_engine(folder / "engine")
    flags = (*runtimes, "--deployments", "2", "--idle-timeout", "20", "--container-engine", str(engine))
    environment = {"STORAGE_EMULATOR_HOST": emulator_server.url}
    with (
        running_credentials(folder) as credentials,
        running_server(folder / "state", *flags, environment=environment) as server,
    ):
        yield World(server, emulator_server, folder, checkouts, credentials)


def test_the_table_is_complete(checkouts: Path) -> None:
    """Each file that deploys or predicts is in docs/samples.md, and each that is run is called so there."""
    rows = dict(_ROW.findall(DOCUMENT.read_text()))
    run = {}
    for sample in SAMPLES:
        for path in (sample.path, *sample.also):
            file = checkouts / path
            text = "\n".join(read_cells(file)) if file.suffix == ".ipynb" else file.read_text()
            run[path] = "changed" if any(old in text for old, _ in sample.changes) else "unchanged"

    assert sorted(rows) == sorted(find_uses(checkouts))
    assert {
        path: outcome.strip() for path, outcome in rows.items() if outcome.strip() not in ("no", "page")
    } == run


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.path)
def test_sample(sample: Sample, world: World, tmp_path: Path) -> None:
    """All that it types succeeds, and what is predicted is right; or it is refused as is documented."""
    run = Run(sample, world, tmp_path)
    if sample.refused:
        with pytest.raises(AssertionError, match=re.escape(sample.refused)):
            run.run()
        return

    said = run.run()

    # What was not there cannot be deleted, and what was never trained cannot be cancelled.
    failed = [
        command
        for command in run.commands()
        if command["status"] and not {"delete", "cancel"} & {*command["command"]}
    ]
    assert run.commands(), said
    assert not failed, said
    for job in run.jobs():
        ended = until(lambda job=job: _ended(world.server, job), f"the end of {job}", seconds=300)  # type: ignore[misc]
        assert ended["state"] == "SUCCEEDED", ended
        assert not int(ended["predictionOutput"].get("errorCount", 0)), ended


def _ended(server: Server, name: str) -> dict[str, Any] | None:
    job: dict[str, Any] = server.call("GET", name).json
    return job if job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None


class Run:
    """One run of a sample, in a project, a bucket and a folder of its own."""

    def __init__(self, sample: Sample, world: World, folder: Path) -> None:
        self.sample = sample
        self.world = world
        self.file = world.checkouts / sample.path
        beside = self.file.parent.parent if self.file.parent.name == "scripts" else self.file.parent
        self.folder = folder / "work"
        self.scripts = self.folder / self.file.parent.relative_to(beside)
        self.log = folder / "commands.jsonl"
        self.log.touch()
        self.project = f"samples-{SAMPLES.index(sample)}"
        self.bucket = world.emulator.bucket("samples")
        self.python = python_of(sample.environment) if sample.environment else Path(sys.executable)
        shutil.copytree(beside, self.folder)
        self.environment = self._environment(folder)

    def run(self) -> str:
        """What it prints."""
        if self.sample.cells:
            return self._run_cells()
        if self.sample.lines:
            return self._run_lines()
        return self._run_script()

    def commands(self) -> list[dict[str, Any]]:
        """Each command of AI Platform that was run: its words and its exit status."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def jobs(self) -> list[str]:
        """The names of the batch predictions that were asked for."""
        found = self.world.server.call("GET", f"projects/{self.project}/jobs").json
        return [f"projects/{self.project}/jobs/{job['jobId']}" for job in found.get("jobs", ())]

    def _run_cells(self) -> str:
        found = read_cells(self.file)
        self._check_edits(found[number] for number in self.sample.cells if number not in self.sample.own)
        sources = []
        for number in self.sample.cells:
            own = self.sample.own.get(number)
            sources.append(self._put(own) if own else self._edit(found[number]))
            if number in self.sample.checks:
                sources.append(self._put(self.sample.checks[number]))
        return self._execute([str(self.python), str(HERE / "run_cells.py")], json.dumps(sources))

    def _run_lines(self) -> str:
        uses = find_uses(self.world.checkouts)[self.sample.path]
        lines = [line for line in uses if line.startswith("gcloud")]
        self._check_edits(lines)
        return self._execute(
            ["bash", "-v"], "\n".join([self._put(self.sample.before), *map(self._edit, lines)])
        )

    def _run_script(self) -> str:
        files = [self.file, *(self.world.checkouts / other for other in self.sample.also)]
        self._check_edits(file.read_text() for file in files)
        for file in files:
            (self.scripts / os.path.relpath(file, self.file.parent)).write_text(self._edit(file.read_text()))
        script = f"bash {self.scripts / self.file.name} $@" if self.file.suffix == ".sh" else ""
        return self._execute(
            ["bash", "-v"], self._put(f"{self.sample.before}\n{script}\n{self.sample.after}\n")
        )

    def _execute(self, command: list[str], given: str) -> str:
        output = self.log.with_name("output.txt")
        with output.open("w") as file:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                input=given,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=900,
                check=False,
            )
        assert not done.returncode, output.read_text()
        return output.read_text()

    def _check_edits(self, texts: Iterable[str]) -> None:
        """What is to be changed is there: the sample is the one that these edits are for."""
        whole = "\n".join(texts)
        for old, _ in (*(edit for edit in self.sample.fill if edit not in NAMES), *self.sample.changes):
            assert old in whole, old

    def _edit(self, text: str) -> str:
        for old, new in (*self.sample.fill, *self.sample.changes):
            text = text.replace(old, self._put(new))
        return text

    def _put(self, text: str) -> str:
        for name, value in (
            ("@URL@", self.world.server.url),
            ("@BUCKET@", self.bucket),
            ("@PROJECT@", self.project),
            ("@DATA@", str(self.world.folder / "data")),
            ("@CHECKOUT@", str(self.world.checkouts)),
            ("@PYTHON@", sys.executable),
            ("@ENGINE@", str(self.world.folder / "engine")),
        ):
            text = text.replace(name, value)
        return text.replace("@MODELS@", str(self.world.models)) if "@MODELS@" in text else text

    def _environment(self, folder: Path) -> dict[str, str]:
        """gcloud and gsutil are found first, then the interpreter that samples call `python`."""
        commands, temporary = folder / "bin", folder / "temporary"
        for made in (commands, temporary):
            made.mkdir()
        for name in ("gcloud", "gsutil"):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "commands.py"} {name} "$@"\n')
            path.chmod(0o755)
        given = {
            "PATH": os.pathsep.join([str(commands), str(self.python.parent), os.environ["PATH"]]),
            "HOME": str(folder),
            "TMPDIR": str(temporary),
            "SCRIPTS": str(self.scripts),
            "SAMPLES_LOG": str(self.log),
            "SAMPLES_TRAINER": str(self.python),
            "PILOTLIGHT_SERVER": self.world.server.url,
            "PILOTLIGHT_PROJECT": self.project,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.world.credentials),
            "GOOGLE_CLOUD_PROJECT": self.project,
            "STORAGE_EMULATOR_HOST": self.world.emulator.url,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": str(HERE / "stand_ins"),
        }
        own = {
            name: self._put(value).replace("$TMPDIR", str(temporary))
            for name, value in self.sample.variables.items()
        }
        return {"LANG": "C.UTF-8", **given, **own}


def _write_engine(folder: Path) -> Path:
    """The command that stands for docker's, with no image yet."""
    for name in ("images", "registry", "containers"):
        (folder / name).mkdir(parents=True)
    command = folder / "docker"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {engine_module.__file__} {folder} "$@"\n')
    command.chmod(0o755)
    return command


def _write_models(folder: Path, checkouts: Path) -> Path:
    """Those that samples train in the cloud, and that of a trainer that several samples share."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # A folder of their own: a first try that failed may have left something.
    models, temporary = (Path(tempfile.mkdtemp(dir=folder, prefix=name)) for name in ("models", "temporary"))
    command = [sys.executable, str(HERE / "saved_models.py"), str(models)]
    subprocess.run(command, env=environment, check=True, timeout=600)
    (temporary / "census_data").mkdir(parents=True)  # where it would have put what it fetches
    for name in ("adult.data.csv", "adult.test.csv"):
        shutil.copy(folder / "data" / name, temporary / "census_data")
    trainer = (str(python_of(FIRST)), "-m", "trainer.task", "--num-epochs", "1", "--job-dir")
    subprocess.run(
        [*trainer, str(models / "census-trained")],
        cwd=checkouts / "cloudml-samples/census/tf-keras",
        env={**environment, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        timeout=600,
        capture_output=True,
    )
    return models


def _write_data(folder: Path, emulator: Emulator) -> None:
    """What samples fetch from buckets of Google, in files and in the emulator."""
    folder.mkdir()
    files = {
        "adult.data": data.census(400, 1),
        "adult.test": "|1x3 Cross validator\n" + data.census(60, 2).replace("K\n", "K.\n"),
        "adult.eval": data.census(60, 2),
        "adult.data.csv": data.census(400, 1, ","),
        "adult.test.csv": data.census(60, 2, ","),
        "train.tsv": data.headlines(60),
        "eval.tsv": data.headlines(10),
        "training.csv": data.tweets(100),
        "glove.twitter.27B.50d.txt": data.vectors(),
        "cover.csv": data.cover_types(300, 1),
        "iris.data": data.flowers(150),
        "houses-train.csv": data.houses(200, 1, priced=True),
        "houses-test.csv": data.houses(40, 2, priced=False),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    numbers = [line.rpartition(",")[0] for line in files["iris.data"].splitlines()]
    (folder / "iris.csv").write_text(
        "150,4\n" + "".join(f"{row},{n // 50}\n" for n, row in enumerate(numbers))
    )
    text_data = "cloud-training-demos/blogs/CMLE_custom_prediction/keras_text_pre_processing"
    cover = "workshop-datasets/covertype/data_validation"
    for name, uri in (
        ("adult.data.csv", "cloud-samples-data/ai-platform/census/data/adult.data.csv"),
        ("train.tsv", f"{text_data}/train.tsv"),
        ("eval.tsv", f"{text_data}/eval.tsv"),
        ("training.csv", "cloud-samples-data/ai-platform/sentiment_analysis/training.csv"),
        (
            "glove.twitter.27B.50d.txt",
            "cloud-samples-data/ai-platform/sentiment_analysis/glove.twitter.27B.50d.txt",
        ),
        ("cover.csv", f"{cover}/training/dataset.csv"),
        ("cover.csv", f"{cover}/evaluation/dataset.csv"),
    ):
        emulator.create(uri.partition("/")[0])
        emulator.put(f"gs://{uri}", files[name].encode())
