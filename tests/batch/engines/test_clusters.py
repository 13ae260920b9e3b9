"""Jobs on real Flink, Spark and Prism: the long form. `tests.batch.engines.clusters` says what they need."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.batch.engines.clusters import (
    ENGINES,
    WORKERS,
    RealEngine,
    free_port,
    path_from,
)
from tests.batch.engines.local_batch import (
    EMBEDDED,
    Batch,
    Input,
    batch,
    build_input,
    environment,
    read_results,
    write_rows,
)
from tests.bounds import JOB_SECONDS
from tests.conftest import Report
from tests.end_to_end import jobs
from tests.server import Server, running_server, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROWS = int(os.environ.get("TESTS_ENGINE_ROWS", "1000000"))
# Within these seconds an engine must have ended a job that is cancelled, and its trouble must be told.
CANCELLED_WITHIN, TOLD_WITHIN = 10.0, 120.0


@dataclass(frozen=True)
class ExpectedInput(Input):
    """And what the embedded runner makes of it, in so many seconds."""

    results: dict[str, bytes]
    seconds: float

    @property
    def shards(self) -> int:
        return sum(name.startswith("prediction.results-") for name in self.results)


class Inputs:
    """The same rows for a model of each kind, made when a test asks for the first of it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, ExpectedInput] = {}
        write_rows(root / "in", ROWS)

    def of(self, kind: str) -> ExpectedInput:
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> ExpectedInput:
        found = build_input(self._root, kind)
        output = self._root / kind / "expected"
        seconds = Batch(found, output, EMBEDDED).wait()
        return ExpectedInput(found.root, found.model, found.flags, read_results(output), seconds)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("input"))


@pytest.fixture(scope="module")
def given(inputs: Inputs) -> ExpectedInput:
    """The input of tests that need one kind of model only."""
    return inputs.of("xgboost")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_pool(tmp_path_factory.mktemp("pool")) as address:
        yield address


@contextmanager
def running_pool(folder: Path, *flags: str) -> Iterator[str]:
    """The address of a worker pool."""
    log = folder / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "batch.pool", "--port", "0", *flags]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        found = until(lambda: re.search(r"whoever asks (\S+:\d+)", log.read_text()), "a worker pool")
        yield found[1]
    finally:
        process.terminate()
        process.wait()


# ---- engines


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as found:
        found.add_workers()
        yield found


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("xgboost", "PROCESS"),
        ("xgboost", "EXTERNAL"),
        ("sklearn", "PROCESS"),
        ("tensorflow", "PROCESS"),
        ("routine", "PROCESS"),
        ("routine", "EXTERNAL"),
    ],
)
def test_an_engine_gives_the_same_bytes(
    inputs: Inputs, engine: RealEngine, pool: str, tmp_path: Path, report: Report, model: str, kind: str
) -> None:
    """All result files are those of the embedded runner."""
    given = inputs.of(model)
    options = f"{engine.options} {environment(kind, tmp_path, pool)}"
    with batch(given, tmp_path / "out", engine.runner, options) as job:
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    until(engine.is_free, "two places")
    report(f"{ROWS} rows, {model}: {engine.name} {kind} {seconds:.1f} s, embedded {given.seconds:.1f} s")


