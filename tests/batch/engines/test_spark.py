"""What Spark's master is asked and told, by a server that answers as it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batch.engines.engine import EngineState, PipelineName
from batch.engines.spark import SparkEngine, find_web_addresses
from serving.errors import Unavailable
from tests.batch.engines.clusters import free_port
from tests.batch.engines.http_peer import serve
from tests.batch.engines.manual_clock import ManualClock
from tests.batch.engines.spark_peer import SparkPeer, application, worker

NAME = PipelineName.of_job("projects/p/jobs/My_Job", "uid1")
OURS = NAME.format_attempt(1)


@pytest.fixture
def peer() -> Iterator[SparkPeer]:
    with serve(SparkPeer()) as found:
        yield found


def engine(*addresses: str, attempt: int = 1, is_named: bool = True) -> SparkEngine:
    clock = ManualClock()
    return SparkEngine(addresses, NAME, attempt, is_named=is_named, clock=clock, wait=clock.wait)


# ---- cancel


def test_all_attempts_are_ended_and_nothing_else(peer: SparkPeer) -> None:
    """It returns when the master has ended them, and asks it once for each."""
    peer.steps = 3
    peer.active = [
        application("a", OURS),
        application("b", f"{OURS}-2", "WAITING"),
        application("c", f"{OURS}-more"),
        application("d", PipelineName.of_job("projects/p/jobs/My_Job", "uid2").stem),
    ]
    engine(peer.url, attempt=2).cancel()

    assert sorted(peer.killed) == ["a", "b"]
    assert [one["id"] for one in peer.active] == ["c", "d"]


def test_an_application_that_arrives_late_is_ended_too(peer: SparkPeer) -> None:
    """The job server may be about to submit it."""
    peer.arriving = [(4, application("a", OURS))]
    engine(peer.url).cancel()

    assert peer.killed == ["a"]


def test_an_application_that_does_not_end_is_told_of(peer: SparkPeer) -> None:
    """With the reason, if the master ends none for anybody. One that does not answer may run it still."""
    peer.active, peer.steps = [application("a", OURS)], 1000
    with pytest.raises(Unavailable, match=r"Spark has not ended a within 10 s\.$"):
        engine(peer.url).cancel()

    peer.refuses = True
    with pytest.raises(
        Unavailable, match=r"within 10 s\. Its master does not end applications .* status 405"
    ):
        engine(peer.url).cancel()

    with pytest.raises(Unavailable, match=r"does not answer at http://127\.0\.0\.1.*--spark_master_webui"):
        engine(f"127.0.0.1:{free_port()}").cancel()


# ---- state


@pytest.mark.parametrize(
    ("active", "ended", "expected"),
    [
        ("WAITING", "", EngineState.WAITING),
        ("RUNNING", "", EngineState.RUNNING),
        ("RUNNING", "FAILED", EngineState.RUNNING),
        ("", "FINISHED", EngineState.ENDED),
        ("", "", EngineState.ABSENT),
    ],
)
def test_the_state_of_a_job(peer: SparkPeer, active: str, ended: str, expected: EngineState) -> None:
    """That of its current attempt; another one is not asked for."""
    peer.active = [application("z", f"{OURS}-2", "WAITING")]
    peer.active += [application("a", OURS, active)] if active else []
    peer.ended = [application("b", OURS, ended)] if ended else []

    assert engine(peer.url).find_state() is expected
    assert engine(peer.url, attempt=3).find_state() is EngineState.ABSENT


def test_the_master_that_leads_is_asked(peer: SparkPeer) -> None:
    """One that stands by knows no applications."""
    peer.active = [application("a", OURS)]
    with serve(SparkPeer(status="STANDBY")) as other:
        assert engine(other.url, peer.url).find_state() is EngineState.RUNNING
        assert f"http://{other.url}: it does not lead" in engine(other.url).find_trouble()


# ---- trouble


def test_cores_that_are_missing_are_counted(peer: SparkPeer) -> None:
    """Those of workers that are lost do not count."""
    peer.active = [application("a", OURS, "WAITING")]
    peer.workers.append(worker(1, state="DEAD"))
    told = engine(peer.url).find_trouble()

    assert told.startswith("0 cores are free in Spark (2 in all, on 2 workers): the job waits. Start workers")


def test_memory_that_is_missing_is_named(peer: SparkPeer) -> None:
    """An executor has to fit into a worker with a free core."""
    peer.active = [application("a", OURS, "WAITING", memory=4096)]
    peer.workers = [worker(1, free_memory=1500), worker(0, free_memory=8000)]

    assert (
        engine(peer.url)
        .find_trouble()
        .startswith("An executor needs 4096 MB, and the workers of Spark with a free core have 1500 MB")
    )


def test_nothing_is_said_without_trouble(peer: SparkPeer) -> None:
    """Before the application has arrived and while it runs."""
    assert engine(peer.url).find_trouble() == ""
    peer.active = [application("a", OURS)]
    assert engine(peer.url).find_trouble() == ""


def test_a_web_ui_that_nobody_has_named_may_be_elsewhere(peer: SparkPeer) -> None:
    """Silence there is no trouble until it has answered, and it is asked no more."""
    nowhere = f"127.0.0.1:{free_port()}"
    silent = engine(nowhere, is_named=False)
    assert silent.find_trouble() == ""
    assert silent.find_state() is EngineState.UNKNOWN
    silent.cancel()
    assert "--spark_master_webui" in engine(nowhere).find_trouble()

    known = engine(peer.url, is_named=False)
    assert known.find_trouble() == ""
    peer.status = "STANDBY"
    assert "it does not lead" in known.find_trouble()


def test_what_is_no_master_is_told_of(peer: SparkPeer) -> None:
    """Its default port is that of many programs."""
    peer.answer = lambda *_: (200, {"status": "UP"})  # type: ignore[method-assign]
    assert f"http://{peer.url}: it is no master of Spark" in engine(peer.url).find_trouble()


# ---- addresses and errors


@pytest.mark.parametrize(
    ("master", "web", "expected"),
    [
        ("spark://h:7077", None, ["h:8080"]),
        ("spark://h1:7077,h2:7078", None, ["h1:8080", "h2:8080"]),
        ("spark://h:7077", "w:1, w:2", ["w:1", "w:2"]),
        ("local[4]", None, []),
        ("yarn", None, []),
        ("local[4]", "w:1", ["w:1"]),
    ],
)
def test_web_addresses(master: str, web: str | None, expected: list[str]) -> None:
    """A job server that runs may know a master of which the job's options say nothing."""
    assert list(find_web_addresses(master, web)) == expected


def test_lost_executors_are_worth_another_attempt() -> None:
    """An error of a step is not."""
    lost = (
        "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of the tasks)"
    )

    assert engine().is_worker_lost(lost)
    assert not engine().is_worker_lost("java.lang.IllegalStateException: no")
