"""Jobs on real Flink, Spark and Prism: the long form. `tests.batch.engines.clusters` says what they need."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

from tests.batch.engines.clusters import FlinkCluster, SparkCluster, job_server, path_from
from tests.bounds import JOB_SECONDS
from tests.conftest import Report
from tests.end_to_end import jobs
from tests.server import running_server, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROWS = int(os.environ.get("TESTS_ENGINE_ROWS", "1000000"))
# One of so many lines is no record.
BAD_EVERY = 50
WORKERS = 2
# Within these seconds an engine must have ended a job that is cancelled, and its trouble must be told.
CANCELLED_WITHIN, TOLD_WITHIN = 10.0, 120.0


@dataclass(frozen=True)
class Input:
    """A model, rows for it, and what the embedded runner makes of them."""

    root: Path
    results: dict[str, bytes]
    seconds: float

    @property
    def model(self) -> Path:
        return self.root / "model"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Input:
    root = tmp_path_factory.mktemp("input")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 30))
    matrix = xgb.DMatrix(rows, label=rows[:, 0] * rows[:, 1] > 0)
    (root / "model").mkdir()
    xgb.train({"nthread": 1, "max_depth": 6}, matrix, 100).save_model(root / "model/model.json")
    (root / "in").mkdir()
    for part in range(8):
        with (root / f"in/part-{part}.jsonl").open("w") as file:
            for number, row in enumerate(np.round(generator.normal(size=(ROWS // 8, 30)), 6).tolist()):
                is_bad = number % BAD_EVERY == 7
                file.write("[1, 2, nonsense\n" if is_bad else json.dumps(row) + "\n")
    done = Batch(root, root / "expected", "FnApiRunner").wait()
    return Input(root, read_results(root / "expected"), done)


def read_results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("prediction.*")}


class Batch:
    """`pilotlight local batch` on the rows, at work."""

    def __init__(self, root: Path, output: Path, runner: str, options: str = "", *flags: str) -> None:
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from serving.cli import main; main()"
        )
        line = (
            f"local batch --model-dir {root}/model --input-paths {root}/in/* --output-path {output} "
            f"--runner {runner} --max-worker-count {WORKERS}"
        )
        self.output = output
        self.log = output.with_suffix(".log")
        self.begun = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", code, *shlex.split(line)),
                    *(("--pipeline-options", options) if options else ()),
                    *flags,
                ],
                stdout=log,
                stderr=log,
            )

    def wait(self, code: int = 0) -> float:
        """How many seconds it took."""
        assert self.process.wait(JOB_SECONDS * 2) == code, self.said
        return time.monotonic() - self.begun

    @property
    def said(self) -> str:
        return self.log.read_text()

    def sealed(self) -> int:
        return len(list(self.output.glob(".pilotlight/*/*/sealed/*.json")))

    def pieces(self) -> set[str]:
        return {path.name for path in self.output.glob(".pilotlight/*/*/pieces/*.results")}

    def until_sealed(self, count: int = 1) -> None:
        until(
            lambda: self.sealed() >= count or self.process.poll() is not None,
            f"{count} shards",
            seconds=JOB_SECONDS,
        )
        assert self.process.poll() is None, self.said

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def left(self) -> list[Path]:
        return [path for path in self.output.rglob("*") if path.is_file()]


@contextmanager
def batch(root: Path, output: Path, runner: str, options: str, *flags: str) -> Iterator[Batch]:
    started = Batch(root, output, runner, options, *flags)
    try:
        yield started
    finally:
        started.end()


def environment(kind: str, root: Path, address: str = "", script: str = "") -> str:
    """Beam's options for workers of our own boot or pool."""
    if kind == "EXTERNAL":
        return f"--environment_type=EXTERNAL --environment_config={address}"
    program = root / f"worker-{abs(hash(script)) % 10_000}"
    program.write_text(script or f'#!/bin/sh\nexec {sys.executable} -m batch.boot "$@"\n')
    program.chmod(0o755)
    config = json.dumps({"command": str(program)}, separators=(",", ":"))
    return f"--environment_type=PROCESS --environment_config={shlex.quote(config)}"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a worker pool."""
    log = tmp_path_factory.mktemp("pool") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "batch.pool", "--port", "0"], stdout=output, stderr=output
        )
    try:
        found = until(lambda: re.search(r"whoever asks (\S+)\n", log.read_text()), "a worker pool")
        yield found[1]
    finally:
        process.terminate()
        process.wait()


# ---- Flink


@dataclass(frozen=True)
class Flink:
    cluster: FlinkCluster
    job_server: str

    @property
    def options(self) -> str:
        return f"--flink_master={self.cluster.address} --job_endpoint={self.job_server}"

    def is_free(self) -> bool:
        overview = self.cluster.overview()
        return overview is not None and overview["slots-available"] == overview["slots-total"] == WORKERS

    def unfinished(self) -> list[str]:
        ended = ("CANCELED", "FAILED", "FINISHED")
        return [job["jid"] for job in self.cluster.jobs() if job["state"] not in ended]


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A JobManager and two TaskManagers of one slot, which ends a job that has lost one."""
    folder = tmp_path_factory.mktemp("flink")
    cluster = FlinkCluster(path_from("TESTS_FLINK"), folder)
    try:
        for number in range(WORKERS):
            cluster.add_worker(f"worker-{number}")
        jar = path_from("TESTS_FLINK_JOB_SERVER")
        with job_server(jar, folder / "server", f"--flink-master={cluster.address}") as address:
            found = Flink(cluster, address)
            until(found.is_free, "two TaskManagers")
            yield found
    finally:
        cluster.close()


