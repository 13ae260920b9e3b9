from __future__ import annotations

import pytest

from autoscaler.servers.server_load import (
    ServerDemand,
    ServerLoad,
    ServerScalingSpec,
    ServerScalingState,
    decide_server_count,
    measure_load,
)

SPEC = ServerScalingSpec(least=1, most=5, target_load=0.75, shrink_delay=300)
NOTHING = ServerScalingState()


def full(share: float, count: int = 1) -> list[ServerLoad]:
    return [ServerLoad(memory=0.1, processors=share)] * count


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


@pytest.mark.parametrize(
    ("loads", "present", "servers", "said"),
    [
        ([], 0, 1, "memory of 0.00 servers, 75% of each"),
        (full(0.75), 1, 1, "processors of 0.75"),
        (full(0.76), 1, 2, "processors of 0.76"),
        (full(1.5, 2), 2, 4, "processors of 3.00"),
        (full(0.5625, 4), 4, 3, "processors of 2.25"),
        ([ServerLoad(memory=1.6, processors=0.2)], 1, 3, "memory of 1.60"),
        (full(9.0), 1, 5, "1 to 5 are allowed"),
        # Memory of one and processors of another are no reason to have two.
        ([ServerLoad(memory=0.7), ServerLoad(processors=0.7)], 2, 1, "memory of 0.70"),
    ],
)
def test_there_are_as_many_as_the_sum_of_their_loads_needs(
    loads: list[ServerLoad], present: int, servers: int, said: str
) -> None:
    decision = decide_server_count(SPEC, present, loads, NOTHING, 0.0)
    assert decision.servers == servers
    assert said in decision.reason


def test_none_goes_before_fewer_were_enough_for_a_while() -> None:
    """And more are there at once."""
    decision = decide_server_count(SPEC, 1, full(3.0), NOTHING, 0.0)
    assert decision.servers == 4
    decision = decide_server_count(SPEC, 4, full(0.3, 4), decision.state, 200.0)
    assert decision.servers == 4
    assert "4 were needed within the last 300 s" in decision.reason
    decision = decide_server_count(SPEC, 4, full(0.1, 4), decision.state, 301.0)
    assert decision.servers == 2, "the most of the last 300 s"
    decision = decide_server_count(SPEC, 2, full(0.1, 2), decision.state, 502.0)
    assert decision.servers == 1


def test_what_is_kept_has_a_bound() -> None:
    """Each that can still become the most, and no more."""
    state = NOTHING
    for second in range(1000):
        state = decide_server_count(SPEC, 1, full(second % 7), state, float(second)).state
    assert len(state.needed) <= 7


def test_none_goes_while_one_is_not_heard_of() -> None:
    """Whatever the others do: it may be busy."""
    decision = decide_server_count(SPEC, 3, full(0.1, 2), NOTHING, 0.0)
    assert decision.servers == 3
    assert "1 are not heard of" in decision.reason
    assert decide_server_count(SPEC, 3, full(2.0, 2), NOTHING, 0.0).servers == 5
