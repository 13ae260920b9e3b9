"""Pilots: what they need, how they fail, and that nothing depends on them but speed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler import machine
from autoscaler.pools import Node, NodeState, PilotSpec, PilotState
from autoscaler.pools.local_pool import LocalPool
from autoscaler.pools.pilot_manager import PilotPolicy
from tests.autoscaler import pool as pools
from tests.autoscaler.pool import PATIENT, TINY, History, ask, children, pilot, ready_pilots, run, spec
from tests.bounds import HANG_SECONDS
from tests.server import processes_of, until


@pytest.fixture
def preload(tmp_path: Path) -> Any:
    """Writes a module and returns a pilot that imports it."""

    def preload(code: str, **environment: str) -> PilotSpec:
        (tmp_path / "preloaded.py").write_text(code)
        return pilot("preloaded", "tests.autoscaler.nodes", PYTHONPATH=str(tmp_path), **environment)

    return preload


KILLED_ONCE = """
import os, signal
from pathlib import Path

once = Path(__file__).with_name("once")
if not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGKILL)
from tests.autoscaler.nodes import echo
"""


async def start(pool: LocalPool, key: str, pilot: PilotSpec = TINY, **details: Any) -> Node:
    """A node of a version of its own, once it is ready."""
    await pool.scale(spec("echo", key=key, pilot=pilot, word=key, **details), 1)
    (node,) = pool.nodes(key)
    while node.state is NodeState.STARTING:  # noqa: ASYNC110  the pool's only listener is another
        await asyncio.sleep(0.001)
    assert node.state is NodeState.READY, node.reason
    return node


# ---- what they are for


def test_a_fork_does_without_the_imports(preload: Any, tmp_path: Path) -> None:
    """What a forked node needs was imported once, by its pilot; a cold one imports it itself."""
    heavy = preload(
        "from pathlib import Path\n"
        "from tests.autoscaler.nodes import echo\n"
        "with Path(__file__).with_name('imports').open('a') as file:\n"
        "    print('imported', file=file)\n"
    )
    environment = {**pools.ENVIRONMENT, "PYTHONPATH": str(tmp_path)}

    async def main(pool: LocalPool, history: History) -> None:
        assert not pool.can_fork(spec("echo", pilot=heavy))
        pool.set_wanted_pilots([heavy])
        assert pool.can_fork(spec("echo", pilot=heavy))
        await ready_pilots(pool)
        imports = []
        for key, its_pilot in (("forked", heavy), ("cold", None)):
            wanted = spec("preloaded:echo", key=key, pilot=its_pilot, environment=environment, word="a")
            assert pool.can_fork(wanted) == (key == "forked")
            await pool.scale(wanted, 1)
            (node,) = await history.until(NodeState.READY)
            assert node.forked == (key == "forked")
            imports.append((tmp_path / "imports").read_text().count("imported"))
            await pool.scale(wanted, 0)
            await node.gone.wait()

        assert imports == [1, 2]

    run(main)


def test_a_spare_rehearses_while_it_waits(preload: Any, tmp_path: Path) -> None:
    """Every one does, in its own process; an order ends it between two steps, and so does a failure."""
    own = preload(
        "import itertools, os, time\n"
        "from pathlib import Path\n"
        "def rehearse():\n"
        "    for step in itertools.count():\n"
        "        with Path(__file__).with_name('steps').open('a') as file:\n"
        "            print(os.getpid(), step, file=file)\n"
        "        yield time.sleep(0.01)\n"
        "def fail():\n"
        "    yield\n"
        "    raise RuntimeError('in vain')\n"
    )

    def steps() -> list[list[str]]:
        file = tmp_path / "steps"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    async def main(pool: LocalPool, history: History) -> None:
        endless = replace(own, spare_warmup="preloaded:rehearse")
        failing = replace(own, key="failing", spare_warmup="preloaded:fail")
        pool.set_wanted_pilots([endless, failing])
        status = next(one for one in await ready_pilots(pool, 2) if one.key == endless.key)
        while len(steps()) < 3:  # noqa: ASYNC110  another process writes them
            await asyncio.sleep(0.01)
        node = await start(pool, "a", endless)

        assert node.forked
        assert node.pid == status.spare
        assert [step for pid, step in steps() if int(pid) == node.pid][:3] == ["0", "1", "2"]
        assert (await start(pool, "b", failing)).forked

    run(main)


def test_many_at_once() -> None:
    """Versions that wake together are all forked."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        await ready_pilots(pool)
        nodes = await asyncio.gather(*(start(pool, f"{number}") for number in range(20)))

        assert all(node.forked for node in nodes)
        assert len({node.pid for node in nodes}) == 20
        assert await asyncio.gather(*(ask(node, "!") for node in nodes)) == [f"{n} !" for n in range(20)]
        (status,) = await ready_pilots(pool)
        assert status.forked == 20

    run(main)


