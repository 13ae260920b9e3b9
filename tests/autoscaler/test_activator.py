from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from autoscaler.activator import Activator
from autoscaler.errors import NodeError, QueueFullError, RetiredError, StartFailedError
from autoscaler.pools import Node, NodeSpec, NodeState


def spec(key: str = "v", concurrency: int = 1) -> NodeSpec:
    return NodeSpec(key, key, "", {}, {}, start_timeout=1, concurrency=concurrency)


class FakePool:
    """Nodes that become ready, or do not, when a test says so."""

    def __init__(self, activator: Activator) -> None:
        self.activator = activator
        self.wanted: list[tuple[str, int]] = []
        self.living: list[Node] = []
        self.failure: OSError | None = None
        activator.connect(self)

    def nodes(self, key: str) -> Sequence[Node]:
        return [node for node in self.living if node.key == key]

    async def scale(self, spec: NodeSpec, count: int) -> None:
        self.wanted.append((spec.key, count))
        if self.failure is not None:
            raise self.failure
        for _ in range(len(self.nodes(spec.key)), count):
            self.start(spec.key)

    async def close(self) -> None:
        pass

    def start(self, key: str = "v") -> Node:
        node = Node(id=f"{key}{len(self.wanted)}{len(self.living)}", key=key, address="")
        self.living.append(node)
        self.activator.node_changed(node)
        return node

    def ready(self, node: Node) -> Node:
        node.report = {"framework": "any"}
        node.state = NodeState.READY
        self.activator.node_changed(node)
        return node

    def gone(self, node: Node, reason: str = "") -> None:
        self.living.remove(node)
        node.state, node.reason = NodeState.GONE, reason
        self.activator.node_changed(node)


class Asker:
    """A request that leases a node and keeps it until it is told to let go."""

    def __init__(self, activator: Activator, spec: NodeSpec, size: int = 1) -> None:
        self.node: Node | None = None
        self.error: NodeError | None = None
        self.let_go = asyncio.Event()
        self.task = asyncio.create_task(self._ask(activator, spec, size))

    async def _ask(self, activator: Activator, spec: NodeSpec, size: int) -> None:
        try:
            async with activator.lease(spec, size, patient) as node:
                self.node = node
                await self.let_go.wait()
        except NodeError as error:
            self.error = error


async def patient(granted: asyncio.Future[Node]) -> Node:
    return await granted


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(main: Callable[[Activator, FakePool], Awaitable[None]], **limits: int) -> None:
    async def bounded() -> None:
        activator = Activator(**{"queue_requests": 100, "queue_bytes": 1000, **limits})
        async with asyncio.timeout(10):
            await main(activator, FakePool(activator))

    asyncio.run(bounded())


def test_the_first_request_wakes_a_node() -> None:
    """One node, however many wait; all of them get it when it is ready."""

    async def main(activator: Activator, pool: FakePool) -> None:
        askers = [Asker(activator, spec(concurrency=5)) for _ in range(5)]
        await settle()
        assert pool.wanted == [("v", 1)]
        assert [asker.node for asker in askers] == [None] * 5

        node = pool.ready(pool.living[0])
        await settle()

        assert [asker.node for asker in askers] == [node] * 5
        assert node.in_flight == 5
        for asker in askers:
            asker.let_go.set()
        await settle()
        assert node.in_flight == 0

    run(main)


def test_a_ready_node_is_lent_at_once() -> None:
    """Without a turn of the event loop."""

    async def main(activator: Activator, pool: FakePool) -> None:
        async with activator.lease(spec(), 1, patient):
            pass
        node = pool.living[0]
        assert activator.try_acquire("v") is node
        assert activator.try_acquire("v") is None
        assert activator.try_acquire("unknown") is None
        activator.release(node)
        assert node.in_flight == 0

    async def with_a_quick_pool(activator: Activator, pool: FakePool) -> None:
        start = pool.start
        pool.start = lambda key="v": pool.ready(start(key))  # type: ignore[method-assign]
        await main(activator, pool)

    run(with_a_quick_pool)


