"""What the platforms of containers say, as settings of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.cli import serve
from serving.config import NodeConfig, load_config, load_node_config
from serving.container_platform import ALL_INTERFACES, ANY_HOST, PlatformSettings, read_platform_settings
from serving.errors import InvalidArgument

VERTEX = {
    "AIP_HTTP_PORT": "7080",
    "AIP_HEALTH_ROUTE": "/health",
    "AIP_PREDICT_ROUTE": "/predict",
    "AIP_STORAGE_URI": "gs://managed/copy",
}
NOWHERE = Path("/nowhere")
OURS = (
    "AIP_HTTP_PORT",
    "AIP_HEALTH_ROUTE",
    "AIP_PREDICT_ROUTE",
    "AIP_STORAGE_URI",
    "PORT",
    "KUBERNETES_SERVICE_HOST",
)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a platform is set."""
    for name in OURS:
        monkeypatch.delenv(name, raising=False)


def values(found: PlatformSettings) -> dict[str, str]:
    return {name: value for name, (_, value) in found.settings.items()}


def test_outside_of_containers_nothing_is_asked_for() -> None:
    """No variable, no folder: the host stays a loopback address."""
    assert read_platform_settings({"HOME": "/root"}, (), NOWHERE) == PlatformSettings()
    assert load_node_config({})[0] == NodeConfig()


def test_vertex_ai() -> None:
    """Port, both routes and the model; and it connects from outside."""
    assert values(read_platform_settings(VERTEX, (), NOWHERE)) == {
        "port": "7080",
        "health_route": "/health",
        "predict_route": "/predict",
        "model_dir": "gs://managed/copy",
        "host": ALL_INTERFACES,
        "allowed_hosts": ANY_HOST,
    }


def test_cloud_run() -> None:
    """Only the port; Vertex AI's variable goes before it."""
    assert values(read_platform_settings({"PORT": "9000"}, (), NOWHERE)) == {
        "port": "9000",
        "host": ALL_INTERFACES,
        "allowed_hosts": ANY_HOST,
    }
    assert (
        values(read_platform_settings({"PORT": "9000", "AIP_HTTP_PORT": "7080"}, (), NOWHERE))["port"]
        == "7080"
    )


def test_kubernetes() -> None:
    """Pods are called by the names of their services; where to listen is said by who starts the node."""
    kubernetes = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert values(read_platform_settings(kubernetes, (), NOWHERE)) == {"allowed_hosts": ANY_HOST}
    assert values(read_platform_settings(kubernetes, {"allowed_hosts"}, NOWHERE)) == {}


def test_kserve(tmp_path: Path) -> None:
    """The folder that its model is put into, if there is one and nobody has chosen another."""
    assert values(read_platform_settings({}, (), tmp_path)) == {
        "model_dir": str(tmp_path),
        "host": ALL_INTERFACES,
        "allowed_hosts": ANY_HOST,
    }
    assert read_platform_settings({}, {"model_dir"}, tmp_path) == PlatformSettings()
    assert values(read_platform_settings(VERTEX, (), tmp_path))["model_dir"] == "gs://managed/copy"


def test_an_empty_variable_says_nothing() -> None:
    """AIP_STORAGE_URI is empty where there is no model."""
    assert read_platform_settings(dict.fromkeys(VERTEX, ""), (), NOWHERE) == PlatformSettings()


def test_what_somebody_has_chosen_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flags over PILOTLIGHT_ variables over the file over the platform over defaults."""
    file = tmp_path / "node.yaml"
    file.write_text("health_route: /from-file\npredict_route: /from-file\nport: 3\n")
    for name, value in VERTEX.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PILOTLIGHT_PORT", "2")
    monkeypatch.setenv("PILOTLIGHT_PREDICT_ROUTE", "/from-variable")

    found, asked = load_node_config({"port": 1}, file)

    assert (found.port, found.predict_route, found.health_route) == (1, "/from-variable", "/from-file")
    assert (found.model_dir, found.host) == ("gs://managed/copy", ALL_INTERFACES)
    assert values(asked) == {
        "model_dir": "gs://managed/copy",
        "host": ALL_INTERFACES,
        "allowed_hosts": ANY_HOST,
    }
    assert load_node_config({"host": "127.0.0.1"})[0].host == "127.0.0.1"


def test_other_commands_do_not_heed_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pilotlight local predict` has the settings of a node too."""
    monkeypatch.setenv("PORT", "not a port")

    assert load_config(NodeConfig, {}) == NodeConfig()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("AIP_HTTP_PORT", "eighty", "AIP_HTTP_PORT must be a int; it is 'eighty'"),
        ("PORT", "70000", "PORT must be at most 65535; it is 70000"),
        ("AIP_PREDICT_ROUTE", "predict", "AIP_PREDICT_ROUTE must be a path that begins with /"),
        ("AIP_HEALTH_ROUTE", "/a b", "AIP_HEALTH_ROUTE must be a path that begins with /"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the platform's own name of it."""
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidArgument, match=problem):
        load_node_config({})


def test_a_start_says_what_the_platform_has_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above all that others reach the node; outside of containers it says nothing."""
    serve.load_node_settings({}, None)
    assert capsys.readouterr().out == ""

    monkeypatch.setenv("PORT", "9000")
    serve.load_node_settings({}, None)
    assert capsys.readouterr().out == (
        "As the container's platform asks for (PORT): --port 9000, --host 0.0.0.0, --allowed-hosts *\n"
    )
