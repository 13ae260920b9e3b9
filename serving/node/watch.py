"""Who is told how requests fare on their way through the node: the board, the histograms, and a client that
wants times.

The board is memory that the gateway shares with the node, a byte for each request that may be inside. When
the node is dead, it still tells which requests the model had seen, and which it was working on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import ParamSpec, Protocol, TypeVar, cast

from serving.errors import ModelFailed, describe_exception
from serving.node.request import NOWHERE, Request
from serving.phases import (
    NODE_BYTES,
    NODE_CALL,
    NODE_CALLS,
    NODE_LAST,
    NODE_PHASES,
    NODE_ROWS,
    LatencyHistograms,
    as_cells,
)
from serving.wire import Headers

# The marks of a slot; without one, the model has not seen the request.
COMPUTING = 1
COMPUTED = 2

Clock = Callable[[], float]

P = ParamSpec("P")
T = TypeVar("T")


class Board(Protocol):
    """The slots of the requests inside the node: a `bytearray`, or an `mmap`."""

    def __len__(self) -> int:
        """How many slots there are."""

    def __setitem__(self, slot: int, mark: int, /) -> None:
        """Mark a slot."""


def parts(board: Board, slots: int) -> tuple[Board, LatencyHistograms | None]:
    """The marks on a board, and the histograms behind them; without `slots` it is all marks."""
    if not slots:
        return board, None
    whole = memoryview(cast(bytearray, board))
    return whole[:slots], LatencyHistograms(len(NODE_PHASES), as_cells(whole[-NODE_BYTES:]))


class CallMark:
    """Tells which call of the model is under way, in memory shared with whoever watches over the node.

    `histograms` are those with the cell for it behind them; None: nobody else is told.
    """

    def __init__(self, histograms: LatencyHistograms | None = None) -> None:
        self._cells: MutableSequence[int] = [0] if histograms is None else histograms.cells
        self._index = 0 if histograms is None else NODE_CALL
        self._numbers = itertools.count(1)

    @property
    def number(self) -> int:
        """The number of the call under way; 0 while there is none."""
        return self._cells[self._index]

    def around(self, call: Callable[P, T]) -> Callable[P, T]:
        """The same call, marked for as long as it takes. Only one of all these is under way at a time.

        Raises ModelFailed for what is no Exception: it would end the thread or the loop that computes, and
        nobody would be told.
        """
        cells, index, numbers = self._cells, self._index, self._numbers

        def marked(*args: P.args, **kwargs: P.kwargs) -> T:
            cells[index] = next(numbers)
            try:
                return call(*args, **kwargs)
            except Exception:
                raise
            except BaseException as error:
                raise ModelFailed(describe_exception(error)) from error
            finally:
                cells[index] = 0

        return marked


def begin(group: Sequence[Request], marks: Board, clock: Clock = time.monotonic) -> float:
    """The model is about to see requests; again when a call with others failed. Returns the time.

    Those that were given up are left alone, here and at the end: another request may hold their slot.
    """
    for request in group:
        if request.slot != NOWHERE and not request.over:
            marks[request.slot] = COMPUTING
    return clock()


def end(group: Sequence[Request], marks: Board, began: float, clock: Clock = time.monotonic) -> None:
    """The model has given an answer or raised; `began` is what `begin` returned."""
    for request in group:
        if request.slot != NOWHERE and not request.over:
            marks[request.slot] = COMPUTED
    seconds = clock() - began
    for request in group:
        request.infer += seconds


def note(histograms: LatencyHistograms, group: Sequence[Request], predicted: float, encoded: float) -> None:
    """Count requests that are answered: their predictions were there, and had become bodies, at these times.

    `wait` is all the time between parsing and encoding in which the model did not work on the request.
    """
    counted = histograms.cells
    counted[NODE_CALLS] += 1
    counted[NODE_LAST] = int(encoded * 1000)
    if len(group) == 1:
        counted[NODE_ROWS] += group[0].rows
        for phase, seconds in enumerate(_phases(group[0], predicted, encoded)):
            histograms.record(phase, seconds)
        return
    counted[NODE_ROWS] += sum([request.rows for request in group])
    parse, wait, infer, encode = range(len(NODE_PHASES))
    histograms.record_all(parse, [request.parsed - request.began for request in group])
    histograms.record_all(wait, [predicted - request.parsed - request.infer for request in group])
    histograms.record_all(infer, [request.infer for request in group])
    histograms.record_all(encode, [encoded - predicted] * len(group))


def told(request: Request, predicted: float, encoded: float) -> Headers:
    """The same times in milliseconds, as the header `Server-Timing` of the answer."""
    phases = zip(NODE_PHASES, _phases(request, predicted, encoded), strict=True)
    text = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in phases)
    return ((b"server-timing", text.encode()),)


def _phases(request: Request, predicted: float, encoded: float) -> tuple[float, float, float, float]:
    """In the order of NODE_PHASES."""
    parsed, infer = request.parsed, request.infer
    return parsed - request.began, predicted - parsed - infer, infer, encoded - predicted
