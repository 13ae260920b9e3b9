from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from serving.errors import DeadlineExceeded, ModelFailed, ResourceExhausted
from serving.node.batcher import Batcher, Bounds, Outcome
from serving.node.watch import Watch
from serving.runtimes.instances import Batch

LATER = 1e12


class HeldPlace:
    """A compute slot that is freed by hand."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], list[Outcome]], Callable[[list[Outcome]], None]]] = []

    def run(self, work: Callable[[], list[Outcome]], done: Callable[[list[Outcome]], None]) -> None:
        self.held.append((work, done))

    def free(self) -> None:
        work, done = self.held.pop(0)
        done(work())


class Told(Watch):
    """Remembers what it was told of its request."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self) -> None:
        self.steps.append("begin")

    def end(self) -> None:
        self.steps.append("end")


class Doubler:
    """Doubles its rows, refuses negative ones, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, instances: Any, **parameters: Any) -> Batch:
        self.calls.append(to_python(instances))
        if (np.asarray(instances) < 0).any():
            raise ModelFailed("negative")
        doubled: Batch = (
            instances * 2 if isinstance(instances, np.ndarray) else [row * 2 for row in instances]
        )
        return doubled


def to_python(batch: Any) -> Any:
    return batch if isinstance(batch, list) else batch.tolist()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def make(
    merge_rows: int = 8,
    queue_requests: int = 100,
    queue_bytes: int = 1000,
    now: float = 0.0,
) -> tuple[Batcher, HeldPlace, Doubler]:
    place, model = HeldPlace(), Doubler()
    bounds = Bounds(merge_rows, queue_requests, queue_bytes)
    return Batcher(model, place, bounds, lambda: now), place, model


def rows(*values: float) -> Batch:
    return np.array([[value] for value in values], np.float64)


async def turn() -> None:
    """Let what is due on the event loop happen."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_one_request_is_answered_at_the_next_turn_of_the_loop() -> None:
    """Nothing waits for company."""

    async def main() -> None:
        batcher, place, model = make()
        answer = batcher.submit(rows(1), {}, LATER, 1)
        await turn()
        place.free()

        assert to_python(await answer) == [[2]]
        assert model.calls == [[[1]]]

    run(main())


def test_requests_of_one_turn_share_a_call() -> None:
    """What arrived together is predicted together, and cut apart again."""

    async def main() -> None:
        batcher, place, model = make()
        answers = [batcher.submit(rows(1), {}, LATER, 1), batcher.submit(rows(2, 3), {}, LATER, 1)]
        await turn()
        place.free()

        assert [to_python(await answer) for answer in answers] == [[[2]], [[4], [6]]]
        assert model.calls == [[[1], [2], [3]]]
        assert (batcher.calls, batcher.merged_requests) == (1, 2)

    run(main())


def test_what_comes_while_the_model_computes_goes_together_next() -> None:
    """The next call takes all that waited, up to the row limit, and never splits a request."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=3)
        answers = [batcher.submit(rows(0), {}, LATER, 1)]
        await turn()
        answers += [batcher.submit(rows(value, value), {}, LATER, 1) for value in (1, 2)]
        answers.append(batcher.submit(rows(3), {}, LATER, 1))
        for _ in range(3):
            place.free()
            await turn()

        assert model.calls == [[[0]], [[1], [1]], [[2], [2], [3]]]
        assert [len(to_python(await answer)) for answer in answers] == [1, 2, 2, 1]

    run(main())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((rows(1), {"a": 1}), (rows(1), {"a": 2})),
        ((rows(1), {}), (rows(1).astype(np.int64), {})),  # type: ignore[union-attr]
        ((rows(1), {}), ([1.0], {})),
    ],
)
def test_only_alike_requests_share_a_call(first: Any, second: Any) -> None:
    """Other parameters, dtypes or forms go in calls of their own."""

    async def main() -> None:
        batcher, place, model = make()
        answers = [batcher.submit(rows, parameters, LATER, 1) for rows, parameters in (first, second)]
        for _ in range(2):
            await turn()
            place.free()
        await asyncio.gather(*answers)

        assert len(model.calls) == 2

    run(main())


def test_only_the_faulty_request_of_a_merged_call_fails() -> None:
    """When a merged call fails, each request runs alone."""

    async def main() -> None:
        batcher, place, _ = make()
        good = batcher.submit(rows(1), {}, LATER, 1)
        bad = batcher.submit(rows(-1), {}, LATER, 1)
        await turn()
        place.free()

        assert to_python(await good) == [[2]]
        with pytest.raises(ModelFailed):
            await bad

    run(main())


def test_no_merging_with_a_limit_of_one_row() -> None:
    """merge_rows = 1 means every request has its own call."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=1)
        answers = [batcher.submit(rows(1), {}, LATER, 1) for _ in range(3)]
        for _ in range(3):
            await turn()
            place.free()
        await asyncio.gather(*answers)

        assert len(model.calls) == 3

    run(main())


def test_nobody_computes_for_a_client_that_has_gone() -> None:
    """A cancelled answer is dropped before its turn."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=1)
        first = batcher.submit(rows(1), {}, LATER, 1)
        await turn()
        gone = batcher.submit(rows(2), {}, LATER, 1)
        gone.cancel()
        place.free()
        await first
        await turn()

        assert model.calls == [[[1]]]
        assert batcher.waiting == 0

    run(main())


@pytest.mark.parametrize(
    ("before", "told"), [(True, []), (False, ["begin"])], ids=["before the call", "during the call"]
)
def test_the_watch_of_a_request_that_was_given_up_is_told_no_more(before: bool, told: list[str]) -> None:
    """Its slot may be another request's by then."""

    async def main() -> None:
        def model(instances: Any) -> Batch:
            gone.cancel()
            same: Batch = instances
            return same

        place, given_up, kept = HeldPlace(), Told(), Told()
        batcher = Batcher(model, place, Bounds(8, 100, 1000), lambda: 0.0)
        gone = batcher.submit(rows(1), {}, LATER, 1, given_up)
        answer = batcher.submit(rows(2), {}, LATER, 1, kept)
        await turn()
        if before:
            gone.cancel()
        place.free()
        await answer

        assert given_up.steps == told
        assert kept.steps == ["begin", "end"]

    run(main())


def test_a_request_whose_time_is_out_is_not_computed() -> None:
    """The deadline is checked before compute starts."""

    async def main() -> None:
        batcher, _, model = make(now=10.0)
        late = batcher.submit(rows(1), {}, 10.0, 1)
        await turn()

        with pytest.raises(DeadlineExceeded):
            await late
        assert model.calls == []

    run(main())


@pytest.mark.parametrize(
    ("limits", "setting"), [({"queue_requests": 2}, "queue_requests"), ({"queue_bytes": 20}, "queue_bytes")]
)
def test_the_queue_is_bounded(limits: dict[str, int], setting: str) -> None:
    """Past the limit a request is refused at once, naming the setting and when to come again."""

    async def main() -> None:
        batcher, _, _ = make(**limits)
        waiting = [batcher.submit(rows(1), {}, LATER, 10) for _ in range(2)]

        with pytest.raises(ResourceExhausted, match=setting) as caught:
            batcher.submit(rows(1), {}, LATER, 10)
        assert caught.value.retry_after == 1
        for answer in waiting:
            answer.cancel()

    run(main())
