"""Any sequence of requests, ends and nodes: what holds of the activator after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoscaler.errors import QueueFullError, StartFailedError
from autoscaler.pools import Node, NodeState
from tests.autoscaler.activation import World, make_world
from tests.autoscaler.fakes import Asker, settle, spec


class Chaos(RuleBasedStateMachine):
    """Requests come, end, give up, are cancelled; nodes come and go; some of it in one turn of the loop."""

    LIMIT, CONCURRENCY, BYTES = 8, 2, 100

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.askers: list[Asker] = []
        self.served: set[Asker] = set()
        self.pending: list[Callable[[], object]] = []

        async def make() -> World:
            return make_world(self.LIMIT, self.BYTES)

        self.world = self.runner.run(make())
        self.spec = spec(concurrency=self.CONCURRENCY)
        self.meter = self.world.activator.meter_of(self.spec)

    def act(self, what: Callable[[], object], at_once: bool) -> None:
        """Do something together with what was put off, and see to the consequences; or put it off too."""
        self.pending.append(what)
        if not at_once:
            return

        async def main() -> None:
            for one in self.pending:
                one()
            await settle()

        self.runner.run(main())
        self.pending.clear()

    def alive(self) -> list[Asker]:
        return [asker for asker in self.askers if not asker.task.done()]

    def waiting(self) -> list[Asker]:
        return [asker for asker in self.alive() if asker.node is None]

    def nodes(self) -> list[Node]:
        return self.world.pool.living

    def places(self) -> list[Node]:
        ready = [node for node in self.nodes() if node.state is NodeState.READY]
        return [node for node in ready if node.in_flight < self.CONCURRENCY]

    def ask(self, *sizes: int) -> None:
        self.askers += [self.world.ask(concurrency=self.CONCURRENCY, size=size) for size in sizes]

    @rule(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), at_once=st.booleans())
    def arrive(self, sizes: list[int], at_once: bool) -> None:
        self.act(lambda: self.ask(*sizes), at_once)

    @precondition(lambda self: not self.pending)
    @rule(size=st.integers(1, 30))
    def arrive_alone(self, size: int) -> None:
        """Who need not wait is never refused, and who must only for the limits."""
        waiting, places = self.waiting(), self.places()
        filled = sum(asker.size for asker in waiting)
        full = len(waiting) >= self.LIMIT or (filled and filled + size > self.BYTES)
        self.act(lambda: self.ask(size), True)

        refused = isinstance(self.askers[-1].error, QueueFullError)
        assert refused == bool(full and not places)
        assert (self.askers[-1].node is not None) == bool(places)

    @precondition(lambda self: any(asker.served for asker in self.askers))
    @rule(data=st.data(), at_once=st.booleans())
    def let_go(self, data: st.DataObject, at_once: bool) -> None:
        asker = data.draw(st.sampled_from([asker for asker in self.askers if asker.served]))
        self.act(asker.let_go.set, at_once)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), at_once=st.booleans())
    def cancel(self, data: st.DataObject, at_once: bool) -> None:
        asker = data.draw(st.sampled_from(self.alive()))
        self.act(asker.task.cancel, at_once)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), at_once=st.booleans())
    def run_out_of_time(self, data: st.DataObject, at_once: bool) -> None:
        asker = data.draw(st.sampled_from(self.waiting()))
        self.act(asker.deadline.end, at_once)

    @precondition(lambda self: len(self.nodes()) < 3)
    @rule(at_once=st.booleans())
    def node_ready(self, at_once: bool) -> None:
        self.act(lambda: self.world.pool.ready(self.world.pool.start(self.spec)), at_once)

    @precondition(lambda self: self.nodes())
    @rule(data=st.data(), at_once=st.booleans(), how=st.sampled_from(["crash", "drain", "end"]))
    def node_leaves(self, data: st.DataObject, at_once: bool, how: str) -> None:
        node = data.draw(st.sampled_from(self.nodes()))

        def leave() -> None:
            if node in self.nodes():
                getattr(self.world.pool, how)(node)

        self.act(leave, at_once)

    @precondition(lambda self: len(self.waiting()) > self.LIMIT // 2)
    @rule(at_once=st.booleans())
    def fail(self, at_once: bool) -> None:
        self.act(lambda: self.world.activator.fail_waiting("v", StartFailedError("no")), at_once)

    @invariant()
    def slots_are_never_shared(self) -> None:
        for node in self.nodes():
            inside = [asker.slot for asker in self.alive() if asker.node is node]
            assert node.in_flight == len(inside) <= self.CONCURRENCY
            assert sorted([*node.slots, *inside]) == list(range(len(node.shared.marks)))

    @invariant()
    def all_are_counted(self) -> None:
        assert self.meter.level == len(self.alive())
        assert self.world.activator.count_waiting("v") == len(self.waiting()) <= self.LIMIT

    @invariant()
    def nobody_waits_while_there_is_a_place(self) -> None:
        assert not (self.places() and self.waiting())

    @invariant()
    def the_oldest_are_served_first(self) -> None:
        """Whoever was served since the last look had come before all who still wait."""
        served = {asker for asker in self.askers if asker.node is not None}
        waiting = self.waiting()
        if waiting:
            assert all(self.askers.index(one) < self.askers.index(waiting[0]) for one in served - self.served)
        self.served = served

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        self.act(lambda: [asker.task.cancel() for asker in self.askers], True)
        self.all_are_counted()
        self.slots_are_never_shared()
        assert self.meter.level == 0
        self.runner.close()


TestChaos = Chaos.TestCase
TestChaos.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
