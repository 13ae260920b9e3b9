"""The leader sets the number of pods on a real API server, by the rights that the chart gives it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence

import joblib
import pytest
from sklearn.tree import DecisionTreeRegressor

from tests.cluster.cluster import IDLE_TIMEOUT, Cluster, running_cluster
from tests.server import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

MODEL = "projects/p/models/m"
_ASKED, _PINNED = f"{MODEL}/versions/v", f"{MODEL}/versions/pinned"
_SECONDS = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One server, which a version with a node brings to two: that is more than a tenth of its memory."""
    folder = tmp_path_factory.mktemp("leader")
    model = folder / "model"
    model.mkdir()
    joblib.dump(DecisionTreeRegressor().fit([[0.0], [1.0]], [1.0, 3.0]), model / "model.joblib")
    settings = {
        "shared_versions_uri": str(folder / "shared"),
        "idle_timeout": IDLE_TIMEOUT,
        # Nodes that are forked have much of their memory in common with their pilot.
        "pilots": "off",
        "memory_bytes": 400 << 20,
    }
    scaled = {"mode": "leader", "maxReplicas": 2, "targetLoad": 0.1, "scaleDownDelay": 10}
    with running_cluster(folder, replicas=1, settings=settings, autoscaling=scaled) as found:
        found.deploy(MODEL, model)
        yield found


def count_wanted(cluster: Cluster) -> int:
    return int(cluster.control_plane.get("deployment", "pilotlight")["spec"]["replicas"])


def until_scaled(cluster: Cluster, pods: int) -> None:
    until(lambda: count_wanted(cluster) == pods, f"{pods} are wanted", seconds=_SECONDS)
    until(lambda: len(cluster.list_pods()) == pods, f"{pods} are there", seconds=_SECONDS)
    until(lambda: len(cluster.list_ready()) == pods, f"{pods} are ready", seconds=_SECONDS)


def read_logs(cluster: Cluster) -> str:
    return "".join(path.read_text() for path in (cluster.folder / "pods").glob("*/log"))


def set_verbs(cluster: Cluster, verbs: Sequence[str]) -> None:
    change = [{"op": "replace", "path": "/rules/0/verbs", "value": list(verbs)}]
    cluster.control_plane.kubectl("patch", "role", "pilotlight", "--type=json", "--patch", json.dumps(change))


@contextlib.contextmanager
def more_load(cluster: Cluster) -> Iterator[None]:
    """By a version that always has a node."""
    body = {
        "name": "pinned",
        "deploymentUri": str(cluster.folder / "model"),
        "framework": "SCIKIT_LEARN",
        "manualScaling": {"nodes": 1},
    }
    cluster.wait(cluster.call("POST", f"{MODEL}/versions", body)["name"])
    try:
        yield
    finally:
        cluster.wait(cluster.call("DELETE", _PINNED)["name"])


def assert_predicts(cluster: Cluster) -> None:
    assert cluster.call("POST", f"{_ASKED}:predict", {"instances": [[1.0]]}) == {"predictions": [3.0]}


def test_the_leader_scales_up_with_the_load_and_down_without(cluster: Cluster) -> None:
    until_scaled(cluster, 1)
    with more_load(cluster):
        until_scaled(cluster, 2)
        assert_predicts(cluster)
    until_scaled(cluster, 1)
    assert_predicts(cluster)
    assert "the Deployment default/pilotlight is scaled from 1 to 2" in read_logs(cluster)


@pytest.mark.parametrize(("left", "missing"), [(["get"], "patch"), (["patch"], "get")])
def test_without_a_right_predictions_go_on_and_the_log_tells_it(
    cluster: Cluster, left: Sequence[str], missing: str
) -> None:
    until_scaled(cluster, 1)
    set_verbs(cluster, left)
    with more_load(cluster):
        told = f"needs the verb {missing} on deployments/scale"
        until(lambda: told in read_logs(cluster), "it tells the right", seconds=_SECONDS)
        assert_predicts(cluster)
        assert count_wanted(cluster) == 1
        set_verbs(cluster, ["get", "patch"])
        until_scaled(cluster, 2)
