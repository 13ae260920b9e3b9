"""Whatever is killed while jobs are at work: each good record is predicted once, or the job says it failed.

The long form is `tests/soak/test_batch_kills.py`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.bounds import JOB_SECONDS
from tests.emulator import Answer, Emulator, Front, running_front
from tests.end_to_end import jobs
from tests.end_to_end.killing import Battle, Victim, battle
from tests.server import until


@pytest.fixture(scope="module")
def front(emulator_server: Emulator) -> Iterator[Front]:
    """What the server takes for Cloud Storage."""
    with running_front(emulator_server.url) as front:
        yield front


@pytest.fixture(scope="module")
def field(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Battle]:
    """A server to be killed."""
    with battle(tmp_path_factory.mktemp("kills"), environment={"STORAGE_EMULATOR_HOST": front.url}) as field:
        yield field


def test_a_job_survives_the_loss_of_its_processes(field: Battle) -> None:
    """A worker and the job's own process, killed at random moments; each time a new attempt begins."""
    out = field.root / "out"
    name = field.submit("survivor", out)
    victims: list[Victim] = ["worker", "process"]
    random.shuffle(victims)

    for victim in victims:
        field.wait_for_workers(name)
        time.sleep(random.uniform(0, 1))  # that is the moment, not a wait
        assert field.kill(victim), f"the job ended before its {victim} could be killed"
        until(lambda: len(jobs.processes(field.server)["worker"]) < 2, "the attempt is over")

    assert field.check(name, out)["state"] == "SUCCEEDED"
    assert field.server.call("GET", f"/jobs/{name}").json["attempt"] == 3


@pytest.mark.soak
def test_a_half_published_result_is_never_called_whole(
    field: Battle, front: Front, emulator_server: Emulator
) -> None:
    """A server that is killed while results are moved to their places has them predicted and moved anew."""
    uri = f"gs://{emulator_server.bucket('kills')}/out"
    moving, dead = hold_second_move(front)
    name = field.submit("halved", uri)
    assert moving.wait(JOB_SECONDS)
    half = jobs.names(emulator_server, uri)
    state = jobs.get(field.server, name)["state"]

    field.kill("server")
    dead.set()
    jobs.finished(field.server, name)

    folder = jobs.download(emulator_server, uri, field.root / "downloaded")
    assert state == "RUNNING"
    assert sum(name.startswith("prediction.results-") for name in half) == 1
    assert field.check(name, folder)["state"] == "SUCCEEDED"
    assert len(list(folder.glob("prediction.results-*"))) == 2


def hold_second_move(front: Front) -> tuple[threading.Event, threading.Event]:
    """Let one file of results be moved, no other before the second event; the first says that one waits."""
    waits, goes, moved = threading.Event(), threading.Event(), threading.Event()
    turn = threading.Semaphore(1)

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        if goes.is_set() or "/rewriteTo/" not in path or "prediction.results-" not in path:
            return forward()
        if turn.acquire(blocking=False):
            answered = forward()
            moved.set()
            return answered
        moved.wait(JOB_SECONDS)
        waits.set()
        goes.wait(JOB_SECONDS)
        return Answer(503)  # nobody is there any more to read it

    front.answer = answer
    return waits, goes
