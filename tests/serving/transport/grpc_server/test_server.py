from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from serving.config import ServerSettings
from serving.errors import ResourceExhausted, ServingError, Unavailable
from serving.http_headers import TIMEOUT
from serving.protocols import Reply
from serving.transport.grpc_server.call import GrpcCall, parse_peer
from serving.transport.grpc_server.server import GrpcServer
from serving.transport.request import PredictionRequest
from tests.bounds import HANG_SECONDS
from tests.calls import grpc, infer_request, predict_request
from tests.garbage import nothing_for_the_collector

aio = grpc.aio
PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STATUS = health_pb2.HealthCheckResponse


class Fake:
    """Answers by the name of the model: at once, later, never, or with an error."""

    def __init__(self) -> None:
        self.calls: list[PredictionRequest] = []
        self.gone: list[bool] = []
        self.began = asyncio.Event()
        self.left = asyncio.Event()

    def on_request_head(self, call: PredictionRequest) -> None:
        self.calls.append(call)
        try:
            asked = call.head.prediction_path
        except ServingError as error:
            call.respond_error(error)
            return
        assert asked is not None
        if asked.model == "wrong":
            call.respond_error(ResourceExhausted("x" * 5000, retry_after=2.5), ((b"x-request-id", b"id"),))

    def on_request_complete(self, call: PredictionRequest) -> None:
        asked = call.head.prediction_path
        assert asked is not None
        call.on_disconnect = lambda: self._gone(call)
        if asked.model == "now":
            call.respond(200, call.body, ((b"x-request-id", b"id"),))
        elif asked.model == "later":
            asyncio.get_running_loop().call_later(0.05, call.respond, 200, b"later")
        self.began.set()

    def _gone(self, call: PredictionRequest) -> None:
        self.gone.append(call.left_at_deadline)
        call.respond(200, b"nobody hears it")
        self.left.set()

    async def tell(self, call: GrpcCall) -> Reply:
        if call.rpc.name == "ServerLive":
            raise RuntimeError
        return Reply(200, call.rpc.name.encode())


class World:
    """A server, what answers its calls, a channel to it, and why it died."""

    def __init__(self, fake: Fake, server: GrpcServer, address: str, channel: Any, dead: list[str]) -> None:
        self.fake, self.server, self.address, self.channel = fake, server, address, channel
        self.dead = dead

    async def call(self, method: str, request: Any = b"", **more: Any) -> Any:
        """A call that is answered with bytes."""
        serialised = request if isinstance(request, bytes) else request.SerializeToString()
        return await self.channel.unary_unary(method)(serialised, **more)

    async def refused(self, method: str, request: Any = b"", **more: Any) -> Any:
        """The error of one that is not."""
        with pytest.raises(aio.AioRpcError) as caught:
            await self.call(method, request, **more)
        return caught.value


@asynccontextmanager
async def serving(settings: ServerSettings) -> AsyncIterator[World]:
    fake = Fake()
    server = GrpcServer(fake, fake.tell, settings, most_connections=100)
    address = server.bind("127.0.0.1", 0)
    dead: list[str] = []
    await server.start(dead.append)
    try:
        async with aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
            yield World(fake, server, address, channel, dead)
    finally:
        await server.stop(0)
        fake.calls.clear()


