"""A server that is killed in the middle of changes."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx

from serving.gateway.audit.log_folder import audit_log_path, list_log_files
from tests.server import running_server, until


def test_nothing_was_changed_unrecorded(tmp_path: Path) -> None:
    """What the state has was announced, what was acknowledged has both entries, and no line is torn."""
    folder = tmp_path / "state"
    acknowledged: list[str] = []
    with running_server(folder, "--pilots", "off") as server:

        def create(writer: int) -> None:
            with suppress(httpx.HTTPError), httpx.Client(base_url=server.url) as client:
                for number in range(100_000):
                    name = f"m{writer}_{number}"
                    if client.post("/v1/projects/p/models", json={"name": name}).status_code == 200:
                        acknowledged.append(f"projects/p/models/{name}")

        writers = [threading.Thread(target=create, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        until(lambda: len(acknowledged) > 100, "many models are there")
        server.kill()
        for writer in writers:
            writer.join()

    with closing(sqlite3.connect(folder / "state.db")) as database:
        there = {name for (name,) in database.execute("SELECT name FROM models")}
    entries: list[Any] = [
        json.loads(line)
        for file in list_log_files(audit_log_path(folder))
        for line in file.read_bytes().split(b"\n")[:-1]
    ]
    announced = {entry["protoPayload"]["resourceName"] for entry in entries if "first" in entry["operation"]}
    ended = {entry["protoPayload"]["resourceName"] for entry in entries if "last" in entry["operation"]}

    assert set(acknowledged) <= there <= announced
    assert set(acknowledged) <= ended
    assert len({entry["insertId"] for entry in entries}) == len(entries)
