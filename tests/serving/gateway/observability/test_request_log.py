"""The request log, with the real writer process behind it."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from autoscaler.pools import NodeSpec
from autoscaler.supervision import Supervisor
from serving.gateway.observability.request_log import RequestLog
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.routing_table import RouteTarget
from serving.logs.sinks.writer_options import LogWriterOptions
from serving.names import VersionName
from serving.resources import RequestLoggingConfig
from tests.bounds import HANG_SECONDS
from tests.emulator import Emulator, Front
from tests.server import until

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")

AMPLE = 1 << 30
NOON = datetime.datetime(2030, 1, 2, 12, tzinfo=datetime.UTC).timestamp()
DAY = "dt=2030-01-02"
BODY = b'{"instances": [[1, "\xc3\xbc"]]}'
ANSWER = NodeReply(200, (), b'{"predictions":[1]}')
SCOPE = {"type": "http", "method": "POST", "path": "/v1/x:predict", "headers": [(b"x-request-id", b"mine")]}

# The table of section 3.7 of the AI Platform contract.
COLUMNS = ["model", "model_version", "time", "raw_data", "raw_prediction", "groundtruth"]


def target(table: str = "", *, sampling: float = 1.0, access: bool = False) -> RouteTarget:
    spec = NodeSpec("u", "t", "", {}, {}, 1, 1)
    config = RequestLoggingConfig(bigquery_table_name=table, sampling_percentage=sampling) if table else None
    title = b"projects/p/models/m/versions/v"
    return RouteTarget(VersionName("p", "m", "v"), spec, True, config, access, region="here", title=title)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def bodies(folder: Path) -> list[str]:
    return [row["raw_data"] for row in rows(folder)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        runner.run(bounded())


def make(
    folder: Path,
    chance: Callable[[], float] = lambda: 0.0,
    *,
    queue_bytes: int = AMPLE,
    spill_bytes: int = AMPLE,
    rotate_seconds: float = 300.0,
) -> RequestLog:
    options = LogWriterOptions(
        spill=folder / "spill",
        logs=folder,
        rotate_bytes=1 << 24,
        rotate_seconds=rotate_seconds,
        bigquery=False,
        stdout=False,
    )
    return RequestLog(
        options,
        dict(os.environ),
        Supervisor(),
        queue_bytes=queue_bytes,
        spill_bytes=spill_bytes,
        chance=chance,
    )


@asynccontextmanager
async def running(log: RequestLog) -> AsyncIterator[RequestLog]:
    """The log at work; at the end of the block it is closed and what can be delivered is."""
    log.start()
    yield log
    await log.close()


async def sent(log: RequestLog, number: int) -> None:
    """Wait until so many records have been sent."""
    while (await log.sum_counts())["sent"] < number:  # noqa: ASYNC110  by another process
        await asyncio.sleep(0.05)


def counted(sampled: int, sent: int, waiting: int, dropped: int) -> dict[str, int]:
    return {"sampled": sampled, "sent": sent, "waiting": waiting, "dropped": dropped}


def test_a_row_has_the_columns_of_the_contract(tmp_path: Path) -> None:
    """Body and answer as text, the time of the request, no ground truth yet; and what it is known by."""

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            log.log_request(target("project.dataset.table"), dict(SCOPE), NOON, BODY, ANSWER)

    run(main)

    (row,) = rows(tmp_path / "requests" / "project.dataset.table" / DAY)
    assert list(row) == [*COLUMNS, "record_id", "request_id", "project"]
    assert len(row.pop("record_id")) == 32
    assert row == {
        "model": "m",
        "model_version": "v",
        "time": "2030-01-02T12:00:00.000000Z",
        "raw_data": '{"instances": [[1, "ü"]]}',
        "raw_prediction": '{"predictions":[1]}',
        "groundtruth": None,
        "request_id": "mine",
        "project": "p",
    }


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_is_written_to(tmp_path: Path, form: str) -> None:
    """Rows come into one file of the day, in the order of the requests, and soon."""
    folder = tmp_path / "elsewhere"

    async def main() -> None:
        async with running(make(tmp_path / "own")) as log:
            for number in range(300):
                log.log_request(target(form.format(folder)), dict(SCOPE), NOON, b"%d" % number, ANSWER)
            await sent(log, 300)

    run(main)

    assert bodies(folder) == [str(number) for number in range(300)]
    assert len(list((folder / DAY).iterdir())) == 1


def test_a_bucket_gets_few_large_objects(tmp_path: Path, emulator: Emulator) -> None:
    """One object for all that came within the time, in a folder for the day."""
    bucket = emulator.bucket("logs")

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            for number in range(50):
                log.log_request(
                    target(f"gs://{bucket}/some/prefix/"), dict(SCOPE), NOON, b"%d" % number, ANSWER
                )
        again = make(tmp_path)
        async with running(again):
            assert await again.sum_counts() == counted(50, 50, 0, 0)

    run(main)

    (name,) = [blob.name for blob in emulator._client.list_blobs(bucket)]
    assert name.startswith(f"some/prefix/{DAY}/120000-")
    lines = emulator.get(f"gs://{bucket}/{name}").splitlines()
    assert [json.loads(line)["raw_data"] for line in lines] == [str(number) for number in range(50)]


def test_a_place_that_is_down_holds_up_no_other(tmp_path: Path, front: Front, emulator: Emulator) -> None:
    """What is for it waits, and is delivered once it is up; other logs do not notice."""
    bucket = emulator.bucket("logs")
    front.fail(503, times=1_000_000)

    async def main() -> None:
        async with running(make(tmp_path, rotate_seconds=0.1)) as log:
            log.log_request(target(str(tmp_path / "file")), dict(SCOPE), NOON, BODY, ANSWER)
            log.log_request(target(f"gs://{bucket}/logs"), dict(SCOPE), NOON, BODY, ANSWER)
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, BODY, ANSWER)
            await sent(log, 1)
            assert await log.sum_counts() == counted(3, 1, 2, 0)
            front.fail(503, times=0)
            (tmp_path / "file").unlink()
            await sent(log, 3)

    (tmp_path / "file").write_text("where a folder should be")
    run(main)

    assert len(rows(tmp_path / "requests" / "p.d.t")) == 1
    assert len(rows(tmp_path / "file")) == 1
    assert len(list(emulator._client.list_blobs(bucket))) == 1


def test_sampling_asks_chance_once_per_request(tmp_path: Path) -> None:
    """A request is logged when chance is below the fraction: 0.25 logs a quarter, 1 all of them."""
    draws: Iterator[float] = itertools.cycle([0.0, 0.2499, 0.25, 0.9999])

    async def main() -> None:
        async with running(make(tmp_path, lambda: next(draws))) as log:
            for number in range(8):
                log.log_request(target("quarter", sampling=0.25), dict(SCOPE), NOON, b"%d" % number, ANSWER)
            for _ in range(8):
                log.log_request(target("all", sampling=1.0), dict(SCOPE), NOON, BODY, ANSWER)

    run(main)

    assert bodies(tmp_path / "requests" / "quarter") == ["0", "1", "4", "5"]
    assert len(rows(tmp_path / "requests" / "all")) == 8


def test_access_and_console_logs(tmp_path: Path) -> None:
    """Requests without what was said in them, also refused ones, and what nodes print: for Cloud Logging."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    scope = {
        **SCOPE,
        "client": ("10.0.0.7", 1),
        "headers": [
            (b"user-agent", b"test"),
            (b"x-request-id", b"mine"),
            (b"traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode()),
        ],
    }

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            log.log_request(target(access=True), scope, NOON, BODY, NodeReply(400, (), b"{}"))
            log.log_refusal(target(access=True), dict(SCOPE), NOON + 1, 503)
            log.log_node_output(target(), "7", "WARNING user code: ü")
            log.log_node_output(target(), "7", "plain")

    run(main)

    resource = {
        "type": "cloudml_model_version",
        "labels": {"project_id": "p", "model_id": "m", "version_id": "v", "region": "here"},
    }
    first, second = rows(tmp_path / "access" / "p" / "m" / "v" / DAY)
    seconds = float(first["httpRequest"].pop("latency").removesuffix("s"))
    assert first.pop("latency_ms") == pytest.approx(seconds * 1000, abs=0.01)
    assert first.pop("message").startswith("POST /v1/x:predict 400 ")
    assert len(first.pop("logging.googleapis.com/insertId")) == 32
    assert first == {
        "severity": "WARNING",
        "time": "2030-01-02T12:00:00.000000Z",
        "httpRequest": {
            "requestMethod": "POST",
            "requestUrl": "/v1/x:predict",
            "requestSize": str(len(BODY)),
            "status": 400,
            "responseSize": "2",
            "protocol": "HTTP/1.1",
            "userAgent": "test",
            "remoteIp": "10.0.0.7",
        },
        "resource": resource,
        "logging.googleapis.com/labels": {"request_id": "mine"},
        "logging.googleapis.com/trace": f"projects/p/traces/{trace}",
        "model": "m",
        "model_version": "v",
        "status": 400,
        "request_bytes": len(BODY),
        "response_bytes": 2,
    }
    assert (second["severity"], second["status"]) == ("ERROR", 503)
    lines = rows(tmp_path / "console" / "p" / "m" / "v")
    told = [(line["severity"], line["message"]) for line in lines]
    assert told == [("WARNING", "WARNING user code: ü"), ("DEFAULT", "plain")]
    assert lines[0]["resource"] == resource
    assert lines[0]["logging.googleapis.com/labels"] == {"node": "7"}


