"""Suggests trials of studies, with processes that are started when they are needed and ended when idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from autoscaler.supervision import Supervisor
from serving.errors import Internal, ServingError, Unavailable
from serving.gateway.state.study_records import StudySnapshot
from serving.gateway.studies.suggestion_process import ConnectSuggester, Suggester, SuggesterLost
from serving.gateway.thread_pool import ThreadPool
from tuning.messages import (
    ImportanceAnswer,
    ImportanceRequest,
    SuggestionAnswer,
    SuggestionRequest,
    TuningAnswer,
    TuningFailure,
    read_known_trials,
)

logger = logging.getLogger(__name__)

_RETRY_AFTER = 1.0
_TRIES = 2


@dataclass(slots=True, eq=False)
class _WaitingRequest:
    """A request and who waits for its answer."""

    line: bytes
    answer: asyncio.Future[TuningAnswer]
    tries: int = 0


@dataclass(frozen=True, slots=True)
class SuggestionLimits:
    """At most `queue` requests wait for `processes`; one that has been idle for `idle_seconds` is ended.

    A process that takes longer than `answer_seconds` for an answer hangs, and is killed.
    """

    processes: int = 2
    queue: int = 64
    idle_seconds: float = 60.0
    answer_seconds: float = 60.0


class SuggestionService:
    """Answers from processes that are all alike: equal requests get equal answers.

    A request whose process is lost is sent once more, to another process. Those that have ended while they
    were idle are replaced before they are asked.
    """

    def __init__(
        self,
        connect: ConnectSuggester,
        supervisor: Supervisor,
        limits: SuggestionLimits = SuggestionLimits(),
    ) -> None:
        self._connect = connect
        self._supervisor = supervisor
        self._limits = limits
        self._threads = ThreadPool("suggestions", 1)
        self._waiting: deque[_WaitingRequest] = deque()
        self._has_arrived = asyncio.Event()
        self._runners: set[asyncio.Task[None]] = set()
        self._idle = 0
        self._is_closed = False
        self._answered = self._failed = 0
        self._seconds = 0.0

    @property
    def process_count(self) -> int:
        return len(self._runners)

    def get_answer_totals(self) -> tuple[int, int, float]:
        """How many requests were answered, how many failed, and the seconds that the former took."""
        return self._answered, self._failed, self._seconds

    async def suggest_points(self, snapshot: StudySnapshot, count: int) -> SuggestionAnswer:
        """Points for the next `count` trials of a study, fewer where its space is used up or time is.

        Raises Unavailable if too many requests wait, or no process can be started now.
        """
        started_at = time.monotonic()
        try:
            answer = await self._ask(await self._threads.run(_encode_request, snapshot, count))
            if isinstance(answer, TuningFailure):
                raise Internal(f"No trials can be suggested: {answer.message}")
            if not isinstance(answer, SuggestionAnswer):
                raise Internal("The process that suggests trials gave an answer of another kind.")
        except ServingError:
            self._failed += 1
            raise
        self._answered += 1
        self._seconds += time.monotonic() - started_at
        return answer

    async def measure_importance(self, snapshot: StudySnapshot) -> Mapping[str, float]:
        """The share of each parameter in the first metric; none while too few trials are completed.

        Raises Unavailable as `suggest_points` does.
        """
        answer = await self._ask(await self._threads.run(_encode_importance_request, snapshot))
        if isinstance(answer, TuningFailure):
            raise Internal(f"The importance of parameters cannot be measured: {answer.message}")
        if not isinstance(answer, ImportanceAnswer):
            raise Internal("The process that measures importance gave an answer of another kind.")
        return answer.shares

    async def close(self) -> None:
        """End all processes; nobody waits for an answer any more."""
        self._is_closed = True
        runners = list(self._runners)
        for runner in runners:
            runner.cancel()
        if runners:
            await asyncio.wait(runners)
        self._fail_waiting("The server is stopping.")

    async def _ask(self, line: bytes) -> TuningAnswer:
        if self._is_closed:
            raise Unavailable("The server is stopping.", retry_after=_RETRY_AFTER)
        if len(self._waiting) >= self._limits.queue:
            raise Unavailable(
                f"{self._limits.queue} requests for suggestions wait already. Try again.",
                retry_after=_RETRY_AFTER,
            )
        request = _WaitingRequest(line, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._start_runner_if_needed()
        self._has_arrived.set()
        return await request.answer

    def _start_runner_if_needed(self) -> None:
        is_short = len(self._waiting) > self._idle and len(self._runners) < self._limits.processes
        if is_short and not self._is_closed:
            runner = self._supervisor.start_task("suggestions", self._run_process())
            self._runners.add(runner)
            runner.add_done_callback(self._on_runner_done)

    def _on_runner_done(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        self._start_runner_if_needed()

    async def _run_process(self) -> None:
        """Start a process and let it answer until it is idle or lost."""
        is_ready = False
        try:
            async with self._connect() as suggester:
                is_ready = True
                while (request := await self._next_request()) is not None:
                    await self._answer(suggester, request)
        except (SuggesterLost, OSError) as error:
            logger.warning("the process that suggests trials is lost: %s", error)
            if not is_ready:  # another one would not start either
                self._fail_waiting(f"The process that suggests trials cannot be started: {error}.")
        except Exception:
            self._fail_waiting("The process that suggests trials has failed; the server's log says why.")
            raise

    async def _next_request(self) -> _WaitingRequest | None:
        """The oldest request; None if there has been none for long."""
        self._idle += 1
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                while not self._waiting:
                    self._has_arrived.clear()
                    await self._has_arrived.wait()
        except TimeoutError:
            return None
        finally:
            self._idle -= 1
        return self._waiting.popleft()

    async def _answer(self, suggester: Suggester, request: _WaitingRequest) -> None:
        if request.answer.done():  # who asked has gone
            return
        if suggester.has_ended:
            self._put_back(request)
            raise SuggesterLost("it has ended while it was idle")
        request.tries += 1
        try:
            answer = await suggester.ask(request.line, self._limits.answer_seconds)
        except SuggesterLost as error:
            if request.tries < _TRIES:
                self._put_back(request)
            elif not request.answer.done():
                request.answer.set_exception(Internal(f"No trials can be suggested: {error}."))
            raise
        except asyncio.CancelledError:
            self._put_back(request)
            raise
        if not request.answer.done():
            request.answer.set_result(answer)

    def _put_back(self, request: _WaitingRequest) -> None:
        """Let another process answer next, one that is idle if there is one."""
        self._waiting.appendleft(request)
        self._has_arrived.set()

    def _fail_waiting(self, reason: str) -> None:
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(Unavailable(reason, retry_after=_RETRY_AFTER))


def _encode_request(snapshot: StudySnapshot, count: int) -> bytes:
    study = snapshot.record.study
    known = read_known_trials(study, snapshot.iter_trials(measured=False))
    request = SuggestionRequest(study, known, count, snapshot.record.last_trial + 1)
    return msgspec.json.encode(request) + b"\n"


def _encode_importance_request(snapshot: StudySnapshot) -> bytes:
    study = snapshot.record.study
    known = read_known_trials(study, snapshot.iter_trials(measured=False))
    return msgspec.json.encode(ImportanceRequest(study, known)) + b"\n"
