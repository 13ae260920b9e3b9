"""Entries that are no nodes, in forks of pilots; and how long pilots run for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from autoscaler.child_launcher import RunningChild
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec, PilotState
from autoscaler.pools.local_pool import LocalPool
from tests.autoscaler.pool import PATIENT, TINY, History, children, pilot, ready_pilots, run, spec
from tests.server import until

LAUNCH = LaunchSpec("tests.autoscaler.nodes:tell", {"word": "hello"}, dict(os.environ))
SHORT = replace(PATIENT, pilot_linger=0.5)


@contextlib.asynccontextmanager
async def running(pool: LocalPool, spec: PilotSpec = TINY) -> AsyncGenerator[RunningChild | None]:
    async with pool.run_forked(spec, LAUNCH, output=2, grace_seconds=5) as child:
        yield child


async def fork(pool: LocalPool) -> int:
    """Run one to its first report; returns its pid."""
    async with running(pool) as child:
        assert child is not None
        report = json.loads(await child.output.readline())
        assert report["ready"]["arguments"] == {"word": "hello"}
        child.process.terminate()
        return child.process.pid


def test_a_fork_reports_and_ends_with_the_block() -> None:
    async def main(pool: LocalPool, history: History) -> None:
        pool.set_wanted_pilots([TINY])
        await ready_pilots(pool)

        first = await fork(pool)
        assert first not in children()
        with pytest.raises(KeyError):
            async with running(pool) as child:
                assert child is not None
                raise KeyError
        assert child is not None and child.process.pid not in children()

    run(main)


@pytest.mark.parametrize("pilots", ["auto", "0.5"])
def test_a_pilot_is_started_for_a_fork_and_not_waited_for(pilots: str) -> None:
    """The first finds none that is ready; the next finds it, for some time after the last."""

    async def main(pool: LocalPool, history: History) -> None:
        async with running(pool) as child:
            assert child is None
            (status,) = pool.list_pilots()
            assert status.state is PilotState.STARTING
            (ready,) = await ready_pilots(pool)
            await asyncio.sleep(0.7)
            assert pool.can_fork(spec("echo"))
        await fork(pool)
        assert [one.pid for one in pool.list_pilots()] == [ready.pid]
        await asyncio.to_thread(until, lambda: ready.pid not in children(), "the pilot is out")
        assert pool.list_pilots() == []

    run(main, pilots=pilots, timing=SHORT)


def test_other_needs_do_not_end_a_pilot_that_is_held() -> None:
    """Neither those of versions nor the end of the last node; what versions need stays."""
    other = pilot("json", key="other")

    async def main(pool: LocalPool, history: History) -> None:
        async with running(pool):
            await ready_pilots(pool)
            pool.set_wanted_pilots([other])
            held, wanted = await ready_pilots(pool, 2)
            assert (held.key, wanted.key) == ("other", "tiny")
            async with running(pool):
                pass
            await asyncio.sleep(0.7)
            assert len(pool.list_pilots()) == 2
        pool.set_wanted_pilots([other, TINY])
        await asyncio.sleep(0.7)
        assert len(pool.list_pilots()) == 2
        pool.set_wanted_pilots([])
        assert pool.list_pilots() == []

    run(main, timing=SHORT)


def test_a_pilot_that_nodes_need_outlasts_a_fork() -> None:
    """With a number of seconds, which begin with the end of the last of both."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("echo", word="a"), 1)
        (ready,) = await ready_pilots(pool)
        await fork(pool)
        await asyncio.sleep(0.7)
        assert [one.pid for one in pool.list_pilots()] == [ready.pid]
        async with running(pool):
            (node,) = pool.nodes("v")
            await pool.scale(spec("echo", word="a"), 0)
            await node.gone.wait()
            await asyncio.sleep(0.7)
            assert [one.pid for one in pool.list_pilots()] == [ready.pid]

    run(main, pilots="0.5")


def test_nothing_is_forked_where_pilots_are_off() -> None:
    async def main(pool: LocalPool, history: History) -> None:
        async with running(pool) as child:
            assert child is None
            assert pool.list_pilots() == []

    run(main, pilots="off")