def test_past_its_bounds_it_drops_and_counts(tmp_path: Path) -> None:
    """In memory and on disk: the request never waits, and every record has its fate at any time."""
    (tmp_path / "file").write_text("where a folder should be")

    async def main() -> None:
        log = make(tmp_path, queue_bytes=2000)
        for _ in range(100):
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, BODY, ANSWER)
        async with running(log):
            await sent(log, 1)
            stats = await log.sum_counts()
            assert stats["sampled"] == 100
            assert 0 < stats["sent"] < 10
            assert stats["dropped"] == 100 - stats["sent"]

        log = make(tmp_path, spill_bytes=10_000)
        async with running(log):
            for _ in range(100):
                log.log_request(target(str(tmp_path / "file")), dict(SCOPE), NOON, BODY, ANSWER)
                await log.sum_counts()
            stats = await log.sum_counts()
        assert stats["sampled"] == 200
        assert 10 < stats["waiting"] < 90
        assert stats["sent"] + stats["waiting"] + stats["dropped"] == 200

    run(main)


def test_a_disk_that_fails_is_no_end(tmp_path: Path) -> None:
    """Records wait in memory while there can be no journals, and are delivered once there can."""
    (tmp_path / "spill").write_text("where a folder should be")

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, BODY, ANSWER)
            await log.sum_counts()
            assert log._held_bytes > 0
            (tmp_path / "spill").unlink()
            await sent(log, 1)
            assert log._held_bytes == 0

    run(main)

    assert len(rows(tmp_path / "requests" / "p.d.t")) == 1


