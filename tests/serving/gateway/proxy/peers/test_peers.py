"""The connection between two servers: who is let in, what goes over it, and how its end is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from serving.config import ServeConfig
from serving.errors import DeadlineExceeded, InvalidArgument, NotFound, ServingError
from serving.gateway.proxy.node_client import NodeReply, ReceiveBudget
from serving.gateway.proxy.peers import peer_server
from serving.gateway.proxy.peers.peer_client import PeerClient, ReceiveLimits
from serving.gateway.proxy.peers.peer_protocol import (
    ANSWER_SECONDS,
    DECLINED,
    HELLO_FRAME,
    OWN_VERSIONS,
    PROOF_FRAME,
    HandshakeKey,
    HopHead,
    PeerAddress,
    PeerTarget,
    PeerTls,
    ProtocolVersions,
    encode_head,
)
from serving.gateway.proxy.peers.peer_server import ForwardedCall, PeerServer, QuestionHandler
from serving.gateway.proxy.route import PredictionRoute, parse_route
from serving.gateway.request_context import get_caller
from serving.protocols import Dialect
from serving.protocols.errors import GRPC_STATUS
from serving.transport.framing import MAX_PREFIX_BYTES, PREDICT_FRAME, REQUEST_HEADER, RESPONSE_HEADER
from serving.transport.http_server import listen_tcp
from tests.bounds import HANG_SECONDS
from tests.certificates import write_certificate

SECRET = b"s" * 32
HEAD = HopHead(
    method="POST", path="/v1/projects/p/models/m:predict", headers=[(b"x-own", b"1")], version="uid",
    request_id=b"r1", timeout=5.0, principal="user:ann@example.com", client=("10.0.0.1", 4000),
)  # fmt: skip


class Waiting:
    """A callback that keeps what became of its request."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[NodeReply | str] = asyncio.get_running_loop().create_future()

    def on_reply(self, reply: NodeReply) -> None:
        self.ended.set_result(reply)

    def on_reply_dropped(self, error: ServingError) -> None:
        self.ended.set_result(error.message)

    def on_connection_lost(self) -> None:
        self.ended.set_result("lost")

    async def reply(self) -> NodeReply:
        reply = await self.ended
        assert isinstance(reply, NodeReply), reply
        return reply


def ignore() -> None:
    pass


async def decline_question(_: bytes) -> None:
    return None


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await main()

    uvloop.run(bounded())


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[ForwardedCall], None],
    tls: ssl.SSLContext | None = None,
    limit: int = 1 << 20,
    answer: QuestionHandler = decline_question,
    versions: ProtocolVersions = OWN_VERSIONS,
) -> AsyncIterator[tuple[PeerServer, int]]:
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = PeerServer(
        handler, answer, HandshakeKey(SECRET, address_of(port)), tls, limit, versions=versions
    )
    server.start(listener)
    try:
        yield server, port
    finally:
        await server.stop(1)


def address_of(port: int, server: str = "b") -> PeerAddress:
    return PeerAddress(server, "127.0.0.1", port)


def make_client(
    port: int,
    secret: bytes = SECRET,
    tls: ssl.SSLContext | None = None,
    server: str = "b",
    version: int = OWN_VERSIONS.newest,
) -> PeerClient:
    limits = ReceiveLimits(1 << 20, ReceiveBudget(1 << 20))
    return PeerClient(PeerTarget(address_of(port, server), version), secret, tls, limits, ignore)


async def connect(client: PeerClient) -> bool:
    """Whether the client was let in at its first try."""
    client.probe()
    task = client._connect_task
    assert task is not None
    await task
    return client.is_connected


def send(client: PeerClient, body: bytes = b"body", head: HopHead = HEAD) -> Waiting:
    waiting, encoded = Waiting(), encode_head(head)
    assert encoded is not None
    client.send(waiting, encoded, body, head.timeout)
    return waiting