@pytest.mark.parametrize("kind", ["PROCESS", "EXTERNAL"])
def test_flink_gives_the_same_bytes(
    given: Input, flink: Flink, pool: str, tmp_path: Path, report: Report, kind: str
) -> None:
    """All result files are those of the embedded runner."""
    options = f"{flink.options} {environment(kind, tmp_path, pool)}"
    with batch(given.root, tmp_path / "out", "FlinkRunner", options) as job:
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    report(f"{ROWS} rows: Flink {kind} {seconds:.1f} s, embedded {given.seconds:.1f} s")


def test_a_killed_task_manager_costs_its_own_shards(
    given: Input, flink: Flink, tmp_path: Path, report: Report
) -> None:
    """Killed after a third of the shards; what is whole by then is not computed again."""
    options = f"{flink.options} {environment('PROCESS', tmp_path)}"
    shards = sum(name.startswith("prediction.results-") for name in given.results)
    with batch(given.root, tmp_path / "out", "FlinkRunner", options) as job:
        job.until_sealed(shards // 3)
        before = job.sealed()
        flink.cluster.kill("worker-1")
        time.sleep(5)  # a machine needs some time to be replaced
        flink.cluster.add_worker("worker-1")
        pieces: set[str] = set()
        while job.process.poll() is None:
            pieces |= job.pieces()
            time.sleep(0.2)
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    assert len(pieces) <= shards + WORKERS, job.said
    report(
        f"TaskManager killed when {before} of {shards} shards were sealed: {len(pieces)} pieces, "
        f"{seconds:.1f} s"
    )
    until(flink.is_free, "two slots")


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "too many errors"])
def test_an_end_reaches_flink(given: Input, flink: Flink, tmp_path: Path, report: Report, how: str) -> None:
    """Its job is over within seconds, its slots are free, and nothing is left."""
    options = f"{flink.options} {environment('PROCESS', tmp_path)}"
    flags = ("--max-errors", "100") if how == "too many errors" else ()
    with batch(given.root, tmp_path / "out", "FlinkRunner", options, *flags) as job:
        if flags:
            until(lambda: "records failed" in job.said, "too many errors", seconds=JOB_SECONDS)
        else:
            job.until_sealed()
            job.process.send_signal(signal.Signals[how])
        start = time.monotonic()
        until(lambda: not flink.unfinished(), "Flink has ended it", seconds=CANCELLED_WITHIN)
        seconds = time.monotonic() - start
        job.wait(1 if flags else 130)

    assert job.left() == []
    until(flink.is_free, "two slots", seconds=CANCELLED_WITHIN)
    report(f"{how}: Flink's job over after {seconds:.1f} s")


def test_a_cancel_by_the_api_reaches_flink(
    given: Input, flink: Flink, tmp_path: Path, report: Report
) -> None:
    """As those of the command line."""
    options = f"{flink.options} {environment('PROCESS', tmp_path)}"
    flags = ("--batch-runner", "FlinkRunner", "--batch-options", options, "--local-folders", "/")
    with running_server(tmp_path / "state", *flags) as server:
        body = jobs.job(
            "flink", f"{given.root}/in/*", tmp_path / "out", uri=str(given.model), maxWorkerCount="2"
        )
        name = jobs.submit(server, body)
        sealed = ".pilotlight/*/*/sealed/*.json"
        until(lambda: list((tmp_path / "out").glob(sealed)), "a shard", seconds=JOB_SECONDS)
        start = time.monotonic()
        assert server.call("POST", f"{name}:cancel").status == 200
        until(lambda: not flink.unfinished(), "Flink has ended it", seconds=CANCELLED_WITHIN)
        seconds = time.monotonic() - start
        assert jobs.finished(server, name)["state"] == "CANCELLED"
        assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    report(f"API: Flink's job over after {seconds:.1f} s")


