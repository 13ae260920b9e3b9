"""Runs an entry in a fork of a pilot, as `autoscaler.child_launcher` runs a program."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator

from autoscaler.child_launcher import RunningChild, end_child_with_block
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from autoscaler.pools.node_pipes import NodePipes, SharedRegion
from autoscaler.pools.pilot_manager import PilotManager


@contextlib.asynccontextmanager
async def run_forked(
    pilots: PilotManager, pilot: PilotSpec, launch: LaunchSpec, *, output: int, grace_seconds: float
) -> AsyncGenerator[RunningChild | None]:
    """Run an entry for the length of the block; None where it cannot be forked at once. Raises OSError.

    The pilot runs for as long as the block, and some time after: if it is not ready, the next one is forked.
    What the entry reports is the child's output, a line of JSON each; what it prints goes to the descriptor
    `output`. The entry's listener is not bound. For the end see `autoscaler.child_launcher.run_child`.
    """
    with pilots.hold(pilot):
        forked = None
        if pilots.is_ready(pilot):
            with socket.socket(socket.AF_UNIX) as listener, contextlib.closing(SharedRegion(1)) as region:
                forked = await pilots.fork_node(
                    pilot, lambda: NodePipes(launch, listener.fileno(), region.fileno(), output)
                )
        if forked is None:
            yield None
            return
        process, pipes = forked
        try:
            reader, transport = await pipes.open_report_stream()
            async with end_child_with_block(RunningChild(process, reader, grace_seconds), transport) as child:
                yield child
        finally:
            pipes.close()  # whatever happened above: with its lifeline the process ends