def test_places_are_granted_in_order() -> None:
    """First come, first served; a late request does not overtake those who wait."""

    async def main(activator: Activator, pool: FakePool) -> None:
        askers = [Asker(activator, spec()) for _ in range(4)]
        await settle()
        node = pool.ready(pool.living[0])
        await settle()
        for served in range(4):
            assert [asker.node is not None for asker in askers] == [number <= served for number in range(4)]
            assert node.in_flight == 1
            if served == 1:
                assert activator.try_acquire("v") is None
            askers[served].let_go.set()
            await settle()
        assert node.in_flight == 0

    run(main)


def test_the_least_loaded_node_is_lent() -> None:
    """Up to the concurrency of each."""

    async def main(activator: Activator, pool: FakePool) -> None:
        asker = Asker(activator, spec(concurrency=2))
        await settle()
        first = pool.ready(pool.living[0])
        await settle()
        second = pool.ready(pool.start())

        lent = [activator.try_acquire("v") for _ in range(4)]

        assert lent == [second, first, second, None]
        assert asker.node is first

    run(main)


def test_what_is_given_back_goes_to_who_waits() -> None:
    """Also when the one who waits came while another node was still starting."""

    async def main(activator: Activator, pool: FakePool) -> None:
        first, second = Asker(activator, spec()), Asker(activator, spec())
        await settle()
        pool.start()
        node = pool.ready(pool.living[0])
        await settle()
        assert (first.node, second.node) == (node, None)

        first.let_go.set()
        await settle()

        assert second.node is node
        assert pool.wanted == [("v", 1)]

    run(main)


def test_the_queue_is_bounded_in_requests() -> None:
    """Per version; the error names the setting."""

    async def main(activator: Activator, pool: FakePool) -> None:
        askers = [Asker(activator, spec()) for _ in range(3)]
        other = Asker(activator, spec("other"))
        await settle()

        assert [asker.error for asker in askers[:2]] == [None, None]
        assert isinstance(askers[2].error, QueueFullError)
        assert (askers[2].error.setting, askers[2].error.limit) == ("queue_requests", 2)
        assert other.error is None

    run(main, queue_requests=2)


def test_the_queue_is_bounded_in_bytes() -> None:
    """Over all versions; a request alone may have any size, and places come free again."""

    async def main(activator: Activator, pool: FakePool) -> None:
        huge = Asker(activator, spec(), size=5000)
        await settle()
        second = Asker(activator, spec("other"), size=1)
        await settle()
        assert huge.error is None
        assert isinstance(second.error, QueueFullError)
        assert second.error.setting == "queue_bytes"

        pool.ready(pool.living[0])
        await settle()
        third = Asker(activator, spec("other"), size=1)
        await settle()
        assert third.error is None

    run(main, queue_bytes=100)


def test_who_gives_up_leaves_no_trace() -> None:
    """Neither in the queue nor, when the node came that very moment, in the node."""

    async def main(activator: Activator, pool: FakePool) -> None:
        first, second = Asker(activator, spec(), size=60), Asker(activator, spec(), size=40)
        await settle()
        first.task.cancel()
        await settle()
        third = Asker(activator, spec(), size=60)
        await settle()
        assert third.error is None

        node = pool.ready(pool.living[0])
        second.task.cancel()  # the node is its own already, but it has not seen it
        await settle()

        assert second.node is None
        assert third.node is node
        assert node.in_flight == 1

    run(main, queue_bytes=100)


def test_a_wait_may_raise_what_it_likes() -> None:
    """The deadline of a request is its own."""

    async def main(activator: Activator, pool: FakePool) -> None:
        async def impatient(granted: asyncio.Future[Node]) -> Node:
            raise TimeoutError

        with pytest.raises(TimeoutError):
            await activator.acquire(spec(), 1, impatient)
        patient_one = Asker(activator, spec())
        await settle()
        node = pool.ready(pool.living[0])
        await settle()

        assert patient_one.node is node
        assert node.in_flight == 1

    run(main)


