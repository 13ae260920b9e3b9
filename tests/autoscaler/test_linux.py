"""Ends what a killed child has left, and lists what this process has started."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from autoscaler import linux

# The child takes a while to end, as it has much memory to give back; until then its own child is no orphan.
_ORPHANS = """
import os, signal, sys
from autoscaler import linux

linux.set_subreaper(True)
read, write = os.pipe()
child = os.fork()
if not child:
    linux.raise_oom_score(linux.JOB_OOM_SCORE)
    grandchild = os.fork()
    if not grandchild:
        os.setsid()
        signal.alarm(60)  # it holds the output open
        signal.pause()
    memory = bytearray(os.urandom(1)) * (400 << 20)
    os.write(write, str(grandchild).encode())
    signal.pause()
grandchild = int(os.read(read, 20))
killed = linux.kill_orphans(linux.JOB_OOM_SCORE)
print(killed, os.path.exists(f"/proc/{child}"), os.path.exists(f"/proc/{grandchild}"))
"""


def test_descendants_of_a_child_that_ends_slowly_are_killed() -> None:
    ran = subprocess.run([sys.executable, "-c", _ORPHANS], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["2", "False", "False"]


def test_a_child_that_ends_while_it_is_looked_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    scan = os.scandir

    def end_and_scan(path: Any) -> Any:
        if f"/{child.pid}/" in str(path):
            child.communicate()
        return scan(path)

    monkeypatch.setattr(os, "scandir", end_and_scan)

    assert child.pid in linux.list_descendants()  # its parent had it; what it has started cannot be read
    assert child.returncode is not None
