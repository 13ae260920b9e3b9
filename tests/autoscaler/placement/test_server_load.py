from __future__ import annotations

from autoscaler.placement.server_load import (
    ServerDemand,
    ServerLoad,
    measure_load,
)


def test_what_nodes_want_and_do_not_get_counts_as_what_they_have() -> None:
    """Memory of nodes that cannot start, and threads that wait for a processor."""
    load = measure_load(
        ServerDemand(
            needed_memory=600, missing_memory=900, memory=1000, running=2.0, waiting=1.0, processors=2
        )
    )
    assert load == ServerLoad(memory=1.5, processors=1.5)
    assert load.highest == 1.5


def test_a_server_of_which_nothing_is_known_is_no_error() -> None:
    load = measure_load(
        ServerDemand(needed_memory=0, missing_memory=0, memory=0, running=0, waiting=0, processors=0)
    )
    assert load == ServerLoad()