def test_nothing_of_the_pilot_shows_in_a_node(preload: Any) -> None:
    """Signal handlers and masks, random states, descriptors."""
    own = preload(
        "import signal, numpy.random\n"
        "signal.signal(signal.SIGUSR1, print)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.set_wakeup_fd(-1)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})\n",
        OPENBLAS_NUM_THREADS="1",
    )

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("tell", pilot=own), 2)
        await pool.scale(spec("tell", key="cold", pilot=None), 1)
        ready = await history.until(NodeState.READY, 3)
        first, second = (node.report for node in ready if node.forked)
        (cold,) = (node.report for node in ready if not node.forked)

        assert first["signals"] == cold["signals"]
        assert first["open"] == cold["open"]
        assert first["threads"] == cold["threads"] == 1
        assert all(a != b for a, b in zip(first["random"], second["random"], strict=True))

    run(main)


# ---- when they are lit


def test_a_pilot_is_lit_as_long_as_it_is_asked_for() -> None:
    """With "auto": those that are told, whether there are nodes or not; others go out."""
    other = pilot("json", key="other")

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY, other])
        first, second = await ready_pilots(pool, 2)
        assert (first.key, second.key) == ("other", "tiny")
        assert {first.pid, first.spare, second.pid, second.spare} <= children()
        assert (second.age or 0) >= 0
        assert 0 < (second.seconds or 0) < HANG_SECONDS

        pool.set_wanted_pilots([TINY])
        (same,) = await ready_pilots(pool)
        assert same.pid == second.pid
        await asyncio.to_thread(until, lambda: first.pid not in children(), "the other is out")

        changed = pilot("json", "tests.autoscaler.nodes")
        pool.set_wanted_pilots([changed])
        (restarted,) = await ready_pilots(pool)
        assert restarted.pid != second.pid
        assert pool.can_fork(spec("echo", pilot=changed))
        assert not pool.can_fork(spec("echo", pilot=TINY))

    run(main)


def test_a_pilot_is_lit_by_need_and_lingers() -> None:
    """With a number of seconds: from the first node on until that long after the last one is gone."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        assert pool.list_pilots() == []
        node = await start(pool, "a")
        assert node.forked
        (status,) = await ready_pilots(pool)
        await pool.scale(spec("echo", key="a"), 0)
        await node.gone.wait()
        again = await start(pool, "b")
        await asyncio.sleep(2.2)
        assert again.forked
        assert [one.pid for one in pool.list_pilots()] == [status.pid]

        await pool.scale(spec("echo", key="b"), 0)
        await again.gone.wait()
        assert pool.list_pilots() != []
        await asyncio.to_thread(until, lambda: status.pid not in children(), "the pilot is out")
        assert pool.list_pilots() == []

    run(main, pilots="2")


def test_no_pilot_is_lit_when_they_are_off() -> None:
    """Whatever is asked for."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        node = await start(pool, "a")

        assert not node.forked
        assert (pool.list_pilots(), pool.can_fork(spec("echo"))) == ([], False)

    run(main, pilots="off")


@pytest.mark.parametrize("setting", ["on", "-1", "nan", ""])
def test_a_policy_that_makes_no_sense_is_refused(setting: str) -> None:
    """By its words."""
    with pytest.raises(ValueError, match=r"."):
        PilotPolicy.parse(setting)


# ---- how they fail


def test_a_pilot_with_threads_does_not_fork(preload: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A node starts cold at once; why is logged and shown."""
    threaded = preload(
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )

    async def main(pool: LocalPool, history: History) -> None:
        node = await start(pool, "a", threaded)

        assert not node.forked
        (status,) = pool.list_pilots()
        assert status.state is PilotState.FAILED
        assert "It has 2 threads and must not fork" in status.reason

    run(main, timing=replace(PATIENT, first_retry=HANG_SECONDS))
    assert "It has 2 threads and must not fork" in caplog.text


def test_a_pilot_that_begins_a_thread_later_does_not_fork(preload: Any) -> None:
    """It is looked at before each fork."""
    later = preload(
        "import signal, threading, time\n"
        "begin = lambda *_: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "signal.signal(signal.SIGUSR1, begin)\n"
    )

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([later])
        (status,) = await ready_pilots(pool)
        os.kill(status.pid or 0, signal.SIGUSR1)
        threads = Path(f"/proc/{status.pid}/task")
        await asyncio.to_thread(until, lambda: len(list(threads.iterdir())) == 2, "it has begun a thread")
        nodes = [await start(pool, "spare", later), await start(pool, "next", later)]

        assert [node.forked for node in nodes] == [True, False]
        assert "threads" in pool.list_pilots()[0].reason

    run(main, timing=replace(PATIENT, first_retry=HANG_SECONDS))


def test_a_pilot_that_cannot_import_is_tried_again_later_each_time(
    preload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is logged once with its last words; nodes start cold meanwhile, which may do better."""
    broken = preload("import sys; print('on the way'); import no.such.module")

    def failures() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "pilot tiny failed" in record.getMessage()]

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([broken])
        node = await start(pool, "a", broken)
        assert not node.forked
        await asyncio.to_thread(until, lambda: len(failures()) >= 3, "it is tried again and again")

        (status,) = pool.list_pilots()
        assert "ModuleNotFoundError: No module named 'no'" in status.reason
        assert "exit code 1" in status.reason

    run(main, timing=replace(PATIENT, first_retry=0.2))
    first, second, third = (record.created for record in failures()[:3])
    assert second - first >= 0.2
    assert third - second >= 0.4
    assert all("No module named 'no'" in record.getMessage() for record in failures())


