from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from serving.errors import DeadlineExceeded, ModelFailed, ResourceExhausted
from serving.node.batcher import Batcher, BatchLimits, BatchOutcome
from serving.node.request import NodeRequest
from serving.runtimes.instance_batch import Batch, split_batch

LATER = 1e12


class HeldPlace:
    """A compute slot that is freed by hand."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], list[BatchOutcome]], Callable[[list[BatchOutcome]], None]]] = []

    def run(self, work: Callable[[], list[BatchOutcome]], done: Callable[[list[BatchOutcome]], None]) -> None:
        self.held.append((work, done))

    def free(self) -> None:
        work, done = self.held.pop(0)
        done(work())


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
    bounds = BatchLimits(merge_rows, queue_requests, queue_bytes)
    batcher = Batcher(model, place, bounds, marks=bytearray(), answer=deliver, clock=lambda: now)
    return batcher, place, model


class Asked(NodeRequest):
    """Keeps what became of it."""

    def __init__(self, rows: Batch, parameters: Any, deadline: float, size: int) -> None:
        super().__init__()
        self.set_inputs(rows, parameters)
        self.deadline = deadline
        self.body_size = size
        self.outcome: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()


def deliver(group: Sequence[NodeRequest], outcome: Batch | Exception) -> None:
    """What the predictor does, without JSON."""
    if isinstance(outcome, Exception):
        pieces: Iterable[Any] = [outcome] * len(group)
    else:
        pieces = split_batch(outcome, [request.rows for request in group])
    for request, piece in zip(group, pieces, strict=True):
        assert isinstance(request, Asked)
        if request.is_finished:
            continue
        request.is_finished = True
        if isinstance(piece, Exception):
            request.outcome.set_exception(piece)
        else:
            request.outcome.set_result(piece)


def submit(
    batcher: Batcher, rows: Batch, parameters: Any = None, deadline: float = LATER, size: int = 1
) -> Asked:
    """Queue a request, as one of several that arrive in this turn of the loop."""
    asked = Asked(rows, parameters or {}, deadline, size)
    batcher.submit(asked)
    batcher.start_soon()
    return asked


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
        answer = submit(batcher, rows(1))
        await turn()
        place.free()

        assert to_python(await answer.outcome) == [[2]]
        assert model.calls == [[[1]]]

    run(main())


def test_requests_of_one_turn_share_a_call() -> None:
    """What arrived together is predicted together, and cut apart again."""

    async def main() -> None:
        batcher, place, model = make()
        answers = [submit(batcher, rows(1)), submit(batcher, rows(2, 3))]
        await turn()
        place.free()

        assert [to_python(await answer.outcome) for answer in answers] == [[[2]], [[4], [6]]]
        assert model.calls == [[[1], [2], [3]]]
        assert (batcher.calls, batcher.merged_requests) == (1, 2)

    run(main())


def test_what_comes_while_the_model_computes_goes_together_next() -> None:
    """The next call takes all that waited, up to the row limit, and never splits a request."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=3)
        answers = [submit(batcher, rows(0))]
        await turn()
        answers += [submit(batcher, rows(value, value)) for value in (1, 2)]
        answers.append(submit(batcher, rows(3)))
        for _ in range(3):
            place.free()
            await turn()

        assert model.calls == [[[0]], [[1], [1]], [[2], [2], [3]]]
        assert [len(to_python(await answer.outcome)) for answer in answers] == [1, 2, 2, 1]

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
        answers = [submit(batcher, rows, parameters) for rows, parameters in (first, second)]
        for _ in range(2):
            await turn()
            place.free()
        await asyncio.gather(*(answer.outcome for answer in answers))

        assert len(model.calls) == 2

    run(main())


def test_only_the_faulty_request_of_a_merged_call_fails() -> None:
    """When a merged call fails, each request runs alone."""

    async def main() -> None:
        batcher, place, _ = make()
        good = submit(batcher, rows(1))
        bad = submit(batcher, rows(-1))
        await turn()
        place.free()

        assert to_python(await good.outcome) == [[2]]
        with pytest.raises(ModelFailed):
            await bad.outcome

    run(main())


def test_no_merging_with_a_limit_of_one_row() -> None:
    """merge_rows = 1 means every request has its own call."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=1)
        answers = [submit(batcher, rows(1)) for _ in range(3)]
        for _ in range(3):
            await turn()
            place.free()
        await asyncio.gather(*(answer.outcome for answer in answers))

        assert len(model.calls) == 3

    run(main())


def test_nobody_computes_for_a_client_that_has_gone() -> None:
    """A cancelled answer is dropped before its turn."""

    async def main() -> None:
        batcher, place, model = make(merge_rows=1)
        first = submit(batcher, rows(1))
        await turn()
        gone = submit(batcher, rows(2))
        gone.is_finished = True
        place.free()
        await first.outcome
        await turn()

        assert model.calls == [[[1]]]
        assert batcher.queue_length == 0

    run(main())


def test_a_request_whose_time_is_out_is_not_computed() -> None:
    """The deadline is checked before compute starts."""

    async def main() -> None:
        batcher, _, model = make(now=10.0)
        late = submit(batcher, rows(1), deadline=10.0)
        await turn()

        with pytest.raises(DeadlineExceeded):
            await late.outcome
        assert model.calls == []

    run(main())


@pytest.mark.parametrize(
    ("limits", "setting"), [({"queue_requests": 2}, "queue_requests"), ({"queue_bytes": 20}, "queue_bytes")]
)
def test_the_queue_is_bounded(limits: dict[str, int], setting: str) -> None:
    """Past the limit a request is refused at once, naming the setting and when to come again."""

    async def main() -> None:
        batcher, _, _ = make(**limits)
        for _ in range(2):
            submit(batcher, rows(1), size=10)

        with pytest.raises(ResourceExhausted, match=setting) as caught:
            submit(batcher, rows(1), size=10)
        assert caught.value.retry_after == 1

    run(main())
