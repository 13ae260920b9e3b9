from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from serving.config import PredictSettings
from serving.errors import ModelFailed
from serving.frameworks import find_user_code_framework
from serving.http_headers import Headers
from serving.model_schema import ModelSchema
from serving.node.batcher import BatchLimits
from serving.node.compute import AdaptiveExecutor
from serving.node.predict import NodePredictor
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata
from serving.runtimes import ArrayFormat, InputFormat
from serving.runtimes.instance_batch import Batch
from serving.runtimes.schema_inference import unknown_schema
from tests.bounds import HANG_SECONDS
from tests.serving.node.asking import Asked, Reply, ask


class Peeking:
    """Doubles numbers, refuses negative ones, and remembers the board as each of its calls saw it."""

    framework = find_user_code_framework()
    mergeable = True
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, board: bytearray, seconds: float = 0.0) -> None:
        self.board = board
        self.seconds = seconds
        self.calls: list[tuple[list[float], bytes]] = []

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        return ArrayFormat(1, nullable=False)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        self.calls.append((np.ravel(instances).tolist(), bytes(self.board)))
        time.sleep(self.seconds)
        if (instances < 0).any():
            raise ModelFailed("negative")
        doubled: Batch = instances[:, 0] * 2
        return doubled

    def make_synthetic_rows(self, count: int) -> None:
        return None

    def warmup_requests(self) -> tuple[()]:
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        return unknown_schema("fake")


class Held(Peeking):
    """Has computed when it is let go."""

    def __init__(self, board: bytearray) -> None:
        super().__init__(board)
        self.let_go = threading.Event()

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        doubled = super().predict(instances, **parameters)
        assert self.let_go.wait(HANG_SECONDS)
        return doubled


@contextmanager
def predictor(runtime: Any, *, short: bool = True, **settings: Any) -> Iterator[NodePredictor]:
    """A predictor for `runtime`; whether its calls are `short` decides where they are computed."""
    with ThreadPoolExecutor(1) as thread:
        place = AdaptiveExecutor(thread, may_inline=short)
        place.record_duration(0.0)
        bounds = BatchLimits(8, 100, 10_000)
        yield NodePredictor(runtime, place, bounds, PredictSettings(**settings), marks=runtime.board)


@pytest.mark.parametrize(
    ("short", "fast_path"),
    [(True, True), (True, False), (False, False)],
    ids=["at once", "queued", "in thread"],
)
@pytest.mark.parametrize(("value", "status"), [(1, 200), (-1, 500)], ids=["good", "bad"])
def test_the_board_shows_which_request_the_model_works_on(
    short: bool, fast_path: bool, value: int, status: int
) -> None:
    """From just before the model sees it until it has computed or raised, wherever that happens."""
    board = bytearray(4)
    runtime = Peeking(board)
    with predictor(runtime, short=short) as asked:
        reply = asyncio.run(ask(asked, [value], slot=2, fast_path=fast_path))

    assert reply.status == status
    assert runtime.calls == [([value], b"\0\0\1\0")]
    assert board == b"\0\0\2\0"


def together(runtime: Any, *requests: tuple[list[list[float]], dict[str, Any]]) -> list[Reply]:
    """The answers to requests that arrive at the same time."""

    async def main() -> list[Reply]:
        return await asyncio.gather(
            *(ask(asked, *instances, fast_path=False, **fields) for instances, fields in requests)
        )

    with predictor(runtime) as asked:
        return asyncio.run(main())


def test_all_requests_of_a_merged_call_are_marked() -> None:
    """Any of them may be the one that kills the node."""
    runtime = Peeking(bytearray(4))

    replies = together(runtime, ([[1]], {"slot": 0}), ([[2], [3]], {"slot": 3}), ([[4]], {}))

    assert [reply.json for reply in replies] == [{"predictions": values} for values in ([2], [4, 6], [8])]
    assert runtime.calls == [([1, 2, 3, 4], b"\1\0\0\1")]
    assert runtime.board == b"\2\0\0\2"


