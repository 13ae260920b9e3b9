"""Values of the chart that the API server has to take, or the chart to refuse; no pod is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, running_control_plane
from tests.dockerfile import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

_CHART = str(ROOT / "serving" / "containers" / "chart")
_NEEDED = {"image": {"repository": "r/server"}, "database": {"existingSecret": "database"}}

Install = Callable[..., str]


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with running_control_plane(tmp_path_factory.mktemp("values") / "control") as found:
        yield found


@pytest.fixture
def install(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Install]:
    """Install the chart with more values than it needs, or upgrade it."""

    def run(*flags: str, **values: Any) -> str:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(_NEEDED | values))
        return control_plane.helm("upgrade", "--install", "pilotlight", _CHART, "--values", str(file), *flags)

    yield run
    control_plane.helm("uninstall", "pilotlight", "--ignore-not-found", "--wait")


def read_variables(control_plane: ControlPlane) -> Mapping[str, str | None]:
    (container,) = read_pod(control_plane)["containers"]
    return {one["name"].removeprefix("PILOTLIGHT_"): one.get("value") for one in container["env"]}


def read_pod(control_plane: ControlPlane) -> Mapping[str, Any]:
    found: Mapping[str, Any] = control_plane.get("deployment", "pilotlight")["spec"]["template"]["spec"]
    return found


def test_settings_go_before_those_of_the_chart(control_plane: ControlPlane, install: Install) -> None:
    install()
    variables = read_variables(control_plane)
    assert (variables["ACCESS"], variables["LOG_FORMAT"]) == ("on", "json")

    install(settings={"log_format": "text", "idle_timeout": 600})
    variables = read_variables(control_plane)
    assert (variables["ACCESS"], variables["LOG_FORMAT"]) == ("on", "text")
    assert variables["IDLE_TIMEOUT"] == "600"

    install(settings={"access": False, "pilots": False}, autoscaling={"mode": False})
    variables = read_variables(control_plane)
    assert (variables["ACCESS"], variables["PILOTS"]) == ("false", "false")


def test_the_leader_may_change_the_number_of_its_pods_and_nothing_else(
    control_plane: ControlPlane, install: Install
) -> None:
    """By a token that only pods of this mode have."""
    account = "system:serviceaccount:default:pilotlight"

    def may(verb: str, what: str) -> bool:
        return control_plane.is_allowed(verb, what, "scale", account)

    install(autoscaling={"mode": "leader", "maxReplicas": 4}, peers={"existingSecret": "peers"})
    variables = read_variables(control_plane)
    assert variables["SCALED_DEPLOYMENT"] == "default/pilotlight"
    assert (variables["MIN_SERVERS"], variables["MAX_SERVERS"]) == ("1", "4")
    assert (variables["SERVER_TARGET_LOAD"], variables["SERVER_SCALE_DOWN_DELAY"]) == ("0.75", "300")
    pod = read_pod(control_plane)
    assert pod["automountServiceAccountToken"] is False
    (volume,) = [one for one in pod["volumes"] if one["name"] == "kubernetes"]
    assert [next(iter(one)) for one in volume["projected"]["sources"]] == ["serviceAccountToken", "configMap"]
    own, other = "deployments.apps/pilotlight", "deployments.apps/another"
    assert [may(verb, own) for verb in ("get", "patch", "update")] == [True, True, False]
    assert not may("patch", other)

    install("--force-conflicts")
    assert "SCALED_DEPLOYMENT" not in read_variables(control_plane)
    assert "kubernetes" not in [one["name"] for one in read_pod(control_plane)["volumes"]]
    assert not may("get", own)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"autoscaling": {"mode": "leader"}}, "needs peers.existingSecret"),
        (
            {"peers": {"existingSecret": "peers"}, "autoscaling": {"mode": "leader", "minReplicas": 20}},
            "at most",
        ),
    ],
)
def test_what_a_leader_cannot_scale_by_is_refused(
    install: Install, values: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        install(**values)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stop_delay": 3}, "settings.stop_delay is the chart's own: set the value stopDelay instead"),
        ({"port": 8000}, "settings.port is the chart's own: leave it out"),
        ({"max_servers": 3}, "set the value autoscaling.maxReplicas instead"),
        ({"access": "perhaps"}, "/settings/access"),
        ({"idle_timout": 600}, "additional properties 'idle_timout' not allowed"),
        ({"pilots": ["a"]}, "/settings/pilots"),
        ({"grpc_port": 0}, "/settings/grpc_port"),
    ],
)
def test_what_cannot_be_set_is_refused_by_its_name(
    install: Install, settings: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(AssertionError) as failure:
        install(settings=settings)
    assert told in str(failure.value)


def test_peers_reach_each_other_at_their_pods(control_plane: ControlPlane, install: Install) -> None:
    """By the port of the values, which nobody else reaches; without a certificate there is none."""
    install(peers={"existingSecret": "peers", "port": 9001})
    (container,) = read_pod(control_plane)["containers"]
    (host,) = [one for one in container["env"] if one["name"] == "PILOTLIGHT_PEER_HOST"]
    assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert read_variables(control_plane)["PEER_PORT"] == "9001"
    assert {one["name"]: one["containerPort"] for one in container["ports"]} == {"http": 8080, "peers": 9001}
    policy = control_plane.get("networkpolicy", "pilotlight")["spec"]
    (rule,) = [one for one in policy["ingress"] if one["ports"][0]["port"] == "peers"]
    assert rule["from"] == [{"podSelector": policy["podSelector"]}]

    install()
    assert read_variables(control_plane)["PEER_PORT"] == "off"
    assert len(control_plane.get("networkpolicy", "pilotlight")["spec"]["ingress"]) == 1


def test_the_service_has_the_port_of_grpc(control_plane: ControlPlane, install: Install) -> None:
    """Where it is switched on: nobody would reach the pods' own."""
    install(settings={"grpc_port": 8500})
    (container,) = read_pod(control_plane)["containers"]
    assert {one["name"]: one["containerPort"] for one in container["ports"]} == {"http": 8080, "grpc": 8500}
    ports = control_plane.get("service", "pilotlight")["spec"]["ports"]
    assert [(one["port"], one["targetPort"]) for one in ports] == [(80, "http"), (8500, "grpc")]
    policy = control_plane.get("networkpolicy", "pilotlight")["spec"]
    assert [one["port"] for one in policy["ingress"][0]["ports"]] == ["http", "grpc"]

    install(settings={"grpc_port": False})
    (port,) = control_plane.get("service", "pilotlight")["spec"]["ports"]
    assert port["port"] == 80


