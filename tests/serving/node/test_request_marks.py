from __future__ import annotations

import mmap
import threading

import pytest

from serving.errors import ModelFailed
from serving.latency_histograms import NODE_BYTES, NODE_CALLS, NODE_LAST, NODE_ROWS
from serving.node.request import NodeRequest
from serving.node.request_marks import (
    CallMark,
    RequestMarks,
    mark_computed,
    mark_computing,
    record_timing,
    server_timing_header,
    split_shared_memory,
)
from tests.bounds import HANG_SECONDS


class Clock:
    """Tells the times it was given, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0)


@pytest.mark.parametrize("board", [bytearray(3), mmap.mmap(-1, 3)], ids=["bytearray", "mmap"])
def test_a_slot_shows_what_the_model_does_with_its_request(board: RequestMarks) -> None:
    """1 while it computes, 2 when it has computed, and so again; those without a slot mark nothing."""
    group = (NodeRequest(1), NodeRequest())
    seen = []
    for _ in range(2):
        began = mark_computing(group, board)
        seen.append(bytes(board))  # type: ignore[call-overload]
        mark_computed(group, board, began)
        seen.append(bytes(board))  # type: ignore[call-overload]

    assert seen == [b"\0\1\0", b"\0\2\0"] * 2


@pytest.mark.parametrize("during", [False, True], ids=["before the call", "during the call"])
def test_a_request_that_was_given_up_marks_nothing_more(during: bool) -> None:
    """Its slot may be another request's by then."""
    board = bytearray(2)
    gone, kept = NodeRequest(0), NodeRequest(1)
    gone.is_finished = not during
    began = mark_computing((gone, kept), board)
    gone.is_finished = True
    mark_computed((gone, kept), board, began)

    assert bytes(board) == (b"\1\2" if during else b"\0\2")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_a_call_raises_nothing_that_would_end_its_thread(kind: type[BaseException]) -> None:
    """What is no Exception becomes an error of the model, and the call is over."""

    def call() -> None:
        raise kind("enough")

    mark = CallMark()
    for marked in (mark.mark_calls(call), mark.mark_concurrent_calls(call)):
        with pytest.raises(ModelFailed, match=f"{kind.__name__}: enough"):
            marked()

        assert mark.current_call_number == 0


def test_the_oldest_of_several_calls_is_the_current_one() -> None:
    """So a call that never returns shows, however many others come and go."""
    mark = CallMark()
    seen: list[int] = []
    began, release = threading.Event(), threading.Event()

    def call(is_long: bool) -> None:
        seen.append(mark.current_call_number)
        if is_long:
            began.set()
            release.wait(HANG_SECONDS)

    marked = mark.mark_concurrent_calls(call)
    thread = threading.Thread(target=marked, args=(True,))
    thread.start()
    assert began.wait(HANG_SECONDS)
    for _ in range(2):
        marked(False)
    assert (seen, mark.current_call_number) == ([1, 1, 1], 1)
    release.set()
    thread.join(HANG_SECONDS)

    assert mark.current_call_number == 0


def computed(board: RequestMarks, *times: float) -> NodeRequest:
    """A request that arrives at 10 s and is parsed at 10.001 s, computed between each two of these times."""
    request = NodeRequest(0)
    request.received_at, request.parsed_at, request.rows = 10.0, 10.001, 3
    clock = Clock(*times)
    while clock.times:
        mark_computed((request,), board, mark_computing((request,), board, clock), clock)
    return request


def test_times_add_up() -> None:
    """What is neither parsing, computing nor encoding is waiting; two calls count together."""
    request = computed(bytearray(1), 10.003, 10.007, 10.008, 10.016)

    [(name, value)] = server_timing_header(request, 10.020, 10.0205)
    assert name == b"server-timing"
    assert value == b"parse;dur=1.000, wait;dur=7.000, infer;dur=12.000, encode;dur=0.500"


def test_times_are_counted() -> None:
    """Each phase once per request, behind the marks."""
    board = mmap.mmap(-1, 8 + NODE_BYTES)
    slots, histograms = split_shared_memory(board, 5)
    assert len(slots) == 5
    assert histograms is not None
    for _ in range(2):
        record_timing(histograms, [computed(slots, 10.003, 10.007)], 10.008, 10.0085)

    assert board[:8] == b"\2" + bytes(7)
    assert [histograms.cells[cell] for cell in (NODE_ROWS, NODE_CALLS, NODE_LAST)] == [6, 2, 10_008]
    assert [sum(histograms.read_phase(phase).counts) for phase in range(4)] == [2] * 4
    assert [round(histograms.read_phase(phase).seconds, 6) for phase in range(4)] == [
        0.002,
        0.006,
        0.008,
        0.001,
    ]


def test_a_board_without_slots_is_all_marks() -> None:
    """As it is for a node on its own."""
    assert split_shared_memory(bytearray(3), 0) == (bytearray(3), None)
