"""The log writer process: `python -m serving.logs.sinks OPTIONS`.

Reads the journals and writes their records to their sinks, one thread per journal, so that a slow sink delays
no other. It ends when its standard input is closed, that is when the server has ended in whatever way.
Undelivered records stay in the journals for the next log writer.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from serving.logs import formatters
from serving.logs.journal import JournalReader
from serving.logs.sinks.delivery import JournalDelivery
from serving.logs.sinks.sink_factory import make_sink
from serving.logs.sinks.writer_options import LogWriterOptions

# Seconds between two scans for new journals, and for the sinks once the server has ended.
_SCAN_SECONDS = 0.2
_GRACE_SECONDS = 5.0


class DeliveryRunner:
    """Runs all deliveries until `ending` is set."""

    def __init__(self, options: LogWriterOptions, ending: threading.Event) -> None:
        self._options = options
        self._ending = ending
        self._threads: dict[Path, threading.Thread] = {}

    def run(self) -> None:
        """Deliver until `ending` is set, and then what is left for a few seconds."""
        while not self._ending.is_set():
            self._start_new_deliveries()
            self._ending.wait(_SCAN_SECONDS)
        self._start_new_deliveries()
        deadline = time.monotonic() + _GRACE_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_new_deliveries(self) -> None:
        for card in self._options.spill.glob("*/journal.json"):
            folder = card.parent
            if folder in self._threads:
                continue
            try:
                reader = JournalReader(folder)
            except FileNotFoundError:  # it is just being made
                continue
            make = partial(make_sink, reader.kind, reader.address, reader.uid, self._options)
            self._threads[folder] = threading.Thread(
                target=self._run_delivery, args=(JournalDelivery(reader, make),), daemon=True
            )
            self._threads[folder].start()

    def _run_delivery(self, delivery: JournalDelivery) -> None:
        while not self._ending.is_set():
            self._ending.wait(delivery.deliver_next())
        while delivery.deliver_next(closing=True) == 0:
            pass


def main() -> None:
    options = LogWriterOptions.from_argument(sys.argv[1])
    # The server ends us by closing our input, after the last records are in their journals.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    formatters.configure_logging(options.log_format)
    options.spill.mkdir(parents=True, exist_ok=True)
    with (options.spill / "lock").open("w") as lock:
        # The writer of a server that was killed may be at its last records.
        fcntl.flock(lock, fcntl.LOCK_EX)
        ending = threading.Event()
        threading.Thread(target=_wait_for_end_of_input, args=(ending,), daemon=True).start()
        DeliveryRunner(options, ending).run()
        # Threads that still wait for a sink are left behind.
        os._exit(0)


def _wait_for_end_of_input(ending: threading.Event) -> None:
    sys.stdin.buffer.read()
    ending.set()


if __name__ == "__main__":
    main()
