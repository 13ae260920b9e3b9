"""Two real servers on one database, of which one is killed."""

from __future__ import annotations

import time
from pathlib import Path

from tests.conftest import Report
from tests.end_to_end.models import write_sklearn
from tests.postgres import Postgres
from tests.server import Server, running_server, until

VERSION = "projects/p/models/m/versions/v"


def owns_work(server: Server) -> bool:
    return "this server does the work" in server.log.read_text()


def test_what_a_killed_server_had_begun_is_done_by_another(
    postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    """Within 10 s it has begun again; nothing that was acknowledged is missing."""
    state = {"PILOTLIGHT_STATE": postgres.create_database()}
    write_sklearn(tmp_path / "forest")
    with (
        running_server(tmp_path / "a", "--pilots", "off", environment=state) as a,
        running_server(tmp_path / "b", "--pilots", "off", environment=state) as b,
    ):
        until(lambda: owns_work(a), "the first one does the work")
        a.create_model("projects/p/models/m")
        until(lambda: b.call("GET", "projects/p/models/m").status == 200, "the other knows the model")
        operation = b.begin_version(VERSION, deploymentUri=str(tmp_path / "forest"))
        a.kill()
        killed = time.monotonic()
        until(lambda: owns_work(b), "the other does the work")
        taken_over = time.monotonic() - killed

        assert "error" not in b.wait(operation)
        assert b.call("GET", VERSION).json["state"] == "READY"
        assert not (tmp_path / "b" / "state.db").exists()
        report(f"the work of a killed server is taken over after {taken_over:.1f} s")
        assert taken_over < 10