def test_a_writer_that_dies_is_replaced(tmp_path: Path) -> None:
    """Nothing is lost with it: its successor goes on where it was."""

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, b"before", ANSWER)
            await sent(log, 1)
            (writer,) = children("serving.logs.sinks")
            os.kill(writer, signal.SIGSTOP)
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, b"meanwhile", ANSWER)
            assert await log.sum_counts() == counted(2, 1, 1, 0)
            os.kill(writer, signal.SIGKILL)
            await sent(log, 2)
            log.log_request(target("p.d.t"), dict(SCOPE), NOON, b"after", ANSWER)
            await sent(log, 3)
        assert await asyncio.to_thread(until, lambda: not children("serving.logs.sinks"), "it has ended")

    run(main)

    assert sorted(bodies(tmp_path / "requests" / "p.d.t")) == ["after", "before", "meanwhile"]


def children(module: str) -> list[int]:
    """The pids of living children of this process that run a module."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and module.encode() in command.split(b"\0"):
                found.append(int(folder.name))
    return found


def test_the_next_server_goes_on(tmp_path: Path) -> None:
    """With what could not be delivered, and with the counts."""
    (tmp_path / "file").write_text("where a folder should be")

    async def main() -> None:
        async with running(make(tmp_path)) as log:
            log.log_request(target(str(tmp_path / "file")), dict(SCOPE), NOON, BODY, ANSWER)
            assert await log.sum_counts() == counted(1, 0, 1, 0)
        (tmp_path / "file").unlink()
        async with running(make(tmp_path)) as log:
            await sent(log, 1)
            assert await log.sum_counts() == counted(1, 1, 0, 0)

    run(main)

    assert len(rows(tmp_path / "file")) == 1
