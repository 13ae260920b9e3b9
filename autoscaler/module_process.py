"""Runs a module in a child process that ends with the server, together with all processes it started.

`python -m autoscaler.module_process FD MODULE [ARGUMENT...]`, in a session of its own: FD is the reading end
of a pipe whose only writing end the server holds. Otherwise, after a kill of the server, pip would go on
installing into a folder that the next server prepares again, and a job would run beside the next server's
attempt.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from autoscaler import linux


def main(lifeline: int, module: str, arguments: Sequence[str]) -> None:
    """Run the module as `python -m MODULE ARGUMENT...` does, then kill its descendants."""
    sys.argv = [module, *arguments]
    linux.die_with_lifeline(lifeline)
    linux.harden_process()
    linux.set_subreaper(True)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        linux.kill_descendants()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
