"""Runs a module of ours as a process that ends when the server does, with all that it has started.

`python -m serving.gateway.child FD MODULE`, in a session of its own: FD is the reading end of a pipe whose
only writing end the server holds. Without it, pip would go on installing into a folder that the next server
prepares anew.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main(lifeline: int, module: str) -> None:
    """Run the module as `python -m MODULE` would."""
    threading.Thread(target=_watch, args=(lifeline,), name="lifeline", daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
