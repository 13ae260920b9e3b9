"""`pilotlight local batch`: the job's process, from the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import joblib
import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end.models import data
from tests.server import processes_of, until
from tests.serving.cli.conftest import Run

ROWS = data()[0].tolist()
# Answers slowly, and says in a file that it has begun.
SLOW = '''
import time
from pathlib import Path

class Predictor:
    """Takes its time."""

    def __init__(self, folder):
        self.folder = folder

    def predict(self, instances, **kwargs):
        (self.folder / "begun").touch()
        time.sleep(0.1 * len(instances))
        return instances

    @classmethod
    def from_path(cls, model_dir):
        return cls(Path(model_dir))
'''


def lines(rows: Sequence[object]) -> str:
    """A file of rows."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def results(folder: Path) -> list[object]:
    """The predictions in a folder."""
    files = sorted(folder.glob("prediction.results-*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_files_in_and_files_out(offline: Run, models_dir: Path, tmp_path: Path) -> None:
    """Results are the library's own, in files; the rest is told on stderr. Paths may be relative."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(lines(ROWS[:50]))
    (tmp_path / "in" / "b.jsonl").write_text(lines(ROWS[50:]))
    command = f"local batch --model-dir {models_dir / 'forest'} --input-paths in/*"
    done = offline(f"{command} --output-path out")
    again = offline(f"{command} --output-path out")

    assert done.code == 0, done.err
    assert done.out == ""
    expected = joblib.load(models_dir / "forest" / "model.joblib").predict(ROWS).tolist()
    assert results(tmp_path / "out") == expected
    assert f"Results: {tmp_path / 'out'}/prediction.results-*\n" in done.err
    assert "RUNNING" in done.err
    assert done.err.splitlines()[-1].startswith("90 predictions, 0 errors in ")
    assert (again.code, again.out) == (1, "")
    assert "results of another job" in again.err.splitlines()[-1]


def test_a_custom_routine_with_bad_records(offline: Run, models_dir: Path, tmp_path: Path) -> None:
    """Keys pass, bad records are counted and where they are named is told; --format json tells programs."""
    rows: list[object] = [{"id": 7, "instance": "one"}, {"id": 8, "instance": "raise"}, {"instance": "x"}]
    (tmp_path / "rows.jsonl").write_text(lines(rows))
    code = f"--prediction-class cli_routine.Predictor --package-uris {models_dir / 'routine.tar.gz'}"
    where = "--input-paths rows.jsonl --output-path out --keys id --format json"
    done = offline(f"local batch --model-dir {models_dir / 'forest'} {code} {where}")

    assert done.code == 0, done.err
    outcome = done.json
    assert outcome.pop("nodeHours") > 0
    assert outcome == {"outputPath": str(tmp_path / "out"), "predictionCount": "1", "errorCount": "2"}
    assert f"Errors: {tmp_path / 'out'}/prediction.errors-*.jsonl\n" in done.err
    [result] = results(tmp_path / "out")
    assert isinstance(result, dict)
    assert result["id"] == 7


def test_what_can_be_refused_at_once_is(offline: Run, models_dir: Path, tmp_path: Path) -> None:
    """No model, no input and wrong flags end the command with a sentence, and write nothing."""
    forest = models_dir / "forest"
    where = "--input-paths nothing* --output-path out"
    no_model = offline(f"local batch --model-dir {tmp_path} {where}")
    no_input = offline(f"local batch --model-dir {forest} {where}")
    no_number = offline(f"local batch --model-dir {forest} {where} --max-errors many")
    no_words = offline(f"""local batch --model-dir {forest} {where} --pipeline-options '"--a'""")

    assert no_model.code == no_input.code == 1
    assert "ERROR: Failed to load model" in no_model.err
    assert f"{tmp_path}/nothing*" in no_input.err
    assert no_number.code == no_words.code == 2
    assert "--max-errors" in no_number.err
    assert "--pipeline-options" in no_words.err
    assert not (tmp_path / "out").exists()


def test_without_beam(offline: Run, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "apache_beam" else find_spec(name)
    )
    flags = f"--model-dir {models_dir / 'forest'} --input-paths rows --output-path out"
    missing = offline(f"local batch {flags}")

    assert missing.code == 1
    assert missing.err == "ERROR: Batch needs Apache Beam: pip install 'pilotlight[batch]'\n"


@contextmanager
def slow_batch(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command at work on a model that takes a minute, with its output in `folder/out`."""
    model, packages = folder / "slow", folder / "packages"
    model.mkdir()
    packages.mkdir()
    (packages / "slow.py").write_text(SLOW)
    (model / "notes.txt").write_text("no files are needed")
    (folder / "rows.jsonl").write_text(lines(list(range(600))))
    line = (
        f"local batch --model-dir {model} --prediction-class slow.Predictor --batch-size 1 "
        f"--input-paths {folder}/rows.jsonl --output-path {folder}/out"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from serving.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *shlex.split(line)],
        env={
            **os.environ,
            "PYTHONPATH": str(packages),
            "TESTS_STATE_DIR": str(folder),
            "TMPDIR": str(folder),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        until(lambda: (model / "begun").exists() or process.poll() is not None, "it predicts")
        yield process
        process.kill()


def left(folder: Path) -> list[Path]:
    """The files that are left in a folder, at any depth."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends it with all its processes and leaves nothing of its output."""
    with slow_batch(tmp_path) as process:
        assert list((tmp_path / "out").rglob("claim"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_SECONDS)

    assert process.returncode == 130, err
    assert left(tmp_path / "out") == []
    until(lambda: not processes_of(tmp_path), "its processes are gone")


def test_its_process_dies(tmp_path: Path) -> None:
    """A job that is killed says so, and leaves nothing of its output."""
    with slow_batch(tmp_path) as process:
        [job] = [
            pid
            for pid, command in processes_of(tmp_path).items()
            if "autoscaler.module_process" in command and command.split()[-1] == "batch"
        ]
        os.kill(job, signal.SIGKILL)
        _, err = process.communicate(timeout=HANG_SECONDS)

    assert process.returncode == 1
    assert "SIGKILL" in err.splitlines()[-1]
    assert left(tmp_path / "out") == []


@pytest.mark.soak
def test_lost_workers_are_tried_again(offline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the server does it: the second attempt ends well."""
    model, packages = tmp_path / "model", tmp_path / "packages"
    model.mkdir()
    packages.mkdir()
    lost = "(self.folder / 'lost').exists() or ((self.folder / 'lost').touch(), __import__('os')._exit(70))"
    (packages / "losing.py").write_text(SLOW.replace("time.sleep(0.1 * len(instances))", lost))
    (model / "notes.txt").write_text("no files are needed")
    (tmp_path / "rows.jsonl").write_text(lines([1, 2]))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    done = offline(
        f"local batch --model-dir {model} --prediction-class losing.Predictor --input-paths rows.jsonl "
        "--output-path out"
    )

    assert done.code == 0, done.err
    assert "Workers were lost. Attempt 2 of 4 begins." in done.err
    assert results(tmp_path / "out") == [1, 2]


def test_killed(tmp_path: Path) -> None:
    """Even a command that cannot clean up takes its processes with it."""
    with slow_batch(tmp_path) as process:
        process.kill()
        process.wait()

        until(lambda: not processes_of(tmp_path), "its processes are gone")
