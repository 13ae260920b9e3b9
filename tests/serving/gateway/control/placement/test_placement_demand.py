"""Which versions a server publishes as too busy for one owner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from autoscaler.decision import Observation, ScalingSpec
from autoscaler.placement.members import Member
from autoscaler.placement.ownership import choose_owners
from autoscaler.pools import NodePool
from autoscaler.scaling_loop import Autoscaler
from serving.gateway.control.placement.placement_demand import PlacementDemand

SPEC = ScalingSpec(
    min_nodes=0, max_nodes=4, target_concurrency=10, idle_window=300, stable_window=60, panic_window=6,
    scale_down_delay=60,
)  # fmt: skip


def scaler(load: float, shortage: str = "", requests: int = 1) -> Any:
    seen = Observation(
        ready=1, starting=0, requests=1, stable=load, panic=0.0, idle_since=0.0, settled=True, cpu=None
    )
    meter = SimpleNamespace(level=requests)
    return SimpleNamespace(observation=seen, scaling=SPEC, shortage_reason=shortage, meter=meter)


def demand(scalers: dict[str, Any]) -> PlacementDemand:
    autoscaler = SimpleNamespace(awake=scalers.keys(), versions=scalers)
    return PlacementDemand(
        cast(Autoscaler, autoscaler), cast(NodePool, SimpleNamespace(nodes=lambda _: ())), 100
    )


def test_the_first_owner_says_how_many_owners_a_busy_version_wants() -> None:
    """With four processors there is room for two of its nodes, of ten requests each."""
    members = [Member(id=one, capacity=1) for one in "abc"]
    keys = [f"v{number}" for number in range(12)]
    busy = demand({key: scaler(45.0) for key in keys})
    mine = {key for key in keys if choose_owners(key, members)[0].id == "a"}
    assert 0 < len(mine) < 12

    assert busy.count_wanted_owners("a", members, 4, lambda _: None) == dict.fromkeys(mine, 3)
    assert busy.count_wanted_owners("a", members, 4, lambda _: 2) == dict.fromkeys(mine, 2)
    assert busy.count_wanted_owners("a", members, 4, lambda _: 1) == {}
    assert (
        demand({key: scaler(20.0) for key in keys}).count_wanted_owners("a", members, 4, lambda _: None) == {}
    )


def test_a_server_without_room_is_full() -> None:
    found = demand(
        {
            "short": scaler(1.0, "not enough memory"),
            "well": scaler(1.0, requests=99),
            "queued": scaler(1.0, requests=100),
        }
    )

    assert [found.is_full(key) for key in ("short", "well", "queued", "unknown")] == [True, False, True, True]