def test_a_node_that_dies_is_replaced_for_those_who_wait() -> None:
    """Those whom it served find out by themselves; without anybody waiting nothing is started."""

    async def main(activator: Activator, pool: FakePool) -> None:
        served, waiting = Asker(activator, spec()), Asker(activator, spec())
        await settle()
        node = pool.ready(pool.living[0])
        await settle()
        pool.gone(node, "killed")
        await settle()
        assert pool.wanted == [("v", 1), ("v", 1)]
        served.let_go.set()
        await settle()

        replacement = pool.ready(pool.living[0])
        await settle()
        assert waiting.node is replacement
        waiting.let_go.set()
        await settle()
        pool.gone(replacement, "killed")
        await settle()

        assert len(pool.wanted) == 2
        assert activator.try_acquire("v") is None

    run(main)


def test_a_draining_node_is_lent_no_more() -> None:
    """Its requests finish; the next request wakes another one."""

    async def main(activator: Activator, pool: FakePool) -> None:
        asker = Asker(activator, spec(concurrency=9))
        await settle()
        node = pool.ready(pool.living[0])
        await settle()
        node.state = NodeState.DRAINING
        pool.living.remove(node)
        activator.node_changed(node)

        assert activator.try_acquire("v") is None
        late = Asker(activator, spec(concurrency=9))
        await settle()

        assert asker.node is node
        assert late.node is None
        assert len(pool.wanted) == 2

    run(main)


def test_a_node_that_never_becomes_ready_fails_those_who_wait() -> None:
    """With its reason; the next request tries again."""

    async def main(activator: Activator, pool: FakePool) -> None:
        askers = [Asker(activator, spec()) for _ in range(3)]
        await settle()
        pool.gone(pool.living[0], "no such file")
        await settle()

        for asker in askers:
            assert isinstance(asker.error, StartFailedError)
            assert asker.error.reason == "no such file"
        Asker(activator, spec())
        await settle()
        assert len(pool.wanted) == 2

    run(main)


def test_one_of_two_starts_may_fail() -> None:
    """As long as another node is starting, those who wait go on waiting."""

    async def main(activator: Activator, pool: FakePool) -> None:
        asker = Asker(activator, spec())
        await settle()
        other = pool.start()
        pool.gone(pool.living[0], "no")
        await settle()
        assert asker.error is None

        pool.ready(other)
        await settle()
        assert asker.node is other

    run(main)


def test_a_pool_that_cannot_start_processes_fails_those_who_wait() -> None:
    """With the system's reason."""

    async def main(activator: Activator, pool: FakePool) -> None:
        pool.failure = OSError("Resource temporarily unavailable")
        asker = Asker(activator, spec())
        await settle()

        assert isinstance(asker.error, StartFailedError)
        assert "temporarily unavailable" in asker.error.reason

        pool.failure = None
        again = Asker(activator, spec())
        await settle()
        pool.ready(pool.living[0])
        await settle()
        assert again.node is not None

    run(main)


def test_before_there_is_a_pool_nobody_waits() -> None:
    """The server is starting; the queue stays empty."""

    async def main() -> None:
        activator = Activator(queue_requests=1, queue_bytes=1)
        for _ in range(3):
            with pytest.raises(StartFailedError):
                await activator.acquire(spec(), 1, patient)

    asyncio.run(main())


def test_a_retired_version_fails_those_who_wait() -> None:
    """And its nodes are no longer spoken of."""

    async def main(activator: Activator, pool: FakePool) -> None:
        served, waiting = Asker(activator, spec()), Asker(activator, spec())
        await settle()
        node = pool.ready(pool.living[0])
        await settle()

        activator.retire("v")
        await settle()
        assert isinstance(waiting.error, RetiredError)
        assert activator.try_acquire("v") is None
        served.let_go.set()
        await settle()
        assert node.in_flight == 0
        pool.gone(node)
        activator.retire("v")  # twice is no error

    run(main)


def test_a_version_that_is_retired_while_it_wakes_is_not_started() -> None:
    """The order to start must not come after the order to stop."""

    async def main(activator: Activator, pool: FakePool) -> None:
        asker = Asker(activator, spec())
        await asyncio.sleep(0)  # it waits, and the wake has not begun
        assert pool.wanted == []
        activator.retire("v")
        await settle()

        assert isinstance(asker.error, RetiredError)
        assert pool.wanted == []

    run(main)
