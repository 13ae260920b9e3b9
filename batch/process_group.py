"""The process group of an attempt that has worker processes."""

from __future__ import annotations

import os
import signal


def end_group_on_sigterm() -> None:
    """Have SIGTERM end the whole process group at once, if this process leads one.

    A worker that is alive for a moment longer than this process finds its connections broken, and writes
    Beam's tracebacks of that into the log of a job that was merely cancelled. To be called in the main
    thread, which must not be in a long call of native code: only then is the signal heard.
    """
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, _end_group)


def _end_group(number: int, _: object) -> None:
    # The kernel marks all of the group before it lets any of them go on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.killpg(0, number)
