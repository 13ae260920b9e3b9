"""Waits for descriptors, signals and times, in the one thread that a process that forks must have."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable

Callback = Callable[[], None]


class EventLoop:
    """Calls back, one after the other. It takes over the signals that it is asked to handle."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()
        self._handlers: dict[int, Callback] = {}
        self._signal_end, self._wakeup_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        self.add_reader(self._signal_end, self._handle_signals)

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Call whenever the descriptor can be read, or its other end is closed."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def remove_reader(self, fd: int) -> None:
        self._selector.unregister(fd)

    def add_signal_handler(self, number: signal.Signals, callback: Callback) -> None:
        self._handlers[number] = callback
        signal.signal(number, lambda *_: None)

    def call_later(self, seconds: float, callback: Callback) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), callback))

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Call back until `is_done`, which is asked after each turn."""
        while not is_done():
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, _ in self._selector.select(timeout):
                # A callback before it may have removed it.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._call_due_timers()

    def close(self) -> None:
        """Set the signals back as they were before Python programs touch them."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._signal_end)
        os.close(self._wakeup_fd)

    def _call_due_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _handle_signals(self) -> None:
        for number in set(os.read(self._signal_end, 4096)):
            if (callback := self._handlers.get(number)) is not None:
                callback()
