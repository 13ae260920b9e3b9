"""The time of many requests, with few timers."""

from __future__ import annotations

import asyncio

import pytest

from serving.gateway.proxy.timeouts import TimeoutQueue
from tests.stepped_time import advance, run


class Waiting:
    """A request that waits."""

    def __init__(self, deadlines: TimeoutQueue, seconds: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds
        self.expired = False
        self.allowance = deadlines.bucket_for(seconds)
        self.allowance.add(self)

    def expire(self) -> None:
        self.expired = True


def test_each_request_expires_at_its_own_time() -> None:
    """In the order in which they came, whatever others have; those that were answered do not."""

    async def main() -> None:
        deadlines = TimeoutQueue(0.06)
        first, answered = Waiting(deadlines, 0.06), Waiting(deadlines, 0.06)
        hasty = Waiting(deadlines, 0.02)
        await advance(0.04)
        late = Waiting(deadlines, 0.06)
        answered.allowance.remove(answered)
        assert [one.expired for one in (first, hasty, late)] == [False, True, False]
        await advance(0.04)
        assert [one.expired for one in (first, late, answered)] == [True, False, False]
        await advance(0.05)
        assert late.expired and not answered.expired

    run(main())


def test_one_that_begins_when_another_expires_has_its_time() -> None:
    """It may be the next on the same connection."""

    async def main() -> None:
        deadlines = TimeoutQueue(0.02)
        next_ones: list[Waiting] = []

        class Followed(Waiting):
            def expire(self) -> None:
                super().expire()
                next_ones.append(Waiting(deadlines, 0.02))

        Followed(deadlines, 0.02), Waiting(deadlines, 0.02)
        await advance(0.03)
        assert [one.expired for one in next_ones] == [False]
        await advance(0.03)
        assert [one.expired for one in next_ones] == [True]

    run(main())


def test_times_that_nobody_has_any_more_are_forgotten() -> None:
    """Clients may make them up; what most have stays."""

    async def main() -> None:
        deadlines = TimeoutQueue(60)
        waiting = [Waiting(deadlines, 1 + number / 100) for number in range(100)]
        usual = Waiting(deadlines, 60)
        Waiting(deadlines, 0.01)
        assert len(deadlines) == 102
        for one in (*waiting, usual):
            one.allowance.remove(one)
        await advance(0.02)
        assert len(deadlines) == 1

    run(main())


def test_a_timer_is_not_set_for_each() -> None:
    """However many come and go, it is the one of the first."""

    async def main() -> None:
        loop, timers = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(*arguments: object) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(*arguments)  # type: ignore[arg-type]

        loop.call_at = counted  # type: ignore[assignment, method-assign]
        deadlines = TimeoutQueue(60)
        for _ in range(1000):
            one = Waiting(deadlines, 60)
            one.allowance.remove(one)
        assert timers == 1

    run(main())


def test_one_that_cannot_be_told_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged; those behind it expire."""

    async def main() -> None:
        deadlines = TimeoutQueue(0.02)

        class Broken(Waiting):
            def expire(self) -> None:
                raise OSError("no room")

        Broken(deadlines, 0.02)
        behind = Waiting(deadlines, 0.02)
        await advance(0.03)
        later = Waiting(deadlines, 0.02)
        await advance(0.03)
        assert behind.expired
        assert later.expired

    run(main())
    assert "OSError: no room" in caplog.text
