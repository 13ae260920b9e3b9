"""Runs a module of ours as a process that ends when the server does, with all that it has started.

`python -m serving.gateway.control.child_process FD MODULE`, in a session of its own: FD is the reading end of a pipe whose
only writing end the server holds. Without it, pip would go on installing into a folder that the next server
prepares anew, and a job would go on beside the next server's attempt at it.
"""

from __future__ import annotations

import runpy
import sys

from autoscaler import linux


def main(lifeline: int, module: str) -> None:
    """Run the module as `python -m MODULE` would; when it has ended, so has what it started."""
    linux.die_with_lifeline(lifeline)
    linux.harden_process()
    linux.set_subreaper(True)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        linux.kill_descendants()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
