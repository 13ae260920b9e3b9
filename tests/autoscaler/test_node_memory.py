"""The memory that a node shares with the server."""

from __future__ import annotations

import os
import signal

import pytest

from autoscaler import linux, node_memory
from autoscaler.pools.node_pipes import SharedRegion
from tests.autoscaler.pool import descriptors


@pytest.fixture(params=[True, False])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files in memory, and without."""
    monkeypatch.setattr(linux, "AVAILABLE", request.param)


@pytest.mark.usefixtures("anywhere")
def test_both_ends_see_the_same() -> None:
    """At once, in both directions."""
    ours = SharedRegion(3)
    theirs = node_memory.attach_region(os.dup(ours.fileno()))
    assert list(ours.memory.marks) == [0, 0, 0]
    theirs[1] = 2
    ours.memory.marks[2] = 1

    assert (len(ours.memory.marks), len(theirs)) == (3, 3)
    assert (list(ours.memory.marks), list(theirs)) == ([0, 2, 1], [0, 2, 1])
    ours.close()
    assert list(ours.memory.marks) == [0, 2, 1]


@pytest.mark.usefixtures("anywhere")
def test_it_outlives_the_process_that_wrote_on_it() -> None:
    """What a killed process wrote last is still there."""
    ours = SharedRegion(2)
    pid = os.fork()
    if pid == 0:
        node_memory.attach_region(ours.fileno())[0] = 1
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

    ours.close()
    assert list(ours.memory.marks) == [1, 0]


@pytest.mark.usefixtures("anywhere")
def test_notes_lie_behind_the_marks() -> None:
    """Where integers may lie; they stay as they were last."""
    ours = SharedRegion(3, 16)
    theirs = memoryview(node_memory.attach_region(os.dup(ours.fileno())))  # type: ignore[arg-type]  # it is a view
    theirs[-16:].cast("Q")[1] = 1 << 40
    theirs[2] = 1

    assert len(theirs) % 8 == 0
    assert list(ours.memory.counters.cast("Q")) == [0, 1 << 40]
    ours.close()
    assert list(ours.memory.counters.cast("Q")) == [0, 1 << 40]
    assert list(ours.memory.marks) == [0, 0, 1]


def test_it_holds_nothing_once_closed() -> None:
    """No descriptor is left."""
    before = descriptors()
    SharedRegion(1).close()
    with pytest.raises(OSError, match="Invalid argument"):
        SharedRegion(-1)

    assert descriptors() == before
