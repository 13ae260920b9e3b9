"""Who is told how a request fares on its way through the node: the board, and a client that wants times.

The board is memory that the gateway shares with the node, a byte for each request that may be inside. When
the node is dead, it still tells which requests the model had seen, and which it was working on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from serving.phases import NODE_BYTES, NODE_PHASES, Histograms, cells
from serving.wire import Headers

# The marks of a slot; without one, the model has not seen the request.
COMPUTING = 1
COMPUTED = 2


class Board(Protocol):
    """The slots of the requests inside the node: a `bytearray`, or an `mmap`."""

    def __len__(self) -> int:
        """How many slots there are."""

    def __setitem__(self, slot: int, mark: int, /) -> None:
        """Mark a slot."""


class Watch:
    """Is told how one request fares. This one does not care, and serves all that nobody watches."""

    __slots__ = ()

    def parsed(self) -> None:
        """The body has become instances."""

    def begin(self) -> None:
        """The model is about to see the request; again when a call with others failed."""

    def end(self) -> None:
        """The model has given an answer or raised."""

    def predicted(self) -> None:
        """The predictions are there."""

    def encoded(self) -> None:
        """The predictions have become a body."""

    def headers(self) -> Headers:
        """What to add to the answer's head."""
        return ()


UNWATCHED = Watch()


class Mark(Watch):
    """Marks a slot of the board, for all the requests that ever hold the slot."""

    __slots__ = ("_board", "_slot")

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot

    def begin(self) -> None:
        """Mark as being computed."""
        self._board[self._slot] = COMPUTING

    def end(self) -> None:
        """Mark as computed."""
        self._board[self._slot] = COMPUTED


def marks(board: Board) -> Mapping[bytes, Watch]:
    """The marks of a board by slot, written as in the header that names it."""
    return {b"%d" % slot: Mark(board, slot) for slot in range(len(board))}


def parts(board: Board, slots: int) -> tuple[Board, Histograms | None]:
    """The marks on a board, and the histograms behind them; without `slots` it is all marks."""
    if not slots:
        return board, None
    whole = memoryview(cast(bytearray, board))
    return whole[:slots], Histograms(len(NODE_PHASES), cells(whole[-NODE_BYTES:]))


class Timing(Watch):
    """Takes the times of a request from its parsing on, for `histograms` and, if they are to be `told`, for a
    `Server-Timing` header.

    `wait` is all the time between parsing and encoding in which the model did not work on the request.
    `clock` is in seconds.
    """

    __slots__ = (
        "_began", "_clock", "_encoded", "_histograms", "_infer", "_mark", "_parsed", "_predicted", "_start",
        "_told",
    )  # fmt: skip

    def __init__(
        self,
        mark: Watch,
        histograms: Histograms | None = None,
        *,
        told: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._mark = mark
        self._histograms = histograms
        self._told = told
        self._clock = clock
        self._infer = 0.0
        self._start = clock()
        self._parsed = self._began = self._predicted = self._encoded = self._start

    def parsed(self) -> None:
        """Note the time."""
        self._parsed = self._clock()

    def begin(self) -> None:
        """Note the time, then mark."""
        self._began = self._clock()
        self._mark.begin()

    def end(self) -> None:
        """Mark, then note the time."""
        self._mark.end()
        self._infer += self._clock() - self._began

    def predicted(self) -> None:
        """Note the time."""
        self._predicted = self._clock()

    def encoded(self) -> None:
        """Note the time, and count the request."""
        self._encoded = self._clock()
        if self._histograms is not None:
            for phase, seconds in enumerate(self._phases()):
                self._histograms.add(phase, seconds)

    def headers(self) -> Headers:
        """The times in milliseconds."""
        if not self._told:
            return ()
        phases = zip(NODE_PHASES, self._phases(), strict=True)
        text = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in phases)
        return ((b"server-timing", text.encode()),)

    def _phases(self) -> tuple[float, float, float, float]:
        """In the order of NODE_PHASES."""
        return (
            self._parsed - self._start,
            self._predicted - self._parsed - self._infer,
            self._infer,
            self._encoded - self._predicted,
        )