def test_only_the_request_that_is_computed_is_marked_when_a_merged_call_failed() -> None:
    """They are computed one by one then, and one by one they are suspects."""
    runtime = Peeking(bytearray(3))

    replies = together(runtime, ([[1]], {"slot": 0}), ([[-1]], {"slot": 1}), ([[2]], {"slot": 2}))

    assert [reply.status for reply in replies] == [200, 500, 200]
    assert runtime.calls == [
        ([1, -1, 2], b"\1\1\1"),
        ([1], b"\1\2\2"),
        ([-1], b"\2\1\2"),
        ([2], b"\2\2\1"),
    ]


def test_a_request_that_is_to_be_alone_shares_its_call_with_none() -> None:
    """Neither with those before it nor with those behind it."""
    runtime = Peeking(bytearray(1))
    alone = {"never_batch": True}

    together(runtime, ([[1]], {}), ([[2]], alone), ([[3]], {}), ([[4]], {}), ([[5]], alone))

    assert [values for values, _ in runtime.calls] == [[1], [2], [3, 4], [5]]


@pytest.mark.parametrize("short", [True, False], ids=["at once", "in thread"])
def test_a_client_may_ask_where_the_time_went(short: bool) -> None:
    """In milliseconds, in the order things happen."""
    runtime = Peeking(bytearray(1), seconds=0.02)
    with predictor(runtime, short=short) as asked:
        reply = asyncio.run(ask(asked, [1], slot=0, wants_timing=True))

    told = re.fullmatch(
        r"parse;dur=(\d+\.\d{3}), wait;dur=(\d+\.\d{3}), infer;dur=(\d+\.\d{3}), encode;dur=(\d+\.\d{3})",
        reply.headers["server-timing"],
    )
    assert told
    assert float(told[3]) >= 20
    assert runtime.board == b"\2"


def test_waiting_is_told_apart_from_computing() -> None:
    """The second of two requests that cannot share a call waits for the first."""
    runtime = Peeking(bytearray(1), seconds=0.25)  # a busy machine may let the second one come late
    timed = {"wants_timing": True, "never_batch": True}

    _, second = together(runtime, ([[1]], timed), ([[2]], timed))

    wait, infer = (
        float(re.search(rf"{name};dur=([\d.]+)", second.headers["server-timing"])[1])  # type: ignore[index]
        for name in ("wait", "infer")
    )
    assert wait >= 50
    assert infer >= 250


def test_nobody_is_told_who_does_not_ask() -> None:
    """No header, no times."""
    with predictor(Peeking(bytearray(1))) as asked:
        reply = asyncio.run(ask(asked, [1]))

    assert "server-timing" not in reply.headers


@pytest.mark.parametrize(
    ("timeout", "status"), [(5, 200), (math.inf, 200), (1e-9, 504), (0, 504), (-1, 504), (math.nan, 504)]
)
def test_a_request_may_bring_its_own_deadline(timeout: float, status: int) -> None:
    """In seconds, whatever the gateway says they are."""
    with predictor(Peeking(bytearray(1))) as asked:
        reply = asyncio.run(ask(asked, [1], fast_path=False, seconds=timeout))

    assert reply.status == status


def test_the_deadline_is_kept_while_the_model_computes() -> None:
    """For each request at its own time, in the queue too."""
    runtime = Held(bytearray(3))

    async def main() -> list[float]:
        start = time.monotonic()
        over: list[float] = []

        async def late(seconds: float) -> None:
            reply = await ask(asked, [1], fast_path=False, seconds=seconds, never_batch=True)
            assert reply.status == 504
            assert "did not answer" in reply.json["error"]["message"]
            assert time.monotonic() - start >= seconds
            over.append(seconds)

        await asyncio.gather(late(0.2), late(0.1), late(0.3))
        runtime.let_go.set()
        return over

    with predictor(runtime, short=False) as asked:
        assert asyncio.run(main()) == [0.1, 0.2, 0.3]

    assert len(runtime.calls) == 1


def test_a_request_that_was_given_up_is_not_answered() -> None:
    """Nor computed, if it has not begun, and it counts as an error once."""
    runtime = Peeking(bytearray(2))

    async def main() -> None:
        gone, kept = Asked(0), Asked(1)
        for one in (gone, kept):
            asked.predict(one, b'{"instances": [[1]]}', 1.0, idle_fast_path=False)
        asked.cancel_request(gone)
        asked.cancel_request(gone)
        asked.start_now()

        assert (await kept.reply).status == 200
        assert not gone.reply.done()

    with predictor(runtime) as asked:
        asyncio.run(main())

    assert runtime.calls == [([1], b"\0\1")]
    assert (asked.requests, asked.errors) == (2, 1)


