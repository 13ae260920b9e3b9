"""Imports what a pilot imports, forks once, and reports whether that works.

Started as `python -m serving.cli.health.fork_probe JSON`, where the JSON is the list of modules to import.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from typing import Any

from autoscaler import linux, machine


def main(argument: str) -> None:
    """Print one JSON object; see `frameworks.ForkProbeResult`."""
    begin = time.perf_counter()
    report: dict[str, Any] = {"seconds": 0.0, "memory": 0, "threads": [], "forked": False}
    try:
        for module in json.loads(argument):
            importlib.import_module(module)
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    else:
        gc.collect()
        gc.freeze()
        report["seconds"] = time.perf_counter() - begin
        report["memory"] = machine.measure_memory(os.getpid()).private
        report["threads"] = linux.thread_names()
        report["forked"] = len(report["threads"]) == 1 and _can_fork()
    print(json.dumps(report))


def _can_fork() -> bool:
    """Whether a fork lives and ends as it should."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(sys.argv[1])
