"""Runs a program's main coroutine, and ends the process by force if need be."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import resource
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop

_STDERR = 2
# Parameters of mallopt(3), and their values in bytes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _HEAP_BLOCK_BYTES = 16 << 20, 4 << 20


def keep_freed_memory() -> None:
    """Have glibc keep up to 16 MiB that are free, instead of giving them back after each large body.

    By default it gives back all over twice the largest block: each body of a megabyte costs hundreds of page
    faults then. Blocks over 4 MiB go back at once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES)


def run_event_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run the main coroutine on uvloop with the highest limit of open files; its result is the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def end_process_within(seconds: float) -> None:
    """End this process with status 1 after so many seconds, and print what its threads were doing.

    Takes no lock, so that a signal handler may call it; a later call replaces the earlier one.
    """
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    except RuntimeError:  # no thread can be started: then without a traceback
        signal.setitimer(signal.ITIMER_REAL, seconds)