def test_only_who_gets_what_json_cannot_carry_is_refused() -> None:
    """The others of a merged call get their answers."""

    class Odd(Peeking):
        """Answers with objects; a zero becomes one that nobody can write."""

        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            return [value if value else object() for value in np.ravel(instances).tolist()]

    replies = together(Odd(bytearray(1)), ([[1]], {}), ([[0]], {}), ([[2]], {}))

    assert [reply.status for reply in replies] == [200, 500, 200]
    assert replies[2].json == {"predictions": [2]}


class Unspeakable(ValueError):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_that_cannot_be_told_is_an_internal_one() -> None:
    """The others of a merged call get their answers, and so do those that wait behind it."""

    class Rude(Peeking):
        """Has an error for negative numbers."""

        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            if (instances < 0).any():
                raise Unspeakable
            return super().predict(instances, **parameters)

    requests: list[tuple[list[list[float]], dict[str, Any]]] = [([[v]], {}) for v in (1, -1, *range(10))]
    replies = together(Rude(bytearray(1)), *requests)

    assert [reply.status for reply in replies] == [200, 500, *[200] * 10]
    assert replies[1].json["error"]["message"] == "Internal error encountered."


@pytest.mark.parametrize(
    "call", [DEFAULT_METADATA, RequestMetadata(Dialect.TENSORFLOW)], ids=["plain", "a dialect"]
)
@pytest.mark.parametrize("stubborn", [False, True], ids=["once", "always"])
def test_an_answer_that_cannot_be_sent_concerns_no_other(call: RequestMetadata, stubborn: bool) -> None:
    """It becomes an error, if that can be sent."""

    class Unsendable(Asked):
        """Cannot be answered, or only with errors."""

        def respond(self, status: int, body: bytes, headers: Headers) -> None:
            if stubborn or status == 200:
                raise OSError("not to be sent")
            super().respond(status, body, headers)

    async def main() -> None:
        first, bad, last = requests = [Asked(), Unsendable(), Asked()]
        for request in requests:
            asked.predict(request, b'{"instances": [[1]]}', 60.0, idle_fast_path=False, call=call)
        asked.start_now()
        assert [(await request.reply).status for request in (first, last)] == [200, 200]
        assert bad.is_finished
        if stubborn:
            assert not bad.reply.done()
        else:
            assert (await bad.reply).status == 500
        assert (await ask(asked, [1], fast_path=False)).status == 200

    with predictor(Peeking(bytearray(1))) as asked:
        asyncio.run(main())
        assert asked.errors == 1


def test_each_gets_its_form_from_a_shared_call() -> None:
    """Those who ask as TensorFlow Serving is asked see no name of a single output."""

    class Named(Peeking):
        """Names its output."""

        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            return {"twice": instances[:, 0] * 2}

    replies = together(
        Named(bytearray(1)), ([[1]], {}), ([[2]], {"call": RequestMetadata(Dialect.TENSORFLOW)})
    )

    assert [reply.json["predictions"] for reply in replies] == [[{"twice": 2}], [4]]


@pytest.mark.parametrize("fast_path", [True, False])
def test_an_answer_over_the_limit_is_an_error(fast_path: bool) -> None:
    """That names the setting; others of the same call get theirs."""
    with predictor(Peeking(bytearray(4)), max_answer_bytes=24) as asked:

        async def main() -> list[Reply]:
            return await asyncio.gather(
                *(ask(asked, *rows, fast_path=fast_path) for rows in ([[1]], [[1]] * 99))
            )

        small, large = asyncio.run(main())
    assert (small.status, small.json) == (200, {"predictions": [2]})
    assert large.status == 500
    assert "over the limit of 24 bytes (setting max_answer_bytes)" in large.json["error"]["message"]


def test_model_errors_in_the_old_form() -> None:
    """Status 200 and a string."""
    with predictor(Peeking(bytearray(1)), legacy_model_errors=True) as asked:
        reply = asyncio.run(ask(asked, [-1]))

    assert (reply.status, list(reply.json)) == (200, ["error"])
