"""The chart on a real API server: installed, scaled, rolled, drained, pods killed and frozen, under load."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import joblib
import pytest
from sklearn.tree import DecisionTreeRegressor

from tests.cluster.cluster import NODES, Cluster, running_cluster
from tests.conftest import Report
from tests.server import until
from tests.steady_load import Load, LoadRecord, measure_capacity, under_load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

MODEL = "projects/p/models/m"
_SLEEPING = "projects/p/models/sleeping"
_MANY = 1000
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


def test_requests_are_answered_by_all_pods(cluster: Cluster) -> None:
    """And a request takes one hop to the pod that has the version awake: of all pods one has a node."""
    for _ in range(20):
        assert cluster.call("POST", f"{MODEL}:predict", {"instances": [[1.0]]}) == {"predictions": [3.0]}
    states = [cluster.run_in_pod(pod, "nodes", "--format", "json") for pod in cluster.list_ready()]
    assert sum(MODEL in state and '"pid"' in state for state in states) == 1


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
    """What fails had reached that pod: no request that is due once the others know it."""
    cluster.scale(3)
    victim = cluster.list_ready()[0]
    with asked(cluster, rate, report, f"a pod gets {what.name}") as record:
        lost = len(record.outcomes)
        begin = time.monotonic()
        cluster.signal_pod(victim, what)
        until(lambda: victim not in cluster.list_ready(), "it is missed", seconds=60)
        noticed = time.monotonic() - begin
        until(lambda: len(cluster.list_ready()) == 3, "it is back", seconds=180)
    report(f"not ready {noticed:.1f} s after {what.name}")
    assert lost == 0
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
    assert len(cluster.list_ready()) == 2
    assert not record.failed, record.failed[:5]
    assert record.longest_gap < _LONGEST_GAP


def test_one_of_many_sleeping_versions_wakes(cluster: Cluster, model: Path, report: Report) -> None:
    cluster.scale(2)
    cluster.deploy(_SLEEPING, model)
    version = {"deploymentUri": str(model), "framework": "SCIKIT_LEARN"}

    def create(number: int) -> str:
        body = version | {"name": f"v{number}"}
        return str(cluster.call("POST", f"{_SLEEPING}/versions", body)["name"])

    begin = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        operations = list(threads.map(create, range(_MANY)))
    for operation in operations:
        cluster.wait(operation)
    report(f"{_MANY} versions created in {time.monotonic() - begin:.0f} s")
    waits = []
    for number in range(0, _MANY, _MANY // 20):
        start = time.perf_counter()
        cluster.call("POST", f"{_SLEEPING}/versions/v{number}:predict", {"instances": [[1.0]]})
        waits.append(time.perf_counter() - start)
    report(
        f"the first request of one of {_MANY} sleeping versions, by the Service: median "
        f"{1000 * median(waits):.0f} ms, at most {1000 * max(waits):.0f} ms"
    )
    assert median(waits) <= 0.3


def test_a_pod_has_no_token_of_kubernetes(cluster: Cluster) -> None:
    """The server asks nothing of it, so no right can be missing."""
    (pod, *_) = cluster.list_pods()
    assert pod["spec"]["automountServiceAccountToken"] is False
    account = f"system:serviceaccount:default:{pod['spec']['serviceAccountName']}"
    listed = cluster.control_plane.kubectl("auth", "can-i", "--list", f"--as={account}")
    assert "pods" not in listed
    assert "secrets" not in listed