def test_a_pool_with_a_token_works_for_those_who_know_it(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """The job of another one ends with the pool's own words."""
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef\n")
    with running_pool(tmp_path, "--token-file", str(secret)) as address:
        config = json.dumps({"url": address, "params": {"token": "0123456789abcdef"}})
        options = f"{engine.options} {environment('EXTERNAL', tmp_path, config)}"
        with batch(given, tmp_path / "out", engine.runner, options) as job:
            seconds = job.wait()
        until(engine.is_free, "two places", seconds=60)
        options = f"{engine.options} {environment('EXTERNAL', tmp_path, address)}"
        with batch(given, tmp_path / "refused", engine.runner, options) as other:
            until_refused = other.wait(1)

    assert read_results(tmp_path / "out") == given.results
    assert "This worker pool takes only jobs that know its token" in other.said
    assert other.left() == []
    until(engine.is_free, "two places", seconds=60)
    report(f"{engine.name}: a pool with a token {seconds:.1f} s, refused after {until_refused:.1f} s")


@pytest.mark.parametrize("model", ["xgboost", "routine"])
def test_a_killed_worker_costs_its_own_shards(
    inputs: Inputs, engine: RealEngine, tmp_path: Path, report: Report, model: str
) -> None:
    """Killed after a third of the shards; what is whole by then is not computed again."""
    given = inputs.of(model)
    options = f"{engine.options} {environment('PROCESS', tmp_path)}"
    shards = given.shards
    assert shards >= 3, f"{ROWS} rows make {shards} shards, too few for a third (TESTS_ENGINE_ROWS)"
    with batch(given, tmp_path / "out", engine.runner, options) as job:
        job.until_sealed(shards // 3)
        before = job.sealed()
        engine.cluster.kill("worker-1")
        time.sleep(5)  # a machine needs some time to be replaced
        engine.cluster.add_worker("worker-1")
        pieces: set[str] = set()
        while job.process.poll() is None:
            pieces |= job.pieces()
            time.sleep(0.2)
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    assert len(pieces) <= shards + WORKERS, job.said
    report(
        f"{model}: {engine.name}'s worker killed when {before} of {shards} shards were sealed: "
        f"{len(pieces)} pieces, {seconds:.1f} s"
    )
    until(engine.is_free, "two places")


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("xgboost", "SIGINT"),
        ("xgboost", "SIGTERM"),
        ("xgboost", "too many errors"),
        ("routine", "SIGINT"),
    ],
)
def test_an_end_reaches_the_engine(
    inputs: Inputs, engine: RealEngine, tmp_path: Path, report: Report, model: str, how: str
) -> None:
    """Its job is over within seconds, its places are free, and nothing is left."""
    given = inputs.of(model)
    options = f"{engine.options} {environment('PROCESS', tmp_path)}"
    flags = ("--max-errors", "100") if how == "too many errors" else ()
    with batch(given, tmp_path / "out", engine.runner, options, *flags) as job:
        if flags:
            until(lambda: "records failed" in job.said, "too many errors", seconds=JOB_SECONDS)
        else:
            job.until_sealed()
            job.process.send_signal(signal.Signals[how])
        start = time.monotonic()
        until(engine.has_ended_all, "the engine has ended it", seconds=CANCELLED_WITHIN)
        seconds = time.monotonic() - start
        job.wait(1 if flags else 130)

    assert job.left() == []
    until(engine.is_free, "two places", seconds=CANCELLED_WITHIN)
    report(f"{model}, {how}: {engine.name}'s job over after {seconds:.1f} s")


@contextmanager
def submitted(given: ExpectedInput, engine: RealEngine, folder: Path) -> Iterator[tuple[Server, str]]:
    """A server with a job that has its first shard, and the name of the job."""
    options = f"{engine.options} {environment('PROCESS', folder)}"
    flags = ("--batch-runner", engine.runner, "--batch-options", options, "--local-folders", "/")
    with running_server(folder / "state", *flags) as server:
        body = jobs.job(
            "engine", f"{given.root}/in/*", folder / "out", uri=str(given.model), maxWorkerCount="2"
        )
        name = jobs.submit(server, body)
        sealed = ".pilotlight/*/*/sealed/*.json"
        until(lambda: list((folder / "out").glob(sealed)), "a shard", seconds=JOB_SECONDS)
        yield server, name


