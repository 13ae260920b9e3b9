"""Workers that join a job while it runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batch import job
from batch.beam import extra_workers, runners
from batch.beam.extra_workers import ExtraWorkers, ProcessorMeter, count_joining
from batch.beam.progress import ProgressReader
from batch.messages import JobOutcome, JobReport, JobRequest, ModelSource

# Once another process predicts too, the first one goes on. If the other one dies of it, the first one waits
# until that is noticed.
ROUTINE = """
    import os, signal, time
    from pathlib import Path

    class Routine:
        def __init__(self, folder):
            self.folder = folder

        @classmethod
        def from_path(cls, model_dir):
            return cls(Path(model_dir))

        def predict(self, instances, **kwargs):
            if (self.folder / "together").exists():
                self.meet()
            return [len(one) for one in instances]

        def meet(self):
            (self.folder / "seen" / str(os.getpid())).touch()
            while len(list((self.folder / "seen").iterdir())) < 2:
                time.sleep(0.01)
            if (self.folder / "deadly").exists():
                if os.getpid() != int((self.folder / "deadly").read_text()):
                    os.kill(os.getpid(), signal.SIGKILL)
                while not (self.folder / "buried").exists():
                    time.sleep(0.01)
"""
RECORDS = 180


class OneIdle:
    """One processor is idle, until a worker has it."""

    def __init__(self) -> None:
        self._idle = 1.0

    def measure_idle(self) -> float:
        idle, self._idle = self._idle, 0.0
        return idle


@pytest.fixture
def request_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRequest:
    """A job whose input is worth three workers, on a machine of one processor."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(runners, "count_cores", lambda: 1)
    monkeypatch.setattr(extra_workers, "ProcessorMeter", OneIdle)
    monkeypatch.setattr(extra_workers, "_MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(extra_workers, "_has_memory", lambda: True)
    for folder in ("packages", "model", "model/seen", "in"):
        (tmp_path / folder).mkdir()
    (tmp_path / "packages" / "meeting_routine.py").write_text(textwrap.dedent(ROUTINE))
    lines = "".join(json.dumps(str(number) + "x" * 50_000) + "\n" for number in range(RECORDS))
    (tmp_path / "in" / "rows").write_text(lines)
    model = ModelSource(
        model_dir=str(tmp_path / "model"),
        framework="CUSTOM",
        prediction_class="meeting_routine.Routine",
        packages=(str(tmp_path / "packages"),),
    )
    return JobRequest(
        job="job_1",
        uid="u1",
        model=model,
        input_paths=(str(tmp_path / "in" / "rows"),),
        output_path=str(tmp_path / "out"),
        scratch_dir=str(tmp_path / "scratch"),
        cache_dir=str(tmp_path / "cache"),
        cache_bytes=1 << 30,
    )


def run(request: JobRequest) -> tuple[JobOutcome, int]:
    """How a job has ended, and how many workers it had in all."""
    said: list[JobReport] = []
    job.run_request(request, said.append)
    assert said[-1].done is not None, said[-1]
    # Its reports do not tell: a quick job may have none after its workers have started.
    counts = ProgressReader(Path(request.scratch_dir, "meters")).read_counts(bytes_total=0)
    return said[-1].done, counts.workers


def read_results(request: JobRequest) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(request.output_path).glob("prediction.*")}


def test_a_worker_joins_and_the_results_are_the_same(request_of_three: JobRequest, tmp_path: Path) -> None:
    """To the byte those of one worker: shards are the same, and are in the same files."""
    (tmp_path / "model" / "together").touch()
    done, workers = run(request_of_three)
    assert workers == 2
    assert (done.predictions, done.errors) == (RECORDS, 0)
    assert len(list((tmp_path / "model" / "seen").iterdir())) == 2

    shutil.rmtree(tmp_path / "scratch")
    (tmp_path / "model" / "together").unlink()
    alone = msgspec.structs.replace(request_of_three, uid="u2", output_path=str(tmp_path / "alone"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneIdle, "measure_idle", lambda _: 0.9)
        assert run(alone)[1] == 1
    assert read_results(alone) == read_results(request_of_three)
    assert len(read_results(alone)) == 3 + 1  # with the counts of errors


def test_a_worker_that_joined_and_died_costs_nothing(
    request_of_three: JobRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had taken is done by the others, and no other joins."""
    (tmp_path / "model" / "together").touch()
    (tmp_path / "model" / "deadly").write_text(str(os.getpid()))
    bury, buried = ExtraWorkers._release_ended, list[int]()

    def bury_and_tell(workers: ExtraWorkers, process: Any) -> None:
        bury(workers, process)
        buried.append(process.returncode)
        (tmp_path / "model" / "buried").touch()

    monkeypatch.setattr(ExtraWorkers, "_release_ended", bury_and_tell)
    done, workers = run(request_of_three)
    assert (done.predictions, done.errors, workers) == (RECORDS, 0, 2)
    assert buried == [-9]


@pytest.mark.parametrize(
    ("idle", "waiting", "running", "most", "joining"),
    [
        (0.9, 9, 1, 10, 0),
        (1.0, 9, 1, 10, 1),
        (2.7, 9, 1, 10, 2),
        (8.0, 3, 1, 10, 3),
        (8.0, 0, 1, 10, 0),
        (8.0, 9, 8, 10, 2),
        (8.0, 9, 10, 10, 0),
        (-0.5, 9, 1, 10, 0),
    ],
)
def test_how_many_join(idle: float, waiting: int, running: int, most: int, joining: int) -> None:
    assert count_joining(idle, waiting, running, most) == joining


def test_idle_processors_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than the quota leaves, of which this machine tells what was used."""
    readings = [
        extra_workers._Reading(time=10.0, idle=100.0, used=50.0),
        extra_workers._Reading(time=12.0, idle=106.0, used=53.0),
        extra_workers._Reading(time=14.0, idle=112.0, used=57.0),
        extra_workers._Reading(time=16.0, idle=113.0, used=57.0),
    ]
    monkeypatch.setattr(extra_workers, "_read_processors", lambda: readings.pop(0))
    monkeypatch.setattr(extra_workers, "count_cores", lambda: 2)
    meter = ProcessorMeter()
    assert [meter.measure_idle() for _ in range(3)] == [0.5, 0.0, 0.5]
