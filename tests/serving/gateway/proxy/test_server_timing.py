"""What an answer says of the wait for its node."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.activator import Activator, Lease
from autoscaler.pools import Node
from serving.gateway.proxy.server_timing import with_server_timing
from tests.autoscaler.fakes import memory, spec


def make_lease(
    *, arrived: float, granted: float, asked: float, ready: float, load: float = 0.0, warm: float = 0.0
) -> Lease:
    activator = Activator(queue_requests=1, queue_bytes=1)
    node = Node(id="1", key="v", address="", shared=memory(), asked_at=asked)
    node.ready_at = ready
    node.report = {"load_seconds": load, "warm_seconds": warm}
    return Lease(activator, activator.queue_of(spec()), node, 0, granted=granted, arrived=arrived)


def timing(lease: Lease) -> str:
    ((name, value),) = with_server_timing(lease, [])
    assert name == b"server-timing"
    return value.decode()


def test_the_wait_is_told_by_its_phases() -> None:
    """In milliseconds: waiting for anything to happen, starting a process, loading, warming."""
    lease = make_lease(arrived=100.0, asked=100.002, ready=101.0, granted=101.001, load=0.5, warm=0.25)

    assert timing(lease) == "queue;dur=3.0, start;dur=248.0, load;dur=500.0, warm;dur=250.0"


def test_who_came_later_paid_for_less() -> None:
    """Only what it has waited for itself."""
    lease = make_lease(arrived=100.5, asked=100.0, ready=101.0, granted=101.0, load=0.625, warm=0.125)

    assert timing(lease) == "queue;dur=0.0, start;dur=0.0, load;dur=375.0, warm;dur=125.0"


def test_who_got_its_place_later_than_others_was_in_the_queue() -> None:
    """The node was ready, but full."""
    lease = make_lease(arrived=100.0, asked=100.0, ready=101.0, granted=104.0)

    assert timing(lease) == "queue;dur=3000.0, start;dur=1000.0, load;dur=0.0, warm;dur=0.0"


def test_what_the_node_says_comes_after() -> None:
    """As it says it; other headers stay as they are."""
    lease = make_lease(arrived=100.0, asked=100.0, ready=101.0, granted=101.0)
    headers = [(b"content-length", b"2"), (b"server-timing", b"infer;dur=1.5"), (b"x-kind", b"good")]

    assert with_server_timing(lease, headers) == [
        (b"content-length", b"2"),
        (b"x-kind", b"good"),
        (b"server-timing", b"queue;dur=0.0, start;dur=1000.0, load;dur=0.0, warm;dur=0.0, infer;dur=1.5"),
    ]


def test_a_node_that_reports_no_times_has_started() -> None:
    """All of it."""
    lease = make_lease(arrived=100.0, asked=100.0, ready=101.0, granted=101.0)
    lease.node.report = {}

    assert timing(lease) == "queue;dur=0.0, start;dur=1000.0, load;dur=0.0, warm;dur=0.0"


SECONDS = st.floats(0, 100)


@given(arrived=SECONDS, asked=SECONDS, start=SECONDS, late=SECONDS, load=SECONDS, warm=SECONDS)
def test_the_phases_add_up_to_the_wait(
    arrived: float, asked: float, start: float, late: float, load: float, warm: float
) -> None:
    """Whenever the request came, and whatever the node says of itself; none is negative."""
    ready = asked + start
    granted = max(arrived, ready) + late
    lease = make_lease(arrived=arrived, asked=asked, ready=ready, granted=granted, load=load, warm=warm)
    phases = [float(found) for found in re.findall(r"dur=([-0-9.]+)", timing(lease))]

    assert len(phases) == 4
    assert min(phases) >= 0
    assert abs(sum(phases) - (granted - arrived) * 1000) < 1


def test_a_lease_without_a_wait_has_none_to_tell() -> None:
    """All phases are nothing."""

    lease = make_lease(arrived=0.0, asked=100.0, ready=101.0, granted=200.0)
    lease.arrived = None

    assert timing(lease) == "queue;dur=0.0, start;dur=0.0, load;dur=0.0, warm;dur=0.0"