def test_a_request_arrives_as_it_came_and_its_answer_too() -> None:
    calls: list[ForwardedCall] = []

    def handler(call: ForwardedCall) -> None:
        calls.append(call)
        if call.body == b"missing":
            call.respond_error(NotFound("There is none."), ((b"x-request-id", b"r1"),))
        else:
            call.respond(201, call.body * 2, ((b"content-type", b"text/plain"),))

    async def main() -> None:
        async with serving(handler) as (_, port):
            client = make_client(port)
            assert await connect(client)
            long = b"l" * 300_000
            replies = [await waiting.reply() for waiting in (send(client), send(client, long))]
            assert [(reply.status, reply.body) for reply in replies] == [(201, b"bodybody"), (201, long * 2)]
            assert replies[0].headers[0] == (b"content-type", b"text/plain")
            assert replies[0].headers[-1][0] == ANSWER_SECONDS
            call = calls[0]
            assert (call.version_key, call.head.path) == ("uid", HEAD.path)
            assert call.head.prediction_headers[b"x-request-timeout"] == b"5.0"
            assert (b"x-own", b"1") in call.head.headers
            assert get_caller(call.scope).principal == "user:ann@example.com"
            assert call.scope["client"] == ("10.0.0.1", 4000)
            missing = await send(client, b"missing").reply()
            assert (missing.status, b"There is none." in missing.body) == (404, True)
            client.close()

    run(main)


def test_a_call_over_grpc_goes_the_same_way() -> None:
    """Its model is named by its body, which was read already; its errors are those of gRPC."""
    head = msgspec.structs.replace(
        HEAD,
        path="/inference.GRPCInferenceService/ModelInfer",
        dialect="inference-grpc",
        address=("infer", "m", "v", ""),
    )
    routes: list[PredictionRoute] = []

    def handler(call: ForwardedCall) -> None:
        routes.append(parse_route(call.head, "p"))
        call.respond_error(NotFound("There is none."))

    async def main() -> None:
        async with serving(handler) as (_, port):
            client = make_client(port)
            await connect(client)
            reply = await send(client, head=head).reply()
            assert (reply.headers[0], reply.body) == ((GRPC_STATUS, b"5"), b"There is none.")
            assert routes[0].resource_name == "projects/p/models/m/versions/v"
            assert routes[0].metadata.dialect is Dialect.INFERENCE_GRPC

    run(main)


def test_only_servers_of_the_database_are_let_in() -> None:
    """Neither side tells the secret, or takes a request, before it knows the other."""

    async def main() -> None:
        calls: list[ForwardedCall] = []
        async with serving(calls.append) as (server, port):
            assert not await connect(make_client(port, b"o" * 32))
            for kind in (PREDICT_FRAME, HELLO_FRAME):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST_HEADER.pack(kind, 0, 1, 0, 1.0, 0, 4) + b"body")
                assert await reader.read() == b""
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/projects/p/models/m:predict HTTP/1.1\r\nhost: a\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            assert not calls
            assert await connect(make_client(port))
            assert server.connections

    run(main)


@pytest.mark.parametrize(
    ("versions", "version", "is_let_in"),
    [((1, 1), 1, True), ((1, 2), 1, True), ((2, 4), 3, True), ((1, 2), 3, False), ((2, 4), 1, False)],
)
def test_a_server_speaks_its_versions_of_the_protocol_and_no_other(
    versions: tuple[int, int], version: int, is_let_in: bool
) -> None:
    """The client has read an older row where it speaks another one."""

    async def main() -> None:
        spoken = ProtocolVersions(*versions)
        async with serving(lambda call: call.respond(200, b""), versions=spoken) as (_, port):
            client = make_client(port, version=version)
            assert await connect(client) is is_let_in
            if is_let_in:
                assert (await send(client).reply()).status == 200
            client.close()

    run(main)


