"""Ends a standalone node whose model call hangs."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import sys
import threading
import time

from serving.hang_detection import HangLimits, LivenessReading, StallTimes, describe_hang, update_stall
from serving.node.request_marks import CallMark

logger = logging.getLogger(__name__)

_CHECK_INTERVAL = 0.5


def start_call_watchdog(call_mark: CallMark, call_timeout: float) -> None:
    """End this process with exit code 1 once a call takes more than that many seconds (infinity: never).

    A thread watches, since the event loop may be what computes. Compiled code that holds the GIL blocks this
    thread too; then the node's health checks fail as well.
    """
    if math.isfinite(call_timeout):
        limits = HangLimits(call=call_timeout, silent=math.inf)
        thread = threading.Thread(
            target=_watch_calls, args=(call_mark, limits), name="hang-guard", daemon=True
        )
        thread.start()


def _watch_calls(call_mark: CallMark, limits: HangLimits) -> None:
    stall, checked_at = StallTimes(), time.monotonic()
    while not (reason := describe_hang(stall, limits)):
        time.sleep(_CHECK_INTERVAL)
        now = time.monotonic()
        # Capped, since this process or the whole machine may have been suspended.
        seconds, checked_at = min(now - checked_at, 2 * _CHECK_INTERVAL), now
        stall = update_stall(stall, LivenessReading(call=call_mark.current_call), seconds)
    logger.critical("The node ends: %s. This is what its threads do:", reason)
    faulthandler.dump_traceback(sys.stderr)
    sys.stderr.flush()
    os._exit(1)
