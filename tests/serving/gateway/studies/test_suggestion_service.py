"""Who answers requests for suggestions, when processes are lost, idle, or too few."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from autoscaler.supervision import Supervisor
from serving.errors import Internal, Unavailable
from serving.gateway.state.study_records import StudySnapshot
from serving.gateway.studies.suggestion_process import SuggesterLost
from serving.gateway.studies.suggestion_service import SuggestionLimits, SuggestionService
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.catalog.study_world import StudyWorld
from tuning.messages import ImportanceAnswer, SuggestionAnswer, TuningAnswer, TuningFailure

LIMITS = SuggestionLimits()
ANSWER = SuggestionAnswer(({"x": 0.5, "depth": 1},))


class FakeProcesses:
    """Processes that answer once `go` is set, as it is at first, one of the `answers` to each request."""

    def __init__(self) -> None:
        self.started = self.running = 0
        self.asked: list[bytes] = []
        self.answers: list[TuningAnswer | Exception] = []
        self.start_error: Exception | None = None
        self.has_ended = False
        self.go = asyncio.Event()
        self.go.set()
        self.ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncGenerator[FakeProcesses]:
        if self.start_error is not None:
            raise self.start_error
        self.started += 1
        self.running += 1
        self.has_ended = False
        try:
            yield self
        finally:
            self.running -= 1
            self.ended.set()

    async def ask(self, line: bytes, within: float) -> TuningAnswer:
        self.asked.append(line)
        await self.go.wait()
        answer = self.answers.pop(0) if self.answers else ANSWER
        if isinstance(answer, Exception):
            raise answer
        return answer


class Scene:
    """The service over fake processes, and a study."""

    def __init__(self, limits: SuggestionLimits) -> None:
        self.processes = FakeProcesses()
        self.service = SuggestionService(self.processes.connect, Supervisor(), limits)
        self.snapshot: StudySnapshot = StudyWorld().snapshot

    def ask(self) -> asyncio.Task[SuggestionAnswer]:
        return asyncio.create_task(self.service.suggest_points(self.snapshot, 1))

    async def until_asked(self, count: int) -> None:
        while len(self.processes.asked) < count:  # noqa: ASYNC110  a thread takes part
            await asyncio.sleep(0.001)


def run(main: Callable[[Scene], Awaitable[None]], limits: SuggestionLimits = LIMITS) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            scene = Scene(limits)
            try:
                await main(scene)
            finally:
                await scene.service.close()

    asyncio.run(bounded())


def test_one_process_answers_one_request_after_the_other() -> None:
    async def main(scene: Scene) -> None:
        assert [await scene.ask() for _ in range(3)] == [ANSWER] * 3
        assert scene.processes.started == 1
        assert len(set(scene.processes.asked)) == 1

    run(main)


def test_requests_at_the_same_time_get_as_many_processes_as_there_may_be() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        tasks = [scene.ask() for _ in range(5)]
        await scene.until_asked(2)
        assert scene.processes.started == scene.service.process_count == 2
        scene.processes.go.set()
        assert await asyncio.gather(*tasks) == [ANSWER] * 5
        assert scene.processes.started == 2

    run(main)


def test_an_idle_process_is_ended() -> None:
    """And the next request starts another."""

    async def main(scene: Scene) -> None:
        await scene.ask()
        await scene.processes.ended.wait()
        assert scene.processes.running == 0
        assert await scene.ask() == ANSWER
        assert scene.processes.started == 2

    run(main, SuggestionLimits(idle_seconds=0.01))


def test_a_lost_process_is_replaced_and_asked_the_same() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.answers = [SuggesterLost("it has ended")]
        assert await scene.ask() == ANSWER
        assert scene.processes.started == 2
        assert len(set(scene.processes.asked)) == 1

    run(main)


def test_the_request_of_a_lost_process_goes_to_an_idle_one_at_once() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        both = [scene.ask(), scene.ask()]
        await scene.until_asked(2)
        scene.processes.go.set()
        await asyncio.gather(*both)
        scene.processes.answers = [SuggesterLost("it has ended")]
        async with asyncio.timeout(HANG_SECONDS / 2):
            assert await scene.ask() == ANSWER
        assert scene.processes.started == 2

    run(main, SuggestionLimits(idle_seconds=10 * HANG_SECONDS))


def test_processes_that_have_ended_while_idle_are_replaced() -> None:
    """However many there are: none of them was asked."""

    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        both = [scene.ask(), scene.ask()]
        await scene.until_asked(2)
        scene.processes.go.set()
        await asyncio.gather(*both)
        scene.processes.has_ended = True
        assert await scene.ask() == ANSWER
        assert len(scene.processes.asked) == 3

    run(main)


def test_a_request_that_ends_every_process_is_given_up() -> None:
    """Others are answered all the same."""

    async def main(scene: Scene) -> None:
        scene.processes.answers = [SuggesterLost("it has ended"), SuggesterLost("it has ended")]
        with pytest.raises(Internal, match="it has ended"):
            await scene.ask()
        assert await scene.ask() == ANSWER

    run(main, SuggestionLimits(processes=1))


@pytest.mark.parametrize("error", [OSError("no memory"), SuggesterLost("it ended while it started")])
def test_nobody_waits_for_a_process_that_does_not_start(error: Exception) -> None:
    """A later request tries again."""

    async def main(scene: Scene) -> None:
        scene.processes.start_error = error
        with pytest.raises(Unavailable, match=str(error)):
            await scene.ask()
        scene.processes.start_error = None
        assert await scene.ask() == ANSWER

    run(main)


def test_a_failure_is_told() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.answers = [TuningFailure("INTERNAL", "a singular matrix")]
        with pytest.raises(Internal, match="a singular matrix"):
            await scene.ask()
        assert scene.processes.started == 1

    run(main)


def test_only_so_many_wait() -> None:
    """With 503, as 429 means to clients that the study is used up."""

    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        first = scene.ask()
        await scene.until_asked(1)
        waiting = [scene.ask(), scene.ask()]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(Unavailable, match="1 requests for suggestions wait already"):
            await done.pop()
        scene.processes.go.set()
        assert await first == ANSWER
        assert [task.exception() is None for task in waiting].count(True) <= 1

    run(main, SuggestionLimits(processes=1, queue=1))


def test_a_client_that_leaves_costs_the_others_nothing() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        first = scene.ask()
        await scene.until_asked(1)
        second, third = scene.ask(), scene.ask()
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.wait((first, second))
        scene.processes.go.set()
        assert await third == ANSWER

    run(main, SuggestionLimits(processes=1))


def test_when_the_server_stops_nobody_waits_on() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.go.clear()
        tasks = [scene.ask() for _ in range(2)]
        await scene.until_asked(1)
        await scene.service.close()
        for task in (*tasks, scene.ask()):
            with pytest.raises(Unavailable, match="stopping"):
                await task
        assert scene.processes.running == 0

    run(main, SuggestionLimits(processes=1))


def test_importance_is_asked_of_the_same_processes() -> None:
    async def main(scene: Scene) -> None:
        scene.processes.answers = [
            ImportanceAnswer({"x": 1.0}),
            TuningFailure("INTERNAL", "no"),
            SuggestionAnswer(()),
        ]
        assert await scene.service.measure_importance(scene.snapshot) == {"x": 1.0}
        assert b'"type":"importance"' in scene.processes.asked[0]
        for reason in ("cannot be measured: no", "of another kind"):
            with pytest.raises(Internal, match=reason):
                await scene.service.measure_importance(scene.snapshot)

    run(main)