def test_a_server_from_before_versions_is_let_in() -> None:
    """As these bytes were then, a server and a client at a time."""
    nonce = b"n" * 32

    def prove(role: bytes, port: int, for_nonce: bytes) -> bytes:
        return hmac.digest(SECRET, role + b" " + for_nonce + b' ["b","127.0.0.1",%d]' % port, "sha256")

    async def main() -> None:
        async with serving(lambda call: call.respond(200, b"")) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST_HEADER.pack(HELLO_FRAME, 0, 0, 0, 0.0, 0, 32) + nonce)
            challenge = (await reader.readexactly(RESPONSE_HEADER.size + 64))[RESPONSE_HEADER.size :]
            assert challenge[:32] == prove(b"server", port, nonce)
            proof = prove(b"client", port, challenge[32:])
            writer.write(REQUEST_HEADER.pack(PROOF_FRAME, 0, 0, 0, 0.0, 0, 32) + proof)
            await reader.readexactly(RESPONSE_HEADER.size)
            assert [connection.is_accepted for connection in server.connections] == [True]
            writer.close()

    run(main)


def test_what_a_later_version_sends_is_left_to_it() -> None:
    """The connection, and other requests on it, go on."""

    async def main() -> None:
        async with serving(lambda call: call.respond(200, b"")) as (_, port):
            client = make_client(port)
            assert await connect(client)
            unreadable, unknown = Waiting(), Waiting()
            client.send(unreadable, b"no head", b"body", 1.0)
            assert client._connection is not None
            client._connection.callbacks[1000] = unknown
            client._connection.send(1000, REQUEST_HEADER.pack(200, 0, 1000, 0, 1.0, 0, 0))
            foreign = send(client, head=msgspec.structs.replace(HEAD, dialect="spoken-later"))
            nameless = send(client, head=msgspec.structs.replace(HEAD, address=("predict", "m", "", "")))
            for one in (unreadable, unknown, foreign, nameless):
                assert (await one.reply()).status == DECLINED
            assert (await send(client).reply()).status == 200
            client.close()

    run(main)


def test_who_hands_proofs_on_is_let_in_nowhere() -> None:
    """A stranger has a dead server's port, and a living server of the database answer for it."""

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def main() -> None:
        calls: list[ForwardedCall] = []
        async with serving(calls.append) as (server, port):

            async def stand_between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, to_server = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(hand_on(reader, to_server), hand_on(there, writer))

            stranger = await asyncio.start_server(stand_between, "127.0.0.1", 0)
            own_port = stranger.sockets[0].getsockname()[1]
            assert not await connect(make_client(own_port))
            assert not await connect(make_client(own_port, server="dead"))
            # It was another server's port before.
            assert not await connect(make_client(port, server="dead"))
            assert not any(connection.is_accepted for connection in server.connections)
            stranger.close()
            assert not calls

    run(main)


@pytest.mark.parametrize("host", ["a\0b", "x" * 64 + ".example"])
def test_a_host_that_is_no_name_is_as_one_that_does_not_answer(host: str) -> None:
    async def main() -> None:
        limits = ReceiveLimits(1 << 20, ReceiveBudget(1 << 20))
        assert not await connect(
            PeerClient(PeerTarget(PeerAddress("b", host, 1), 1), SECRET, None, limits, ignore)
        )

    run(main)


def test_certificates_are_shown_on_both_sides(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    config = ServeConfig(peer_host="10.0.0.7", peer_ca=cert, peer_cert=cert, peer_key=key)
    tls = PeerTls.from_settings(config)
    assert tls is not None
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        async with serving(lambda call: call.respond(200, call.body), tls.server) as (_, port):
            client = make_client(port, tls=tls.client)
            assert await connect(client)
            body = b"b" * 200_000
            assert (await send(client, body).reply()).body == body
            assert not await connect(make_client(port, tls=without))
            assert not await connect(make_client(port))

    run(main)


def test_a_connection_ends_with_the_power_of_its_other_machine() -> None:
    async def main() -> None:
        async with serving(lambda call: None) as (server, port):
            assert await connect(make_client(port))
            (connection,) = server.connections
            assert connection.transport is not None
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60

    run(main)


def test_strangers_who_say_nothing_keep_no_server_out() -> None:
    async def main() -> None:
        async with serving(lambda call: None) as (server, port):
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(70)]
            client = make_client(port)
            try:
                assert await connect(client)
                assert len(server.connections) <= 65
            finally:
                client.close()
                for _, writer in strangers:
                    writer.close()

    run(main)


