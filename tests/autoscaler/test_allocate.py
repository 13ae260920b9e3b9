"""Who gets nodes when there is not enough for all, as tables and as promises."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import Capacity, Demand, Grant, allocate_nodes

MIB = 2**20

# ---- tables: demands as (wanted, nodes, MiB per node, what else), grants as (nodes, reason)

Rest = Mapping[str, int | bool | str]
Case = tuple[Capacity, dict[str, tuple[int, int, int, Rest]], dict[str, tuple[int, str]]]


def free(memory: int, returning: int = 0, nodes: int | None = None) -> Capacity:
    """So many MiB."""
    return Capacity(free=memory * MIB, returning=returning * MIB, nodes=nodes)


CASES: dict[str, Case] = {
    "there is enough": (
        free(300),
        {"a": (1, 0, 100, {}), "b": (2, 1, 100, {"busy": True}), "c": (2, 2, 100, {}), "d": (0, 0, 100, {})},
        {"a": (1, ""), "b": (2, ""), "c": (2, ""), "d": (0, "")},
    ),
    "shrinking gives back later": (
        free(0),
        {
            "a": (1, 3, 100, {"busy": True}),
            "b": (2, 1, 100, {"busy": True}),
            "c": (1, 0, 200, {"busy": True}),
        },
        {
            "a": (1, ""),
            "b": (1, "1 of 2 nodes: not enough memory: 100 MiB needed, 0 MiB free"),
            "c": (0, "waits for memory: 200 MiB needed, 0 MiB free, 200 MiB on the way"),
        },
    ),
    "the longest idle makes room": (
        free(210),
        {
            "a": (1, 0, 600, {"busy": True, "title": "the needy"}),
            "b": (1, 1, 400, {"idle_since": 20}),
            "c": (1, 1, 400, {"idle_since": 10, "title": "the idle"}),
        },
        {
            "a": (0, "waits for memory: 600 MiB needed, 210 MiB free; stopping the idle"),
            "b": (1, ""),
            "c": (0, "idle, and stopped to make room for the needy"),
        },
    ),
    "what is on its way is waited for": (
        free(210, returning=390),
        {"a": (1, 0, 600, {}), "b": (1, 1, 400, {})},
        {"a": (0, "waits for memory: 600 MiB needed, 210 MiB free, 390 MiB on the way"), "b": (1, "")},
    ),
    "but not if it is too little": (
        free(210, returning=389),
        {"a": (1, 0, 600, {}), "b": (1, 1, 400, {})},
        {
            "a": (0, "waits for memory: 600 MiB needed, 210 MiB free, 389 MiB on the way; stopping b"),
            "b": (0, "idle, and stopped to make room for a"),
        },
    ),
    "nobody is stopped in vain": (
        free(0),
        {"a": (1, 0, 600, {}), "b": (1, 1, 500, {}), "c": (1, 1, 500, {"busy": True})},
        {
            "a": (0, "not enough memory: 600 MiB needed, 0 MiB free, and too little idle to stop"),
            "b": (1, ""),
            "c": (1, ""),
        },
    ),
    "nothing to stop": (
        free(-10),
        {"a": (1, 0, 600, {}), "b": (1, 1, 900, {"busy": True}), "c": (1, 1, 900, {"floor": 1})},
        {
            "a": (0, "not enough memory: 600 MiB needed, 0 MiB free, and nothing idle to stop"),
            "b": (1, ""),
            "c": (1, ""),
        },
    ),
    "one that would not have been needed is spared": (
        free(0),
        {
            "a": (1, 0, 600, {}),
            "b": (1, 1, 50, {"idle_since": 1}),
            "c": (1, 1, 600, {"idle_since": 2}),
            "d": (1, 1, 600, {"idle_since": 3}),
        },
        {"a": (0, "stopping c"), "b": (1, ""), "c": (0, "make room for a"), "d": (1, "")},
    ),
    "several have to go": (
        free(0),
        {"a": (1, 0, 100, {}), "b": (1, 1, 50, {"idle_since": 2}), "c": (1, 1, 50, {"idle_since": 1})},
        {"a": (0, "stopping c, b"), "b": (0, "for a"), "c": (0, "for a")},
    ),
    "all nodes of an idle version go, down to its floor": (
        free(0),
        {"a": (1, 0, 100, {}), "b": (3, 3, 100, {"floor": 1})},
        {"a": (0, "stopping b"), "b": (1, "for a")},
    ),
    "a node gives back less than a new one needs": (
        free(0),
        {"a": (1, 0, 120, {}), "b": (1, 1, 120, {"releases": 100 * MIB})},
        {"a": (0, "too little idle to stop"), "b": (1, "")},
    ),
    "each of two that wake makes its own room": (
        free(50),
        {
            "a": (1, 0, 100, {}),
            "b": (1, 0, 100, {}),
            "c": (1, 1, 60, {"idle_since": 1}),
            "d": (1, 1, 100, {"idle_since": 2}),
        },
        {
            "a": (0, "waits for memory: 100 MiB needed, 50 MiB free; stopping c"),
            "b": (0, "waits for memory: 100 MiB needed, 10 MiB free; stopping d"),
            "c": (0, "for a"),
            "d": (0, "for b"),
        },
    ),
    "room is made once": (
        free(0),
        {"a": (1, 0, 100, {}), "b": (1, 0, 100, {}), "c": (1, 1, 100, {})},
        {"a": (0, "stopping c"), "b": (0, "nothing idle to stop"), "c": (0, "for a")},
    ),
    "who waits keeps its part from those who come later": (
        free(100, returning=50),
        {"a": (1, 0, 120, {}), "b": (1, 0, 40, {}), "c": (1, 0, 30, {})},
        {
            "a": (0, "waits for memory"),
            "b": (0, "not enough memory: 40 MiB needed, 30 MiB free"),
            "c": (1, ""),
        },
    ),
    "who cannot have it keeps nothing from others": (
        free(100),
        {"a": (1, 0, 120, {}), "b": (1, 0, 40, {}), "c": (2, 1, 60, {"busy": True})},
        {"a": (0, "nothing idle to stop"), "b": (1, ""), "c": (2, "")},
    ),
    "first nodes before further ones": (
        free(100),
        {"a": (5, 1, 100, {"busy": True}), "b": (1, 0, 100, {})},
        {"a": (1, "1 of 5 nodes: not enough memory: 100 MiB needed, 0 MiB free"), "b": (1, "")},
    ),
    "a first node, then more": (
        free(200),
        {"a": (3, 0, 100, {})},
        {"a": (2, "2 of 3 nodes: not enough memory")},
    ),
    "nothing is stopped for further nodes": (
        free(0),
        {"a": (2, 1, 100, {"busy": True}), "b": (1, 1, 100, {})},
        {"a": (1, "1 of 2 nodes: not enough memory"), "b": (1, "")},
    ),
    "further nodes go to whoever has the least part": (
        free(400),
        {
            "a": (8, 4, 100, {"busy": True}),
            "b": (4, 1, 100, {"busy": True}),
            "c": (4, 1, 100, {"busy": True}),
        },
        {"a": (5, "5 of 8"), "b": (3, "3 of 4"), "c": (2, "2 of 4")},
    ),
    "a small one may grow where a big one cannot": (
        free(100),
        {"a": (4, 1, 101, {"busy": True}), "b": (2, 1, 100, {"busy": True})},
        {"a": (1, "1 of 4"), "b": (2, "")},
    ),
    "one that makes room does not grow": (
        free(99),
        {"a": (1, 0, 100, {}), "b": (3, 2, 1, {"floor": 1})},
        {"a": (0, "stopping b"), "b": (1, "for a")},
    ),
    "no more nodes than there may be": (
        free(900, nodes=3),
        {"a": (3, 1, 100, {"busy": True}), "b": (1, 0, 100, {}), "c": (1, 0, 100, {}), "d": (1, 0, 100, {})},
        {
            "a": (1, "1 of 3 nodes: not enough nodes: all 3 are taken"),
            "b": (1, ""),
            "c": (1, ""),
            "d": (0, "not enough nodes: all 3 are taken, and nothing idle to stop"),
        },
    ),
    "a place is free at once": (
        free(100, nodes=1),
        {"a": (1, 0, 100, {}), "b": (1, 1, 100, {})},
        {"a": (1, ""), "b": (0, "idle, and stopped to make room for a")},
    ),
    "a place is kept for who waits for memory": (
        free(100, nodes=2),
        {"a": (1, 0, 150, {}), "b": (1, 1, 100, {}), "c": (2, 1, 1, {"busy": True})},
        {"a": (0, "stopping b"), "b": (0, "for a"), "c": (1, "all 2 are taken")},
    ),
    "more than there may be stay, but none is added": (
        free(900, nodes=1),
        {"a": (3, 2, 100, {"busy": True}), "b": (1, 0, 100, {})},
        {"a": (2, "2 of 3"), "b": (0, "not enough nodes")},
    ),
}


def demand(key: str, wanted: int, nodes: int, memory: int, rest: Rest) -> Demand:
    fields = {"key": key, "wanted": wanted, "nodes": nodes, "memory": memory * MIB, **rest}
    return Demand(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    """What each version is granted, and why not more."""
    capacity, rows, expected = CASES[case]
    grants = allocate_nodes([demand(key, *row) for key, row in rows.items()], capacity)

    assert {key: grant.nodes for key, grant in grants.items()} == {
        key: nodes for key, (nodes, _) in expected.items()
    }
    for key, (_, words) in expected.items():
        assert words in grants[key].reason
        assert bool(words) == bool(grants[key].reason), grants[key].reason


# ---- promises

SMALL = st.integers(0, 9)


@st.composite
def demands(draw: st.DrawFn, /, **fixed: st.SearchStrategy[int]) -> Demand:
    """Any demand; its key is to be set."""
    memory = draw(fixed.get("memory", SMALL))
    return Demand(
        key="",
        wanted=draw(fixed.get("wanted", st.integers(0, 4))),
        nodes=draw(fixed.get("nodes", st.integers(0, 3))),
        memory=memory,
        floor=draw(st.sampled_from([0, 0, 0, 1, 2])),
        busy=bool(draw(fixed.get("busy", st.integers(0, 1)))),
        idle_since=draw(SMALL),
        releases=draw(st.none() | st.integers(0, memory)),
    )


def named(rows: Sequence[Demand]) -> list[Demand]:
    return [replace(row, key=f"v{number}") for number, row in enumerate(rows)]


MANY = st.lists(demands(), max_size=8).map(named)
CAPACITIES = st.builds(
    Capacity, free=st.integers(-5, 30), returning=st.integers(0, 15), nodes=st.none() | st.integers(0, 15)
)
# One that wakes and takes much, and others that neither wake nor grow.
ONE_WAKES = st.tuples(
    demands(wanted=st.just(1), nodes=st.just(0), memory=st.integers(5, 30)),
    st.lists(demands(nodes=st.integers(1, 3), busy=st.sampled_from([0, 0, 1])), min_size=2, max_size=7),
).map(lambda rows: named([rows[0], *(replace(row, wanted=min(row.wanted, row.nodes)) for row in rows[1])]))
SCARCE = st.builds(
    Capacity, free=st.integers(-5, 9), returning=st.integers(0, 5), nodes=st.none() | st.integers(2, 9)
)


def started(rows: Sequence[Demand], grants: Mapping[str, Grant]) -> dict[str, int]:
    """How many nodes are started, by key."""
    return {row.key: max(0, grants[row.key].nodes - row.nodes) for row in rows}


def stopped(rows: Sequence[Demand], grants: Mapping[str, Grant]) -> list[Demand]:
    """Those whose nodes are taken away for another version."""
    return [row for row in rows if grants[row.key].nodes < min(row.nodes, row.wanted)]


@given(MANY, CAPACITIES)
def test_never_more_memory_than_is_free(rows: list[Demand], capacity: Capacity) -> None:
    """All nodes that are started fit at once."""
    starts = started(rows, allocate_nodes(rows, capacity))

    assert sum(row.memory * starts[row.key] for row in rows) <= max(0, capacity.free)


@given(MANY, CAPACITIES)
def test_never_more_nodes_than_there_may_be(rows: list[Demand], capacity: Capacity) -> None:
    """Running ones may be too many already; then none is started."""
    grants = allocate_nodes(rows, capacity)

    if capacity.nodes is not None and any(started(rows, grants).values()):
        assert sum(grant.nodes for grant in grants.values()) <= capacity.nodes


@given(MANY, CAPACITIES)
def test_shrinking_is_always_granted(rows: list[Demand], capacity: Capacity) -> None:
    """Nobody gets more than it wants; who wants no more than it has gets that, unless it makes room."""
    grants = allocate_nodes(rows, capacity)
    makes_room = stopped(rows, grants)

    for row in rows:
        assert grants[row.key].nodes <= row.wanted
        if row.wanted <= row.nodes and row not in makes_room:
            assert grants[row.key] == Grant(nodes=row.wanted)


@given(MANY, CAPACITIES)
def test_busy_versions_and_floors_are_left_alone(rows: list[Demand], capacity: Capacity) -> None:
    """Nothing that works, waits or starts is taken away, nor what must always be there."""
    grants = allocate_nodes(rows, capacity)

    for row in stopped(rows, grants):
        assert not row.busy
        assert grants[row.key].nodes == row.floor


@given(MANY, CAPACITIES)
def test_every_difference_has_a_reason(rows: list[Demand], capacity: Capacity) -> None:
    """And where there is none, there is nothing to say."""
    grants = allocate_nodes(rows, capacity)

    assert all((grants[row.key].nodes != row.wanted) == bool(grants[row.key].reason) for row in rows)


@given(MANY, CAPACITIES)
def test_first_nodes_go_before_further_ones(rows: list[Demand], capacity: Capacity) -> None:
    """A version that wakes gets what it would get if nobody wanted to grow."""
    waking = [row.key for row in rows if row.wanted and not row.nodes]
    content = [replace(row, wanted=min(row.wanted, max(row.nodes, 1))) for row in rows]
    grants, calm = allocate_nodes(rows, capacity), allocate_nodes(content, capacity)

    assert [min(1, grants[key].nodes) for key in waking] == [min(1, calm[key].nodes) for key in waking]


@given(MANY, CAPACITIES)
def test_nothing_is_stopped_but_for_a_first_node(rows: list[Demand], capacity: Capacity) -> None:
    """Growth takes nothing from anybody."""
    rows = [row for row in rows if row.nodes or not row.wanted]

    assert stopped(rows, allocate_nodes(rows, capacity)) == []


@given(ONE_WAKES, SCARCE)
def test_exactly_what_helps_is_stopped(rows: list[Demand], capacity: Capacity) -> None:
    """Room is made if it can be made at all, and with any one version less it would not be enough."""
    waking, *others = rows
    grants = allocate_nodes(rows, capacity)
    made = stopped(rows, grants)

    def suffices(victims: Sequence[Demand]) -> bool:
        left = {row.key: min(row.nodes, row.wanted) for row in others}
        left.update({row.key: row.floor for row in victims})
        memory = capacity.free + capacity.returning
        for row in others:
            memory += (row.nodes - left[row.key]) * (row.memory if row.releases is None else row.releases)
        places = capacity.nodes is None or sum(left.values()) < capacity.nodes
        return places and memory >= waking.memory

    possible = [row for row in others if not row.busy and min(row.nodes, row.wanted) > row.floor]
    assert grants[waking.key].short == (not suffices(possible))
    if made:
        assert suffices(made)
        assert not any(suffices(fewer) for fewer in itertools.combinations(made, len(made) - 1))


@given(ONE_WAKES, SCARCE)
def test_short_stops_nobody(rows: list[Demand], capacity: Capacity) -> None:
    """If no room can be made, nobody loses anything."""
    grants = allocate_nodes(rows, capacity)

    if grants[rows[0].key].short:
        assert stopped(rows, grants) == []


@given(MANY, CAPACITIES)
def test_the_same_again(rows: list[Demand], capacity: Capacity) -> None:
    """Equal demands and capacity give equal grants, and a grant for each demand."""
    grants = allocate_nodes(rows, capacity)

    assert allocate_nodes(list(rows), capacity) == grants
    assert list(grants) == [row.key for row in rows]


@given(MANY, st.integers(0, 30), st.integers(0, 15))
def test_who_waits_gets_it_once_memory_is_back(rows: list[Demand], memory: int, returning: int) -> None:
    """When all that was stopped has ended, those who waited start; nobody else has to go for it."""
    before = Capacity(free=memory, returning=returning)
    grants = allocate_nodes(rows, before)
    starts = started(rows, grants)
    spent = sum(row.memory * starts[row.key] for row in rows)
    back = sum(
        max(0, row.nodes - grants[row.key].nodes) * (row.memory if row.releases is None else row.releases)
        for row in rows
    )
    waiting = {row.key for row in rows if not grants[row.key].nodes and row.wanted and not row.nodes}
    waiting = {key for key in waiting if not grants[key].short}
    later = [
        replace(
            row,
            nodes=grants[row.key].nodes,
            wanted=row.wanted if row.key in waiting else grants[row.key].nodes,
        )
        for row in rows
    ]
    after = allocate_nodes(later, Capacity(free=memory - spent + returning + back))

    assert all(after[key].nodes >= 1 for key in waiting)
    assert stopped(later, after) == []
