"""Any sequence of requests, starts, failures and shortages: what holds of the autoscaler after each step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoscaler.pools import Node, NodeState
from tests.autoscaler.fakes import MIB, Asker, settle, spec
from tests.autoscaler.scaling import World


class Errors(logging.Handler):
    """Collects what went wrong and was only logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Chaos(RuleBasedStateMachine):
    """Three versions, too little memory for all of them, nodes that do not start or do not last."""

    KEYS, NODES, MOST = "abc", 4, 3

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.errors = Errors()
        logging.getLogger("autoscaler.scaling_loop").addHandler(self.errors)
        self.askers: list[Asker] = []

        async def make() -> World:
            return World()

        self.world = self.runner.run(make())
        for key in self.KEYS:
            self.world.track(key, max_nodes=self.MOST)

    def act(self, what: Callable[[], object]) -> None:
        async def main() -> None:
            what()
            # What nodes take is what nobody else has; what drains has not given it back.
            taken = sum(100 * MIB for node in self.world.pool.living if node.state is not NodeState.STARTING)
            self.world.free = self.NODES * 120 * MIB - taken
            await settle()

        self.runner.run(main())

    def living(self, key: str) -> list[Node]:
        starting_or_ready = (NodeState.STARTING, NodeState.READY)
        return [node for node in self.world.pool.nodes(key) if node.state in starting_or_ready]

    def in_state(self, state: NodeState) -> list[Node]:
        return [node for node in self.world.pool.living if node.state is state]

    def alive(self) -> list[Asker]:
        return [asker for asker in self.askers if not asker.task.done()]

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def ask(self, keys: list[str]) -> None:
        self.act(lambda: self.askers.extend(self.world.ask(key) for key in keys))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), how=st.sampled_from(["let go", "cancel", "give up"]))
    def end(self, data: st.DataObject, how: str) -> None:
        asker = data.draw(st.sampled_from(self.alive()))
        ends: dict[str, Callable[[], object]] = {
            "let go": asker.let_go.set,
            "cancel": asker.task.cancel,
            "give up": asker.deadline.end,
        }
        self.act(ends[how])

    @precondition(lambda self: self.in_state(NodeState.STARTING))
    @rule(data=st.data(), how=st.sampled_from(["ready", "ready", "crash", "fail"]))
    def start_ends(self, data: st.DataObject, how: str) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.STARTING)))
        if how == "ready":
            self.act(lambda: self.world.pool.ready(node, memory=100 * MIB))
        else:
            self.act(lambda: self.world.pool.crash(node, "no", is_permanent=how == "fail"))

    @precondition(lambda self: self.in_state(NodeState.READY))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.READY)))
        self.act(lambda: self.world.pool.crash(node))

    @precondition(lambda self: self.in_state(NodeState.DRAINING))
    @rule(data=st.data())
    def drained(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.in_state(NodeState.DRAINING)))
        self.act(lambda: self.world.pool.end(node))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 70.0, 310.0]))
    def tick(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.act(self.world.autoscaler.reconcile)

    @rule(key=st.sampled_from(KEYS), least=st.integers(0, 1))
    def patch(self, key: str, least: int) -> None:
        self.act(lambda: self.world.track(key, min_nodes=least, max_nodes=self.MOST))

    @rule()
    def hold_orders(self) -> None:
        self.act(self.world.pool.open.clear)

    @rule()
    def let_orders_through(self) -> None:
        self.act(self.world.pool.open.set)

    @invariant()
    def nothing_goes_wrong(self) -> None:
        assert self.errors.records == []

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Whoever waits without a node does so for an order, a next try or memory."""
        if not self.world.pool.open.is_set():
            return
        for key in self.KEYS:
            tracked = self.world.autoscaler.versions[key]
            if self.world.activator.count_waiting(key) and not self.living(key):
                assert tracked.shortage_reason or tracked.failures.is_blocked(self.world.clock())

    @invariant()
    def bounds_hold(self) -> None:
        for key in self.KEYS:
            assert len(self.living(key)) <= self.MOST
            assert self.world.activator.meter_of(spec(key)).level == sum(
                asker.spec.key == key for asker in self.alive()
            )
        assert len(self.world.pool.living) <= self.NODES

    def teardown(self) -> None:
        """When nothing fails any more all is as it should be; when nobody asks any more all fall asleep."""
        if not hasattr(self, "runner"):
            return
        self.let_orders_through()
        for _ in range(150):
            self.settle_nodes()
            self.tick(1.0)
            for asker in self.alive():
                if asker.served:
                    self.act(asker.let_go.set)
        assert self.alive() == []
        for key in self.KEYS:
            assert len(self.living(key)) >= self.world.autoscaler.versions[key].floor
            self.patch(key, 0)
        for _ in range(10):
            self.settle_nodes()
            self.tick(310.0)
        assert self.world.pool.living == []
        looks = self.world.pool.looks
        self.world.autoscaler.reconcile()
        assert self.world.pool.looks == looks
        logging.getLogger("autoscaler.scaling_loop").removeHandler(self.errors)
        self.runner.close()

    def settle_nodes(self) -> None:
        for node in self.in_state(NodeState.STARTING):
            self.act(partial(self.world.pool.ready, node, memory=100 * MIB))
        for node in self.in_state(NodeState.DRAINING):
            if not node.in_flight:
                self.act(partial(self.world.pool.end, node))


TestChaos = Chaos.TestCase
TestChaos.settings = settings(
    max_examples=40, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