def test_who_begins_no_handshake_of_tls_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers would use up the server's file descriptors."""
    monkeypatch.setattr(peer_server, "_HANDSHAKE_SECONDS", 0.1)
    write_certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    tls = PeerTls.from_settings(ServeConfig(peer_ca=cert, peer_cert=cert, peer_key=key))
    assert tls is not None

    async def main() -> None:
        async with serving(lambda call: None, tls.server) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.timeout(3):
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
            finally:
                writer.close()

    run(main)


def test_handshakes_of_tls_take_only_so_many_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast strangers connect, and say nothing."""
    monkeypatch.setattr(peer_server, "_HANDSHAKE_SECONDS", 2 * HANG_SECONDS)
    write_certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    tls = PeerTls.from_settings(ServeConfig(peer_ca=cert, peer_cert=cert, peer_key=key))
    assert tls is not None

    async def main() -> None:
        async with serving(lambda call: None, tls.server) as (_, port):
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(70)]
            client = make_client(port, tls=tls.client)
            try:
                assert await connect(client)
                for reader, _ in strangers[:6]:
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
            finally:
                client.close()
                for _, writer in strangers:
                    writer.close()

    run(main)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peer_host": "0.0.0.0"}, "no loopback address"),
        ({"peer_cert": "here.pem"}, "--peer-ca, --peer-key"),
        ({"peer_ca": "/none", "peer_cert": "/none", "peer_key": "/none"}, "Cannot read --peer-ca /none"),
    ],
)
def test_settings_that_let_others_in_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PeerTls.from_settings(ServeConfig(**settings))


def test_a_request_is_left_to_the_other_server() -> None:
    """While this one drains, or where the body is over its limit; what is being answered is."""
    calls: list[ForwardedCall] = []

    async def main() -> None:
        async with serving(calls.append, limit=1000) as (server, port):
            client = make_client(port)
            await connect(client)
            assert (await send(client, b"l" * 200_000).reply()).status == DECLINED
            assert (await send(client, b"l" * 1001).reply()).status == DECLINED
            begun = send(client)
            await wait_for(lambda: bool(calls))
            stopping = asyncio.create_task(server.stop(HANG_SECONDS))
            await wait_for(lambda: server.is_draining)
            assert (await send(client).reply()).status == DECLINED
            calls[0].respond(200, b"done")
            assert (await begun.reply()).body == b"done"
            await stopping
            await wait_for(lambda: not client.is_connected)

    run(main)


def test_an_answer_that_is_too_much_ends_no_other_request() -> None:
    """Of a server with a higher limit, or of a model that has written to its own connection."""
    calls: list[ForwardedCall] = []

    async def main() -> None:
        async with serving(calls.append) as (_, port):
            client = make_client(port)
            await connect(client)
            other, long, headers = send(client), send(client), send(client)
            await wait_for(lambda: len(calls) == 3)
            calls[1].respond(200, b"l" * (3 << 20))
            calls[2].respond(200, b"", ((b"x-long", b"l" * MAX_PREFIX_BYTES),))
            assert "over the limit of 1048576 bytes" in str(await long.ended)
            assert (await headers.reply()).status == 500
            calls[0].respond(200, b"done")
            assert (await other.reply()).body == b"done"
            client.close()

    run(main)


def test_who_does_not_read_its_answers_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers over a slow network would fill the memory of the server that gives them."""
    monkeypatch.setattr(peer_server, "_MOST_UNSENT_BYTES", 4 << 20)
    sent, body = 100, b"b" * 200_000
    answered = 0

    def handle(call: ForwardedCall) -> None:
        nonlocal answered
        answered += 1
        call.respond(200, call.body)

    async def main() -> None:
        async with serving(handle) as (server, port):
            client = make_client(port)
            assert await connect(client)
            assert client._connection is not None
            reading, (connection,) = client._connection.transport, server.connections
            assert reading is not None
            reading.pause_reading()
            waiting = [send(client, body) for _ in range(sent)]
            await wait_for(lambda: connection.transport is None or not connection.transport.is_reading())
            assert 4 << 20 < answered * len(body) < sent * len(body)
            reading.resume_reading()
            assert [(await one.reply()).body for one in waiting] == [body] * sent
            client.close()

    run(main)