WRONG_VERSION = f"""#!/bin/sh
exec {sys.executable} -c "
import batch.worker_signs as signs, batch.boot as boot
real = signs.WorkerVersions.of_this_process()
signs.WorkerVersions.of_this_process = classmethod(lambda kind: kind(real.python, '2.1.0'))
boot.main()" "$@"
"""


@pytest.mark.parametrize(
    ("script", "more", "told"),
    [
        ("", "--parallelism=4", "4 workers wanted, 2 slots are free in Flink (2 in all, on 2 TaskManagers)"),
        ("#!/bin/sh\nexit 9\n", "", "ended with exit code 9"),
        ("#!/bin/sh\nsleep 600\n", "", "No worker has begun within 60 s, although Flink has the pipeline"),
        (WRONG_VERSION, "", "and Beam 2.1.0, the job has Python"),
    ],
)
def test_what_keeps_a_job_from_going_on_is_told(
    given: Input, flink: Flink, tmp_path: Path, report: Report, script: str, more: str, told: str
) -> None:
    """In one sentence, within two minutes."""
    options = f"{flink.options} {environment('PROCESS', tmp_path, script=script)} {more}"
    with batch(given.root, tmp_path / "out", "FlinkRunner", options) as job:
        until(lambda: told in job.said, told, seconds=TOLD_WITHIN)
        seconds = time.monotonic() - job.begun
    until(flink.is_free, "two slots", seconds=60)
    report(f"told after {seconds:.0f} s: ...{told}...")


# ---- Spark and Prism


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkCluster, str]]:
    """A master, two workers of one core, and the options that reach them."""
    folder = tmp_path_factory.mktemp("spark")
    cluster = SparkCluster(path_from("TESTS_SPARK"), folder)
    try:
        for number in range(WORKERS):
            cluster.add_worker(f"worker-{number}")
        jar = path_from("TESTS_SPARK_JOB_SERVER")
        with job_server(jar, folder / "server", f"--spark-master-url={cluster.address}") as address:
            until(lambda: (cluster.status() or {}).get("cores") == WORKERS, "two workers")
            yield cluster, f"--spark_master_url={cluster.address} --job_endpoint={address}"
    finally:
        cluster.close()


def test_spark_gives_the_same_bytes(
    given: Input, spark: tuple[SparkCluster, str], pool: str, tmp_path: Path, report: Report
) -> None:
    """All result files are those of the embedded runner."""
    options = f"{spark[1]} {environment('EXTERNAL', tmp_path, pool)}"
    with batch(given.root, tmp_path / "out", "SparkRunner", options) as job:
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    report(f"{ROWS} rows: Spark EXTERNAL {seconds:.1f} s, embedded {given.seconds:.1f} s")


def test_a_killed_executor_costs_its_own_shards(
    given: Input, spark: tuple[SparkCluster, str], tmp_path: Path, report: Report
) -> None:
    """Killed after a third of the shards."""
    cluster, options = spark
    shards = sum(name.startswith("prediction.results-") for name in given.results)
    options = f"{options} {environment('PROCESS', tmp_path)}"
    with batch(given.root, tmp_path / "out", "SparkRunner", options) as job:
        job.until_sealed(shards // 3)
        cluster.kill("worker-1")
        cluster.add_worker("worker-1")
        pieces: set[str] = set()
        while job.process.poll() is None:
            pieces |= job.pieces()
            time.sleep(0.2)
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    assert len(pieces) <= shards + WORKERS
    report(f"Spark's worker killed: {len(pieces)} pieces, {seconds:.1f} s")


def test_prism_gives_the_same_bytes(given: Input, tmp_path: Path, report: Report) -> None:
    """With a Prism of the same version as Beam."""
    options = f"--prism_location={path_from('TESTS_PRISM')}"
    with batch(given.root, tmp_path / "out", "PrismRunner", options) as job:
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    report(f"{ROWS} rows: Prism {seconds:.1f} s, embedded {given.seconds:.1f} s")
