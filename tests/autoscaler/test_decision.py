"""The decisions, as tables of rows and as promises that hold in every state."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.decision import Decision, Observation, ScalingSpec, ScalingState, decide_node_count
from tests.autoscaler.scaling_specs import SPEC, specs

# ---- stories: rows of (time, what is seen, nodes, words of the reason)


Row = tuple[float, Observation, int, str]


def seen(ready: int = 0, requests: int = 0, stable: float = 0, panic: float = 0, **rest: Any) -> Observation:
    """What is seen; nothing starts and the last request ended at 0 unless said otherwise."""
    return Observation(
        ready=ready,
        requests=requests,
        stable=stable,
        panic=panic,
        **{"starting": 0, "idle_since": 0.0, **rest},
    )


def even(ready: int, load: float, **rest: Any) -> Observation:
    """A load that has been the same for long."""
    return seen(ready, math.ceil(load), load, load, **rest)


STORIES: dict[str, tuple[ScalingSpec, list[Row]]] = {
    "from sleep to sleep": (
        SPEC,
        [
            (0, seen(0, 0), 0, "asleep: no node is left, and the last request was 0 s ago"),
            (10, seen(0, 1), 1, "1 node: a request waits"),
            (
                11,
                seen(0, 3, 0.1, 0.5, starting=1),
                1,
                "1 node: 0.1 requests at a time over 60 s, 16 per node",
            ),
            (12, seen(1, 1, 0.5, 0.5), 1, "1 node: 0.5 requests at a time over 60 s, 16 per node"),
            (99, seen(1, 0, 0, 0, idle_since=12), 1, "1 node: no request for 87 s, asleep after 300 s"),
            (312, seen(1, 0, 0, 0, idle_since=12), 1, "1 node: no request for 300 s, asleep after 300 s"),
            (313, seen(1, 0, 0, 0, idle_since=12), 0, "asleep: no request for 301 s (idle window 300 s)"),
            (400, seen(0, 0, 0, 0, idle_since=12), 0, "asleep: no request for 388 s (idle window 300 s)"),
        ],
    ),
    "a burst wakes one node, and only if it lasts, more": (
        SPEC,
        [
            (0, seen(0, 100), 1, "1 node: 100 requests wait"),
            (
                1,
                seen(0, 100, 1.7, 16.7, starting=1),
                2,
                "2 nodes: 16.7 requests at a time over 6 s, 16 per node (panic)",
            ),
            (
                2,
                seen(0, 100, 3.3, 33.3, starting=2),
                3,
                "3 nodes: 33.3 requests at a time over 6 s, 16 per node (panic)",
            ),
        ],
    ),
    "what the one node does": (
        SPEC,
        [
            (0, seen(0, 0, starting=1), 1, "1 node: it starts"),
            (1, seen(0, 2, starting=1), 1, "1 node: 2 requests wait"),
            (2, seen(1, 1), 1, "1 node: a request runs"),
            (3, seen(1, 2), 1, "1 node: 2 requests run"),
        ],
    ),
    "as many nodes as the load of the stable window fills": (
        SPEC,
        [
            (0, even(1, 16), 1, "1 node: 16 requests at a time over 60 s, 16 per node"),
            (1, even(1, 16 + 1e-12), 1, "1 node: 16 requests"),
            (2, seen(2, 33, 32.1, 33), 3, "3 nodes: 32.1 requests at a time over 60 s, 16 per node"),
            (3, even(99, 1234.5), 8, "at most 8 nodes (maxNodes); the load asks for 78"),
        ],
    ),
    "great numbers and small ones": (
        replace(SPEC, max_nodes=99),
        [
            (0, even(77, 1234.5), 78, "78 nodes: 1234 requests at a time over 60 s, 16 per node"),
            (999, even(1, 0.0012), 1, "1 node: 0.0012 requests at a time over 60 s, 16 per node"),
        ],
    ),
    "a peak below the threshold is none": (SPEC, [(0, seen(3, 80, 40, 80), 3, "3 nodes: 40 requests")]),
    "a peak at the threshold is one, until a stable window after it": (
        SPEC,
        [
            (0, seen(3, 90, 30, 80.1), 6, "6 nodes: 80.1 requests at a time over 6 s, 16 per node (panic)"),
            (5, seen(3, 90, 30, 81, starting=3), 6, "6 nodes: 81 requests"),
            (10, seen(6, 9, 40, 9), 6, "kept at 6: 3 is enough, but panic mode removes no node"),
            (
                20,
                seen(4, 9, 40, 9),
                6,
                "kept at 6: 3 is enough, but panic mode removes no node",
            ),  # two were lost
            (65, seen(6, 9, 9, 9), 6, "kept at 6: 1 is enough, but panic mode removes no node"),
            (66, seen(6, 9, 9, 9), 3, "kept at 3: 1 is enough, but 3 were wanted within the last 60 s"),
            (81, seen(3, 9, 9, 9), 1, "1 node: 9 requests"),
        ],
    ),
    "a panic goes on while the load is over the threshold": (
        SPEC,
        [
            (0, seen(1, 40, 5, 40), 3, "(panic)"),
            (50, seen(1, 40, 5, 40), 3, "(panic)"),
            (110, seen(3, 1, 1, 1), 3, "panic mode removes no node"),
            (111, seen(3, 1, 1, 1), 1, ""),
        ],
    ),
    "a panic's own load may come from the stable window": (
        SPEC,
        [
            (0, seen(1, 40, 40, 32), 3, "3 nodes: 40 requests at a time over 60 s, 16 per node (panic)"),
        ],
    ),
    "fewer nodes only after the delay": (
        SPEC,
        [
            (0, even(4, 60), 4, "4 nodes: 60 requests"),
            (10, even(4, 40), 4, "kept at 4: 3 is enough, but 4 were wanted within the last 60 s"),
            (20, even(4, 1), 4, "kept at 4: 1 is enough, but 4 were wanted within the last 60 s"),
            (60, even(4, 1), 4, "kept at 4: 1 is enough, but 4 were wanted within the last 60 s"),
            (61, even(4, 1), 3, "kept at 3: 1 is enough, but 3 were wanted within the last 60 s"),
            (71, even(3, 1), 1, "1 node: 1 requests at a time over 60 s, 16 per node"),
        ],
    ),
    "the delay brings back no node": (
        SPEC,
        [
            (0, even(4, 60), 4, ""),
            (10, even(2, 1), 2, "kept at 2: 1 is enough, but 4 were wanted within the last 60 s"),
        ],
    ),
    "no delay": (
        replace(SPEC, scale_down_delay=0.0),
        [(0, even(4, 60), 4, ""), (1, even(4, 1), 1, "1 node: ")],
    ),
    "no node goes while one starts": (
        SPEC,
        [(0, even(3, 1, starting=2), 5, "kept at 5: 1 is enough, but 2 of them start")],
    ),
    "after a restart nothing is known for a stable window": (
        SPEC,
        [
            (
                0,
                even(3, 1, settled=False),
                3,
                "kept at 3: 1 is enough, but the load of the last 60 s is not known yet",
            ),
            (1, even(3, 90, settled=False), 6, "6 nodes: 90 requests"),
            (70, seen(6, 0, settled=False, idle_since=-231), 0, "asleep"),
        ],
    ),
    "bounds": (
        replace(SPEC, min_nodes=2, max_nodes=3),
        [
            (0, seen(0, 0), 2, "2 nodes: minNodes"),
            (1, seen(2, 0, idle_since=-9999), 2, "2 nodes: minNodes"),
            (2, even(2, 20), 2, "2 nodes: 20 requests"),
            (3, seen(3, 99, 75, 75), 3, "at most 3 nodes (maxNodes); the load asks for 5"),
            (4, even(3, 20), 3, "kept at 3: 2 is enough, but 3 were wanted within the last 60 s"),
        ],
    ),
    "the upper bound is made lower": (
        replace(SPEC, max_nodes=3),
        [(0, even(4, 20, starting=1), 3, "at most 3 nodes (maxNodes)"), (1, even(3, 20), 2, "2 nodes: 20")],
    ),
    "the lower bound is stronger than the upper": (
        replace(SPEC, min_nodes=2, max_nodes=1),
        [
            (0, seen(0, 0), 2, "2 nodes: minNodes"),
            (1, even(2, 99), 2, "at most 2 nodes (maxNodes); the load asks for 7"),
        ],
    ),
    "a version that may have no node gets one": (
        replace(SPEC, max_nodes=0),
        [(0, seen(0, 1), 1, "a request waits")],
    ),
    "an exact number": (
        replace(SPEC, min_nodes=5, max_nodes=6, exact_nodes=3),
        [
            (0, seen(0, 0), 3, "3 nodes: manualScaling"),
            (1, even(3, 500), 3, "3 nodes: manualScaling"),
            (2, even(4, 500), 3, "3 nodes: manualScaling"),
        ],
    ),
    "busy processors": (
        replace(SPEC, cpu_target=0.6),
        [
            (0, even(2, 20, cpu=0.6), 2, "2 nodes: 20 requests"),
            (1, even(2, 20, cpu=None), 2, "2 nodes: 20 requests"),
            (2, even(2, 20, cpu=0.95), 4, "4 nodes: each used 95% of a core, 60% is the aim"),
            (3, even(2, 70, cpu=0.95), 5, "5 nodes: 70 requests"),
        ],
    ),
    "processors are not looked at unless asked for": (
        SPEC,
        [(0, even(2, 20, cpu=0.95), 2, "2 nodes: 20 requests")],
    ),
    "busy processors keep no idle version awake": (
        replace(SPEC, cpu_target=0.6),
        [(301, seen(2, 0, cpu=1.0), 0, "asleep")],
    ),
    "nothing is added when nothing comes": (
        SPEC,
        [
            (7, seen(1, 0, 31, 0), 1, "1 node: no node is added without requests"),
            (8, seen(1, 1, 31, 0), 2, "2 nodes: 31 requests"),
            (9, seen(1, 0, 31, 0.1), 2, "2 nodes: 31 requests"),
        ],
    ),
    "but the lower bound holds": (
        replace(SPEC, min_nodes=2),
        [
            (7, seen(1, 0, 90, 0), 2, "2 nodes: no node is added without requests"),
            (8, seen(1), 2, "minNodes"),
        ],
    ),
    "windows, panic and delay put off no sleep": (
        replace(SPEC, idle_window=5.0),
        [
            (0, seen(2, 99, 90, 99), 7, "(panic)"),
            (5, seen(7, 0, 90, 9), 7, "kept at 7: 6 is enough, but panic mode removes no node"),
            (5.1, seen(7, 0, 90, 99), 0, "asleep: no request for 5 s (idle window 5 s)"),
            (6, seen(0, 0, 80, 90), 0, "asleep"),
            (7, seen(0, 1, 9, 9), 1, "1 node: a request waits"),  # the panic has been slept off
        ],
    ),
    "nor does a node ready late, but a node that starts does": (
        SPEC,
        [
            (999, seen(1, 0, starting=1), 2, ""),
            (1000, seen(2, 0, idle_since=1000), 1, "no request for 0 s"),
            (1301, seen(1, 0, idle_since=1000), 0, "asleep"),
        ],
    ),
    "woken soon: the next idle window is longer, but not the one after a long sleep": (
        SPEC,
        [
            (301, seen(1, 0), 0, "(idle window 300 s)"),
            (375, seen(0, 1), 1, "a request waits"),
            (680, seen(1, 0, idle_since=376), 1, "1 node: no request for 304 s, asleep after 450 s"),
            (826, seen(1, 0, idle_since=376), 1, "no request for 450 s"),
            (
                827,
                seen(1, 0, idle_since=376),
                0,
                "(idle window 450 s, longer this time: it was woken soon after it slept)",
            ),
            (902, seen(0, 1), 1, "a request waits"),
            (903, seen(1, 0, idle_since=903), 1, "asleep after 300 s"),
            (1204, seen(1, 0, idle_since=903), 0, "(idle window 300 s)"),
        ],
    ),
    "a wake-up that has to wait for memory was no longer asleep": (
        SPEC,
        [
            (301, seen(1, 0), 0, ""),
            (310, seen(0, 1), 1, "a request waits"),
            (600, seen(0, 1, 1, 1), 1, "a request waits"),
            (601, seen(1, 0, idle_since=601), 1, "asleep after 450 s"),
        ],
    ),
    "a node that is lost, or taken, has not been put to sleep": (
        SPEC,
        [
            (10, seen(1, 0), 1, ""),
            (11, seen(0, 0), 0, "asleep: no node is left, and the last request was 11 s ago"),
            (12, seen(0, 1), 1, ""),
            (13, seen(1, 0, idle_since=13), 1, "asleep after 300 s"),
        ],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_stories(story: str) -> None:
    """Row by row, the decision and its reason; each decision leaves its state to the next."""
    spec, rows = STORIES[story]
    state = ScalingState()
    for now, observation, nodes, words in rows:
        decision = decide_node_count(spec, observation, state, now)
        state = decision.state

        assert (now, decision.nodes) == (now, nodes), decision.reason
        assert words in decision.reason, now


def test_what_is_remembered_stays_small() -> None:
    """A day of falling and rising load leaves no more entries than nodes may be wanted."""
    spec, state = replace(SPEC, max_nodes=5), ScalingState()
    for second in range(0, 86_400, 7):
        load = 60 + 59 * math.sin(second / 90)
        state = decide_node_count(spec, even(3, load), state, float(second)).state
        assert len(state.wanted) <= 6


# ---- promises, in any state that can be reached


# Half of them want no more than a node or two, so that there is often something to shrink.
LOAD = st.just(0.0) | st.floats(0, 10) | st.floats(0, 200)


@st.composite
def observations(draw: st.DrawFn, now: float) -> Observation:
    """Anything that may be seen at a moment."""
    return Observation(
        ready=draw(st.integers(0, 9)),
        starting=draw(st.sampled_from([0, 0, 1, 3])),
        requests=draw(st.sampled_from([0, 0, 1, 5, 99])),
        stable=draw(LOAD),
        panic=draw(LOAD),
        idle_since=now - draw(st.floats(0, 1000)),
        settled=draw(st.booleans()),
        cpu=draw(st.none() | st.floats(0, 1)),
    )


class Situation(NamedTuple):
    """All that `decide` is given."""

    spec: ScalingSpec
    observation: Observation
    state: ScalingState
    now: float

    def decide(self) -> Decision:
        return decide_node_count(*self)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """A moment after a few others, for the same version."""
    spec, state, now = draw(specs()), ScalingState(), 0.0
    for wait in draw(st.lists(st.floats(0, 50), max_size=6)):
        now += wait
        state = decide_node_count(spec, draw(observations(now)), state, now).state
    return Situation(spec, draw(observations(now)), state, now)


def top(spec: ScalingSpec) -> int:
    return max(spec.min_nodes, spec.max_nodes)


@given(situations())
def test_never_below_min_or_above_max(situation: Situation) -> None:
    """Whatever is seen, the bounds hold."""
    spec = situation.spec

    assert spec.min_nodes <= situation.decide().nodes <= top(spec)


@given(situations(), st.integers(0, 20))
def test_an_exact_number_overrules_all(situation: Situation, exact: int) -> None:
    """There are exactly so many nodes as somebody said."""
    spec = replace(situation.spec, exact_nodes=exact)

    assert situation._replace(spec=spec).decide().nodes == exact


@given(situations(), st.data())
def test_never_shrinks_in_panic(situation: Situation, data: st.DataObject) -> None:
    """After a peak no node goes for a stable window, as long as the version is not idle."""
    spec, before, state, now = situation
    peak = spec.panic_threshold * spec.target_concurrency * (1 + before.ready)
    state = decide_node_count(spec, replace(before, requests=1, panic=peak), state, now).state
    after = now + spec.stable_window * data.draw(st.floats(0, 0.99))
    observation = replace(data.draw(observations(after)), idle_since=after)
    decision = decide_node_count(spec, observation, state, after)

    assert decision.nodes >= min(observation.nodes, top(spec))


@given(situations())
def test_never_takes_a_starting_or_a_busy_node(situation: Situation) -> None:
    """While a node starts none goes; while a request runs or waits there is one."""
    observation, nodes = situation.observation, situation.decide().nodes

    if observation.starting:
        assert nodes >= min(observation.nodes, top(situation.spec))
    if observation.requests:
        assert nodes >= 1


@given(situations())
def test_a_waiting_request_wakes_at_once(situation: Situation) -> None:
    """No window and no delay lies between the first request and its node."""
    spec, observation, state, now = situation
    observation = replace(observation, ready=0, starting=0, requests=max(1, observation.requests))

    assert decide_node_count(spec, observation, state, now).nodes >= 1


@given(situations(), LOAD, LOAD, st.integers(0, 9), st.floats(0, 1))
def test_more_load_never_means_fewer_nodes(
    situation: Situation, stable: float, panic: float, requests: int, cpu: float
) -> None:
    """All else being equal, decisions grow with the load."""
    less = situation.observation
    more = replace(
        less,
        stable=less.stable + stable,
        panic=less.panic + panic,
        requests=less.requests + requests,
        cpu=None if less.cpu is None else less.cpu + cpu,
    )

    assert situation._replace(observation=more).decide().nodes >= situation.decide().nodes


@given(situations())
def test_no_shrinking_after_a_restart(situation: Situation) -> None:
    """Until a whole window is known, running nodes stay, unless the version is idle: then all go."""
    observation = replace(situation.observation, settled=False)
    nodes = situation._replace(observation=observation, state=ScalingState()).decide().nodes

    assert nodes >= min(observation.nodes, top(situation.spec)) or nodes == 0


@given(situations())
def test_nothing_is_started_while_nothing_comes(situation: Situation) -> None:
    """A node that is ready late would put off the sleep: only the lower bound is a reason for one."""
    observation = replace(situation.observation, requests=0, panic=0.0)
    nodes = situation._replace(observation=observation).decide().nodes

    assert nodes <= max(observation.nodes, situation.spec.min_nodes)
