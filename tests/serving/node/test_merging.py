"""serving.node.batch_equivalence"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serving.node.batch_equivalence import (
    BatchCheckSteps,
    BatchEquivalenceCheck,
    BatchingDecision,
    finish_check,
    run_and_time,
)

YES = BatchingDecision(True, "tried")


def judging(calls: list[int], many: int = 5) -> BatchCheckSteps:
    for call in range(many):
        calls.append(call)
        yield
    return YES


def test_a_judgement_proceeds_with_one_call_at_least() -> None:
    calls: list[int] = []
    judgement = BatchEquivalenceCheck(judging(calls))

    judgement.run_for(0.0)

    assert (calls, judgement.decision) == ([0], None)


def test_with_time_enough_it_is_over_at_once() -> None:
    calls: list[int] = []
    judgement = BatchEquivalenceCheck(judging(calls))

    judgement.run_for(60.0)

    assert (len(calls), judgement.decision) == (5, YES)


def test_other_work_comes_between_its_calls() -> None:
    """A request waits for one of them, not for all."""
    calls: list[int] = []
    at_once: list[int] = []

    def here(work: Callable[[], None]) -> None:
        before = len(calls)
        work()
        at_once.append(len(calls) - before)

    assert asyncio.run(finish_check(BatchEquivalenceCheck(judging(calls)), here)) == YES
    assert at_once == [1, 1, 1, 1, 1, 0]


def test_the_end_of_the_loop_is_the_end_of_the_wait() -> None:
    """What is computed when a node ends has nobody to tell."""
    left: list[Callable[[], None]] = []

    async def main() -> None:
        asyncio.create_task(run_and_time(left.append, lambda: None))  # noqa: RUF006  it is cancelled with the loop
        await asyncio.sleep(0)

    asyncio.run(main())

    [work] = left
    work()
