"""Many requests at once, for tests: keep-alive connections, exact answers, no request lost without a word."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: status 0 when nothing did. `seconds` count from when the request was due."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def predictions(self) -> Any:
        """The predictions; the test fails when there are none."""
        assert self.status == 200, f"{self.status}: {self.body.decode()}"
        return json.loads(self.body)["predictions"]


class _Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._done: asyncio.Future[tuple[int, Mapping[str, str], bytes]] | None = None

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, Mapping[str, str], bytes]]:
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("the server hung up"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        answer = self._parser.get_status_code(), self._headers, b"".join(self._body)
        self._headers, self._body = {}, []
        if self._done is not None and not self._done.done():
            self._done.set_result(answer)


@dataclass
class Client:
    """Predictions over as many connections as there are requests at a time; use inside `drive`.

    `keep` is how many of them stay open when they are idle.
    """

    url: str
    name: str
    timeout: float = 60.0
    headers: Mapping[str, str] = field(default_factory=dict)
    keep: int = 10_000
    _idle: deque[_Connection] = field(default_factory=deque)

    async def connect(self, count: int) -> None:
        """Open connections beforehand."""
        for _ in range(count):
            self._idle.append(await self._open())

    async def ask(self, instances: Any, due: float | None = None) -> Answer:
        """One request; `due` is when it should have been sent, on `time.perf_counter`."""
        body = json.dumps({"instances": instances}).encode()
        return await self.send(f"/v1/{self.name}:predict", body, due)

    async def send(self, path: str, body: bytes, due: float | None = None) -> Answer:
        """One POST of a body as it is."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        extra += f"content-length: {len(body)}\r\n"
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{extra}\r\n"
        start = due or time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout):
                connection = await self._connection()
                status, headers, answer = await connection.ask(head.encode() + body)
        except (OSError, TimeoutError) as error:
            return Answer(0, {}, repr(error).encode(), time.perf_counter() - start)
        if len(self._idle) < self.keep and headers.get("connection") != "close":
            self._idle.append(connection)
        else:
            connection.transport.close()
        return Answer(status, headers, answer, time.perf_counter() - start)

    async def burst(self, many: Sequence[Any]) -> list[asyncio.Task[Answer]]:
        """Ask all at once, each on a connection of its own that is open; returns when they are sent."""
        await self.connect(len(many))
        tasks = [asyncio.create_task(self.ask(instances)) for instances in many]
        await asyncio.sleep(0)
        return tasks

    async def pace(self, rate: float, seconds: float, instances: Callable[[int], Any]) -> list[Answer]:
        """`rate` requests per second, sent when they are due whether or not earlier ones were answered."""
        start = time.perf_counter()
        tasks: list[asyncio.Task[Answer]] = []
        for number in range(int(rate * seconds)):
            due = start + number / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(self.ask(instances(number), due)))
        return await asyncio.gather(*tasks)

    async def saturate(self, users: int, seconds: float, instances: Callable[[int], Any]) -> list[Answer]:
        """`users` connections, each asking again as soon as it is answered."""
        end = time.perf_counter() + seconds
        answers: list[Answer] = []

        async def user() -> None:
            while time.perf_counter() < end:
                answers.append(await self.ask(instances(len(answers))))

        await asyncio.gather(*(user() for _ in range(users)))
        return answers

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():  # the server ends those that are idle for long
                return connection
        return await self._open()

    async def _open(self) -> _Connection:
        host, _, port = self.url.removeprefix("http://").partition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, host, int(port))
        return connection

    def close(self) -> None:
        """Close what is idle; requests under way end with their answers."""
        for connection in self._idle:
            connection.transport.close()


def drive(main: Any) -> Any:
    """Run a coroutine that uses clients. What a signal handler raises ends it, as the timeout of a test."""
    raised: list[BaseException] = []

    async def run_until_raised() -> Any:
        task = asyncio.current_task()

        def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, BaseException) and not isinstance(error, Exception) and task is not None:
                raised.append(error)  # uvloop would go on
                task.cancel()
            else:
                loop.default_exception_handler(context)

        asyncio.get_running_loop().set_exception_handler(on_error)
        return await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(run_until_raised())
        except asyncio.CancelledError:
            if raised:
                raise raised[0] from None
            raise
