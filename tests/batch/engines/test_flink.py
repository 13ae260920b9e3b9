"""What Flink is asked and told, by a server that answers as it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batch.engines.engine import EngineState, PipelineName
from batch.engines.flink import FlinkEngine
from serving.errors import Unavailable
from tests.batch.engines.clusters import free_port
from tests.batch.engines.flink_peer import FlinkPeer, job
from tests.batch.engines.http_peer import serve
from tests.batch.engines.manual_clock import ManualClock

NAME = PipelineName.of_job("projects/p/jobs/My_Job", "uid1")
OURS = NAME.format_attempt(1)


@pytest.fixture
def peer() -> Iterator[FlinkPeer]:
    with serve(FlinkPeer()) as found:
        yield found


def engine(peer: FlinkPeer, attempt: int = 1) -> FlinkEngine:
    time = ManualClock()
    return FlinkEngine(peer.url, NAME, attempt, clock=time, wait=time.wait)


# ---- cancel


def test_all_attempts_are_cancelled_and_nothing_else(peer: FlinkPeer) -> None:
    """Those that have ended are left alone; it returns when Flink has ended the others."""
    peer.steps = 3
    peer.jobs = [
        job("a", OURS),
        job("b", f"{OURS}-2", "RESTARTING"),
        job("c", f"{OURS}-3", "FAILED"),
        job("d", f"{OURS}-more"),
        job("e", PipelineName.of_job("projects/p/jobs/My_Job", "uid2").stem),
    ]
    engine(peer, 2).cancel()

    assert [one["state"] for one in peer.jobs] == ["CANCELED", "CANCELED", "FAILED", "RUNNING", "RUNNING"]
    assert sorted(line for line in peer.asked if "PATCH" in line) == ["PATCH /jobs/a", "PATCH /jobs/b"]


def test_a_job_that_arrives_late_is_cancelled_too(peer: FlinkPeer) -> None:
    """The job server may be about to submit it."""
    peer.arriving = [(4, job("a", OURS))]
    engine(peer).cancel()

    assert [one["state"] for one in peer.jobs] == ["CANCELED"]


def test_a_job_that_does_not_end_is_told_of(peer: FlinkPeer) -> None:
    """It may hold its slots; a Flink that does not answer may run it still."""
    peer.jobs, peer.steps = [job("a", OURS)], 1000
    with pytest.raises(Unavailable, match=r"Flink has not ended a within 10 s\."):
        engine(peer).cancel()

    peer.url = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=r"Flink does not answer at http://127\.0\.0\.1"):
        engine(peer).cancel()


# ---- state


@pytest.mark.parametrize(
    ("state", "tasks", "expected"),
    [
        ("CREATED", {"created": 28}, EngineState.WAITING),
        ("RUNNING", {"scheduled": 28}, EngineState.WAITING),
        ("RUNNING", {"scheduled": 14, "running": 14}, EngineState.RUNNING),
        ("RUNNING", {"created": 7, "finished": 7}, EngineState.RUNNING),
        ("RUNNING", {"scheduled": 7, "deploying": 7}, EngineState.RUNNING),
        ("RESTARTING", {"canceled": 7}, EngineState.RUNNING),
        ("CANCELED", {"canceled": 7}, EngineState.ENDED),
    ],
)
def test_the_state_of_a_job(
    peer: FlinkPeer, state: str, tasks: dict[str, int], expected: EngineState
) -> None:
    """It waits while all its tasks do; a job of another attempt is not asked for."""
    peer.jobs = [job("z", f"{OURS}-2", "RUNNING", running=1), job("a", OURS, state, **tasks)]

    assert engine(peer).find_state() is expected
    assert engine(peer, 3).find_state() is EngineState.ABSENT


# ---- trouble


def test_slots_that_are_missing_are_counted(peer: FlinkPeer) -> None:
    """Those that the waiting job holds already are free for it."""
    peer.jobs, peer.parallelism = [job("a", OURS, scheduled=28)], 4
    peer.slots, peer.held = (3, 1), {"a": 1, "other": 1}

    assert (
        engine(peer)
        .find_trouble()
        .startswith(
            "4 workers wanted, 2 slots are free in Flink (3 in all, on 1 TaskManager): the job waits. "
        )
    )


def test_a_restart_is_told_with_its_reason(peer: FlinkPeer) -> None:
    """The root of what Flink calls the root exception."""
    peer.jobs = [job("a", OURS, "RESTARTING")]
    peer.exception = (
        "org.apache.flink.runtime.JobException: Recovery\n\tat org.apache.flink.X.y(X.java:1)\n"
        "Caused by: java.util.concurrent.TimeoutException: Heartbeat of TaskManager tm1 timed out.\n"
        "\tat org.apache.flink.Z.run(Z.java:3)\n\t... 17 more\n"
    )
    found = engine(peer).find_trouble()

    assert found == (
        "Flink restarts the job: java.util.concurrent.TimeoutException: "
        "Heartbeat of TaskManager tm1 timed out."
    )
    assert engine(peer).is_worker_lost(peer.exception)
    assert not engine(peer).is_worker_lost("java.lang.IllegalArgumentException: no such option")


def test_an_error_in_a_worker_is_no_loss_of_it(peer: FlinkPeer) -> None:
    """As Flink 1.19 and Beam's job server 2.62 put it: what Python raises, it raises on other workers too."""
    raised = (
        "java.lang.RuntimeException: Error received from SDK harness for instruction 5: Traceback (most "
        "recent call last):\nModuleNotFoundError: No module named 'mine'"
    )

    for lost in (
        "java.lang.IllegalStateException: SDK harness closed connection",
        "java.util.concurrent.TimeoutException: The heartbeat of JobManager with id 8a6e71 timed out.",
    ):
        assert engine(peer).is_worker_lost(lost)
    assert not engine(peer).is_worker_lost(raised)


def test_nothing_is_said_without_trouble(peer: FlinkPeer) -> None:
    """Before the job has arrived, while it runs, after its end; without Flink there is something to say."""
    assert engine(peer).find_trouble() == ""
    peer.jobs = [job("a", OURS, running=7)]
    assert engine(peer).find_trouble() == ""

    peer.url = f"127.0.0.1:{free_port()}"
    assert "does not answer" in engine(peer).find_trouble()
    assert engine(peer).find_state() is EngineState.UNKNOWN


def test_workers_fit_into_the_slots(peer: FlinkPeer) -> None:
    """A cluster without slots starts them on demand, and one that does not answer may have any number."""
    assert (engine(peer).limit_workers(10), engine(peer).limit_workers(1)) == (2, 1)
    peer.slots = (0, 0)
    assert engine(peer).limit_workers(10) == 10
    peer.url = f"127.0.0.1:{free_port()}"
    assert engine(peer).limit_workers(10) == 10
