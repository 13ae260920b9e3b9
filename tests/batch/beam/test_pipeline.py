"""Whole jobs: most in this process, with one worker; those that may die in one of their own."""

from __future__ import annotations

import ast
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import psutil
import pytest
import xgboost as xgb
from apache_beam.internal import cloudpickle_pickler
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from batch import job
from batch.beam import pipeline
from batch.beam.model_handler import RuntimeHandler, SharedModel
from batch.failures import JobFailed
from batch.messages import (
    EXIT_WORKERS_LOST,
    FailureStatus,
    JobCounts,
    JobPhase,
    JobReport,
    JobRequest,
    ModelSource,
)
from batch.records import input_shards, readers
from batch.records.blocks import RecordBlock
from batch.records.input_shards import Shard, Split
from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import Unavailable
from serving.runtimes import LoadSpec, load_model
from tests.batch.models import X, build_sklearn, build_xgboost
from tests.bounds import HANG_SECONDS
from tests.server import until
from tests.written import as_written

ROUTINE = '''
    import time
    from pathlib import Path

    class Routine:
        """The length of each text; slow while there is a file called slow; fails on what begins with bad."""

        def __init__(self, folder):
            self.folder = folder

        @classmethod
        def from_path(cls, model_dir):
            return cls(Path(model_dir))

        def predict(self, instances, **kwargs):
            if (self.folder / "slow").exists():
                time.sleep(0.05 * len(instances))
            if wrong := [one for one in instances if one.startswith("bad")]:
                raise ValueError(f"{len(wrong)} are bad")
            return [len(one) for one in instances]
'''


@dataclass
class Folders:
    """Where a job of a test has its things."""

    root: Path

    @property
    def out(self) -> Path:
        return self.root / "out"

    def put(self, name: str, lines: Sequence[Any]) -> str:
        """A file of lines: bytes as they are, anything else as JSON."""
        texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        content = b"".join(text + b"\n" for text in texts)
        path = self.root / "in" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    def request(self, **details: Any) -> JobRequest:
        fields: dict[str, Any] = {
            "job": "job_1",
            "uid": "u1",
            "model": ModelSource(model_dir=str(self.root / "model")),
            "input_paths": (f"{self.root}/in/*",),
            "output_path": str(self.out),
            "scratch_dir": str(self.root / "scratch"),
            "cache_dir": str(self.root / "cache"),
            "cache_bytes": 1 << 30,
        }
        return JobRequest(**{**fields, **details})

    def results(self) -> list[Any]:
        """All predictions, file by file."""
        return [json.loads(line) for line in self.lines("prediction.results-*")]

    def errors(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("prediction.errors-*")]

    def stats(self) -> dict[str, int]:
        return dict(ast.literal_eval(line) for line in self.lines("prediction.errors_stats-*"))

    def lines(self, pattern: str) -> list[str]:
        return [line for file in sorted(self.out.glob(pattern)) for line in file.read_text().splitlines()]

    def names(self) -> list[str]:
        """All files below the output folder."""
        return sorted(str(path.relative_to(self.out)) for path in self.out.rglob("*") if path.is_file())


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Folders with an XGBoost model."""
    (tmp_path / "model").mkdir()
    build_xgboost(tmp_path / "model", None)
    return Folders(tmp_path)


@pytest.fixture
def routine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelSource]:
    """A custom routine in a package folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "slow_routine.py").write_text(textwrap.dedent(ROUTINE))
    (tmp_path / "model").mkdir(exist_ok=True)
    yield ModelSource(
        model_dir=str(tmp_path / "model"),
        framework="CUSTOM",
        prediction_class="slow_routine.Routine",
        packages=(str(tmp_path / "packages"),),
    )
    sys.modules.pop("slow_routine", None)


def ended(request: JobRequest) -> JobReport:
    """The last thing said of a job that runs here."""
    said: list[JobReport] = []
    job.run_request(request, said.append)
    assert all(report.done is None and report.failed is None for report in said[:-1])
    return said[-1]


def failed(request: JobRequest) -> FailureStatus:
    found = ended(request).failed
    assert found is not None
    return found


