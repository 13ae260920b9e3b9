"""Real servers on one database set the number of pods of a Deployment; the API server is a fake.

On a real one: `tests/cluster/test_leader_on_kubernetes.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import HANG_SECONDS
from tests.end_to_end.models import write_sklearn
from tests.kubernetes_api import running_api_server, write_credentials
from tests.postgres import Postgres
from tests.server import Server, running_server, start, until

pytest.importorskip("kubernetes", reason="it is not installed: pip install 'pilotlight[kubernetes]'")

MODEL = "projects/p/models/m"
PINNED, ASKED = f"{MODEL}/versions/pinned", f"{MODEL}/versions/asked"
# One node is more than a tenth of the memory.
FLAGS = (
    "--pilots", "off", "--memory-bytes", str(400 << 20), "--server-target-load", "0.1", "--max-servers", "2",
    "--server-scale-down-delay", "2", "--idle-timeout", "1",
)  # fmt: skip


def says(server: Server, text: str) -> bool:
    return text in server.log.read_text()


def read_desired(server: Server) -> float | None:
    lines = server.http.get(f"{server.url}/metrics").text.splitlines()
    found = [line.split()[-1] for line in lines if line.startswith("pilotlight_servers_desired ")]
    return float(found[0]) if found else None


def read_scaling(server: Server) -> dict[str, Any]:
    """What `/servers` says of the leader."""
    (one,) = (one for one in server.http.get(f"{server.url}/servers").json()["servers"] if one["alive"])
    return dict(one.get("scaling") or {"error": "", "wanted": None, "pods": None})


def test_the_leader_scales_by_the_load_and_says_what_it_may_not(postgres: Postgres, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    write_credentials(credentials)
    write_sklearn(tmp_path / "forest")
    files = {"deploymentUri": str(tmp_path / "forest")}
    with running_api_server(credentials) as api_server:
        api_server.replicas = 1
        api_server.refused["PATCH"] = 403  # a version that is created is load too
        environment = {"PILOTLIGHT_STATE": postgres.create_database(), **api_server.environment}
        access = ("--scaled-deployment", "serving/pilotlight", "--kubernetes-credentials", str(credentials))
        flags = (*FLAGS, *access)
        with running_server(tmp_path / "a", *flags, environment=environment) as leader:
            leader.create_model(MODEL)
            leader.create_version(ASKED, **files)
            leader.create_version(PINNED, **files, manualScaling={"nodes": 1})
            until(lambda: says(leader, "needs the verb patch on deployments/scale"), "it tells the right")
            assert leader.predict(ASKED, [[1.0, 2.0, 3.0, 4.0]]).status == 200
            assert read_desired(leader) == 2
            assert api_server.replicas == 1
            until(lambda: "needs the verb patch" in read_scaling(leader)["error"], "operators are told, too")
            assert (read_scaling(leader)["wanted"], read_scaling(leader)["pods"]) == (2, 1)

            api_server.refused["GET"] = 403
            until(lambda: says(leader, "needs the verb get on deployments/scale"), "it tells the right")
            assert leader.predict(ASKED, [[1.0, 2.0, 3.0, 4.0]]).status == 200
            assert leader.call("GET", "/readyz").status == 200
            assert leader.log.read_text().count("needs the verb") == 2

            api_server.refused.clear()
            until(lambda: api_server.replicas == 2, "it is scaled up")
            until(lambda: says(leader, "is scaled from 1 to 2"), "that is told")
            until(lambda: not read_scaling(leader)["error"], "the error is over")
            with running_server(tmp_path / "b", *flags, environment=environment) as other:
                leader.delete(PINNED)
                until(lambda: api_server.replicas == 1, "it is scaled down")
                until(lambda: says(leader, "is scaled from 2 to 1"), "that is told")
                assert read_desired(other) is None
                assert not says(other, "is scaled from")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PILOTLIGHT_SCALED_DEPLOYMENT": "pilotlight"}, "must be NAMESPACE/NAME"),
        (
            {"PILOTLIGHT_SCALED_DEPLOYMENT": "a/b", "PILOTLIGHT_PEER_PORT": "off"},
            "do not tell with peer_port",
        ),
        ({"PILOTLIGHT_MIN_SERVERS": "5", "PILOTLIGHT_MAX_SERVERS": "4"}, "they are 5 and 4"),
        ({"PILOTLIGHT_SCALED_DEPLOYMENT": "a/b", "PILOTLIGHT_STATE": ""}, "name that too (setting state)"),
    ],
)
def test_wrong_settings_end_the_start(
    postgres: Postgres, tmp_path: Path, variables: Mapping[str, str], told: str
) -> None:
    environment = {"PILOTLIGHT_STATE": postgres.create_database()} | dict(variables)
    folder = tmp_path / "a"
    arguments = ("serve", "--port", "0", "--state-dir", str(folder))
    with start(arguments, folder, environment, subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode
    assert told in errors
