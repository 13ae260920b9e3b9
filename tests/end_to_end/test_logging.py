"""Logs of a real server whose sinks fail and whose processes are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Emulator, Front
from tests.end_to_end.models import write_sklearn
from tests.server import Server, running_server, until

MODEL = "projects/p/models/m"
VERSIONS = ("bucket", "folder")
FLAGS = ("--log-rotate-seconds", "0.3", "--log-bigquery", "off")


def deploy(server: Server, model: Path, addresses: dict[str, str]) -> None:
    """A version for each address, which all of its requests are logged to."""
    server.create_model(MODEL, onlinePredictionLogging=True)
    for version, address in addresses.items():
        name = f"{MODEL}/versions/{version}"
        server.create_version(name, deploymentUri=str(model))
        config = {"bigqueryTableName": address, "samplingPercentage": 1}
        reply = server.call(
            "PATCH", f"{name}?updateMask=requestLoggingConfig", json={"requestLoggingConfig": config}
        )
        assert reply.status == 200, reply.json
        server.predict(name, [[0, 0, 0, 0]])  # awake


@dataclass
class Load:
    """Asks both versions in turn; `answered` has the ids of the requests, and when their answers came."""

    server: Server
    first: int
    answered: dict[str, float] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = self.first
        while not self.stopped.is_set():
            for version in VERSIONS:
                name, number = f"request-{number}", number + 1
                try:
                    reply = self.server.predict(
                        f"{MODEL}/versions/{version}", [[number, 2, 3, 4]], headers={"X-Request-Id": name}
                    )
                except OSError:
                    return
                except Exception as error:
                    assert "httpx" in type(error).__module__, error
                    return
                assert reply.status == 200
                assert reply.headers["x-request-id"] == name
                self.answered[name] = time.monotonic()


def rows(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def lines(folder: Path) -> list[str]:
    return [line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]


def logged(emulator: Emulator, bucket: str, folder: Path) -> list[dict[str, Any]]:
    """What is in both places."""
    blobs = [f"gs://{bucket}/{blob.name}" for blob in emulator._client.list_blobs(bucket)]
    return rows([line for uri in blobs for line in emulator.get(uri).decode().splitlines()] + lines(folder))


def stats(server: Server) -> dict[str, int]:
    found: dict[str, int] = server.call("GET", "/stats").json["requestLog"]
    assert found["sampled"] == found["sent"] + found["waiting"] + found["dropped"]
    return found


def settled(server: Server) -> dict[str, int]:
    """The counts once nothing waits."""

    def found() -> dict[str, int] | None:
        counts = stats(server)
        return counts if counts["waiting"] == 0 else None

    return until(found, "all is delivered")


def writer(server: Server) -> int:
    """The pid of its log writer."""
    return until(
        lambda: next((pid for pid, line in server.processes().items() if "serving.logs.sinks" in line), None),
        "there is a log writer",
    )


@pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")
def test_nothing_is_lost_whoever_dies(tmp_path: Path, emulator: Emulator, front: Front) -> None:
    """A place is down, the log writer is killed, then the server, amid requests: the next one delivers all.

    But for the last second's records. Each is told from all others by its id, and the counts are exact.
    """
    write_sklearn(tmp_path / "model")
    bucket, folder = emulator.bucket("logs"), tmp_path / "folder"
    environment = {"STORAGE_EMULATOR_HOST": front.url}
    answered: dict[str, float] = {}
    with running_server(tmp_path / "state", *FLAGS, environment=environment) as server:
        deploy(server, tmp_path / "model", {"bucket": f"gs://{bucket}/p", "folder": str(folder)})
        front.fail(503, times=1 << 30)
        load = Load(server, 0, answered)
        thread = threading.Thread(target=load.run)
        thread.start()
        until(lambda: len(answered) > 20, "requests are answered")
        os.kill(writer(server), signal.SIGKILL)
        until(lambda: len(answered) > 40, "more requests are answered")
        time.sleep(1.1)  # of the last second's records some may be lost
        waiting = until(lambda: stats(server)["waiting"], "records wait")
        server.kill()
        killed = time.monotonic()
        thread.join()
    assert waiting > 0
    front.fail(503, times=0)
    with running_server(tmp_path / "state", *FLAGS, environment=environment) as server:
        load = Load(server, 1_000_000)
        thread = threading.Thread(target=load.run)
        thread.start()
        until(lambda: len(load.answered) > 10, "requests are answered")
        load.stopped.set()
        thread.join()
        counts = settled(server)
        assert server.stop() == 0

    found = logged(emulator, bucket, folder)
    by_id = {row["record_id"]: row for row in found}
    assert all(by_id[row["record_id"]] == row for row in found)
    times = Counter(row["request_id"] for row in by_id.values())
    assert set(times.values()) == {1}
    sure = {name for name, at in answered.items() if at < killed - 1}
    assert len(sure) > 10
    assert sure | load.answered.keys() <= times.keys()
    # The access log is a journal too.
    access = rows(lines(tmp_path / "state" / "logs" / "access"))
    ids = {entry["logging.googleapis.com/insertId"] for entry in access}
    assert counts == {
        "sampled": len(by_id) + len(ids),
        "sent": len(by_id) + len(ids),
        "waiting": 0,
        "dropped": 0,
    }
    told = {entry["logging.googleapis.com/labels"]["request_id"] for entry in access}
    assert sure | load.answered.keys() <= told
    assert [path.name for path in (tmp_path / "state" / "logs" / "spill").rglob("*.segment")] == []


def test_a_place_that_stays_down_has_its_bound(tmp_path: Path) -> None:
    """Its records are dropped past log_spill_bytes, and counted; others are delivered, answers come."""
    write_sklearn(tmp_path / "model")
    (tmp_path / "file").write_text("where a folder should be")
    flags = (*FLAGS, "--log-spill-bytes", "300000")
    with running_server(tmp_path / "state", *flags) as server:
        deploy(
            server, tmp_path / "model", {"bucket": str(tmp_path / "file"), "folder": str(tmp_path / "logs")}
        )
        for number in range(40):
            for version, rows_ in zip(VERSIONS, (1000, 1), strict=True):
                assert server.predict(f"{MODEL}/versions/{version}", [[number] * 4] * rows_).status == 200
        until(lambda: stats(server)["sent"] == 41 + 82, "the others are delivered")
        counts = stats(server)
        metrics = server.http.get(f"{server.url}/metrics").text

        assert len(lines(tmp_path / "logs")) == 41
        assert counts["sampled"] == 2 * 41 + 82
        assert counts["dropped"] > 10
        assert counts["waiting"] + counts["dropped"] == 41
        broken = f'destination="{tmp_path / "file"}",kind="requests"'
        assert f'pilotlight_log_records_total{{{broken},result="dropped"}} {counts["dropped"]}.0' in metrics
        assert f"pilotlight_log_records_waiting{{{broken}}} {counts['waiting']}.0" in metrics