def run(main: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    """A test with a server on a loop as it runs on."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS), serving(ServerSettings(**settings)) as world:
            await main(world)

    with nothing_for_the_collector(GrpcCall) as check:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(bounded())
        check()


async def until(reached: Callable[[], bool]) -> None:
    """Let everything happen that can, until it has."""
    while True:
        if reached():
            return
        await asyncio.sleep(0)


def test_a_prediction_is_asked_and_answered() -> None:
    """With its model, its metadata, and where it comes from; what HTTP has as headers follows the answer."""

    async def main(world: World) -> None:
        request = predict_request("now", [1.0], label="canary")
        call = world.channel.unary_unary(PREDICT)(request.SerializeToString(), metadata=(("a", "b"),))

        assert await call == request.SerializeToString()
        assert ("x-request-id", "id") in list(await call.trailing_metadata())
        made = world.fake.calls[0]
        assert made.head.prediction_path is not None
        assert (made.head.prediction_path.model, made.head.prediction_path.label) == ("now", "canary")
        assert (made.head.method, made.head.path, made.head.length) == ("POST", PREDICT, request.ByteSize())
        assert (b"a", b"b") in made.scope["headers"]
        assert made.scope["client"][0] == "127.0.0.1"
        assert TIMEOUT not in made.head.prediction_headers
        assert await world.call(INFER, infer_request("later", [1.0])) == b"later"

    run(main)


def test_errors_have_a_code_and_words() -> None:
    """Long ones as much as clients take; what is to be tried again says when."""

    async def main(world: World) -> None:
        error = await world.refused(PREDICT, predict_request("wrong", [1.0]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details().startswith("xxx")
        assert len(error.details()) == 2000
        assert dict(error.trailing_metadata()) == {"retry-after": "3", "x-request-id": "id"}

        for method, request, words in (
            (PREDICT, b"", "no tensorflow.serving.PredictRequest that names a model"),
            (PREDICT, b"\xff", "cannot be read as tensorflow.serving.PredictRequest"),
            (INFER, b"", "no inference.ModelInferRequest that names a model"),
        ):
            error = await world.refused(method, request)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert words in error.details()

        silent = world.channel.stream_unary(PREDICT)()
        await silent.done_writing()
        with pytest.raises(aio.AioRpcError, match="names a model"):
            await silent

    run(main)


def test_what_is_no_prediction_is_told() -> None:
    """What there is not is refused in words, and what breaks is a fault of the server."""

    async def main(world: World) -> None:
        assert await world.call("/tensorflow.serving.ModelService/GetModelStatus") == b"GetModelStatus"
        for method, code, words in (
            ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", "UNIMPLEMENTED", "docs/api.md"),
            ("/inference.GRPCInferenceService/Nothing", "UNIMPLEMENTED", "The services are"),
            ("/inference.GRPCInferenceService/ServerLive", "INTERNAL", "Internal error encountered."),
        ):
            error = await world.refused(method)
            assert (error.code().name, words in error.details()) == (code, True)

    run(main)


def http2(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def hpack(*headers: tuple[bytes, bytes]) -> bytes:
    """Headers, literally."""
    return b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in headers
    )


BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, b"", 0)
CALL = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", PREDICT.encode()), (b":authority", b"x"),
    (b"te", b"trailers"), (b"content-type", b"application/grpc"),
)  # fmt: skip


def test_a_client_that_leaves_is_told_of() -> None:
    """Whether it had enough, or its deadline was past; how many seconds it has is known from the start."""

    async def main(world: World) -> None:
        fake, request = world.fake, predict_request("never", [1.0]).SerializeToString()
        call = world.channel.unary_unary(PREDICT)(request)
        await fake.began.wait()
        call.cancel()
        await fake.left.wait()
        fake.left.clear()
        # A client of gRPC's would leave a little before the server sees its deadline pass.
        message = http2(0, 1, struct.pack(">BI", 0, len(request)) + request)
        one, other = [await asyncio.open_connection(*world.address.rsplit(":", 1)) for _ in range(2)]
        one[1].write(BEGIN + http2(1, 4, hpack(*CALL, (b"grpc-timeout", b"1S"))) + message)
        await fake.left.wait()

        assert fake.gone == [False, True]
        assert 0 < float(fake.calls[1].head.prediction_headers[TIMEOUT]) <= 1
        fake.left.clear()
        timeouts = ((b"grpc-timeout", b"1S"), (b"x-request-timeout", b"0.01"))
        other[1].write(BEGIN + http2(1, 4, hpack(*CALL, *timeouts)) + message)
        await fake.left.wait()
        assert float(fake.calls[2].head.prediction_headers[TIMEOUT]) == 0.01
        for _, writer in (one, other):
            writer.close()

    run(main)


def test_metadata_that_is_not_utf8_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With a traceback for each: the call is answered, and others are."""

    async def main(world: World) -> None:
        host, _, port = world.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        heads = hpack(*CALL, (b"x-bad", b"\xff\xfe"), (b"x-request-id", b"\x80"))
        writer.write(BEGIN + http2(1, 4, heads) + http2(0, 1, bytes(5)))
        answer = b""
        while b"names a model" not in answer:
            answer += await reader.read(1 << 16)
        writer.close()
        assert await world.call(PREDICT, predict_request("now", [1.0]))

    run(main)
    assert not caplog.records


def test_a_message_that_is_too_long_is_not_taken() -> None:
    """It is refused in our words if it is not much too long, and else in those of gRPC, unread."""

    async def main(world: World) -> None:
        request = predict_request("now", [1.0] * 200)
        assert len(await world.call(PREDICT, request)) > 1600
        error = await world.refused(PREDICT, predict_request("now", [1.0] * 400))
        assert (error.code().name, len(world.fake.calls)) == ("RESOURCE_EXHAUSTED", 2)
        assert "larger than max" in error.details()

    run(main, max_body_bytes=1024)


def test_a_compressed_message_that_is_too_long_is_not_unfolded() -> None:
    """A few kilobytes would take gigabytes."""

    async def main(world: World) -> None:
        request = predict_request("now", [1.0] * 100)
        assert await world.call(PREDICT, request, compression=grpc.Compression.Gzip)
        many = predict_request("now", [1.0] * 1_000_000)
        error = await world.refused(PREDICT, many, compression=grpc.Compression.Gzip)
        assert error.code().name == "RESOURCE_EXHAUSTED"
        assert "setting max_body_bytes" in error.details()
        error = await world.refused(PREDICT, request, compression=grpc.Compression.Deflate)
        assert error.code().name == "UNIMPLEMENTED"

    run(main, max_body_bytes=100_000)


def test_a_message_must_come_in_time() -> None:
    """Who does not send it is refused, and holds nothing."""

    async def main(world: World) -> None:
        call = world.channel.stream_unary(PREDICT)()
        arrivals = world.server._incoming
        await until(lambda: len(arrivals) == 1)
        arrivals.enforce_limits(asyncio.get_running_loop().time() + 31)
        with pytest.raises(aio.AioRpcError, match="setting body_timeout") as caught:
            await call
        assert caught.value.code().name == "DEADLINE_EXCEEDED"
        assert (world.fake.calls, len(arrivals), world.server.active_calls) == ([], 0, 0)

    run(main)


@asynccontextmanager
async def slow_reader(world: World, request: bytes) -> AsyncIterator[Any]:
    """A call, on a connection of its own, whose client does not read its answer until a test does."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.http2.bdp_probe", 0),  # it would take more than it is asked for
    ]
    async with aio.insecure_channel(world.address, options=options) as channel:
        call = channel.unary_stream(PREDICT)(request)
        await call.initial_metadata()  # the answer has begun
        yield call


def test_the_oldest_answer_makes_room_for_others() -> None:
    """Its connection is closed, with all that gRPC held for it; who reads gets all of its answer."""
    request = predict_request("now", [1.0] * 3_000_000).SerializeToString()  # 24 MB

    async def main(world: World) -> None:
        async with AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(slow_reader(world, request)) for _ in range(3)]
            with pytest.raises(aio.AioRpcError, match="UNAVAILABLE"):
                await calls[0].read()
            assert world.server.rejections == {"unsent_bytes": 1}
            assert world.server._unsent.bytes < 60_000_000
            for call in calls[1:]:
                assert await call.read() == request
        await until(lambda: world.server._unsent.bytes == 0)
        assert world.server.rejections == {"unsent_bytes": 1}

    run(main, unsent_bytes=60_000_000)


@pytest.mark.parametrize(("pace", "seconds"), [(300_000, 80), (1, 600), (0, 600), (1_000_000, 60)])
def test_who_takes_too_long_for_an_answer_is_left(pace: int, seconds: float) -> None:
    """The longer it is, the more time there is, but no more than ten times that of a short one."""
    request = predict_request("now", [1.0] * 3_000_000).SerializeToString()  # 24 MB

    async def main(world: World) -> None:
        async with slow_reader(world, request) as call:
            unsent, began = world.server._unsent, asyncio.get_running_loop().time()
            unsent.enforce_timeouts(began + seconds - 1)
            assert (unsent.bytes, world.server.rejections) == (len(request), {})
            unsent.enforce_timeouts(began + seconds + 1)
            await asyncio.sleep(0)
            with pytest.raises(aio.AioRpcError, match="UNAVAILABLE"):
                while await call.read():
                    pass
            assert (unsent.bytes, world.server.rejections) == (0, {"answer_timeout": 1})

    run(main, answer_timeout=60, min_bytes_per_second=pace)


def test_stopping_lets_calls_finish() -> None:
    """Those under way, for a while; new ones find nobody."""

    async def main(world: World) -> None:
        finishing = asyncio.ensure_future(world.call(PREDICT, predict_request("later", [1.0])))
        await world.fake.began.wait()
        await world.server.stop(5)
        assert await finishing == b"later"
        assert (await world.refused(PREDICT, predict_request("now", [1.0]))).code().name == "UNAVAILABLE"

    async def impatient(world: World) -> None:
        hanging = asyncio.ensure_future(world.refused(PREDICT, predict_request("never", [1.0])))
        await world.fake.began.wait()
        await world.server.stop(0.05)
        assert (await hanging).code().name in {"UNAVAILABLE", "CANCELLED"}
        assert world.fake.gone == [False]

    run(main)
    run(impatient)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of gRPC's own, at its end
def test_a_server_that_takes_no_more_calls_is_told_of() -> None:
    """Unless it was asked to stop."""

    async def main(world: World) -> None:
        (accepting,) = (task for task in asyncio.all_tasks() if "server_main_loop" in repr(task))
        accepting.cancel()
        await until(lambda: bool(world.dead))
        assert world.dead == ["gRPC takes no more calls: its loop was cancelled or returned"]

    async def stopped(world: World) -> None:
        await world.server.stop(0)
        assert not world.dead

    run(main)
    run(stopped)


def test_health_is_told_and_watched() -> None:
    """For the server and for each of its services; who watches is told of changes whoever else leaves."""

    async def main(world: World) -> None:
        stub = health_pb2_grpc.HealthStub(world.channel)

        async def check(service: str = "") -> Any:
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "", "none")]
        first = [(await watch.read()).status for watch in watches]
        assert first == [STATUS.NOT_SERVING, STATUS.NOT_SERVING, STATUS.SERVICE_UNKNOWN]
        assert await check() == STATUS.NOT_SERVING
        watches[0].cancel()
        world.server.mark_ready()
        assert (await watches[1].read()).status == STATUS.SERVING
        assert await check("inference.GRPCInferenceService") == STATUS.SERVING
        with pytest.raises(aio.AioRpcError, match="There is no service 'none'"):
            await check("none")
        with pytest.raises(aio.AioRpcError, match="There is no service 'nnn") as caught:
            await check("n" * 1_000_000)
        assert len(caught.value.details()) < 1000
        stopping = asyncio.ensure_future(world.server.stop(0.1))
        assert (await watches[1].read()).status == STATUS.NOT_SERVING
        await stopping

    run(main)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_shows_services_and_messages(version: str) -> None:
    """In both of its versions."""

    async def main(world: World) -> None:
        method = world.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = method()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {one.name for one in (await call.read()).list_services_response.service}
        assert {"tensorflow.serving.ModelService", "grpc.health.v1.Health"} <= services
        for symbol in services:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()

    run(main)


REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize(
    "method", ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", REFLECTION]
)
def test_health_and_reflection_take_messages_as_predictions_do(method: str) -> None:
    """In time, no longer than they may be, and of the right kind; no error of Python is told or logged."""

    async def main(world: World) -> None:
        compressed = grpc.Compression.Gzip
        for message, code, words in (
            (b"\xff", "INVALID_ARGUMENT", "cannot be read as"),
            (b"\x0a" * 200_000, "RESOURCE_EXHAUSTED", "setting max_body_bytes"),
        ):
            call = world.channel.stream_stream(method)(compression=compressed)
            await call.write(message)
            with pytest.raises(aio.AioRpcError, match=words) as caught:
                await call.read()
            assert caught.value.code().name == code

        silent = world.channel.stream_stream(method)()
        arrivals = world.server._incoming
        await until(lambda: len(arrivals) == 1)
        arrivals.enforce_limits(asyncio.get_running_loop().time() + 31)
        with pytest.raises(aio.AioRpcError, match="setting body_timeout"):
            await silent.read()

    run(main, max_body_bytes=100_000)


def test_a_long_question_is_not_repeated_in_its_answer() -> None:
    """A client that reads none of its answers would fill the memory with them."""

    async def main(world: World) -> None:
        call = world.channel.stream_stream(REFLECTION)()
        question = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 5000)
        await call.write(question.SerializeToString())
        with pytest.raises(aio.AioRpcError, match="it can have 4096"):
            await call.read()

    run(main)


def test_streams_without_an_end_do_not_hold_up_a_stop() -> None:
    """Who watches or may ask more is told that the server stops, whatever time calls have."""

    async def main(world: World) -> None:
        watch = health_pb2_grpc.HealthStub(world.channel).Watch(health_pb2.HealthCheckRequest())
        asking = world.channel.stream_stream(REFLECTION)()
        await asking.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        await watch.read()
        await asking.read()
        async with asyncio.timeout(HANG_SECONDS):
            await world.server.stop(2 * HANG_SECONDS)
        for call in (watch, asking):
            with pytest.raises(aio.AioRpcError, match="The server is stopping") as caught:
                while await call.read():
                    pass
            assert caught.value.code().name == "UNAVAILABLE"

    run(main)


def test_a_port_that_is_taken_is_told_of() -> None:
    """With the flag that chooses another."""

    async def main(world: World) -> None:
        other = GrpcServer(world.fake, world.fake.tell, ServerSettings(), most_connections=1)
        with pytest.raises(Unavailable, match="Choose another --grpc-port"):
            other.bind("127.0.0.1", int(world.address.rpartition(":")[2]))

    run(main)


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("unix:/tmp/socket", None),
        ("unknown", None),
    ],
)
def test_a_peer_has_an_address(peer: str, client: tuple[str, int] | None) -> None:
    """If it comes over a network."""
    assert parse_peer(peer) == client


_FREED = """
import asyncio, gc, threading
from serving.config import ServerSettings
from serving.transport.grpc_server.server import GrpcServer

async def main():
    server = GrpcServer(None, None, ServerSettings(), most_connections=1)
    server.bind("127.0.0.1", 0)
    await server.start()
    await server.stop(0)

asyncio.run(main())
gc.collect()
print(threading.active_count())
"""


def test_the_last_server_that_is_freed_waits_for_no_thread_of_grpc() -> None:
    """Freeing it would end the thread that all of them share, which can hang; it ends with the process."""
    done = subprocess.run(
        [sys.executable, "-c", _FREED], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )

    assert done.stdout == "2\n"
