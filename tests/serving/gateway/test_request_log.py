"""The request log, with the real writer process behind it."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from autoscaler.pools import NodeSpec
from serving.gateway.request_log import RequestLog
from serving.gateway.targets import Target
from serving.gateway.upstream import Answer
from serving.names import VersionName
from serving.resources import RequestLoggingConfig
from serving.sinks import FolderSink, Writer
from tests.emulator import Emulator
from tests.server import until

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")

ENVIRONMENT = dict(os.environ)
AMPLE = 1 << 20
NOON = datetime.datetime(2030, 1, 2, 12, tzinfo=datetime.UTC).timestamp()
BODY = b'{"instances": [[1, "\xc3\xbc"]]}'
ANSWER = Answer(200, (), b'{"predictions":[1]}')

# The table of section 3.7 of the AI Platform contract.
COLUMNS = ["model", "model_version", "time", "raw_data", "raw_prediction", "groundtruth"]


def target(table: str = "", *, sampling: float = 1.0, access_log: bool = False) -> Target:
    spec = NodeSpec("u", "t", "", {}, {}, 1, 1)
    config = RequestLoggingConfig(bigquery_table_name=table, sampling_percentage=sampling) if table else None
    return Target(VersionName("p", "m", "v"), spec, b"", True, config, access_log)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        runner.run(bounded())


@asynccontextmanager
async def running(log: RequestLog) -> Any:
    """The log at work; at the end of the block it is closed and everything is written."""
    task = asyncio.create_task(log.run())
    yield log
    log.close()
    await task


async def eventually(found: Callable[[], Any], what: str) -> None:
    await asyncio.to_thread(until, found, what, seconds=20)


def test_a_row_has_the_columns_of_the_contract(tmp_path: Path) -> None:
    """Body and answer as text, the time of the request, no ground truth yet."""

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, ENVIRONMENT)) as log:
            log.offer(target("project.dataset.table"), NOON, BODY, ANSWER)

    run(main)

    (row,) = rows(tmp_path / "requests" / "project.dataset.table")
    assert list(row) == COLUMNS
    assert row == {
        "model": "m",
        "model_version": "v",
        "time": "2030-01-02T12:00:00.000000Z",
        "raw_data": '{"instances": [[1, "ü"]]}',
        "raw_prediction": '{"predictions":[1]}',
        "groundtruth": None,
    }


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_is_written_to(tmp_path: Path, form: str) -> None:
    """Rows are appended to one file per day, in the order of the requests, and soon."""
    folder = tmp_path / "elsewhere"

    async def main() -> None:
        async with running(RequestLog(tmp_path / "own", AMPLE, ENVIRONMENT)) as log:
            for number in range(300):
                log.offer(target(form.format(folder)), NOON, b"%d" % number, ANSWER)
            await eventually(lambda: log.stats()["written"] == 300, "all rows are written")

    run(main)

    assert [row["raw_data"] for row in rows(folder)] == [str(number) for number in range(300)]
    assert len(list(folder.iterdir())) == 1


def test_a_bucket_gets_few_large_objects(tmp_path: Path, emulator: Emulator) -> None:
    """One object for all that came within seconds, in a folder for the day."""
    bucket = emulator.bucket("logs")

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, dict(os.environ))) as log:
            for number in range(50):
                log.offer(target(f"gs://{bucket}/some/prefix/"), NOON, b"%d" % number, ANSWER)
        assert log.stats() == {"sampled": 50, "written": 50, "dropped": 0, "waiting": 0}

    run(main)

    (name,) = [blob.name for blob in emulator._client.list_blobs(bucket)]
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-}"
    assert name.startswith(f"some/prefix/{today}")
    lines = emulator.get(f"gs://{bucket}/{name}").splitlines()
    assert [json.loads(line)["raw_data"] for line in lines] == [str(number) for number in range(50)]


def test_what_cannot_be_written_is_counted(tmp_path: Path, emulator: Emulator) -> None:
    """A missing bucket and a folder that is a file lose their rows, and only theirs."""
    (tmp_path / "file").write_text("")

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, dict(os.environ))) as log:
            log.offer(target("gs://no-such-bucket/logs"), NOON, BODY, ANSWER)
            log.offer(target(str(tmp_path / "file")), NOON, BODY, ANSWER)
            log.offer(target("p.d.t"), NOON, BODY, ANSWER)
        assert log.stats() == {"sampled": 3, "written": 1, "dropped": 2, "waiting": 0}

    run(main)

    assert len(rows(tmp_path / "requests" / "p.d.t")) == 1


def test_sampling_asks_chance_once_per_request(tmp_path: Path) -> None:
    """A request is logged when chance is below the fraction: 0.25 logs a quarter, 1 all of them."""
    draws: Iterator[float] = itertools.cycle([0.0, 0.2499, 0.25, 0.9999])

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, ENVIRONMENT, lambda: next(draws))) as log:
            for number in range(8):
                log.offer(target("quarter", sampling=0.25), NOON, b"%d" % number, ANSWER)
            for _ in range(8):
                log.offer(target("all", sampling=1.0), NOON, BODY, ANSWER)

    run(main)

    assert [row["raw_data"] for row in rows(tmp_path / "requests" / "quarter")] == ["0", "1", "4", "5"]
    assert len(rows(tmp_path / "requests" / "all")) == 8


def test_an_access_log_has_every_request(tmp_path: Path) -> None:
    """With sizes, status and latency, and without what was said."""

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, ENVIRONMENT)) as log:
            log.offer(target(access_log=True), NOON, BODY, Answer(400, (), b"{}"))

    run(main)

    (row,) = rows(tmp_path / "access" / "p" / "m")
    assert row.pop("latency_ms") is not None
    assert row == {
        "time": "2030-01-02T12:00:00.000000Z",
        "model": "m",
        "model_version": "v",
        "status": 400,
        "request_bytes": len(BODY),
        "response_bytes": 2,
    }


def test_past_its_bound_the_queue_drops_and_counts(tmp_path: Path) -> None:
    """The request never waits; what was sampled is written, dropped or waiting, at any time."""

    async def main() -> None:
        log = RequestLog(tmp_path, 2000, ENVIRONMENT)
        for _ in range(100):
            log.offer(target("p.d.t"), NOON, BODY, ANSWER)
        stats = log.stats()
        assert stats["sampled"] == 100
        assert stats["written"] == 0
        assert 0 < stats["waiting"] < 20
        assert stats["dropped"] == 100 - stats["waiting"]

        async with running(log):
            await eventually(lambda: log.stats()["waiting"] == 0, "what waits is written")
            log.offer(target("p.d.t"), NOON, BODY, ANSWER)
        after = log.stats()
        assert after == {
            "sampled": 101,
            "written": stats["waiting"] + 1,
            "dropped": stats["dropped"],
            "waiting": 0,
        }

    run(main)


def test_a_writer_that_dies_is_replaced(tmp_path: Path) -> None:
    """What it had in hand is counted as dropped; what comes later is written by the next one."""

    async def main() -> None:
        async with running(RequestLog(tmp_path, AMPLE, ENVIRONMENT)) as log:
            log.offer(target("p.d.t"), NOON, b"before", ANSWER)
            await eventually(lambda: log.stats()["written"] == 1, "the first row is written")
            (writer,) = children("serving.sinks")
            os.kill(writer, signal.SIGSTOP)
            log.offer(target("p.d.t"), NOON, b"lost", ANSWER)
            await eventually(lambda: log._unconfirmed == 1, "the row is handed over")
            os.kill(writer, signal.SIGKILL)
            await eventually(lambda: not children("serving.sinks"), "the writer is gone")
            # Its end is noticed when there is more to write.
            log.offer(target("p.d.t"), NOON, b"after", ANSWER)
            await eventually(lambda: log.stats()["waiting"] == 0, "every row has its fate")
            log.offer(target("p.d.t"), NOON, b"last", ANSWER)
        assert log.stats() == {"sampled": 4, "written": 3, "dropped": 1, "waiting": 0}

    run(main)

    written = [row["raw_data"] for row in rows(tmp_path / "requests" / "p.d.t")]
    assert written == ["before", "after", "last"]


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


def test_the_writer_collects_by_age_and_by_size(tmp_path: Path) -> None:
    """A batch is due when its first row is old enough, or at once when it is large."""
    writer = Writer()
    small, large = str(tmp_path / "small"), str(tmp_path / "large")

    writer.add(small, b"1\n", now=100.0)
    writer.add(small, b"2\n", now=100.1)
    assert writer.next_due() == 100.0 + FolderSink.seconds
    assert writer.flush(now=100.1) == (0, 0)

    writer.add(large, b"x" * FolderSink.size, now=100.15)
    assert writer.flush(now=100.15) == (1, 0)
    assert writer.flush(now=100.0 + FolderSink.seconds) == (2, 0)
    assert writer.next_due() is None

    writer.add(small, b"3\n", now=200.0)
    assert writer.flush() == (1, 0)
    assert b"".join(file.read_bytes() for file in Path(small).iterdir()) == b"1\n2\n3\n"
