"""Who owns a version: alike on all servers, evenly, and with few moves."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import ScalingSpec
from autoscaler.placement.members import WEIGHT_STEPS, Member
from autoscaler.placement.ownership import (
    NodeShare,
    OwnerDemand,
    choose_owners,
    decide_owner_count,
    rank_members,
    share_scaling,
)

KEYS = [f"version-{number}" for number in range(2000)]
SPEC = ScalingSpec(
    min_nodes=0, max_nodes=4, target_concurrency=16, idle_window=300, stable_window=60, panic_window=6,
    scale_down_delay=60,
)  # fmt: skip

member_sets = st.lists(
    st.builds(
        Member,
        id=st.text("abcdefgh0123", min_size=1, max_size=8),
        capacity=st.integers(1, 1 << 40),
        weight=st.integers(1, WEIGHT_STEPS),
        load=st.floats(0, 2),
        owner_counts=st.dictionaries(st.sampled_from(KEYS[:3]), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda member: member.id,
)


def make_members(count: int, capacity: int = 1 << 34) -> list[Member]:
    return [Member(id=f"server-{number}", capacity=capacity) for number in range(count)]


def owners_of(members: Sequence[Member]) -> dict[str, str]:
    return {key: choose_owners(key, members)[0].id for key in KEYS}


@given(member_sets, st.sampled_from(KEYS), st.randoms(use_true_random=False))
def test_every_server_decides_alike(members: list[Member], key: str, source: random.Random) -> None:
    """In whatever order it has heard of them, and whatever their load is at the moment."""
    mixed = [replace(member, load=source.random()) for member in members]
    source.shuffle(mixed)

    ids = [member.id for member in choose_owners(key, members)]

    assert [member.id for member in choose_owners(key, mixed)] == ids
    assert len(set(ids)) == len(ids) >= 1


@given(member_sets, st.sampled_from(KEYS), st.data())
def test_only_versions_of_a_server_that_goes_move(
    members: list[Member], key: str, data: st.DataObject
) -> None:
    """And they go to the next in rank; when it comes back, it has what it had."""
    gone = data.draw(st.sampled_from(members))
    ranked = [member.id for member in rank_members(key, members)]
    left = [member for member in members if member is not gone]

    assert [member.id for member in rank_members(key, left)] == [one for one in ranked if one != gone.id]


@given(member_sets, st.sampled_from(KEYS), st.data())
def test_a_lower_weight_moves_only_versions_of_its_server(
    members: list[Member], key: str, data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from(members))
    lower = replace(changed, weight=max(1, changed.weight - 1))
    before = rank_members(key, members)[0].id
    after = rank_members(key, [lower if one is changed else one for one in members])[0].id

    assert after == before or before == changed.id


def test_versions_are_spread_evenly() -> None:
    """Within what chance allows: five standard deviations."""
    counts = Counter(owners_of(make_members(10)).values())
    mean = len(KEYS) / 10

    assert len(counts) == 10
    assert all(abs(count - mean) < 5 * math.sqrt(mean) for count in counts.values())


def test_a_server_gets_versions_by_what_it_offers() -> None:
    """Twice the memory, twice the versions; at half the weight, half of them."""
    small, big, light = make_members(3)
    members = [small, replace(big, capacity=2 * big.capacity), replace(light, weight=WEIGHT_STEPS // 2)]
    counts = Counter(owners_of(members).values())

    assert counts[big.id] / counts[small.id] == pytest.approx(2, rel=0.25)
    assert counts[light.id] / counts[small.id] == pytest.approx(0.5, rel=0.25)


def test_one_of_ten_servers_that_goes_moves_a_tenth() -> None:
    members = make_members(10)
    before, after = owners_of(members), owners_of(members[1:])
    moved = [key for key in KEYS if before[key] != after[key]]

    assert {before[key] for key in moved} == {members[0].id}
    assert len(moved) / len(KEYS) == pytest.approx(0.1, abs=0.03)


def test_a_version_has_as_many_owners_as_its_first_one_says() -> None:
    members = make_members(4)
    first = rank_members("v", members)[0]
    wide = [replace(one, owner_counts={"v": 3}) if one is first else one for one in members]

    assert [one.id for one in choose_owners("v", wide)] == [one.id for one in rank_members("v", members)[:3]]
    assert len(choose_owners("other", wide)) == 1


# ---- how many owners


def demand(owners: int, nodes: int, most: int | None = None, servers: int = 10) -> OwnerDemand:
    return OwnerDemand(owners, nodes, nodes_per_server=4, max_nodes=most, servers=servers)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (demand(1, 0), 1),
        (demand(1, 4), 1),
        (demand(1, 5), 2),
        (demand(1, 100), 10),
        (demand(1, 100, servers=3), 3),
        (demand(1, 100, most=2), 2),
        (demand(2, 3), 2),  # 6 nodes: one owner would have room for 4
        (demand(3, 2), 3),  # 6 nodes are more than 0.7 of the room of two
        (demand(3, 1), 2),
        (demand(3, 0), 1),
    ],
)
def test_owners_follow_the_load(given: OwnerDemand, count: int) -> None:
    assert decide_owner_count(given) == count


@given(st.integers(0, 200), st.integers(1, 8), st.integers(1, 20))
def test_a_steady_load_comes_to_a_number_of_owners_and_stays(
    nodes: int, per_server: int, servers: int
) -> None:
    """Whether they are more or fewer before."""
    for before in (1, servers):
        owners, seen = before, []
        for _ in range(servers + 3):
            each = math.ceil(nodes / owners)
            owners = decide_owner_count(OwnerDemand(owners, each, per_server, None, servers))
            seen.append(owners)
        assert seen[-1] == seen[-2]
        assert owners == servers or owners * per_server >= nodes


# ---- dividing nodes


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 10))
def test_owners_divide_what_holds_for_all(least: int, most: int, owners: int) -> None:
    """No node more than allowed, none fewer than asked for."""
    spec = replace(SPEC, min_nodes=least, max_nodes=max(least, most))
    owners = min(owners, spec.max_nodes)
    shares = [share_scaling(spec, NodeShare(position, owners), divide_max=True) for position in range(owners)]

    assert sum(share.min_nodes for share in shares) == spec.min_nodes
    assert sum(share.max_nodes for share in shares) == spec.max_nodes
    assert all(share.min_nodes <= share.max_nodes for share in shares)


def test_manual_scaling_is_divided() -> None:
    shares = [
        share_scaling(replace(SPEC, exact_nodes=5), NodeShare(position, 2), divide_max=True)
        for position in range(2)
    ]

    assert [share.exact_nodes for share in shares] == [3, 2]


def test_a_server_that_is_no_owner_keeps_no_node() -> None:
    """It may start some, when no owner answers."""
    share = share_scaling(replace(SPEC, min_nodes=3), NodeShare(None), divide_max=True)
    manual = share_scaling(replace(SPEC, exact_nodes=3), NodeShare(None), divide_max=True)

    assert (share.min_nodes, share.max_nodes) == (0, 4)
    assert (manual.exact_nodes, manual.min_nodes, manual.max_nodes) == (None, 0, 3)


def test_room_of_one_server_is_not_divided() -> None:
    """The highest number is that of its processors where the version says none."""
    assert share_scaling(SPEC, NodeShare(0, 2), divide_max=False) == SPEC
