"""`pilotlight doctor` on a Deployment that servers scale: a real database, and a fake API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serving.cli.health.doctor import collect_checks
from serving.cli.health.result import CheckResult
from serving.cli.health.server_scaling import check_server_scaling
from serving.config import ServeConfig
from serving.gateway.state.shared.membership import ScalingReport, ServerRecord
from serving.gateway.state.shared.postgres_store import PostgresStore
from tests.kubernetes_api import FakeApiServer, running_api_server, write_credentials
from tests.postgres import Postgres

pytest.importorskip("kubernetes", reason="it is not installed: pip install 'pilotlight[kubernetes]'")

LEADER = ServerRecord(
    id="a", name="a:8080", host="127.0.0.1", port=8090, machine="m", folder="/state", memory_bytes=1 << 30,
    processors=2, weight=16,
    scaling=ScalingReport(wanted=3, reason="as many are needed", deployment="serving/pilotlight", pods=2),
)  # fmt: skip


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    write_credentials(tmp_path)
    with running_api_server(tmp_path) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def test_it_tells_rights_and_what_the_leader_has_decided(
    postgres: Postgres, tmp_path: Path, api_server: FakeApiServer
) -> None:
    address = postgres.create_database()
    settings = ServeConfig(
        state=address,
        state_dir=tmp_path,
        scaled_deployment="serving/pilotlight",
        kubernetes_credentials=tmp_path,
    )

    def check() -> CheckResult:
        return check_server_scaling(settings)

    assert (check().level, "cannot be read" in check().message) == ("warn", True)  # there are no tables
    store = PostgresStore(address)
    found = check()
    assert (found.level, "no server decides" in found.message) == ("ok", True)

    store.membership.renew(LEADER)
    found = check()
    assert found.level == "ok"
    assert "serving/pilotlight, 2 pods, can be read and set from here. a:8080 decided" in found.message
    assert "s ago: 3 servers are wanted" in found.message

    assert LEADER.scaling is not None
    failing = msgspec.structs.replace(LEADER.scaling, error="It does not answer.")
    store.membership.renew(msgspec.structs.replace(LEADER, scaling=failing))
    assert (check().level, "It does not answer." in check().message) == ("warn", True)

    api_server.refused["PATCH"] = 403
    found = check()
    assert (found.level, "needs the verb patch" in found.message) == ("fail", True)
    assert "get and patch on deployments/scale" in found.advice
    assert api_server.replicas == 2
    store.close()


@pytest.mark.parametrize(("deployment", "count"), [("", 0), ("serving/pilotlight", 1)])
def test_it_is_looked_at_only_where_it_is_switched_on(deployment: str, count: int) -> None:
    checks = collect_checks(ServeConfig(scaled_deployment=deployment), "", write=False, quick=True)
    assert sum("check_server_scaling" in repr(check) for check in checks) == count
