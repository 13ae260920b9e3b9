"""The stream of events on a whole gateway: who gets what of it, and how it ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from serving.errors import LimitReached
from serving.gateway.access.policy import ADMIN
from serving.gateway.api.introspection.events import EventsApi
from serving.gateway.observability.event_stream import EventKind, EventStream, Occurrence
from serving.http_headers import Message
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.access import world as access_world
from tests.serving.gateway.access.world import Api
from tests.serving.gateway.console import world as console_world
from tests.serving.gateway.console.world import World

ANN = "user:ann@example.com"
CREATED = {"change": "created", "model": "projects/p/models/m"}


class Reader:
    """A client of the stream; it takes what is sent while `takes` is set."""

    def __init__(self) -> None:
        self.status = 0
        self.text = b""
        self.last_id = ""
        self.takes = asyncio.Event()
        self.takes.set()
        self.left = asyncio.Event()
        self.ended = False
        self._more = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"")
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")
        self._more.set()

    async def read(self) -> tuple[str, dict[str, Any]]:
        """The next event: its kind and its data without the time."""
        while True:
            block, end, rest = self.text.partition(b"\n\n")
            if not end:
                assert not self.ended
                self._more.clear()
                await self._more.wait()
                continue
            self.text = rest
            fields = dict(re.findall(r"^(\w+): (.*)$", block.decode(), re.MULTILINE))
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                data = orjson.loads(fields["data"])
                data.pop("time", None)
                return fields["event"], data

    async def wait_for_end(self) -> None:
        while not self.ended:
            self._more.clear()
            await self._more.wait()


@asynccontextmanager
async def following(app: Any, query: str = "", **headers: str) -> AsyncIterator[Reader]:
    """A reader that has its first lines; it leaves at the end."""
    reader = Reader()
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events",
        "raw_path": b"/events",
        "root_path": "",
        "query_string": query.encode(),
        "headers": sent,
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    answering = asyncio.create_task(app(scope, reader.receive, reader.send))
    async with asyncio.timeout(HANG_SECONDS):
        while not reader.text and not answering.done():  # noqa: ASYNC110  no more than some turns of the loop
            await asyncio.sleep(0)
    if answering.done():
        answering.result()
    try:
        yield reader
    finally:
        reader.left.set()
        reader.takes.set()
        await answering


def test_readers_that_come_at_once_have_no_more_places_than_there_are() -> None:
    """An answer holds its place before it is begun, and none if it never is."""

    async def main() -> None:
        api = EventsApi(EventStream(2), None)
        request = Request({"type": "http", "method": "GET", "query_string": b"", "headers": []})
        answers = [await api.follow(request), await api.follow(request)]
        with pytest.raises(LimitReached):
            await api.follow(request)
        answers.pop()
        await api.follow(request)

    asyncio.run(main())


def test_a_reader_sees_what_its_roles_let_it_see(tmp_path: Path) -> None:
    """Of projects and models that it may see; by its token and not without one."""

    async def main(api: Api) -> None:
        await api.bind("projects/p", ml_viewer=ANN)
        admin, ann = await api.token(ADMIN.principal), await api.token(ANN)
        async with (
            following(api.gateway) as nobody,
            following(api.gateway, authorization=f"Bearer {ann}") as viewer,
            following(api.gateway, authorization=f"Bearer {admin}") as owner,
        ):
            assert (nobody.status, viewer.status) == (401, 200)
            for project in ("q", "p"):
                await api.call(ADMIN.principal, "POST", f"/v1/projects/{project}/models", {"name": "m"})
            assert await viewer.read() == ("model", CREATED)
            assert (await owner.read())[1]["model"] == "projects/q/models/m"
            assert await owner.read() == ("model", CREATED)
            await api.bind("projects/p", ml_jobOwner=ANN)
            await api.call(ADMIN.principal, "DELETE", "/v1/projects/p/models/m")
            await api.bind("projects/p", ml_viewer=ANN)
            await api.call(ADMIN.principal, "POST", "/v1/projects/p/models", {"name": "m2"})
            assert await viewer.read() == ("model", {"change": "created", "model": "projects/p/models/m2"})

    access_world.run(tmp_path, main)


def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    async def main(api: Api) -> None:
        token = await api.token(ADMIN.principal)
        async with following(api.gateway, authorization=f"Bearer {token}") as reader:
            api.tokens.revoke(token.split("_")[1], 1.0)
            assert api.gateway._access is not None
            await api.gateway._access.refresh_tokens()
            await api.call(ADMIN.principal, "POST", "/v1/projects/p/models", {"name": "m"})
            kind, data = await reader.read()
            assert (kind, data["reason"]) == ("end", "token")
            await reader.wait_for_end()

    access_world.run(tmp_path, main)


def test_a_reader_that_comes_back_misses_nothing(tmp_path: Path) -> None:
    """By the header, or by the query; it is told where something is missing."""

    async def main(world: World) -> None:
        async with following(world.gateway) as reader:
            pass
        await world.api.client.post("/v1/projects/p/models", json={"name": "m"})
        begun = re.findall(rb"id: (\d+)", reader.text)[0].decode()
        async with following(world.gateway, last_event_id=begun) as again:
            assert await again.read() == ("model", CREATED)
        query = f"lastEventId={again.last_id}&parent=projects/p/models/m"
        async with following(world.gateway, query) as third:
            await world.api.client.post("/v1/projects/p/models", json={"name": "n"})
            await world.api.client.delete("/v1/projects/p/models/m")
            assert (await third.read())[1]["change"] == "deleted"
        async with following(world.gateway, "lastEventId=1") as late:
            assert (await late.read())[0] == "gap"
            assert await late.read() == ("model", CREATED)

    console_world.run(tmp_path, main)


def test_so_many_read_at_a_time(tmp_path: Path) -> None:
    """Whoever leaves makes room."""

    async def main(world: World) -> None:
        async with following(world.gateway) as first, following(world.gateway) as second:
            assert (first.status, second.status) == (200, 429)
            assert b"event_readers" in second.text
        async with following(world.gateway) as third:
            assert third.status == 200

    console_world.run(tmp_path, main, event_readers=1)


def test_what_is_no_stream_is_answered_at_once(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        client = world.api.client
        head = await client.head("/events")
        assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream")
        for query in ("parent=models", "parent=projects/p/models/m/versions", "lastEventId=-1"):
            response = await client.get(f"/events?{query}")
            assert response.status_code == 400
            assert f"Field: {query.partition('=')[0]} Error" in response.text

    console_world.run(tmp_path, main)


def test_a_slow_reader_is_told_that_it_was_dropped_and_a_quiet_stream_that_it_lives() -> None:
    async def main() -> None:
        stream = EventStream(2, kept=3)
        api = EventsApi(stream, None, heartbeat_seconds=0.02)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (await api.follow(Request(scope, receive)))(scope, receive, send)

        async with following(app) as reader:
            while b": nothing happened" not in reader.text:  # noqa: ASYNC110  time passes in the stream
                await asyncio.sleep(0.01)
            reader.takes.clear()
            stream.publish(Occurrence(EventKind.JOB, "projects/p/jobs/0", {"job": 0}))
            await asyncio.sleep(0)
            for number in range(1, 9):
                stream.publish(Occurrence(EventKind.JOB, f"projects/p/jobs/{number}", {"job": number}))
                await asyncio.sleep(0)
            reader.takes.set()
            kinds = [await reader.read()]
            while kinds[-1][0] != "end":
                kinds.append(await reader.read())
            assert kinds[-1][1]["reason"] == "slow"
            assert len(kinds) < 9

    asyncio.run(asyncio.wait_for(main(), HANG_SECONDS))