def test_a_cancel_by_the_api_reaches_the_engine(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """As those of the command line."""
    with submitted(given, engine, tmp_path) as (server, name):
        start = time.monotonic()
        assert server.call("POST", f"{name}:cancel").status == 200
        until(engine.has_ended_all, "the engine has ended it", seconds=CANCELLED_WITHIN)
        seconds = time.monotonic() - start
        assert jobs.finished(server, name)["state"] == "CANCELLED"
        assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    until(engine.is_free, "two places", seconds=CANCELLED_WITHIN)
    report(f"API: {engine.name}'s job over after {seconds:.1f} s")


def test_an_attempt_that_was_killed_is_ended_by_the_next(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """Its pipeline runs on in the engine, which has no place for another one."""
    with submitted(given, engine, tmp_path) as (server, name):
        [first] = engine.cluster.list_unfinished()
        for pid, command in server.processes().items():
            if "batch.attempt_process" in command or "-m batch" in command:
                os.kill(pid, signal.SIGKILL)
        ended = jobs.finished(server, name)

    assert ended["state"] == "SUCCEEDED", ended
    assert first not in engine.cluster.list_unfinished()
    assert read_results(tmp_path / "out") == given.results
    until(engine.is_free, "two places", seconds=CANCELLED_WITHIN)


WRONG_VERSION = f"""#!/bin/sh
exec {sys.executable} -c "
import batch.worker_signs as signs, batch.boot as boot
real = signs.WorkerVersions.of_this_process()
signs.WorkerVersions.of_this_process = classmethod(lambda kind: kind(real.python, '2.1.0'))
boot.main()" "$@"
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\nexit 9\n", "ended with exit code 9"),
        ("#!/bin/sh\nsleep 600\n", "No worker has begun within"),
        (WRONG_VERSION, "and Beam 2.1.0, the job has Python"),
    ],
    ids=["ends", "silent", "other version"],
)
def test_a_worker_that_cannot_start_is_told_of(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report, script: str, told: str
) -> None:
    """In one sentence, within two minutes."""
    options = f"{engine.options} {environment('PROCESS', tmp_path, script=script)}"
    check_told(given, engine, tmp_path, report, options, told)


RAISING = f"""#!/bin/sh
exec {sys.executable} -c "
import batch.records.readers as readers, batch.boot as boot
def read_shard(*_):
    raise RuntimeError('out of order')
readers.read_shard = read_shard
boot.main()" "$@"
"""


def test_an_error_in_a_worker_fails_the_job(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """At once, in Python's words without Java's: on other workers it would be the same. Spark would repeat it
    three times.
    """
    options = f"{engine.options} {environment('PROCESS', tmp_path, script=RAISING)}"
    with batch(given, tmp_path / "out", engine.runner, options) as job:
        seconds = job.wait(1)

    told = "The pipeline failed: RuntimeError: out of order"
    assert told in job.said
    assert "Workers were lost" not in job.said
    assert job.left() == []
    until(engine.is_free, "two places", seconds=60)
    report(f"{engine.name}, told after {seconds:.0f} s: ...{told}...")


def test_a_model_that_cannot_be_loaded_fails_the_job(
    inputs: Inputs, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """At once, as on this machine."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "other.json").write_text("[]")
    given = replace(inputs.of("routine"), model=model)
    options = f"{engine.options} {environment('PROCESS', tmp_path)}"
    with batch(given, tmp_path / "out", engine.runner, options) as job:
        seconds = job.wait(1)

    # Workers have a copy of their own.
    told = "FileNotFoundError: [Errno 2] No such file or directory: '"
    *_, last = job.said.strip().splitlines()
    assert told in last
    assert "/model/weights.json'" in last
    assert job.left() == []
    until(engine.is_free, "two places", seconds=60)
    report(f"{engine.name}, told after {seconds:.0f} s: ...{told}...")


def test_a_pool_that_is_not_there_is_told_of(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = f"{engine.options} {environment('EXTERNAL', tmp_path, address)}"
    check_told(given, engine, tmp_path, report, options, f"no worker pool answers at {address}")


def check_told(
    given: ExpectedInput, engine: RealEngine, folder: Path, report: Report, options: str, told: str
) -> None:
    with batch(given, folder / "out", engine.runner, options) as job:
        until(lambda: told in job.said, told, seconds=TOLD_WITHIN)
        seconds = time.monotonic() - job.begun
    until(engine.is_free, "two places", seconds=60)
    report(f"{engine.name}, told after {seconds:.0f} s: ...{told}...")


def test_a_job_waits_for_a_place_and_says_so(
    given: ExpectedInput, engine: RealEngine, tmp_path: Path, report: Report
) -> None:
    """It goes on as soon as there is one. Flink needs all places at once, Spark takes what there is."""
    options = f"{engine.options} {environment('PROCESS', tmp_path)}"
    if engine.name == "Flink":
        options += " --parallelism=3"
        told = "3 workers wanted, 2 slots are free in Flink (2 in all, on 2 TaskManagers): the job waits."
        missing = ["worker-2"]
    else:
        told = "0 cores are free in Spark (0 in all, on 0 workers): the job waits."
        missing = [f"worker-{number}" for number in range(WORKERS)]
        for name in missing:
            engine.cluster.kill(name)
    with batch(given, tmp_path / "out", engine.runner, options) as job:
        until(lambda: told in job.said, told, seconds=TOLD_WITHIN)
        seconds = time.monotonic() - job.begun
        for name in missing:
            engine.cluster.add_worker(name)
        job.wait()

    assert read_results(tmp_path / "out") == given.results
    if engine.name == "Flink":
        engine.cluster.kill(missing[0])
    until(engine.is_free, "two places")
    report(f"{engine.name}, told after {seconds:.0f} s: {told}")


@pytest.mark.parametrize(
    ("name", "cluster", "server"),
    [
        ("Flink", "TESTS_OTHER_FLINK", "TESTS_FLINK_JOB_SERVER"),
        ("Spark", "TESTS_SPARK", "TESTS_SPARK_OTHER_JOB_SERVER"),
    ],
    ids=["Flink", "Spark"],
)
def test_another_version_of_the_engine_is_told(
    given: ExpectedInput, tmp_path: Path, report: Report, name: str, cluster: str, server: str
) -> None:
    """The job server was built for another one than that of the cluster."""
    with ENGINES[name](tmp_path / name, cluster, server) as engine:
        engine.add_workers()
        options = f"{engine.options} {environment('PROCESS', tmp_path)}"
        with batch(given, tmp_path / "out", engine.runner, options) as job:
            told = f"The job server and the cluster have different versions of {name}"
            until(lambda: told in job.said, told, seconds=TOLD_WITHIN)
            seconds = time.monotonic() - job.begun
            job.wait(1)
    report(f"{name}, told after {seconds:.0f} s: {told}")


def test_prism_gives_the_same_bytes(given: ExpectedInput, tmp_path: Path, report: Report) -> None:
    """With a Prism of the same version as Beam."""
    options = f"--prism_location={path_from('TESTS_PRISM')}"
    with batch(given, tmp_path / "out", "PrismRunner", options) as job:
        seconds = job.wait()

    assert read_results(tmp_path / "out") == given.results
    report(f"{ROWS} rows: Prism {seconds:.1f} s, embedded {given.seconds:.1f} s")
