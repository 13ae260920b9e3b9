"""When trouble is told of, and when it is not."""

from __future__ import annotations

from batch.beam.trouble_watch import TroubleWatch
from batch.engines.engine import EngineState, OpaqueEngine
from batch.worker_signs import WorkerSign


class Scene(OpaqueEngine):
    """An engine and workers that are as a test says, watched second by second."""

    def __init__(self, own_start: float = 0.0) -> None:
        super().__init__("Fake")
        self.now = 0.0
        self.trouble = ""
        self.state = EngineState.RUNNING
        self.signs: list[WorkerSign] = []
        self.told: list[tuple[float, str]] = []
        self.watch = TroubleWatch(self, lambda: self.signs, self.tell, lambda: self.now, own_start)

    def find_trouble(self) -> str:
        return self.trouble

    def find_state(self) -> EngineState:
        return self.state

    def tell(self, trouble: str) -> None:
        self.told.append((self.now, trouble))

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.watch.check()


def test_trouble_that_lasts_is_told_once() -> None:
    """And its end; what is over at the next look is nothing to talk about."""
    scene = Scene()
    scene.signs = [WorkerSign("h", 1)]
    scene.trouble = "no slots"
    scene.pass_seconds(7)
    scene.trouble = ""
    scene.pass_seconds(60)
    assert scene.told == []

    scene.trouble = "no slots"
    scene.pass_seconds(60)
    scene.trouble = ""
    scene.pass_seconds(60)
    assert [trouble for _, trouble in scene.told] == ["no slots", ""]
    assert scene.told[0][0] < 67 + 15


def test_a_worker_that_does_not_begin_is_told_of_within_two_minutes() -> None:
    """Once the job has its slots: the time in which it waits for those does not count."""
    scene = Scene()
    scene.state = EngineState.WAITING
    scene.pass_seconds(100)
    assert scene.told == []

    scene.state = EngineState.RUNNING
    scene.pass_seconds(120)
    [(when, trouble)] = scene.told
    assert 160 < when < 220
    assert trouble.startswith("No worker has begun within 60 s, although Fake has the pipeline")

    scene.signs = [WorkerSign("h", 1)]
    scene.pass_seconds(15)
    assert [trouble for _, trouble in scene.told[1:]] == [""]


def test_a_worker_may_be_as_slow_as_the_job() -> None:
    """On a busy machine all imports take minutes."""
    scene = Scene(own_start=60.0)
    scene.pass_seconds(230)
    assert scene.told == []

    scene.pass_seconds(30)
    [(_, trouble)] = scene.told
    assert trouble.startswith("No worker has begun within 240 s")


def test_a_pipeline_that_does_not_arrive_is_told_of() -> None:
    """On a busy machine it comes late all the same, and its workers have their time from then on."""
    scene = Scene()
    scene.state = EngineState.ABSENT
    scene.pass_seconds(100)
    assert [trouble for _, trouble in scene.told] == [
        "Fake has not been given the pipeline within 60 s: the log of the job server says why."
    ]

    scene.state = EngineState.RUNNING
    scene.pass_seconds(50)
    assert [trouble for _, trouble in scene.told[1:]] == [""]


def test_what_a_worker_says_itself_is_told() -> None:
    """That it has other versions, for example."""
    scene = Scene()
    scene.signs = [WorkerSign("h", 1), WorkerSign("g", 2, "other versions")]
    scene.pass_seconds(20)

    assert [trouble for _, trouble in scene.told] == ["other versions"]
    assert scene.watch.find_worker_trouble() == "other versions"