def test_a_pilot_that_cannot_be_started_is_told() -> None:
    """Nodes start cold."""
    impossible = pilot(TOO="x" * (1 << 20))

    async def main(pool: LocalPool, history: History) -> None:
        node = await start(pool, "a", impossible)

        assert not node.forked
        assert "Argument list too long" in pool.list_pilots()[0].reason

    run(main)


@pytest.mark.parametrize("who", ["the pilot", "its go-between"])
def test_a_pilot_that_is_short_of_processes_stays_lit(preload: Any, tmp_path: Path, who: str) -> None:
    """Nodes are told of it, and do not start cold beside it; it forks again as soon as it can."""
    gate = tmp_path / "short"
    scarce = preload(
        "import errno, os\n"
        "from pathlib import Path\n"
        "from tests.autoscaler.nodes import echo\n"
        "fork, pilot, gate = os.fork, os.getpid(), Path(__file__).with_name('short')\n"
        "def scarce():\n"
        f"    if gate.exists() and (os.getpid() == pilot) == {who == 'the pilot'}:\n"
        "        raise BlockingIOError(errno.EAGAIN, 'no process')\n"
        "    return fork()\n"
        "os.fork = scarce\n"
    )
    gate.touch()

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([scarce])
        wanted = spec("echo", pilot=scarce, word="a")
        await pool.scale(wanted, 1)
        (starved,) = await history.until(NodeState.GONE)
        pid = pool.list_pilots()[0].pid
        gate.unlink()
        (after,) = await ready_pilots(pool)
        node = await start(pool, "again", scarce)

        assert (starved.starved, starved.forked, starved.crashed) == (True, False, True)
        assert starved.reason.startswith("Cannot start a process: ")
        assert (after.pid, node.forked) == (pid, True)

    run(main)


def test_a_pilot_that_takes_too_long_is_not_waited_for(preload: Any) -> None:
    """Nodes start cold; in the end it is given up."""
    stuck = preload("import time; time.sleep(600)")

    async def main(pool: LocalPool, history: History) -> None:
        begin = time.monotonic()
        first = await start(pool, "a", stuck)
        assert time.monotonic() - begin >= 0.3
        assert pool.list_pilots()[0].state is PilotState.STARTING
        second = await start(pool, "b", stuck)

        assert not first.forked
        assert not second.forked
        await asyncio.to_thread(
            until, lambda: pool.list_pilots()[0].state is PilotState.FAILED, "the pilot is given up"
        )
        assert "It was not ready within 5 s" in pool.list_pilots()[0].reason

    run(main, timing=replace(PATIENT, pilot_start=0.3, longest_pilot_start=5.0))


