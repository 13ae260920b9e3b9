"""Cloud Storage that answers 429, 500 and 503, or does not answer: it is ridden out, or said clearly."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import HANG_SECONDS
from tests.emulator import Answer, Emulator, Front, running_front
from tests.end_to_end import jobs, models
from tests.server import Server, running_server, until

MODEL = "projects/faults/models/m"
VERSION = f"{MODEL}/versions/v1"
ROWS = models.data()[0][:2].tolist()
# What Cloud Storage says when it cannot, in turn.
TROUBLES = (429, 503, 500)


@pytest.fixture(scope="module")
def front(emulator_server: Emulator) -> Iterator[Front]:
    """What the server takes for Cloud Storage."""
    with running_front(emulator_server.url) as front:
        yield front


@pytest.fixture(autouse=True)
def mended(front: Front) -> Iterator[None]:
    """After each test, it works again."""
    yield
    front.answer = works


@pytest.fixture(scope="module")
def forest(emulator_server: Emulator, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A model in a bucket, and its estimator."""
    folder = tmp_path_factory.mktemp("forest")
    estimator = models.write_sklearn(folder)
    uri = f"gs://{emulator_server.bucket('faults')}/forest"
    emulator_server.upload(folder, uri)
    return uri, estimator


@pytest.fixture(scope="module")
def server(
    front: Front, forest: tuple[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that lives through it all, with one version."""
    folder = tmp_path_factory.mktemp("storage") / "state"
    with running_server(folder, environment={"STORAGE_EMULATOR_HOST": front.url}) as server:
        server.create_model(MODEL)
        server.create_version(VERSION, deploymentUri=forest[0])
        yield server
        assert server.stop() == 0


def works(_: str, forward: Callable[[], Answer]) -> Answer:
    return forward()


def fails(_: str, __: Callable[[], Answer]) -> Answer:
    return Answer(503)


def in_turn() -> Callable[[str, Callable[[], Answer]], Answer]:
    """Fails every other time it is asked, each time in another way."""
    count = itertools.count()
    lock = threading.Lock()

    def answer(_: str, forward: Callable[[], Answer]) -> Answer:
        with lock:
            number = next(count)
        return Answer(TROUBLES[number // 2 % 3]) if number % 2 == 0 else forward()

    return answer


def copied(emulator: Emulator, forest: tuple[str, Any], name: str) -> str:
    """The model under another address, which is in no cache."""
    uri = f"{forest[0]}_{name}"
    emulator.put(f"{uri}/model.joblib", emulator.get(f"{forest[0]}/model.joblib"))
    return uri


def test_a_creation_rides_out_failures(
    server: Server, front: Front, emulator_server: Emulator, forest: tuple[str, Any]
) -> None:
    """429, 503 and 500 to the listing and to the downloads."""
    name = f"{MODEL}/versions/ridden"
    uri = copied(emulator_server, forest, "ridden")
    front.answer = in_turn()

    server.create_version(name, deploymentUri=uri)

    assert server.predict(name, ROWS).json == {"predictions": forest[1].predict(ROWS).tolist()}
    server.delete(name)


def test_waking_needs_no_storage(server: Server, front: Front) -> None:
    """A version that was made is started while Cloud Storage is down."""
    assert server.predict(VERSION, ROWS).status == 200
    front.answer = fails
    for pid in server.nodes(VERSION):
        os.kill(pid, signal.SIGKILL)

    assert server.predict(VERSION, ROWS).status == 200


@pytest.mark.parametrize("seconds", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_a_creation_outlives_a_storage_that_hangs(
    server: Server, front: Front, emulator_server: Emulator, forest: tuple[str, Any], seconds: float
) -> None:
    """Everything else goes on meanwhile, and a request that is never answered is given up and made again."""
    name = f"{MODEL}/versions/hung_{seconds}"
    uri = copied(emulator_server, forest, f"hung_{seconds}")
    over = threading.Event()
    asked = threading.Event()

    def hang(_: str, forward: Callable[[], Answer]) -> Answer:
        asked.set()
        over.wait(300)
        return forward()

    front.answer = hang
    try:
        operation = server.begin_version(name, deploymentUri=uri)
        assert asked.wait(HANG_SECONDS)
        front.answer = works if seconds > 30 else hang
        over.wait(seconds)
        assert server.predict(VERSION, ROWS).status == 200
        if seconds > 30:
            server.wait(operation)  # the first request is never answered
    finally:
        over.set()

    assert server.wait(operation)["response"]["state"] == "READY"
    server.delete(name)


@pytest.mark.soak
def test_a_storage_that_stays_away(
    server: Server, front: Front, emulator_server: Emulator, forest: tuple[str, Any]
) -> None:
    """The creation fails after a minute and says why; later it works, without a restart."""
    name = f"{MODEL}/versions/away"
    uri = copied(emulator_server, forest, "away")
    front.answer = fails
    operation = server.wait(server.begin_version(name, deploymentUri=uri), seconds=180)
    front.answer = works

    message = operation["error"]["message"]
    assert message.startswith("Create Version failed. Cloud Storage kept failing on gs://")
    assert "HTTP status 503" in message
    server.delete(name)
    server.create_version(name, deploymentUri=uri)
    server.delete(name)


@pytest.mark.soak
def test_a_job_rides_out_failures(
    server: Server, front: Front, emulator_server: Emulator, tmp_path: Path
) -> None:
    """Every other request of its reading, writing and moving fails; each record has its result once."""
    bucket = f"gs://{emulator_server.bucket('jobs')}"
    rows = [[float(number), 0.0, 0.0, 0.0] for number in range(60)]
    for part in range(2):
        file = jobs.write_lines(tmp_path / f"{part}.jsonl", rows[part::2])
        emulator_server.put(f"{bucket}/in/{file.name}", file.read_bytes())
    front.answer = in_turn()

    name = jobs.submit(
        server, jobs.job("rides", f"{bucket}/in/*", f"{bucket}/out", versionName=VERSION), "faults"
    )
    ended = jobs.finished(server, name)
    front.answer = works

    assert jobs.outcome(ended) == ("SUCCEEDED", 60, 0), ended
    folder = jobs.download(emulator_server, f"{bucket}/out", tmp_path / "out")
    assert len(jobs.results(folder)) == 60
    until(lambda: not any(jobs.processes(server).values()), "no process is left")
