"""Reading a large log beside everything else that a server does."""

from __future__ import annotations

import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from tests.end_to_end.conftest import Files
from tests.server import Server, running_server

MODEL = "projects/reading/models/m"
VERSION = f"{MODEL}/versions/v"
DAY = "dt=2030-01-02"
READERS = 8
_FILES, _LINES = 20, 20_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """160 MB that another version has logged, and at the beginning a line of the one that is read."""
    folder = tmp_path / "log"
    (folder / DAY).mkdir(parents=True)

    def line(model: str) -> bytes:
        return orjson.dumps(
            {
                "model": model,
                "model_version": "v",
                "time": "2030-01-02T00:00:00.000000Z",
                "raw_data": "x" * 150,
                "raw_prediction": "y" * 150,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )

    for number in range(_FILES):
        (folder / DAY / f"{number:06d}-0.jsonl").write_bytes(line("other") * _LINES)
    (folder / DAY / "000000-.jsonl").write_bytes(line("m"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def reading(tmp_path: Path, files: Files, log: Path) -> Iterator[Server]:
    """A server with a version whose requests are logged there."""
    with running_server(tmp_path / "state") as server:
        server.create_model(MODEL)
        server.create_version(VERSION, deploymentUri=str(files.root / "sklearn"))
        config = {"requestLoggingConfig": {"bigqueryTableName": str(log), "samplingPercentage": 1}}
        reply = server.call("PATCH", f"{VERSION}?updateMask=requestLoggingConfig", json=config)
        assert reply.status == 200, reply.json
        yield server


def created(server: Server, stem: str, count: int) -> list[float]:
    """The seconds that each of so many creations of a model has taken."""
    seconds = []
    for number in range(count):
        start = time.monotonic()
        server.create_model(f"projects/reading/models/{stem}{number}")
        seconds.append(time.monotonic() - start)
    return seconds


@pytest.mark.soak
def test_reading_logs_delays_nothing_else(
    reading: Server, record_property: Callable[[str, object], None]
) -> None:
    """While eight clients read a large log all the time, a model is created about as fast as before.

    Each answer is there within seconds, and all of them together are the whole log.
    """
    stopped = threading.Event()
    answers: list[float] = []

    def read() -> list[str]:
        """The times of what is found from the end of the log to its beginning, over and over again."""
        found: list[str] = []
        token = ""
        while not stopped.is_set() or token:
            start = time.monotonic()
            reply = reading.call("GET", f"/logs/{VERSION}?limit=10&pageToken={token}")
            answers.append(time.monotonic() - start)
            assert reply.status == 200, reply.json
            found += [entry["time"] for entry in reply.json["entries"]]
            token = reply.json.get("nextPageToken", "")
        return found

    quiet = created(reading, "quiet", 20)
    with ThreadPoolExecutor(READERS) as clients:
        try:
            readers = [clients.submit(read) for _ in range(READERS)]
            busy = created(reading, "busy", 40)
        finally:
            stopped.set()
        found = [reader.result() for reader in readers]

    record_property(
        "figure",
        f"creation of a model: {statistics.median(quiet) * 1e3:.1f} ms, beside {READERS} reads of a log "
        f"{statistics.median(busy) * 1e3:.1f} ms, at most {max(busy) * 1e3:.0f} ms; "
        f"a read {statistics.median(answers) * 1e3:.0f} ms, at most {max(answers) * 1e3:.0f} ms",
    )
    # On a machine with much else to do: to wait for all reads would take many times as long.
    assert statistics.median(busy) < max(10 * statistics.median(quiet), 0.3)
    assert all(times and set(times) == {"2030-01-02T00:00:00.000000Z"} for times in found)


def test_a_read_ends_with_its_client(reading: Server) -> None:
    """Those of clients that have gone away keep nobody waiting."""
    address = urlsplit(reading.url)
    for _ in range(200):
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(f"GET /logs/{VERSION} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
    start = time.monotonic()
    statuses = {reading.call("GET", f"/logs/{VERSION}?kind=requests&limit=1").status for _ in range(5)}

    assert statuses <= {200, 429}
    assert time.monotonic() - start < 60  # 200 reads of the log take minutes