def expected(rows: Any, folder: Path) -> list[list[float]]:
    """The library's own predictions."""
    booster = xgb.Booster(model_file=bytearray((folder / "model.bst").read_bytes()))
    found: list[list[float]] = as_written(booster.predict(xgb.DMatrix(np.array(rows))))
    return found


# ---- jobs that end well


def test_half_of_all_records_are_malformed(folders: Folders) -> None:
    """Exactly the good ones are predicted, in order; the bad ones are counted, and named by their place."""
    wrong = [b"oops", [1, 2], ["a"] * 4, b"", {"x": 1}]
    for number in range(3):
        lines = [line for n, row in enumerate(X[:100].tolist()) for line in (row, wrong[n % 5])]
        folders.put(f"part-{number}" + (".gz" if number == 1 else ""), lines)
    done = ended(folders.request()).done

    assert done is not None
    assert (done.predictions, done.errors) == (300, 3 * 80)
    assert folders.results() == expected(X[:100], folders.root / "model") * 3
    assert sum(folders.stats().values()) == 240
    assert len(folders.stats()) == 4
    for error in folders.errors():
        content = Path(error["file"]).read_bytes()
        content = gzip.decompress(content) if error["file"].endswith(".gz") else content
        assert content[error["offset"] :].startswith(error["snippet"].encode() + b"\n")
    assert folders.names() == [
        ".pilotlight/claim",
        "prediction.errors-00000-of-00001.jsonl",
        "prediction.errors_stats-00000-of-00001",
        "prediction.results-00000-of-00001",
    ]


def test_csv_with_keys(folders: Folders) -> None:
    """Rows with their keys, and the header beside them."""
    folders.put("rows", [{"id": n, "instance": row} for n, row in enumerate(X[:10].tolist())])
    done = ended(folders.request(output_format="CSV", keys=("id",), batch_size=3)).done

    assert done is not None
    assert (folders.out / "prediction.results_header.csv").read_text() == "id,prediction\n"
    rows = folders.lines("prediction.results-00000-of-00001.csv")
    assert [row.split(",")[0] for row in rows] == [str(n) for n in range(10)]
    assert len(rows) == 10


def test_a_routine_with_rows_that_fail(folders: Folders, routine: ModelSource) -> None:
    """They are bad records, the rows of their batch are not."""
    folders.put("texts", ["x" * n if n % 4 else f"bad {n}" for n in range(100)])
    done = ended(folders.request(model=routine)).done

    assert done is not None
    assert folders.results() == [n for n in range(100) if n % 4]
    assert [error["snippet"] for error in folders.errors()] == [f'"bad {n}"' for n in range(0, 100, 4)]


def test_a_thread_of_a_model_that_dies_is_no_lost_worker(folders: Folders, routine: ModelSource) -> None:
    """What a model does in its own threads does not end a job of one worker."""
    hook = threading.excepthook
    folders.put("texts", ["x"])

    assert ended(folders.request(model=routine)).done is not None
    assert threading.excepthook is hook


# ---- jobs that fail


def test_all_records_are_malformed(folders: Folders) -> None:
    """The job fails, and its files of errors say why for each."""
    folders.put("rows", [b"oops"] * 5 + [[1, 2]])
    found = failed(folders.request())

    assert (found.status, found.predictions, found.errors) == ("INVALID_ARGUMENT", 0, 6)
    assert "All 6 records failed" in found.message
    assert "5 times: Invalid inputs: The record is not valid JSON" in found.message
    assert len(folders.errors()) == 6
    assert folders.results() == []


def test_a_later_attempt_of_a_job_that_has_ended(folders: Folders) -> None:
    """It says how that was, for a failure too, and touches nothing."""
    folders.put("rows", [b"oops"])
    first = ended(folders.request())
    names = folders.names()

    (folders.root / "in" / "rows").unlink()

    assert ended(folders.request(attempt=2)) == first
    assert folders.names() == names


