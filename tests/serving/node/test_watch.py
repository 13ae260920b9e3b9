from __future__ import annotations

import mmap

import pytest

from serving.node.watch import UNWATCHED, Board, Timing, marks, parts
from serving.phases import NODE_BYTES


class Clock:
    """Tells the times it was given, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0)


@pytest.mark.parametrize("board", [bytearray(3), mmap.mmap(-1, 3)], ids=["bytearray", "mmap"])
def test_a_slot_shows_what_the_model_does_with_its_request(board: Board) -> None:
    """1 while it computes, 2 when it has computed, and so again for the next request."""
    mark = marks(board)[b"1"]
    seen = []
    for step in (mark.begin, mark.end, mark.begin, mark.end):
        step()
        seen.append(bytes(board))  # type: ignore[call-overload]

    assert seen == [b"\0\1\0", b"\0\2\0"] * 2


def test_a_board_has_the_slots_that_it_has() -> None:
    """By the header's value; whatever else stands there names none."""
    assert list(marks(bytearray(2))) == [b"0", b"1"]
    assert not marks(bytearray())


def test_times_add_up() -> None:
    """What is neither parsing, computing nor encoding is waiting; two calls count together."""
    board = bytearray(1)
    clock = Clock(10.0, 10.001, 10.003, 10.007, 10.008, 10.016, 10.020, 10.0205)
    watch = Timing(marks(board)[b"0"], clock=clock)
    watch.parsed()
    for _ in range(2):
        watch.begin()
        assert board[0] == 1
        watch.end()
    watch.predicted()
    watch.encoded()

    assert board[0] == 2
    [(name, value)] = watch.headers()
    assert name == b"server-timing"
    assert value == b"parse;dur=1.000, wait;dur=7.000, infer;dur=12.000, encode;dur=0.500"


def test_times_are_counted_for_all_and_told_to_those_who_ask() -> None:
    """Each phase once per request."""
    board = mmap.mmap(-1, 8 + NODE_BYTES)
    slots, histograms = parts(board, 5)
    assert len(slots) == 5
    assert histograms is not None
    for told in (False, True):
        clock = Clock(10.0, 10.001, 10.003, 10.007, 10.008, 10.0085)
        watch = Timing(marks(slots)[b"4"], histograms, told=told, clock=clock)
        for step in (watch.parsed, watch.begin, watch.end, watch.predicted, watch.encoded):
            step()
        assert bool(watch.headers()) == told

    assert board[:8] == b"\0\0\0\0\2\0\0\0"
    assert [sum(histograms.read(phase).counts) for phase in range(4)] == [2] * 4
    assert [round(histograms.read(phase).seconds, 6) for phase in range(4)] == [0.002, 0.006, 0.008, 0.001]


def test_a_board_without_slots_is_all_marks() -> None:
    """As it is for a node on its own."""
    assert parts(bytearray(3), 0) == (bytearray(3), None)


def test_nobody_watching_costs_nothing_and_says_nothing() -> None:
    """Every step may be told to it."""
    for step in (UNWATCHED.parsed, UNWATCHED.begin, UNWATCHED.end, UNWATCHED.predicted, UNWATCHED.encoded):
        step()

    assert UNWATCHED.headers() == ()
