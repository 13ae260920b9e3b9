"""Whenever the server is killed: no trial is lost, changed or repeated.

The long form is `tests/soak/test_study_kills.py`.
"""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.studies import create_study, hunt, measurement, suggest
from tests.server import running_server


def test_clients_go_on_where_they_were(tmp_path: Path) -> None:
    """With other clients at work, and the server killed at random."""
    search = hunt(tmp_path, kills=3, clients=3, trials=5)

    assert len(search.completed) >= 15


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
