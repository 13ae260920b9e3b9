"""From a request to its answer, against nodes that answer, hang up or die as a test says."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from autoscaler.node_memory import Mark
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.observability.tracing import Tracing
from serving.gateway.proxy import prediction_proxy
from serving.gateway.proxy.rate_limits import PredictionLimits
from serving.protocols import decode_metadata
from tests.autoscaler.fakes import Clock, settle
from tests.serving.gateway.collector import collecting
from tests.serving.gateway.proxy.proxied import (
    MIB,
    NAME,
    OTHERS,
    PREDICT,
    BrokenStats,
    Seen,
    World,
    dying,
    good,
    run,
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def test_an_answer_passes_through(tmp_path: Path) -> None:
    """With the place and the time it has; nothing else is asked of the node."""

    async def main(world: World) -> None:
        world.deploy()
        await world.post()
        answered = await world.post(b"[1, 2]", within="7.5")

        assert (answered.status, answered.body) == (200, b'{"predictions": [v1]}')
        seen = world.seen[-1]
        assert seen.body == b"[1, 2]"
        assert 0 < seen.timeout <= 7.5
        assert seen.slot in (0, 1)
        assert not (seen.alone or seen.timing)

    run(tmp_path, main)


def test_an_answer_for_which_there_is_no_memory_is_refused(tmp_path: Path) -> None:
    """Whether it came at once or had to wait for a node; nothing of it stays behind."""

    async def main(world: World) -> None:
        async def long(_: Seen) -> bytes | None:
            return bytes(1 << 20)

        world.replies = [long]
        world.deploy()
        received = world.proxy.receive_budget
        assert received.reserve(received.limit)
        for _ in range(2):
            answered = await world.post()
            assert (answered.status, b"setting unsent_bytes" in answered.body) == (503, True)
            assert b"retry-after" in answered.headers
        assert world.proxy.receive_budget.reserved == received.limit
        received.release(received.limit)
        assert len((await world.post()).body) == 1 << 20
        assert received.reserved == 0

    run(tmp_path, main)


def test_a_node_is_told_of_the_trace_and_the_client_of_nothing_more(tmp_path: Path) -> None:
    """Each attempt has its span; what the node says of its times goes into it."""

    async def main(world: World) -> None:
        world.deploy()
        world.replies = [dying(Mark.UNTOUCHED), good]
        await world.post(traceparent=b"00-%032x-%016x-01" % (7, 8))
        answered = await world.post(traceparent=b"00-%032x-%016x-01" % (7, 8))
        assert answered.status == 200
        assert b"server-timing" not in answered.headers
        await world.post(traceparent=b"00-%032x-%016x-00" % (7, 8))

        assert [seen.timing for seen in world.seen] == [True] * 3 + [False]

    with collecting() as collector:
        tracing = Tracing(collector.endpoint, 0.0)
        run(tmp_path, main, tracing=tracing)
        asyncio.run(tracing.close())


def test_answers_are_counted_whoever_gives_them(tmp_path: Path) -> None:
    """By the version that was asked, and its node's or the gateway's status; else by the method."""

    async def main(world: World) -> None:
        assert (await world.post()).status == 404
        world.deploy()
        await world.post(b"[1, 2]")
        await world.post(within="none")
        snapshot = world.stats.get_or_create("v").take_snapshot(())

        assert snapshot.statuses == {200: 1, 400: 1}
        assert (snapshot.bytes_in, snapshot.bytes_out) == (6, len(b'{"predictions": [v1]}'))
        assert {"total", "gateway", "queue"} <= dict(snapshot.phases).keys()
        assert world.stats.api_calls == {("projects.predict", 404): 1}

    run(tmp_path, main)


# ---- what another server has just committed


def test_a_version_that_is_not_known_is_looked_for_in_the_newest_state(tmp_path: Path) -> None:
    """Once for a request; so a version answers on each server as soon as it is READY."""

    async def main(world: World) -> None:
        looked = 0

        async def refresh() -> None:
            nonlocal looked
            looked += 1
            if looked == 3:
                world.deploy()

        world.proxy.refresh_state = refresh
        assert (await world.post()).status == 404
        assert (await world.post(path=OTHERS[-1])).status == 404
        assert looked == 2
        assert (await world.post(b"[1]")).status == 200
        assert (await world.post()).status == 200
        assert looked == 3
        assert [seen.body for seen in world.seen] == [b"[1]", b"{}"]

    run(tmp_path, main)


def test_a_refusal_does_not_wait_for_a_database_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known decides; nor does it outlive its client."""
    monkeypatch.setattr(prediction_proxy, "_REFRESH_SECONDS", 0.05)

    async def main(world: World) -> None:
        async def refuse() -> None:
            raise Unavailable("no database")

        async def hang() -> None:
            await asyncio.Event().wait()

        for refresh in (refuse, hang):
            world.proxy.refresh_state = refresh
            assert (await world.post()).status == 404

        gone = asyncio.Event()
        gone.set()
        await world.post(left=gone)
        world.deploy()
        await world.until(lambda: not world.proxy._tasks)
        assert world.seen == []

    run(tmp_path, main)


