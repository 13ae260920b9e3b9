from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS

# Leads a group of two; both have the same output.
PROGRAM = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
print("at work", flush=True)
time.sleep(600)
"""

# Leaves a process behind in a session of its own, which has the same output.
LEAVING = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("done", flush=True)
"""


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    """Though it is in no group and has no parent any more."""
    (tmp_path / "program.py").write_text(LEAVING)
    remote_lifeline, lifeline = os.pipe()
    done = subprocess.run(
        [sys.executable, "-m", "autoscaler.module_process", str(remote_lifeline), "program"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        pass_fds=(remote_lifeline,),
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60,  # the output ends when nobody has it any more
        check=True,
    )
    os.close(remote_lifeline)
    os.close(lifeline)

    assert done.stdout == b"done\n"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_ends_with_its_lifeline(tmp_path: Path, stopped: bool) -> None:
    """And its group with it; also one that is stopped, and so does nothing by itself."""
    (tmp_path / "program.py").write_text(PROGRAM)
    remote_lifeline, lifeline = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "autoscaler.module_process", str(remote_lifeline), "program"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        pass_fds=(remote_lifeline,),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(remote_lifeline)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"at work\n"
        if stopped:
            child.send_signal(signal.SIGSTOP)
        os.close(lifeline)

        assert child.wait(HANG_SECONDS) == -signal.SIGKILL
        assert child.stdout.read() == b""
