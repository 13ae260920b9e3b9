"""Event files of a trial whose folder is in a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator import Emulator, running_emulator
from tests.training.trials.tuning_runs import TuningRun
from tests.tuning.metrics.event_writer import write_event
from training.trials.trial_metrics import BucketEventFolder
from tuning.metrics.event_files import EventFiles


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with running_emulator() as found:
        yield found


def test_objects_that_are_replaced_are_read_on(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
    folder = f"gs://{emulator.bucket('events')}/out/1"
    files = EventFiles(BucketEventFolder(folder), "accuracy")
    files.read()
    assert files.curve.final is None
    first = write_event("accuracy", 0.25, 1)
    emulator.put(f"{folder}/eval/events.out.tfevents.1", first)
    files.read()
    emulator.put(f"{folder}/eval/events.out.tfevents.1", first + write_event("accuracy", 0.5, 2)[:-3])
    files.read()
    half_read = files.curve.take_finite()
    emulator.put(f"{folder}/eval/events.out.tfevents.1", first + write_event("accuracy", 0.5, 2))
    files.read(at_end=True)

    assert [(one.step, one.value) for one in half_read] == [(1, 0.25)]
    assert [(one.step, one.value) for one in files.curve.take_finite()] == [(2, 0.5)]


def test_a_trial_takes_its_metric_from_its_bucket(emulator: Emulator, tmp_path: Path) -> None:
    """What the program writes there counts, also without hypertune."""
    bucket = emulator.bucket("trial")
    emulator.put(f"gs://{bucket}/out/1/eval/events.out.tfevents.1", write_event("accuracy", 0.75, 3))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path / "modules"),
        "STORAGE_EMULATOR_HOST": emulator.url,
    }
    with TuningRun(tmp_path, "", environment=environment, job_dir=f"gs://{bucket}/out") as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None, report
    assert (report.final.step, report.final.value) == (3, 0.75)