def test_an_upgrade_takes_the_number_of_servers_back(control_plane: ControlPlane, install: Install) -> None:
    """From `kubectl scale`, when it is told to: the number has another owner then."""
    install(replicas=3)
    control_plane.kubectl("scale", "deployment/pilotlight", "--replicas=2")
    with pytest.raises(AssertionError, match=r"conflict with .*kubectl.* with subresource .*scale"):
        install(replicas=3)

    install("--force-conflicts", replicas=3)
    assert control_plane.get("deployment", "pilotlight")["spec"]["replicas"] == 3


@pytest.mark.parametrize("mode", ["hpa", "leader"])
def test_an_upgrade_leaves_the_number_to_the_autoscaler(
    control_plane: ControlPlane, install: Install, mode: str
) -> None:
    """It begins where it was when autoscaling is switched on, and stays where that has put it."""
    install("--force-conflicts", replicas=3)
    scaled = {"mode": mode, "minReplicas": 2}
    install("--force-conflicts", replicas=3, autoscaling=scaled, peers={"existingSecret": "peers"})
    assert control_plane.get("deployment", "pilotlight")["spec"]["replicas"] == 3
    control_plane.kubectl("scale", "deployment/pilotlight", "--replicas=4")
    install("--force-conflicts", replicas=3, autoscaling=scaled, peers={"existingSecret": "peers"})
    assert control_plane.get("deployment", "pilotlight")["spec"]["replicas"] == 4
