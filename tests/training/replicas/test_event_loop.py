"""Descriptors, signals and times in one thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from training.replicas.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    before = signal.getsignal(signal.SIGUSR1)
    loop = EventLoop()
    yield loop
    loop.close()
    signal.signal(signal.SIGUSR1, before)


def test_times_come_in_order(loop: EventLoop) -> None:
    seen: list[int] = []
    for seconds, number in ((0.02, 2), (0.0, 1), (0.02, 3)):
        loop.call_later(seconds, lambda number=number: seen.append(number))  # type: ignore[misc]
    loop.run_until(lambda: len(seen) == 3)

    assert seen == [1, 2, 3]


def test_a_signal_wakes_the_loop(loop: EventLoop) -> None:
    seen: list[str] = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: seen.append("signal"))
    loop.call_later(0.0, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    loop.run_until(lambda: bool(seen))

    assert seen == ["signal"]


def test_a_reader_that_another_removes_is_not_called(loop: EventLoop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def read(fd: int) -> None:
        called.append(fd)
        for reading, _ in pipes:
            loop.remove_reader(reading)

    for reading, writing in pipes:
        loop.add_reader(reading, lambda fd=reading: read(fd))  # type: ignore[misc]
        os.write(writing, b"x")
    loop.call_later(0.05, lambda: called.append(-1))
    loop.run_until(lambda: -1 in called)
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)

    assert len(called) == 2