@pytest.mark.parametrize("lines", [[b"", b" ", b""], []])
def test_empty_input(folders: Folders, lines: list[bytes]) -> None:
    """No records at all: the job fails, and leaves nothing."""
    folders.put("rows", lines)
    found = failed(folders.request())

    assert found.status == "INVALID_ARGUMENT"
    assert found.message.startswith("There is nothing to predict")
    assert folders.names() == []


@pytest.mark.parametrize(
    ("details", "status", "words"),
    [
        ({"input_paths": ("/no/such/file",)}, "NOT_FOUND", "/no/such/file"),
        ({"data_format": "XML"}, "INVALID_ARGUMENT", "XML"),
        ({"output_format": "XML"}, "INVALID_ARGUMENT", "XML"),
        ({"max_errors": "many"}, "INVALID_ARGUMENT", "many"),
        ({"model": ModelSource()}, "INVALID_ARGUMENT", "no model"),
        ({"model": ModelSource(model_dir="/no/such/model")}, "INVALID_ARGUMENT", "no model folder"),
        ({"model": ModelSource(uri="/no/such/model")}, "NOT_FOUND", "/no/such/model"),
        ({"data_format": "TF_RECORD"}, "INVALID_ARGUMENT", "is no TFRecord file"),
        ({"output_path": "s3://bucket/out"}, "INVALID_ARGUMENT", "s3"),
    ],
)
def test_what_cannot_be_done_is_refused(
    folders: Folders, details: dict[str, Any], status: str, words: str
) -> None:
    """A clear reason with its code, and nothing is left in the output folder."""
    folders.put("rows", X[:3].tolist())
    found = failed(folders.request(**details))

    assert found.status == status
    assert words in found.message
    assert "pilotlight-failure" not in found.message
    assert folders.names() == []


def test_an_output_path_that_cannot_be_written(folders: Folders) -> None:
    """A file where a folder should be: the error says so."""
    folders.put("rows", X[:3].tolist())
    folders.out.write_text("mine")
    found = failed(folders.request(output_path=f"{folders.out}/deeper"))

    assert found.status == "INVALID_ARGUMENT"
    assert str(folders.out) in found.message
    assert folders.out.read_text() == "mine"


def test_an_output_path_that_holds_results(folders: Folders) -> None:
    """Those of another job stay as they are."""
    folders.put("rows", X[:3].tolist())
    folders.out.mkdir()
    (folders.out / "prediction.results-00000-of-00001").write_text("theirs")
    found = failed(folders.request())

    assert found.status == "FAILED_PRECONDITION"
    assert folders.names() == ["prediction.results-00000-of-00001"]


def test_a_key_that_is_an_output(folders: Folders) -> None:
    """It is found with the first prediction, and the job says which key."""
    folders.put("rows", [{"prediction": 1, "instance": X[0].tolist()}])
    found = failed(folders.request(keys=("prediction",)))

    assert "'prediction' is a key and an output" in found.message
    assert folders.names() == []


def test_too_many_errors_at_the_end(folders: Folders) -> None:
    """A limit that is passed fails the job although there are predictions."""
    folders.put("rows", [*X[:8].tolist(), b"oops", b"{"])
    found = failed(folders.request(max_errors="10%"))

    assert found.status == "FAILED_PRECONDITION"
    assert (found.predictions, found.errors) == (8, 2)
    assert "2 of 10 records failed" in found.message
    assert folders.names() == []
    assert ended(folders.request(max_errors="20%")).done is not None


def test_input_that_changes_is_worth_another_attempt(folders: Folders) -> None:
    """Not the job fails but the attempt: what it raises says why, and nothing is said."""
    folders.put("rows", X[:3].tolist())
    said: list[JobReport] = []

    def change(report: JobReport) -> None:
        said.append(report)
        if report.phase is JobPhase.RUNNING:
            folders.put("rows", X[:4].tolist())

    with pytest.raises(JobFailed, match="was replaced"):
        job.run_request(folders.request(), change)
    assert all(report.failed is None for report in said)

    assert ended(folders.request(attempt=2)).done is not None
    assert len(folders.results()) == 4


