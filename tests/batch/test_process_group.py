"""The end of a process with workers."""

from __future__ import annotations

import signal
import subprocess
import sys

_WORKER = "import sys; sys.stdin.read(); print('broken', file=sys.stderr, flush=True)"
_LEADER = f"""
import subprocess, sys, time
from batch.process_group import end_group_on_sigterm
end_group_on_sigterm()
worker = subprocess.Popen([sys.executable, "-c", {_WORKER!r}], stdin=subprocess.PIPE)
print("ready", flush=True)
time.sleep(60)
"""


def test_workers_of_a_process_that_is_asked_to_end_say_nothing() -> None:
    """They would else find their connection to it broken, and say so in the job's log."""
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert leader.stdout is not None
    assert leader.stdout.readline() == "ready\n"
    leader.terminate()
    _, said = leader.communicate(timeout=60)  # also the worker's end, which has the other end of stderr

    assert said == ""
    assert leader.returncode == -signal.SIGTERM
