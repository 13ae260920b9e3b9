"""Runs a program's main coroutine."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run the program's main coroutine on uvloop; its result is the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