def test_a_request_is_withdrawn_when_its_client_goes() -> None:
    gone: list[str] = []

    def handler(call: ForwardedCall) -> None:
        call.on_disconnect = lambda: gone.append(call.version_key)

    async def main() -> None:
        async with serving(handler) as (server, port):
            client = make_client(port)
            await connect(client)
            encoded = encode_head(HEAD)
            assert encoded is not None
            number = client.send(Waiting(), encoded, b"body", 5.0)
            await wait_for(lambda: any(connection.calls for connection in server.connections))
            client.cancel(number, ignore)
            await wait_for(lambda: gone == ["uid"])

    run(main)


def test_a_lost_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not sent is declined, for nothing of it was begun; a peer that stands still is given up."""

    async def main() -> None:
        calls: list[ForwardedCall] = []
        async with serving(calls.append) as (_, port):
            client = make_client(port)
            await connect(client)
            sent = send(client)
            await wait_for(lambda: bool(calls))
            unsent = send(client)  # in this turn of the event loop nothing is written yet
            assert client._connection is not None
            client._connection.abort()
            assert ((await unsent.reply()).status, await sent.ended) == (DECLINED, "lost")
            assert not client.is_connected

            assert await connect(client)
            monkeypatch.setattr(peer_server._ServerConnection, "reply", lambda *_: None)
            for _ in range(5):
                # Requests that are withdrawn meanwhile are no sign of life.
                client.cancel(client.send(Waiting(), b"", b"", 1.0), ignore)
                client.probe()
                await asyncio.sleep(0)
            assert not client.is_connected

    run(main)


def test_a_head_that_is_too_long_stays() -> None:
    long = HopHead("POST", HEAD.path, [(b"x-long", b"l" * MAX_PREFIX_BYTES)], "uid", b"r", 1.0)
    assert encode_head(long) is None


async def wait_for(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110  the other end of a connection: there is no event for it
        await asyncio.sleep(0.001)


def test_questions_go_beside_requests() -> None:
    """They are answered or left unanswered, as a server knows; errors come back as they are."""
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(question: bytes) -> bytes | None:
        match question:
            case b"silence":
                return None
            case b"missing":
                raise NotFound("There is none.", field="name")
            case b"wait":
                asked.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            case b"broken":
                raise RuntimeError("a secret")
        return question * 2

    def handle(call: ForwardedCall) -> None:
        call.respond(200, call.body)

    async def main() -> None:
        async with serving(handle, answer=answer) as (server, port):
            client = make_client(port)
            assert await client.ask(b"early", 5.0) is None
            assert await connect(client)
            long = b"l" * 300_000
            asking = [client.ask(question, 5.0) for question in (b"one", long)]
            waiting = send(client)
            assert await asyncio.gather(*asking) == [b"oneone", long * 2]
            assert (await waiting.reply()).body == b"body"
            assert await client.ask(b"silence", 5.0) is None
            with pytest.raises(NotFound, match="There is none") as missing:
                await client.ask(b"missing", 5.0)
            assert missing.value.field == "name"
            with pytest.raises(ServingError, match="Internal error encountered"):
                await client.ask(b"broken", 5.0)
            with pytest.raises(DeadlineExceeded, match=r"has not answered within 0\.01 s"):
                await client.ask(b"wait", 0.01)
            await cancelled.wait()
            asked.clear()
            assert not any(connection.calls for connection in server.connections)

            lost = asyncio.create_task(client.ask(b"wait", 60.0))
            await asked.wait()
            for connection in list(server.connections):
                connection.abort()
            assert await lost is None
            server.begin_drain()
            assert await connect(client)
            assert await client.ask(b"one", 5.0) is None
            client.close()

    run(main)
