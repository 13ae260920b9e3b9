"""What requests leave behind in the memory of real processes whose garbage collector is off."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests.calls import call, grpc, load_message_class
from tests.end_to_end import models
from tests.server import Server, running_node, running_server, until

MIB = 1 << 20
SIZE = 8 * MIB
TIMES = 25
# What the allocator may keep of what was given back to it, whatever the number of requests.
ALLOWED = 32 * MIB

# Does what the beginning of its first instance says.
ROUTINE = dedent(
    """
    import os
    import time

    class Routine:
        def predict(self, instances, **kwargs):
            word = str(instances[0])[:5]
            if word == "sleep":
                time.sleep(0.3)
            if word == "die..":
                os._exit(1)
            return [len(instances)]

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)
# The collector of every process is off: a threshold of 0 says so, whoever switches it on.
NO_COLLECTOR = "import gc\ngc.set_threshold(0)\n"

INFER = ("inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse")


@dataclass(frozen=True)
class World:
    """A server or a node alone, and where its model is asked."""

    server: Server
    predict: str

    def post(self, body: bytes, *, path: str = "", headers: dict[str, str] | None = None) -> int:
        """The status of the answer."""
        url = f"{self.server.url}{path or self.predict}"
        return self.server.http.post(url, content=body, headers=headers).status_code

    def check_growth(self, ask: Callable[[], object], pids: Sequence[int], times: int = TIMES) -> None:
        """Fails if the processes have grown once it was asked so often; they have been asked before."""
        for _ in range(3):
            ask()
        before = sum(map(resident, pids))
        for _ in range(times):
            ask()
        until(lambda: sum(map(resident, pids)) < before + ALLOWED, "the memory is free again")

    def processes(self) -> list[int]:
        """The gateway and the node; others start and end as they like."""
        return [self.server.process.pid, *self.server.nodes()]


def resident(pid: int) -> int:
    """Bytes of a process that are in memory and its own; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(kib) << 10 for kib in re.findall(r"^Private_\w+: +(\d+) kB", text, re.MULTILINE))


def body_of(word: str = "", *, size: int = SIZE) -> bytes:
    return json.dumps({"instances": [word.ljust(size, "x")]}).encode()


def routine(folder: Path) -> str:
    """The path of the model's package; its files are in the folder `model`."""
    (folder / "model").mkdir()
    (folder / "model" / "any.txt").write_text("x")
    return str(models.wheel(folder, "routine", "0.1", {"routine.py": ROUTINE}))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of processes without a collector."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NO_COLLECTOR)
    return {
        "PYTHONPATH": str(folder),
        "PILOTLIGHT_NODE_ENVIRONMENT": "TESTS_STATE_DIR,PYTHONPATH",
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[World]:
    """A server whose one node takes one request at a time."""
    root = tmp_path_factory.mktemp("memory")
    packed = routine(root)
    version = {
        "deploymentUri": str(root / "model"),
        "predictionClass": "routine.Routine",
        "packageUris": [packed],
    }
    flags = ("--node-concurrency", "1", "--max-nodes", "1", "--grpc-port", "0")
    with running_server(root / "state", *flags, environment=environment) as server:
        server.create_model("projects/local/models/m")
        server.create_version("projects/local/models/m/versions/v", **version)
        yield World(server, "/v1/projects/local/models/m:predict")


def waits_in_vain(world: World) -> None:
    """A request that waits for a place in the node, until its time is out."""
    with ThreadPoolExecutor(1) as other:
        sleeping = other.submit(world.post, body_of("sleep", size=10))
        until(lambda: '"inFlight": 1' in json.dumps(world.server.get_status()), "the node is busy")
        assert world.post(body_of(), headers={"x-request-timeout": "0.05"}) == 504
        assert sleeping.result() == 200


def is_late(world: World) -> None:
    """A request whose time is out while the node works on it."""
    assert world.post(body_of("sleep"), headers={"x-request-timeout": "0.1"}) == 504


def leaves(world: World, sent: float) -> None:
    """A client that goes away when it has sent a part of its request."""
    body = body_of("sleep")
    host, _, port = world.server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST {world.predict} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[: int(sent * len(body))])


