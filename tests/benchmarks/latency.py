"""One connection, one row, logistic regression on the iris flowers: node and gateway beside two references.

The servers run at the same time on one core, the client on another, and take turns block by block, so that
a noisy machine disturbs all alike. Reported are medians, and the median of the ratios block by block.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from tests.server import running_node, running_server

BLOCKS = 30
REQUESTS = 300
MODEL = "projects/bench/models/iris"


@dataclass(frozen=True)
class Place:
    """A server to measure: host, port and path."""

    host: str
    port: int
    path: str


def main() -> None:
    """Measure and print."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})  # the servers inherit it
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        places = {label: stack.enter_context(server) for label, server in _servers(folder).items()}
        os.sched_setaffinity(0, {cores[-1]})
        medians = _measure(places)
    _print(medians)


def _servers(folder: Path) -> dict[str, AbstractContextManager[Place]]:
    model_dir = folder / "iris"
    model_dir.mkdir()
    data, target = load_iris(return_X_y=True)
    joblib.dump(LogisticRegression(max_iter=1000).fit(data, target), model_dir / "model.joblib")
    return {
        "echo": _reference("echo", model_dir),
        "plain": _reference("plain", model_dir),
        "node": _node(model_dir),
        "gateway": _gateway(folder / "state", model_dir),
    }


@contextmanager
def _reference(name: str, model_dir: Path) -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    if name == "plain":
        flags.append("--factory")
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", f"tests.benchmarks.references:{name}", *flags],
        env={**os.environ, "MODEL_DIR": str(model_dir), "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        yield Place("127.0.0.1", port, "/predict")
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _node(model_dir: Path) -> Iterator[Place]:
    with running_node(model_dir) as node:
        yield _place(node.url)


@contextmanager
def _gateway(state_dir: Path, model_dir: Path) -> Iterator[Place]:
    with running_server(state_dir) as server:
        server.create_model(MODEL)
        server.create_version(f"{MODEL}/versions/v1", deploymentUri=str(model_dir))
        yield _place(server.url)


def _place(url: str) -> Place:
    host, _, port = url.removeprefix("http://").partition(":")
    return Place(host, int(port), f"/v1/{MODEL}:predict")


def _measure(places: dict[str, Place]) -> dict[str, list[float]]:
    """Per server, the median seconds of a request in each block."""
    rows = load_iris().data
    bodies = [json.dumps({"instances": [row.tolist()]}).encode() for row in rows]
    medians: dict[str, list[float]] = {label: [] for label in places}
    with ExitStack() as stack:
        connections = {
            label: stack.enter_context(closing(_connect(place))) for label, place in places.items()
        }
        for block in range(BLOCKS + 1):
            for label, place in places.items():
                seconds = statistics.median(_block(connections[label], place, bodies))
                if block:  # the first one warms up
                    medians[label].append(seconds)
    return medians


def _connect(place: Place) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection((place.host, place.port), timeout=60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _block(connection: socket.socket, place: Place, bodies: list[bytes]) -> list[float]:
    head = f"POST {place.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: "
    seconds = []
    for index in range(REQUESTS):
        body = bodies[index % len(bodies)]
        request = f"{head}{len(body)}\r\n\r\n".encode() + body
        start = time.perf_counter()
        connection.sendall(request)
        answer = _read(connection)
        seconds.append(time.perf_counter() - start)
        if b'{"predictions":[' not in answer:
            raise SystemExit(f"wrong answer: {answer!r}")
    return seconds


def _read(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + body


def _print(medians: dict[str, list[float]]) -> None:
    print(f"{BLOCKS} blocks of {REQUESTS} requests each, one connection, one row; median of a request in ms")
    for label, seconds in medians.items():
        ratio = statistics.median(ours / base for ours, base in zip(seconds, medians["plain"], strict=True))
        print(f"  {label:8} {statistics.median(seconds) * 1e3:.3f}   {ratio:.2f} of plain")
    extra = statistics.median(
        gateway - node for gateway, node in zip(medians["gateway"], medians["node"], strict=True)
    )
    print(f"  the gateway adds {extra * 1e3:.3f} ms to its node")


if __name__ == "__main__":
    main()