# ---- the cold-start contract


def test_only_an_answer_that_had_to_wait_for_its_node_says_so(tmp_path: Path) -> None:
    """In phases that add up to the wait, before what the node says of the rest."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        asking = asyncio.create_task(world.post())
        await settle()
        world.clock.advance(2.0)
        node = world.pool.only()
        node.report = {"load_seconds": 0.5, "warm_seconds": 0.25}
        await world.up(node)
        cold, warm = await asking, await world.post()

        assert cold.headers[b"server-timing"] == (
            b"queue;dur=0.0, start;dur=1250.0, load;dur=500.0, warm;dur=250.0, infer;dur=1.5"
        )
        assert b"server-timing" not in warm.headers
        asked = await world.post(timing=b"1")
        assert asked.headers[b"server-timing"] == b"infer;dur=1.5"
        # It is also on record why it waited.
        (wait,) = world.waits.list_waits("v")
        assert (wait.request_id, wait.status) == (cold.headers[b"x-request-id"].decode(), 200)
        assert {name: wait.phases[name] for name in ("start", "load", "warm", "infer")} == {
            "start": 1.25, "load": 0.5, "warm": 0.25, "infer": 0.0015
        }  # fmt: skip
        assert [seen.timing for seen in world.seen] == [True, False, True]

    run(tmp_path, main)


def test_who_waits_for_a_place_in_a_ready_node_paid_for_no_start(tmp_path: Path) -> None:
    """The node was there when it came."""

    async def main(world: World) -> None:
        release = asyncio.Event()
        release.set()

        async def slow(seen: Seen) -> bytes | None:
            await release.wait()
            return b"{}"

        world.replies = [slow]
        world.deploy()
        await world.post()
        release.clear()
        busy = [asyncio.create_task(world.post()) for _ in range(2)]
        await world.until(lambda: world.pool.only().in_flight == 2)
        late = asyncio.create_task(world.post())
        await world.until(lambda: world.activator.count_waiting("v") == 1)
        release.set()

        assert b"server-timing" not in (await late).headers
        await asyncio.gather(*busy)

    run(tmp_path, main)


def test_a_request_that_cannot_wait_for_a_start_is_told_when_to_come_again(tmp_path: Path) -> None:
    """As far as starts of the version are known; the node is started, so that it is true."""

    async def main(world: World) -> None:
        world.deploy(start_seconds=30.2)
        world.held = True
        answered = await world.post(within="5")

        assert answered.status == 503
        assert answered.headers[b"retry-after"] == b"31"
        assert answered.message.startswith(
            "A node of version v is starting; it takes about 30.2 s. The request could not wait that long"
        )
        await settle()
        assert world.started == 1

    run(tmp_path, main)


def test_a_request_whose_time_runs_out_without_a_node_is_told_so(tmp_path: Path) -> None:
    """It was not the model that was slow."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        world.free = 0
        asking = asyncio.create_task(world.post(within="0.06"))
        await settle()
        world.clock.advance(0.05)
        answered = await asking

        assert answered.status == 503
        assert "not enough memory: 120 MiB needed, 0 MiB free, and nothing idle to stop." in answered.message
        (wait,) = world.waits.list_waits("v")
        assert (wait.status, wait.message, list(wait.phases)) == (503, answered.message, ["in_vain"])
        assert answered.headers[b"retry-after"] == b"1"

    run(tmp_path, main)


