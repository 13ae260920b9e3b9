"""Requests that another server is to answer, whatever becomes of them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from serving.errors import Internal
from serving.gateway.proxy.node_client import NodeReply, ReplyCallback
from serving.gateway.proxy.peers.peer_client import PeerClient
from serving.gateway.proxy.peers.peer_protocol import ANSWER_SECONDS, DECLINED, HopHead, decode_head
from serving.http_headers import Headers
from serving.transport.framing import Body
from tests.serving.gateway.proxy.proxied import World, run

OWN = ((ANSWER_SECONDS, b"0.001"),)


class OtherServer:
    """A router that passes all requests on to one server, and that server."""

    def __init__(self, answer: Callable[[ReplyCallback], None]) -> None:
        self._answer = answer
        self.heads: list[HopHead] = []
        self.withdrawn = 0
        self.outcomes: list[str] = []

    # ---- PeerRouter

    def find_peer(self, key: str) -> PeerClient | None:
        return cast(PeerClient, self)

    def is_full(self, key: str) -> bool:
        return False

    def on_hop_ended(self, outcome: str, seconds: float) -> None:
        self.outcomes.append(outcome)

    # ---- PeerClient

    def send(self, callback: ReplyCallback, head: bytes, body: Body, timeout: float) -> int:
        self.heads.append(decode_head(head))
        asyncio.get_running_loop().call_soon(self._answer, callback)
        return 1

    def cancel(self, number: int, on_freed: Callable[[], None]) -> None:
        self.withdrawn += 1
        on_freed()


def replying(status: int, body: bytes = b"", headers: Headers = OWN) -> Callable[[ReplyCallback], None]:
    return lambda callback: callback.on_reply(NodeReply(status, headers, body))


def keep_silent(_: ReplyCallback) -> None:
    pass


def test_what_lets_a_caller_in_stays_with_the_server_that_got_it(tmp_path: Path) -> None:
    """And who it says it is counts for nothing there: the other server is told who it is."""
    secrets = [(b"authorization", b"Bearer t"), (b"proxy-authorization", b"Basic t"), (b"cookie", b"a=s")]
    others = [(b"x-own", b"1"), (b"x-pilotlight-principal", b"user:root@example.com")]

    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = there = OtherServer(replying(200, b"there"))
        answered = await world.post(others=[*secrets, *others, (b"x-request-id", b"own")])
        assert (answered.status, answered.body) == (200, b"there")
        (head,) = there.heads
        assert sorted(head.headers) == sorted(others)
        assert (head.principal, head.request_id) == ("", b"own")
        assert there.outcomes == ["answered"]
        assert not world.seen

    run(tmp_path, main)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (replying(DECLINED, headers=()), "declined"),
        (replying(99, headers=()), "declined"),
        (lambda callback: callback.on_connection_lost(), "lost"),
    ],
    ids=["declined", "declined-in-a-later-version", "lost"],
)
def test_what_the_other_server_does_not_answer_is_answered_here(
    tmp_path: Path, answer: Callable[[ReplyCallback], None], outcome: str
) -> None:
    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = there = OtherServer(answer)
        assert (await world.post()).body == b'{"predictions": [v1]}'
        assert there.outcomes == [outcome]

    run(tmp_path, main)


def test_what_must_not_run_twice_is_not_answered_here(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.deploy(prediction_class="module.Class")
        world.proxy.peers = there = OtherServer(lambda callback: callback.on_connection_lost())
        answered = await world.post()
        assert (answered.status, b"may have run" in answered.body) == (503, True)
        assert there.outcomes == ["lost"]
        assert not world.seen

    run(tmp_path, main)


def test_an_answer_that_this_server_does_not_take_fails_its_request(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = there = OtherServer(
            lambda callback: callback.on_reply_dropped(Internal("Too long."))
        )
        answered = await world.post()
        assert (answered.status, b"Too long." in answered.body) == (500, True)
        assert there.outcomes == ["dropped"]

    run(tmp_path, main)


def test_a_server_that_never_answers_has_the_time_of_the_request(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = there = OtherServer(keep_silent)
        assert (await world.post(within="0.05")).status == 504
        assert (there.outcomes, there.withdrawn) == (["expired"], 1)

    run(tmp_path, main)


def test_a_request_is_withdrawn_when_its_client_goes(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = there = OtherServer(keep_silent)
        left = asyncio.Event()
        posting = asyncio.create_task(world.post(left=left))
        await world.until(lambda: bool(there.heads))
        left.set()
        await posting
        assert (there.outcomes, there.withdrawn) == (["cancelled"], 1)

    run(tmp_path, main)


def test_a_reply_without_headers_is_passed_on(tmp_path: Path) -> None:
    """A server of another version may leave out what it took."""

    async def main(world: World) -> None:
        world.deploy()
        world.proxy.peers = OtherServer(replying(200, b"there", headers=()))
        assert (await world.post()).body == b"there"

    run(tmp_path, main)
