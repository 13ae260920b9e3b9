"""The chart on a real API server: installed, scaled, rolled, drained, pods killed and frozen, under load."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx
import joblib
import msgspec
import pytest
from sklearn.tree import DecisionTreeRegressor

from serving.gateway.state.records import Record
from serving.gateway.state.shared.postgres_store import PostgresStore
from serving.names import VersionName
from tests.cluster.cluster import IDLE_TIMEOUT, NODES, Cluster, running_cluster
from tests.conftest import Report
from tests.server import until
from tests.steady_load import Load, LoadRecord, measure_capacity, under_load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

MODEL = "projects/p/models/m"
_SLEEPING = "projects/p/models/sleeping"
# Versions, and how many of them are asked.
_MANY, _ASKED = 1000, 20
_MOST_RATE = 100.0
_LONGEST_GAP = 4.0
# Until a load balancer has seen what happened, and all is as before.
_SETTLE_SECONDS = 5.0
_AWAY_SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    path = folder / "model"
    path.mkdir()
    joblib.dump(DecisionTreeRegressor().fit([[0.0], [1.0]], [1.0, 3.0]), path / "model.joblib")
    return path


@pytest.fixture(scope="module")
def cluster(folder: Path, model: Path) -> Iterator[Cluster]:
    with running_cluster(folder, replicas=2) as found:
        found.deploy(MODEL, model)
        yield found


@pytest.fixture(scope="module")
def rate(cluster: Cluster) -> float:
    """Requests per second: half of what the cluster can do, and not more than the machine can share."""
    return min(measure_capacity(Load(cluster.url, MODEL, 0.0, cluster.headers)) / 2, _MOST_RATE)


@contextlib.contextmanager
def asked(cluster: Cluster, rate: float, report: Report, what: str) -> Iterator[LoadRecord]:
    """Under load for the time of the block and a while after it."""
    load = Load(cluster.url, MODEL, rate, cluster.headers)
    with under_load(load) as record:
        time.sleep(2)
        yield record
        time.sleep(_SETTLE_SECONDS)
    report(f"{what}, {rate:.0f}/s: {record.describe()}")


def count_nodes(cluster: Cluster, address: str) -> int:
    """Those of all versions in one pod."""
    status = httpx.get(f"http://{address}:8080/nodes", headers=cluster.headers).json()
    return sum(len(version["nodes"]) for version in status["versions"])


def test_requests_are_answered_by_all_pods(cluster: Cluster) -> None:
    """And a request takes one hop to the pod that has the version awake: of two pods one has a node."""

    def has_one_node() -> bool:
        for _ in range(10):
            assert cluster.call("POST", f"{MODEL}:predict", {"instances": [[1.0]]}) == {"predictions": [3.0]}
        counts = [count_nodes(cluster, pod["status"]["podIP"]) for pod in cluster.list_pods()]
        return sorted(counts) == [0, 1]

    # The creation has left a node in the pod that did the work, until it has been idle for long enough.
    until(has_one_node, "one pod has a node, and the other one none")


def test_it_is_scaled(cluster: Cluster, rate: float, report: Report) -> None:
    cluster.scale(1)
    with asked(cluster, rate, report, "scaled 1, 3, 1") as record:
        cluster.scale(3)
        cluster.scale(1)
    assert not record.failed, record.failed[:5]
    assert record.longest_gap < _LONGEST_GAP


def test_it_is_rolled(cluster: Cluster, rate: float, report: Report) -> None:
    cluster.scale(3)
    before = set(cluster.list_ready())
    with asked(cluster, rate, report, "rolling update of 3 pods") as record:
        cluster.control_plane.kubectl("rollout", "restart", "deployment/pilotlight")
        cluster.wait_until_settled()
    assert not before & set(cluster.list_ready())
    assert not record.failed, record.failed[:5]
    assert record.longest_gap < _LONGEST_GAP


def test_a_node_is_drained(cluster: Cluster, rate: float, report: Report) -> None:
    cluster.scale(2)
    with asked(cluster, rate, report, "a node drained") as record:
        cluster.control_plane.kubectl(
            "drain", NODES[0], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"
        )
        cluster.wait_until_settled()
    cluster.control_plane.kubectl("uncordon", NODES[0])
    assert {pod["spec"]["nodeName"] for pod in cluster.list_pods()} == {NODES[1]}
    assert not record.failed, record.failed[:5]
    assert record.longest_gap < _LONGEST_GAP


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_pod_is_lost(cluster: Cluster, rate: float, report: Report, what: signal.Signals) -> None:
    """No request fails that is due once it is noticed."""
    cluster.scale(3)
    victim = cluster.list_ready()[0]
    with asked(cluster, rate, report, f"a pod gets {what.name}") as record:
        begin = time.monotonic()
        cluster.signal_pod(victim, what)
        until(lambda: victim not in cluster.list_ready(), "it is missed", seconds=60)
        noticed = time.monotonic() - begin
        until(lambda: len(cluster.list_ready()) == 3, "it is back", seconds=180)
    report(f"not ready {noticed:.1f} s after {what.name}")
    late = [one for one in record.failed if one.due > 2 + noticed + 1]
    assert not late, late[:5]
    assert record.longest_gap < _LONGEST_GAP


def test_the_api_server_is_away(cluster: Cluster, rate: float, report: Report) -> None:
    """Predictions, changes and wake-ups go on."""
    cluster.scale(2)
    with asked(cluster, rate, report, f"API server away for {_AWAY_SECONDS:.0f} s") as record:
        cluster.control_plane.stop_api_server()
        end = time.monotonic() + _AWAY_SECONDS
        cluster.call("PATCH", f"{MODEL}?updateMask=description", {"description": "away"})
        time.sleep(max(0.0, end - time.monotonic()))
        cluster.control_plane.start_api_server()
    until(lambda: len(cluster.list_ready()) == 2, "the pods are ready again", seconds=60)
    assert not record.failed, record.failed[:5]
    assert record.longest_gap < _LONGEST_GAP


def test_one_of_many_sleeping_versions_wakes(cluster: Cluster, model: Path, report: Report) -> None:
    """The Service leads to any pod, and that to the one that the version is placed on."""
    cluster.scale(2)
    cluster.call("POST", "projects/p/models", {"name": "sleeping"})
    names = [f"{_SLEEPING}/versions/v{number}" for number in range(_ASKED)]
    for name in names:
        cluster.create_version(name, model)
    add_copies(cluster.database, VersionName("p", "sleeping", "v0"), _MANY - _ASKED)
    until(lambda: {_MANY + 1} == count_versions(cluster), "all pods know all")
    found = {}
    # Their owners have fetched the files meanwhile; see `serving.gateway.control.version_prefetcher`.
    for time_of in ("first", "second"):
        time.sleep(IDLE_TIMEOUT + _SETTLE_SECONDS)
        found[time_of] = [measure_answer(cluster, name) for name in names]
        report(
            f"a request of one of {_MANY} sleeping versions, by the Service, the {time_of} time: median "
            f"{1000 * median(found[time_of]):.0f} ms, at most {1000 * max(found[time_of]):.0f} ms"
        )
    assert max(*found["first"], *found["second"]) <= 0.3


def measure_answer(cluster: Cluster, name: str) -> float:
    """Seconds."""
    start = time.perf_counter()
    assert cluster.call("POST", f"{name}:predict", {"instances": [[1.0]]}) == {"predictions": [3.0]}
    return time.perf_counter() - start


def count_versions(cluster: Cluster) -> set[int]:
    """As each pod knows it."""
    addresses = [pod["status"]["podIP"] for pod in cluster.list_pods()]
    stats = (httpx.get(f"http://{one}:8080/stats", headers=cluster.headers) for one in addresses)
    return {answer.json()["versions"] for answer in stats}


def add_copies(database: str, name: VersionName, count: int) -> None:
    """Versions that are never asked: a deployment of each would take a second."""
    store = PostgresStore(database)
    source = store.load().versions[name]
    assert source.deployed is not None
    # Without a pack, which each would need: their owners would look for it.
    deployed = msgspec.structs.replace(source.deployed, pack="")
    changes: dict[tuple[str, str], Record | None] = {}
    for number in range(count):
        copy = VersionName(name.project, name.model, f"copy{number}")
        version = msgspec.structs.replace(source.version, name=str(copy))
        changes["versions", str(copy)] = msgspec.structs.replace(
            source, name=copy, uid=f"{number:016x}", version=version, deployed=deployed
        )
    store.commit(changes)
    store.close()


def test_a_pod_has_no_token_of_kubernetes(cluster: Cluster) -> None:
    """The server asks nothing of it, so no right can be missing."""
    (pod, *_) = cluster.list_pods()
    assert pod["spec"]["automountServiceAccountToken"] is False
    account = f"system:serviceaccount:default:{pod['spec']['serviceAccountName']}"
    listed = cluster.control_plane.kubectl("auth", "can-i", "--list", f"--as={account}")
    assert "pods" not in listed
    assert "secrets" not in listed