def test_an_attempt_goes_on_where_the_last_one_ended(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that are sealed are not read again: at most the last one that was under way is."""
    for number in range(3):
        folders.put(f"part-{number}", X[number * 20 : number * 20 + 20].tolist())
    monkeypatch.setattr(input_shards, "_SHARD_BYTES", 1000)
    read: list[int] = []
    read_shard = readers.read_shard

    most = 2

    def read_some(files: FileStore, shard: Shard, data_format: str) -> Iterator[RecordBlock]:
        if len(read) == most:
            raise Unavailable("The bucket is gone for a while.")
        read.append(shard.index)
        yield from read_shard(files, shard, data_format)

    monkeypatch.setattr(readers, "read_shard", read_some)
    counts: list[JobCounts] = []
    with pytest.raises(JobFailed, match="gone for a while"):
        job.run_request(folders.request(), lambda _: None)
    first = read.copy()
    read.clear()
    most = 100
    job.run_request(
        folders.request(attempt=2), lambda said: counts.append(said.counts) if said.counts else None
    )

    assert len(first) == 2
    assert first[0] not in read
    count = len(set(first) | set(read))
    assert len(list(folders.out.glob(f"prediction.results-*-of-{count:05d}"))) == count
    assert folders.results() == expected(X[:60], folders.root / "model")
    assert all(one.predictions > 0 for one in counts)


def test_cleaning_up(folders: Folders) -> None:
    """Nothing of the job is left, whatever it had done."""
    folders.put("rows", X[:3].tolist())
    ended(folders.request())
    assert ended(folders.request(clean=True)).done is not None

    assert folders.names() == []


# ---- steps


def test_every_step_can_be_sent(folders: Folders) -> None:
    """Steps and what they hold go to workers by cloudpickle, before they are first used."""
    model = SharedModel(ModelSource(model_dir=str(folders.root / "model")), "", 0)
    split = Split(FileInfo("gs://bucket/x", 1, "1", gzip=False), 0, 1)
    plan = pipeline.PipelinePlan(
        FileStore(), [Shard(0, (split,))], "JSON", "JSON", model, {}, 0, ("id",), "gs://b/out", ""
    )
    steps = beam.Pipeline()
    pipeline.build_pipeline(steps, plan)
    found: dict[str, Any] = {}

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: AppliedPTransform) -> None:
            if isinstance(node.transform, beam.ParDo):
                found[node.full_label] = node.transform.fn

    steps.visit(Visitor())

    assert {"Read", "Decode", "Encode", "Write", "Seal"} < found.keys()
    assert any("Predict" in label for label in found)
    for step in found.values():
        assert type(cloudpickle_pickler.loads(cloudpickle_pickler.dumps(step))) is type(step)
    handler = cloudpickle_pickler.loads(cloudpickle_pickler.dumps(RuntimeHandler(model, {}, 3)))
    assert handler.load_model().framework.name == "XGBOOST"


# ---- jobs in processes of their own


class Running:
    """A job as the server runs it, and what it says."""

    def __init__(self, request: JobRequest) -> None:
        remote_end, self._lifeline = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autoscaler.module_process", str(remote_end), "batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(remote_end,),
            start_new_session=True,
        )
        os.close(remote_end)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(request))
        self.process.stdin.close()
        self.said: list[JobReport] = []
        self.log = b""
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_log)]
        for reader in self._readers:
            reader.start()

    def counts(self) -> JobCounts:
        """The last ones told."""
        return next((said.counts for said in reversed(self.said) if said.counts), JobCounts())

    def workers(self) -> list[psutil.Process]:
        return [
            one
            for one in psutil.Process(self.process.pid).children(recursive=True)
            if "batch.beam.worker" in " ".join(one.cmdline())
        ]

    def wait(self) -> int:
        """Its exit code, once all its processes are gone; they may take five seconds."""
        code = self.process.wait(HANG_SECONDS)
        until(lambda: not self._group(), f"no process is left: {self._group()}")
        for reader in self._readers:
            reader.join()
        return code

    def end(self) -> None:
        os.close(self._lifeline)
        if self._group():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _group(self) -> list[str]:
        found = []
        for one in psutil.process_iter(["pid", "cmdline", "status"]):
            try:
                is_ours = os.getsid(one.pid) == self.process.pid
            except ProcessLookupError:
                continue
            if is_ours and one.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(" ".join(one.info["cmdline"] or ["?"]))
        return found

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.said.append(msgspec.json.decode(line, type=JobReport))

    def _read_log(self) -> None:
        for line in self.process.stderr or ():
            self.log += line


@contextmanager
def running(request: JobRequest) -> Iterator[Running]:
    found = Running(request)
    try:
        yield found
    finally:
        found.end()


def test_a_small_job(folders: Folders) -> None:
    """A hundred rows: its phases, its counts, its results and its end."""
    build_sklearn(folders.root / "model", None)
    (folders.root / "model" / "model.bst").unlink()
    rows = X[:100].tolist()
    folders.put("rows", rows)
    with running(folders.request()) as found:
        code = found.wait()

    assert code == 0, found.log.decode()
    assert [said.phase for said in found.said if said.phase] == list(JobPhase)
    done = found.said[-1].done
    assert done is not None
    assert (done.predictions, done.errors) == (100, 0)
    assert 0 < done.seconds <= done.worker_seconds
    batch = load_model(LoadSpec(folders.root / "model")).predict(np.array(rows))
    assert folders.results() == np.asarray(batch).tolist()
    assert b"Traceback" not in found.log


def test_a_hopeless_job_is_stopped(folders: Folders, routine: ModelSource) -> None:
    """With more errors than it may have it ends long before its input does, and leaves nothing."""
    (folders.root / "model" / "slow").touch()
    for number in range(60):
        folders.put(f"part-{number:02d}", ["fine", "bad", "fine", "fine"])
    with running(folders.request(model=routine, max_errors="3")) as found:
        code = found.wait()

    assert code == 0, found.log.decode()
    end = found.said[-1].failed
    assert end is not None
    assert end.status == "FAILED_PRECONDITION"
    assert "records failed; at most 3 may." in end.message
    assert "/in/part-00 at byte 7: " in end.message
    assert 3 < end.errors < 40
    assert folders.names() == []


@pytest.mark.soak
def test_killed_workers_and_killed_jobs(folders: Folders, routine: ModelSource) -> None:
    """An attempt whose worker is killed is lost, and so is one that is killed itself: nothing is published.

    The next one, whose two workers share a large file and a small one, gives each record its one result.
    """
    slow = folders.root / "model" / "slow"
    slow.touch()
    texts = [str(number) + "x" * 50_000 for number in range(180)]
    size = len(Path(folders.put("large", texts[:170])).read_bytes())
    size += len(Path(folders.put("small", texts[170:])).read_bytes())
    request = folders.request(model=routine, max_workers=2)

    def work(found: Running) -> None:
        until(lambda: found.counts().predictions > 0, f"it is at work: {found.log!r}")

    with running(request) as found:
        work(found)
        found.workers()[1].kill()
        assert found.wait() == EXIT_WORKERS_LOST, found.log.decode()
    assert not any(said.done or said.failed for said in found.said)
    with running(msgspec.structs.replace(request, attempt=2, max_workers=1)) as found:
        work(found)
        found.process.kill()
        assert found.wait() == -signal.SIGKILL
    assert not list(folders.out.glob("prediction*"))

    slow.unlink()
    with running(msgspec.structs.replace(request, attempt=3)) as found:
        assert found.wait() == 0, found.log.decode()
    done = found.said[-1].done
    assert done is not None
    assert (done.predictions, done.errors) == (180, 0)
    assert (found.counts().workers, found.counts().bytes_total) == (2, size)
    assert folders.results() == [len(text) for text in texts]
    assert len(list(folders.out.glob("prediction.results-*-of-00002"))) == 2
    assert all(name.startswith("prediction.") or name.endswith("/claim") for name in folders.names())


def test_what_is_no_request(tmp_path: Path) -> None:
    """It is told as a failure, for which no other attempt is made."""
    done = subprocess.run(
        [sys.executable, "-m", "batch"], input=b'{"job": 1}', capture_output=True, timeout=60, check=True
    )

    assert msgspec.json.decode(done.stdout, type=JobReport).failed is not None