def over_grpc(world: World) -> None:
    request = load_message_class("inference.ModelInferRequest")(model_name="m")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"x" * SIZE)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(world.server.grpc, options=options) as channel:
        assert call(channel, *INFER, request).code == "OK"


def calls_api(world: World) -> None:
    body = json.dumps({"name": "9", "description": "x" * (3 * MIB)}).encode()
    assert world.post(body, path="/v1/projects/local/models") == 400


ASKING: dict[str, Callable[[World], object]] = {
    "answered": lambda world: world.post(body_of()),
    "another protocol": lambda world: world.post(body_of(), path="/v1/models/m:predict"),
    "waits in vain": waits_in_vain,
    "late in the node": is_late,
    "no such version": lambda world: world.post(body_of(), path="/v1/models/none:predict"),
    "a time that is none": lambda world: world.post(body_of(), headers={"x-request-timeout": "no"}),
    "leaves within the body": lambda world: leaves(world, 0.7),
    "leaves without the answer": lambda world: leaves(world, 1.0),
    "gRPC": over_grpc,
    "API": calls_api,
}


# The others are left to `make soak`.
SHORT = ("answered", "late in the node", "leaves without the answer", "gRPC")


@pytest.mark.parametrize(
    "way", [way if way in SHORT else pytest.param(way, marks=pytest.mark.soak) for way in ASKING]
)
def test_no_request_outlives_its_answer(world: World, way: str) -> None:
    """However it ends, the memory of its body is free then."""
    world.check_growth(lambda: ASKING[way](world), world.processes())


def test_no_request_outlives_its_node(world: World) -> None:
    """One that the node dies of."""

    def die() -> None:
        assert world.post(body_of("die..")) == 500

    world.check_growth(die, [world.server.process.pid], times=6)


def test_idle_connections_hold_no_bodies(world: World) -> None:
    """Each has had a long one."""
    body = body_of()
    host, _, port = world.server.url.removeprefix("http://").partition(":")
    head = f"POST {world.predict} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with ExitStack() as stack:

        def ask() -> None:
            client = stack.enter_context(socket.create_connection((host, int(port))))
            client.sendall(head + body)
            assert b" 200 " in client.recv(1000)

        world.check_growth(ask, world.processes(), times=20)


@pytest.mark.parametrize(
    "way", [way if way == "answered" else pytest.param(way, marks=pytest.mark.soak) for way in SHORT]
)
def test_a_node_alone_keeps_nothing_either(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Over HTTP and gRPC."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flags = ("--prediction-class", "routine.Routine", "--package-uris", routine(tmp_path), "--grpc-port", "0")
    with running_node(tmp_path / "model", *flags) as node:
        world = World(node, "/v1/models/m:predict")
        until(lambda: world.server.call("GET", "/readyz").status == 200, "it is ready")
        world.check_growth(lambda: ASKING[way](world), [node.process.pid])


def test_compressed_messages_take_the_memory_of_one(tmp_path: Path) -> None:
    """Many at once, of clients without a token: each is a few kilobytes, and 30 MiB once decompressed."""
    bombs = 20
    with running_server(tmp_path, "--grpc-port", "0", "--access", "on") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            before = most_resident(server.process.pid)
            calls = [predict.future(bytes(30 * MIB), compression=grpc.Compression.Gzip) for _ in range(bombs)]
            assert {call.exception().code().name for call in calls} <= {"INVALID_ARGUMENT", "UNAVAILABLE"}
        assert most_resident(server.process.pid) < before + 160 * MIB


def most_resident(pid: int) -> int:
    """The most bytes of memory that a process has ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10