def test_a_request_whose_time_runs_out_in_a_node_is_a_time_out(tmp_path: Path) -> None:
    """It is not sent again, and its place is free."""

    async def main(world: World) -> None:
        world.deploy()

        async def never(seen: Seen) -> bytes | None:
            await asyncio.get_running_loop().create_future()
            return None

        world.replies = [never]
        answered = await world.post(within="0.1")

        assert answered.status == 504
        assert len(world.seen) == 1
        assert world.pool.only().in_flight == 0

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("mark", "fields", "status"),
    [
        (Mark.UNTOUCHED, {"prediction_class": "module.Class"}, 503),
        (Mark.COMPUTING, {"prediction_class": "module.Class"}, 504),
        (Mark.COMPUTING, {}, 503),
    ],
    ids=["not begun", "begun", "begun and repeatable"],
)
def test_a_request_whose_node_was_ready_too_late_is_no_time_out(
    tmp_path: Path, mark: Mark, fields: dict[str, Any], status: int
) -> None:
    """Unless the model has begun with it, and may not begin again."""

    async def main(world: World) -> None:
        async def never(seen: Seen) -> bytes | None:
            seen.mark(mark)
            await asyncio.get_running_loop().create_future()
            return None

        world.deploy(**fields)
        world.replies, world.held = [never], True
        asking = asyncio.create_task(world.post(within="0.2"))
        await settle()
        world.clock.advance(19.5)
        await world.up(world.pool.only())
        answered = await asking

        assert answered.status == status
        if status == 503:
            assert answered.headers[b"retry-after"] == b"1"
            assert answered.message.startswith(f"A node of {NAME} was ready only after 19.5 s.")

    run(tmp_path, main)


def test_a_slow_model_is_a_time_out_although_its_node_had_to_start(tmp_path: Path) -> None:
    """The start took the smaller part of the time."""

    async def main(world: World) -> None:
        async def slow(seen: Seen) -> bytes | None:
            seen.mark(Mark.COMPUTING)
            world.clock.advance(19.5)
            await asyncio.get_running_loop().create_future()
            return None

        world.deploy()
        world.replies, world.held = [slow], True
        asking = asyncio.create_task(world.post(within="0.2"))
        await settle()
        world.clock.advance(0.5)
        await world.up(world.pool.only())

        assert (await asking).status == 504

    run(tmp_path, main)


def test_a_version_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    """And when the next try is made."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        for seconds in (b"1", b"2", b"4"):
            asking = asyncio.create_task(world.post())
            await settle()
            world.pool.crash(world.pool.only(), "No such file: model.pkl.", is_permanent=True)
            answered = await asking
            assert answered.status == 503
            assert answered.headers[b"retry-after"] == seconds
            assert (
                answered.message
                == "No node of projects/p/models/m/versions/v could be started. No such file: model.pkl."
            )
            world.clock.advance(float(seconds) - 0.5)
            early = await world.post()
            assert (early.status, early.headers[b"retry-after"]) == (503, b"1")
            world.clock.advance(0.5)

    run(tmp_path, main)


def test_too_many_requests_are_refused_by_the_name_of_the_limit(tmp_path: Path) -> None:
    """With a time after which it may be better."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        waiting = asyncio.create_task(world.post())
        await settle()
        answered = await world.post()

        assert answered.status == 429
        assert "(setting queue_requests = 1)" in answered.message
        assert answered.headers[b"retry-after"] == b"1"
        await world.up(world.pool.only())
        assert (await waiting).status == 200

    run(tmp_path, main, queue_requests=1)


def test_the_bodies_inside_nodes_count_among_those_that_wait(tmp_path: Path) -> None:
    """A single one may have any size; there is room again as soon as it is answered or given up."""

    async def main(world: World) -> None:
        async def never(seen: Seen) -> bytes | None:
            await asyncio.get_running_loop().create_future()
            return None

        world.replies = [never]
        world.deploy()
        left = asyncio.Event()
        first = asyncio.create_task(world.post(b"x" * 200, left=left))
        await world.until(lambda: len(world.seen) == 1)
        refused = await world.post(b"x")
        assert refused.status == 429
        assert "wait or are in nodes (setting queue_bytes = 100)" in refused.message
        assert refused.headers[b"retry-after"] == b"1"
        left.set()
        await first
        second = asyncio.create_task(world.post(b"x" * 50, within="0.05"))
        assert (await second).status == 504

    run(tmp_path, main, queue_bytes=100)


