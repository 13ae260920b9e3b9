from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.node.batcher import BatchOutcome
from serving.node.compute import INLINE_BELOW_SECONDS, AdaptiveExecutor
from tests.bounds import HANG_SECONDS


class Clock:
    """Tells a later time at each look, by the steps it is given."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def where(place: AdaptiveExecutor) -> str:
    """The name of the thread in which the place computes its next call."""

    async def main() -> str:
        answer: asyncio.Future[list[BatchOutcome]] = asyncio.get_running_loop().create_future()
        place.run(lambda: [((), [threading.current_thread().name])], answer.set_result)
        [(_, outcome)] = await answer
        return str(outcome[0])  # type: ignore[index]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "may_inline", "wanted"),
    [
        (INLINE_BELOW_SECONDS / 2, True, "MainThread"),
        (INLINE_BELOW_SECONDS * 2, True, "compute_0"),
        (INLINE_BELOW_SECONDS / 2, False, "compute_0"),
    ],
    ids=["short", "long", "short, but user code"],
)
def test_measured_time_decides_where_to_compute(seconds: float, may_inline: bool, wanted: str) -> None:
    """The first call is measured in the compute thread; short ones then run on the event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="compute") as thread:
        place = AdaptiveExecutor(thread, may_inline=may_inline, clock=Clock(seconds))

        assert where(place) == "compute_0"
        assert where(place) == wanted


def test_a_model_that_becomes_slow_leaves_the_event_loop() -> None:
    """The recent calls weigh most; but a single long one may be the machine's doing."""
    with ThreadPoolExecutor(1, thread_name_prefix="compute") as thread:
        clock = Clock(INLINE_BELOW_SECONDS / 2)
        place = AdaptiveExecutor(thread, may_inline=True, clock=clock)
        where(place)
        clock.step = INLINE_BELOW_SECONDS * 10
        assert where(place) == "MainThread"
        clock.step = INLINE_BELOW_SECONDS / 2
        assert where(place) == "MainThread"

        clock.step = INLINE_BELOW_SECONDS * 10
        assert where(place) == "MainThread"
        assert where(place) == "MainThread"
        assert where(place) == "compute_0"


def test_a_model_is_not_used_in_two_places_at_a_time() -> None:
    """While other work is in the compute thread, short calls wait for it there."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(HANG_SECONDS)

    async def main() -> None:
        place.run_other_work(work)
        assert begun.wait(HANG_SECONDS)
        place.record_duration(INLINE_BELOW_SECONDS / 2)
        place.run_other_work(lambda: names.append(threading.current_thread().name))
        go_on.set()
        await asyncio.to_thread(thread.shutdown)
        place.run_other_work(lambda: names.append(threading.current_thread().name))
        assert names == ["compute_0", "MainThread"]

    names: list[str] = []

    with ThreadPoolExecutor(1, thread_name_prefix="compute") as thread:
        place = AdaptiveExecutor(thread, may_inline=True)
        asyncio.run(main())
