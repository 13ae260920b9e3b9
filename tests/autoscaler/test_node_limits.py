"""What nodes may take, and what becomes of those that take more."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest

from autoscaler.pools import NodeLimits, NodeSpec, NodeState
from autoscaler.pools.local_pool import LocalPool
from tests.autoscaler import pool as pools
from tests.autoscaler.pool import History, spec


def limited(wanted: NodeSpec, limits: NodeLimits) -> NodeSpec:
    return replace(wanted, limits=limits)


@pytest.mark.parametrize("pilots", ["auto", "off"])
def test_a_node_has_no_more_than_it_may(pilots: str) -> None:
    """Descriptors and processor time as told; never a dump of its memory, nor other rights."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(limited(spec("limits"), NodeLimits(open_files=64, nice=5)), 1)
        (node,) = await history.until(NodeState.READY)

        assert node.report == {
            "core": [1, 1],
            "files": [64, 64],
            "nice": os.nice(0) + 5,
            "privileges": False,
            "opened": "Too many open files",
        }

    pools.run(main, pilots=pilots)


def test_without_limits_a_node_has_what_the_server_has() -> None:
    """As far as that can be given."""

    async def main(pool: LocalPool, history: History) -> None:
        await pool.scale(spec("limits"), 1)
        (node,) = await history.until(NodeState.READY)

        assert (node.report["opened"], node.report["nice"]) == ("100", os.nice(0))

    pools.run(main)


@pytest.mark.parametrize("at", ["start", "ready"])
def test_a_node_that_takes_too_much_memory_is_killed(at: str) -> None:
    """With the setting in the reason. While it starts it is hopeless: another would take as much."""

    async def main(pool: LocalPool, history: History) -> None:
        limits = NodeLimits(memory_bytes=100 << 20)
        await pool.scale(limited(spec("greedy", key="modest", at=at, mebibytes=20), limits), 1)
        await pool.scale(limited(spec("greedy", at=at, mebibytes=300), limits), 1)
        (node,) = await history.until(NodeState.GONE)
        await asyncio.sleep(0.5)
        (modest,) = pool.nodes("modest")

        assert (node.key, node.crashed, node.permanent_failure) == ("v", True, at == "start")
        assert node.reason.startswith("The node was killed: it took ")
        assert node.reason.endswith(" MiB of memory, and may take 100 MiB (setting node_memory_bytes).")
        assert modest.state is NodeState.READY

    pools.run(main)