class Deaf(asyncio.Protocol):
    """A node that does not read until it is told to."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.reads = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.reads:
            self.transport.pause_reading()

    def read(self) -> None:
        self.reads = True
        self.transport.resume_reading()


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "at once"])
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "reads"])
def test_a_body_that_is_still_being_written_to_a_node_counts(tmp_path: Path, waits: bool, dies: bool) -> None:
    """Though nobody waits for its answer any more: until the node reads it, or is gone."""
    large = b"x" * (8 * MIB)

    async def main(world: World) -> None:
        world.held = True
        world.deploy()
        deaf, left = Deaf(), asyncio.Event()
        asking = [asyncio.create_task(world.post(large if waits else b"{}", left=left))]
        await world.until(lambda: bool(world.pool.living))
        node = world.pool.only()
        server = await asyncio.get_running_loop().create_unix_server(lambda: deaf, node.address)
        world.pool.ready(node)
        await world.until(lambda: deaf.transport is not None)
        try:
            await settle()
            if not waits:
                asking.append(asyncio.create_task(world.post(large, left=left)))
                await settle()
            left.set()
            await asyncio.gather(*asking)
            assert world.proxy.held_bytes >= len(large)
            assert (await world.post(b"x" * 200)).status == 429
            if dies:
                deaf.transport.abort()
            else:
                deaf.read()
            await world.until(lambda: world.proxy.held_bytes == 0)
        finally:
            deaf.transport.abort()
            server.close()

    run(tmp_path, main, queue_bytes=len(large) + 100)


def test_who_has_had_their_share_is_told_when_to_come_back(tmp_path: Path) -> None:
    """Of the rate before the body is read; of the places a slow client holds none, one that waits does."""
    config = ServeConfig(version_concurrency=1, version_requests_per_second=3)

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        left = asyncio.Event()
        waiting = asyncio.create_task(world.post(left=left))
        await settle()
        answered = await world.post()
        assert answered.status == 429
        assert "(setting version_concurrency)" in answered.message
        assert answered.headers[b"retry-after"] == b"1"

        left.set()
        await waiting
        world.held = False
        await world.up(world.pool.only())
        assert [(await world.post()).status for _ in range(2)] == [200, 200]
        answered = await world.post()
        assert answered.status == 429
        assert (
            "exceeded its rate limit of 3 requests per second (setting version_requests_per_second)"
            in answered.message
        )
        clock.advance(0.5)
        assert (await world.post()).status == 200
        snapshot = world.stats.get_or_create("v").take_snapshot(())
        assert snapshot.statuses == {200: 3, 429: 2, 499: 1}
        assert snapshot.limits == {"version_concurrency": 1, "version_requests_per_second": 1}

    clock = Clock()
    run(tmp_path, main, shares=PredictionLimits(config, clock))


@pytest.mark.parametrize("path", OTHERS)
def test_other_protocols_go_the_same_way(tmp_path: Path, path: str) -> None:
    """A node is told what it is asked, also when another has died of it; they use up the same share."""

    async def main(world: World) -> None:
        world.deploy()
        world.replies = [dying(Mark.COMPUTING), good]
        answered = await world.post(b"[1]", path=path)

        assert answered.status == 200
        assert [(seen.node.id, seen.alone, seen.body) for seen in world.seen] == [
            ("v1", False, b"[1]"),
            ("v2", True, b"[1]"),
        ]
        metadata = decode_metadata(world.seen[0].about)
        assert (metadata.model, metadata.version) == ("m", "v")
        assert world.seen[1].about == world.seen[0].about

        assert (await world.post()).status == 200
        refused = await world.post(path=path)
        assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
        assert b"version_requests_per_second" in refused.body
        assert world.stats.get_or_create("v").take_snapshot(()).statuses == {200: 2, 429: 1}

    config = ServeConfig(version_requests_per_second=2)
    run(tmp_path, main, shares=PredictionLimits(config, Clock()))


@pytest.mark.parametrize("path", OTHERS)
def test_other_protocols_have_their_own_names_and_words(tmp_path: Path, path: str) -> None:
    """Also where there is no version."""

    async def main(world: World) -> None:
        refused = await world.post(path=path)
        assert refused.status == 404
        assert "Servable not found for request: " in orjson.loads(refused.body)["error"]
        ((method, status),) = world.stats.api_calls
        assert (method in {"inference.GRPCInferenceService.ModelInfer", PREDICT}, status) == (True, 404)

    run(tmp_path, main)


def test_a_version_that_is_deleted_meanwhile_is_not_found(tmp_path: Path) -> None:
    """For those who wait, and for those who would be sent again."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        waiting = asyncio.create_task(world.post())
        await settle()
        world.undeploy()
        forgetting = asyncio.create_task(world.autoscaler.stop_version("v"))
        answered = await waiting
        assert answered.status == 404
        assert answered.message == "The version projects/p/models/m/versions/v was deleted."
        world.pool.end(world.pool.living[0])
        await forgetting

        world.held = False
        world.deploy()

        async def die(seen: Seen) -> bytes | None:
            world.undeploy()
            return None

        world.replies = [die]
        assert (await world.post()).status == 404

    run(tmp_path, main)


