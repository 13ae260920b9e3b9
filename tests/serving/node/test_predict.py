from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from serving.config import PredictSettings
from serving.errors import ModelFailed
from serving.node.batcher import Bounds
from serving.node.predict import Predictor
from serving.node.servable import MeasuredPlace, Servable
from serving.runtimes import Array, Form
from serving.runtimes.instances import Batch
from tests.serving.node.asgi import Reply, ask


class Peeking:
    """Doubles numbers, refuses negative ones, and remembers the board as each of its calls saw it."""

    framework = "FAKE"
    mergeable = True
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, board: bytearray, seconds: float = 0.0) -> None:
        self.board = board
        self.seconds = seconds
        self.calls: list[tuple[list[float], bytes]] = []

    def form(self, parameters: Mapping[str, Any]) -> Form:
        return Array(1, nullable=False)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        self.calls.append((np.ravel(instances).tolist(), bytes(self.board)))
        time.sleep(self.seconds)
        if (instances < 0).any():
            raise ModelFailed("negative")
        doubled: Batch = instances[:, 0] * 2
        return doubled

    def samples(self, count: int) -> None:
        return None

    def warmup_requests(self) -> tuple[()]:
        return ()


@contextmanager
def predictor(runtime: Peeking, *, short: bool, alone: bool) -> Iterator[Any]:
    """Asks a predictor for `runtime`: whether its calls are `short` decides where they are computed, whether
    its connection is `alone` if they are queued."""
    with ThreadPoolExecutor(1) as thread:
        place = MeasuredPlace(thread, may_inline=short)
        place.learn(0.0)
        servable = Servable(runtime, place, Bounds(8, 100, 10_000), alone=lambda: alone)
        yield Predictor(servable, PredictSettings(), runtime.board).answer


def body(*values: float) -> dict[str, Any]:
    return {"instances": [[value] for value in values]}


def slot(number: object) -> dict[str, str]:
    return {"X-Pilotlight-Slot": str(number)}


@pytest.mark.parametrize(
    ("short", "alone"), [(True, True), (True, False), (False, False)], ids=["at once", "queued", "in thread"]
)
@pytest.mark.parametrize(("value", "status"), [(1, 200), (-1, 500)], ids=["good", "bad"])
def test_the_board_shows_which_request_the_model_works_on(
    short: bool, alone: bool, value: int, status: int
) -> None:
    """From just before the model sees it until it has computed or raised, wherever that happens."""
    board = bytearray(4)
    runtime = Peeking(board)
    with predictor(runtime, short=short, alone=alone) as app:
        reply = asyncio.run(ask(app, body(value), slot(2)))

    assert reply.status == status
    assert runtime.calls == [([value], b"\0\0\1\0")]
    assert board == b"\0\0\2\0"


def together(runtime: Peeking, *requests: tuple[dict[str, Any], dict[str, str]]) -> list[Reply]:
    """The answers to requests that arrive at the same time."""

    async def main() -> list[Reply]:
        return await asyncio.gather(*(ask(app, *request) for request in requests))

    with predictor(runtime, short=True, alone=False) as app:
        return asyncio.run(main())


def test_all_requests_of_a_merged_call_are_marked() -> None:
    """Any of them may be the one that kills the node."""
    runtime = Peeking(bytearray(4))

    replies = together(runtime, (body(1), slot(0)), (body(2, 3), slot(3)), (body(4), {}))

    assert [reply.json for reply in replies] == [{"predictions": values} for values in ([2], [4, 6], [8])]
    assert runtime.calls == [([1, 2, 3, 4], b"\1\0\0\1")]
    assert runtime.board == b"\2\0\0\2"


def test_only_the_request_that_is_computed_is_marked_when_a_merged_call_failed() -> None:
    """They are computed one by one then, and one by one they are suspects."""
    runtime = Peeking(bytearray(3))

    replies = together(runtime, (body(1), slot(0)), (body(-1), slot(1)), (body(2), slot(2)))

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
    alone = {"X-Pilotlight-Alone": "1"}

    together(runtime, (body(1), {}), (body(2), alone), (body(3), {}), (body(4), {}), (body(5), alone))

    assert [values for values, _ in runtime.calls] == [[1], [2], [3, 4], [5]]


@pytest.mark.parametrize("number", ["4", "-1", "+1", "01", " 1", "one", "", "1.0"])
def test_what_is_no_slot_marks_nothing(number: str) -> None:
    """The request is answered all the same."""
    runtime = Peeking(bytearray(4))
    with predictor(runtime, short=True, alone=True) as app:
        reply = asyncio.run(ask(app, body(1), slot(number)))

    assert reply.json == {"predictions": [2]}
    assert runtime.calls == [([1], b"\0\0\0\0")]


@pytest.mark.parametrize("short", [True, False], ids=["at once", "in thread"])
def test_a_client_may_ask_where_the_time_went(short: bool) -> None:
    """In milliseconds, in the order things happen."""
    runtime = Peeking(bytearray(1), seconds=0.02)
    with predictor(runtime, short=short, alone=True) as app:
        reply = asyncio.run(ask(app, body(1), {"X-Pilotlight-Timing": "1", **slot(0)}))

    told = re.fullmatch(
        r"parse;dur=(\d+\.\d{3}), wait;dur=(\d+\.\d{3}), infer;dur=(\d+\.\d{3}), encode;dur=(\d+\.\d{3})",
        reply.headers["server-timing"],
    )
    assert told
    assert float(told[3]) >= 20
    assert runtime.board == b"\2"


def test_waiting_is_told_apart_from_computing() -> None:
    """The second of two requests that cannot share a call waits for the first."""
    runtime = Peeking(bytearray(1), seconds=0.05)
    timed = {"X-Pilotlight-Timing": "1", "X-Pilotlight-Alone": "1"}

    _, second = together(runtime, (body(1), timed), (body(2), timed))

    wait, infer = (
        float(re.search(rf"{name};dur=([\d.]+)", second.headers["server-timing"])[1])  # type: ignore[index]
        for name in ("wait", "infer")
    )
    assert wait >= 50
    assert infer >= 50


@pytest.mark.parametrize("headers", [{}, {"X-Pilotlight-Timing": "0"}], ids=["without", "switched off"])
def test_nobody_is_told_who_does_not_ask(headers: dict[str, str]) -> None:
    """No header, no times."""
    with predictor(Peeking(bytearray(1)), short=True, alone=True) as app:
        reply = asyncio.run(ask(app, body(1), headers))

    assert "server-timing" not in reply.headers


@pytest.mark.parametrize(
    ("given", "status"), [("5", 200), ("soon", 400), ("-1", 400), ("nan", 400), ("0", 400), ("1e-9", 504)]
)
def test_a_request_may_bring_its_own_deadline(given: str, status: int) -> None:
    """In seconds."""
    with predictor(Peeking(bytearray(1)), short=True, alone=False) as app:
        reply = asyncio.run(ask(app, body(1), {"X-Request-Timeout": given}))

    assert reply.status == status
