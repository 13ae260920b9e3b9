"""A server is killed while a client has trials; `tests/soak/test_study_kills.py` kills it at any moment."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.studies import create_study, measurement, suggest
from tests.server import running_server


def test_a_client_gets_its_trials_again_from_the_next_server(tmp_path: Path) -> None:
    """With the same parameters; and an operation is there, whose answer may have been lost."""
    with running_server(tmp_path / "state", "--pilots", "off") as server:
        study = create_study(server, "s")
        trials = suggest(server, study, "a", 2)
        reply = server.call(
            "POST", f"{trials[0]['name']}:complete", json={"finalMeasurement": measurement(0)}
        )
        assert reply.status == 200
        server.kill()
    with running_server(tmp_path / "state", "--pilots", "off") as server:
        operation = server.call("GET", study.replace("studies/s", "operations/s-1")).json
        assert [trial["name"] for trial in operation["response"]["trials"]] == [
            trial["name"] for trial in trials
        ]

        again = suggest(server, study, "a", 2)

        assert again[0] == trials[1]
        assert again[1]["name"] == f"{study}/trials/3"
        assert server.call("GET", trials[0]["name"]).json == reply.json