@pytest.mark.parametrize("within", ["soon", "0", "-1", "nan", ""])
def test_a_time_that_is_none_is_refused(tmp_path: Path, within: str) -> None:
    """Before anything is started."""

    async def main(world: World) -> None:
        world.deploy()
        answered = await world.post(within=within)

        assert answered.status == 400
        assert "X-Request-Timeout" in answered.message
        assert world.started == 0

    run(tmp_path, main)


def test_nobody_waits_longer_than_the_server_allows(tmp_path: Path) -> None:
    """Whatever the client gives itself."""

    async def main(world: World) -> None:
        world.deploy()
        await world.post(within="inf")

        assert world.seen[0].timeout <= 3

    run(tmp_path, main, request_timeout=3.0)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_an_answer_that_cannot_be_sent_is_an_internal_error(tmp_path: Path, waits: bool) -> None:
    """Here one whose status HTTP does not have. What the request held is given back, and it counts once."""

    async def main(world: World) -> None:
        world.deploy()
        if not waits:
            await world.post()
        world.status = 999
        answered = await world.post()
        assert (answered.status, answered.message) == (500, "Internal error encountered.")
        assert world.pool.only().in_flight == 0
        world.status = 200
        for _ in range(2):  # there is one place
            assert (await world.post()).status == 200
        assert world.stats.get_or_create("v").take_snapshot(()).statuses[500] == 1

    run(tmp_path, main, shares=PredictionLimits(ServeConfig(version_concurrency=1), Clock()))


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_who_is_told_of_predictions_cannot_keep_them_from_their_clients(tmp_path: Path, waits: bool) -> None:
    """Neither answers nor refusals, nor what the requests held."""

    async def main(world: World) -> None:
        world.deploy()
        if not waits:
            await world.post()
        world.proxy.observer = replace(world.observers, stats=BrokenStats())
        assert (await world.post()).status == 200
        assert (await world.post(within="none")).status == 400
        assert (await world.post(path="/v1/projects/p/models/none:predict")).status == 404
        world.proxy.observer = world.observers
        assert (await world.post()).status == 200
        assert world.pool.only().in_flight == 0

    run(tmp_path, main, shares=PredictionLimits(ServeConfig(version_concurrency=1), Clock()))


def test_a_client_that_goes_away_leaves_its_place(tmp_path: Path) -> None:
    """Inside a node and while it waits for one; it gets no answer."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        left = asyncio.Event()
        left.set()
        answered = await world.post(left=left)
        assert answered.status == 0
        assert world.activator.count_waiting("v") == 0

        async def never(seen: Seen) -> bytes | None:
            await asyncio.get_running_loop().create_future()
            return None

        world.replies = [never]
        await world.up(world.pool.only())
        for number in (1, 2):  # once it had to wait for the channel, once not
            left = asyncio.Event()
            asking = asyncio.create_task(world.post(left=left))
            await world.until(lambda number=number: len(world.seen) == number)  # type: ignore[misc]
            left.set()
            assert (await asking).status == 0
            assert world.withdrawn == number
        assert world.pool.only().in_flight == 0

    run(tmp_path, main)
