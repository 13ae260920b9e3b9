"""serving.node.batcher: several calls at a time"""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import DeadlineExceeded
from serving.node.batcher import BatchLimits, ConcurrentBatcher
from tests.serving.node.test_batcher import (
    LATER,
    Asked,
    Doubler,
    HeldPlace,
    deliver,
    rows,
    run,
    submit,
    to_python,
    turn,
)


def make(concurrency: int = 2, now: float = 0.0) -> tuple[ConcurrentBatcher, HeldPlace]:
    place = HeldPlace()
    batcher = ConcurrentBatcher(
        Doubler(),
        place,
        BatchLimits(1, 100, 1000),
        concurrency=concurrency,
        marks=bytearray(),
        answer=deliver,
        clock=lambda: now,
    )
    return batcher, place


def test_as_many_calls_begin_as_may_be_under_way_and_the_next_as_soon_as_one_is_over() -> None:
    async def main() -> None:
        batcher, place = make()
        answers = [submit(batcher, rows(value)) for value in range(4)]
        await turn()
        assert (len(place.held), batcher.queue_length, batcher.is_active) == (2, 2, True)

        place.free()
        assert (len(place.held), batcher.queue_length) == (2, 1)
        for _ in range(3):
            place.free()
        assert [to_python(await answer.outcome) for answer in answers] == [
            [[2.0 * value]] for value in range(4)
        ]
        assert (batcher.is_active, batcher.calls) == (False, 4)

    run(main())


def test_a_request_begins_beside_another_that_is_under_way() -> None:
    async def main() -> None:
        batcher, place = make()
        submit(batcher, rows(1))
        await turn()
        assert not batcher.is_active
        submit(batcher, rows(2))
        await turn()

        assert len(place.held) == 2

    run(main())


def test_calls_end_in_any_order() -> None:
    async def main() -> None:
        batcher, place = make()
        first, second = (submit(batcher, rows(value)) for value in (1, 2))
        await turn()
        place.held.reverse()
        place.free()

        assert (first.outcome.done(), second.outcome.done()) == (False, True)
        place.free()
        assert to_python(await first.outcome) == [[2]]

    run(main())


def test_each_request_under_way_has_its_deadline() -> None:
    async def main() -> None:
        batcher, place = make(now=5.0)
        late, other = Asked(rows(1), {}, 5.0001, 1), Asked(rows(2), {}, LATER, 1)
        for asked in (other, late):
            batcher.submit(asked)
        batcher.start_now()
        assert len(place.held) == 2
        batcher._clock = lambda: 6.0

        with pytest.raises(DeadlineExceeded, match="did not answer"):
            async with asyncio.timeout(30):
                await late.outcome
        for _ in range(2):
            place.free()
        assert to_python(await other.outcome) == [[4]]

    run(main())
