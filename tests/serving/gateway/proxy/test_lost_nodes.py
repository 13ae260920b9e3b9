"""What becomes of requests whose node dies, hangs up or cannot be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from autoscaler.node_memory import Mark
from serving.gateway.proxy import retry
from serving.gateway.proxy.routing_table import REPEATABLE
from tests.autoscaler.fakes import settle
from tests.serving.gateway.proxy.proxied import Seen, World, dying, good, run


def test_what_a_node_had_not_begun_is_sent_again(tmp_path: Path) -> None:
    """User code has not seen it; the next node gets it like any other."""

    async def main(world: World) -> None:
        world.deploy(prediction_class="module.Class")
        world.replies = [dying(Mark.UNTOUCHED), good]
        answered = await world.post(b"[1]")

        assert (answered.status, answered.body) == (200, b'{"predictions": [v2]}')
        assert [seen.body for seen in world.seen] == [b"[1]"] * 2
        assert not world.seen[1].alone

    run(tmp_path, main)


@pytest.mark.parametrize("mark", [Mark.COMPUTING, Mark.COMPUTED])
def test_what_user_code_has_seen_is_not_sent_again(tmp_path: Path, mark: Mark) -> None:
    """It may have done anything; the answer says how the node ended."""

    async def main(world: World) -> None:
        world.deploy(prediction_class="module.Class")
        world.replies = [dying(mark), good]
        answered = await world.post()

        assert answered.status == 500
        assert answered.message == (
            "Failed to run the provided model: The node died while it worked on the request. "
            "Node v1 died of signal SIGSEGV. (Error code: 2)"
        )
        assert len(world.seen) == 1

    run(tmp_path, main)


@pytest.mark.parametrize(
    "fields",
    [{}, {"prediction_class": "module.Class", "labels": {REPEATABLE: "on"}}],
    ids=["ours", "labelled"],
)
def test_what_may_be_repeated_is_sent_again_alone(tmp_path: Path, fields: dict[str, Any]) -> None:
    """A runtime of ours has no side effects, and of a custom one the owner may say so."""

    async def main(world: World) -> None:
        world.deploy(**fields)
        world.replies = [dying(Mark.COMPUTING), good]
        answered = await world.post()

        assert (answered.status, answered.body) == (200, b'{"predictions": [v2]}')
        assert [seen.alone for seen in world.seen] == [False, True]

    run(tmp_path, main)


def test_what_was_computed_and_may_be_repeated_is_sent_again_like_any(tmp_path: Path) -> None:
    """Another request killed the node before the answer was out."""

    async def main(world: World) -> None:
        world.deploy()
        world.replies = [dying(Mark.COMPUTED), good]
        answered = await world.post()

        assert answered.status == 200
        assert not world.seen[1].alone

    run(tmp_path, main)


def test_a_request_that_kills_is_given_up_after_three_deaths(tmp_path: Path) -> None:
    """The answer says how the last of them ended; those that come after it are served."""

    async def main(world: World) -> None:
        world.deploy()
        world.replies = [*[dying(Mark.COMPUTING)] * 3, good]
        answered = await world.post()

        assert answered.status == 500
        assert "Node v3 died of signal SIGSEGV." in answered.message
        assert [seen.alone for seen in world.seen] == [False, True, True]
        assert (await world.post()).status == 200

    run(tmp_path, main)


def test_a_request_that_kills_while_it_is_read_is_given_up_too(tmp_path: Path) -> None:
    """No node notes that it has begun; but there is an end to it."""

    async def main(world: World) -> None:
        world.deploy()
        world.replies = [dying(Mark.UNTOUCHED)]
        answered = await world.post()

        assert answered.status == 500
        assert len(world.seen) == 10

    run(tmp_path, main)


def test_who_was_beside_a_request_that_kills_is_served(tmp_path: Path) -> None:
    """However often that one kills; and only that one fails."""

    async def main(world: World) -> None:
        world.deploy()
        both = asyncio.Event()

        async def reply(seen: Seen) -> bytes | None:
            if seen.body == b"poison":
                seen.mark(Mark.COMPUTING)
                await both.wait()
                return None
            if len([one for one in world.seen if one.body == b"poison"]) < 3:
                both.set()
                await asyncio.get_running_loop().create_future()  # it waits for its turn
            return await good(seen)

        world.replies = [reply]
        innocent, poison = await asyncio.gather(world.post(b"innocent"), world.post(b"poison"))

        assert poison.status == 500
        assert innocent.status == 200
        assert all(not seen.alone for seen in world.seen if seen.body == b"innocent")

    run(tmp_path, main)


def test_a_node_that_cannot_be_reached_is_left(tmp_path: Path) -> None:
    """Once the pool knows that it is gone, the next one is asked; nothing is kept of the first."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        asking = asyncio.create_task(world.post())
        await settle()
        node = world.pool.ready(world.pool.only())  # nobody listens
        await settle()
        assert node.in_flight == 1

        world.held = False
        world.pool.crash(node, "It was killed.")
        answered = await asking
        assert (answered.status, answered.body) == (200, b'{"predictions": [v2]}')

    run(tmp_path, main)


def test_a_node_that_is_gone_before_it_is_sent_anything_leaves_nothing_behind(tmp_path: Path) -> None:
    """It was granted and died in the same turn of the event loop."""

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        asking = asyncio.create_task(world.post())
        await settle()
        world.held = False
        world.pool.crash(world.pool.ready(world.pool.only()), "It was killed.")
        answered = await asking

        assert answered.status == 200
        assert list(world.proxy.node_clients) == ["v2"]

    run(tmp_path, main)


def test_a_node_that_hangs_up_and_lives_may_yet_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So user code is not asked again; what may be repeated goes to whoever answers."""
    monkeypatch.setattr(retry, "_NODE_END_TIMEOUT", 0.01)

    async def main(world: World) -> None:
        async def hang_up(seen: Seen) -> bytes | None:
            return b"" if len(world.seen) < 4 else await good(seen)

        world.replies = [hang_up]
        world.deploy(prediction_class="module.Class")
        first = await world.post()
        assert (first.status, len(world.seen)) == (500, 1)
        assert first.message.endswith("The node died while it worked on the request. (Error code: 2)")

        world.deploy()
        assert (await world.post()).status == 200
        assert len(world.seen) == 4

    run(tmp_path, main)


def test_there_is_no_end_of_tries_but_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that cannot be reached and does not go away holds nobody up for ever."""
    monkeypatch.setattr(retry, "_NODE_END_TIMEOUT", 0.01)

    async def main(world: World) -> None:
        world.deploy()
        world.held = True
        asking = asyncio.create_task(world.post(within="0.1"))
        await settle()
        node = world.pool.ready(world.pool.only())
        answered = await asking

        assert answered.status == 504
        assert answered.message == "Every node that received the request ended before it replied."
        assert node.in_flight == 0

    run(tmp_path, main)
