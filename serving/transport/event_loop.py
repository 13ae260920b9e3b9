"""Runs a program's main coroutine, and ends the program."""

from __future__ import annotations

import asyncio
import faulthandler
import resource
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop

_STDERR = 2


def run_event_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run the program's main coroutine on uvloop; its result is the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def end_process_within(seconds: float) -> None:
    """End this process after so many seconds if it has not ended by then, whatever it does.

    Its status is 1 then, and its last words are what its threads were doing. It takes no lock, so that a
    handler of a signal may call it; the last call counts.
    """
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    except RuntimeError:  # there is no thread to be had: then without a word
        signal.setitimer(signal.ITIMER_REAL, seconds)