def test_a_pilot_that_waits_for_a_processor_is_not_stuck(
    preload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its start takes then: the next one would not be faster."""
    gate, looked = tmp_path / "gate", itertools.count(1)
    slow = preload(
        "import time\nfrom pathlib import Path\n"
        f"while not Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n"
    )

    def measure_waiting(_: int) -> float:
        if (number := next(looked)) == 3:
            gate.touch()
        return number * 0.5 if number < 3 else HANG_SECONDS

    monkeypatch.setattr(machine, "all_threads_run_delay", measure_waiting)

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([slow])
        (ready,) = await ready_pilots(pool)
        assert (ready.state, ready.reason) == (PilotState.READY, "")

    run(main, timing=replace(PATIENT, longest_pilot_start=0.5, first_retry=HANG_SECONDS))


@pytest.mark.parametrize(
    ("does", "within", "state"),
    [
        ("raise ImportError", HANG_SECONDS, PilotState.FAILED),
        ("import time; time.sleep(600)", 0.1, PilotState.STARTING),
        ("from tests.autoscaler.nodes import echo", HANG_SECONDS, PilotState.READY),
        (KILLED_ONCE, HANG_SECONDS, PilotState.READY),
    ],
    ids=["fails", "takes long", "is ready", "is killed the first time"],
)
def test_waiting_for_pilots_ends(preload: Any, does: str, within: float, state: PilotState) -> None:
    """When they are lit, when they have failed, or when it has taken long."""
    its_pilot = preload(does)

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([its_pilot])
        await pool.wait_for_pilots(within)
        assert pool.list_pilots()[0].state is state

    run(main)


def test_a_killed_pilot_takes_no_node_with_it_and_is_lit_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nodes wait for its successor: a cold start would import the same, beside it."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        (before,) = await ready_pilots(pool)
        forked = await start(pool, "forked")
        os.kill(before.pid or 0, signal.SIGKILL)
        await asyncio.to_thread(until, lambda: "SIGKILL" in caplog.text, "the death is noticed")
        assert pool.can_fork(spec("echo"))
        again = await start(pool, "again")
        (after,) = await ready_pilots(pool)

        assert after.pid != before.pid
        assert [node.forked for node in (forked, again)] == [True, True]
        assert await ask(forked, "still here") == "forked still here"

    run(main, timing=replace(PATIENT, first_retry=HANG_SECONDS))


def test_a_pilot_that_is_killed_each_time_is_not_waited_for(preload: Any) -> None:
    """As by a lack of memory: after some times in a row nodes start cold, and it is tried again later."""
    doomed = preload("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([doomed])
        node = await start(pool, "a", doomed)

        assert not node.forked
        assert not pool.can_fork(spec("echo", pilot=doomed))

    run(main, timing=replace(PATIENT, first_retry=HANG_SECONDS))


def test_a_pilot_killed_while_nodes_are_asked_for_costs_none_of_them() -> None:
    """Whether they were forked already or not."""

    async def main(pool: LocalPool, history: History) -> None:
        for round_ in range(3):
            pool.set_wanted_pilots([TINY])
            (status,) = await ready_pilots(pool)
            starting = [asyncio.create_task(start(pool, f"{round_}.{number}")) for number in range(5)]
            await asyncio.sleep(0.01 * round_)
            os.kill(status.pid or 0, signal.SIGKILL)
            for node in await asyncio.gather(*starting):
                assert await ask(node, "!") == f"{node.key} !"
            pool.set_wanted_pilots([])

    run(main)


def test_a_stuck_pilot_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A node that it does not fork in time starts cold; another pilot is lit."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        (before,) = await ready_pilots(pool)
        os.kill(before.pid or 0, signal.SIGSTOP)
        spare = await start(pool, "spare")
        begin = time.monotonic()
        late = await start(pool, "late")

        assert [node.forked for node in (spare, late)] == [True, False]
        assert time.monotonic() - begin >= 4
        (after,) = await ready_pilots(pool)
        assert after.pid != before.pid
        assert (await start(pool, "again")).forked
        assert await ask(spare, "still here") == "spare still here"

    run(main, timing=replace(PATIENT, fork=4.0))
    assert "pilot tiny failed: It did not fork within 4 s of being asked.\n" in caplog.text


def test_a_killed_spare_is_replaced() -> None:
    """The pilot makes another."""

    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        (before,) = await ready_pilots(pool)
        os.kill(before.spare or 0, signal.SIGKILL)
        await asyncio.to_thread(until, lambda: before.spare not in children(), "it is reaped")
        (after,) = await ready_pilots(pool)

        assert (await start(pool, "a")).forked
        assert after.pid == before.pid

    run(main)


# ---- the server's death


SERVER = """
import asyncio, logging
from autoscaler.pools import NodeState
from tests.autoscaler.pool import TINY, ready_pilots, pilot, run, spec

async def main(pool, history):
    pool.set_wanted_pilots([TINY, pilot("json", key="other")])
    await ready_pilots(pool, 2)
    await pool.scale(spec("brood"), 2)
    await pool.scale(spec("brood", key="cold", pilot=None), 1)
    await pool.scale(spec("deaf", key="deaf"), 1)
    await history.until(NodeState.READY, 4)
    await ready_pilots(pool, 2)
    await asyncio.sleep(0.3)  # the spares are past their birth
    print("ready", flush=True)
    await asyncio.sleep(600)

run(main)
"""


def test_nothing_outlives_a_killed_server(tmp_path: Path) -> None:
    """No pilot, no spare, no node, nothing that a node has started; not even those that are stopped."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "TESTS_STATE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "ready\n"
        processes = processes_of(tmp_path)
        assert len(processes) == 1 + 2 * 2 + 4 + 2 * 3
        for pid, command in processes.items():
            if pid != server.pid and "sleep" not in command:
                os.kill(pid, signal.SIGSTOP)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()

    until(lambda: not processes_of(tmp_path), f"all of {processes} are gone")
