"""The official client against a server that answers as the API server does, over TLS.

What a real one answers: `tests/cluster/test_leader_on_kubernetes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    Unauthenticated,
    Unavailable,
)
from serving.gateway.control.server_scaling.kubernetes_deployment import (
    DeploymentName,
    DeploymentScale,
    KubernetesDeployment,
    parse_deployment_name,
)
from tests.kubernetes_api import SCALE_PATH, FakeApiServer, running_api_server, write_credentials

pytest.importorskip("kubernetes", reason="it is not installed: pip install 'pilotlight[kubernetes]'")


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    write_credentials(tmp_path)
    return tmp_path


@pytest.fixture
def api_server(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    with running_api_server(credentials) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def deployment(api_server: FakeApiServer, credentials: Path) -> KubernetesDeployment:
    return KubernetesDeployment(DeploymentName("serving", "pilotlight"), credentials)


def test_it_reads_and_sets_the_scale(deployment: KubernetesDeployment, api_server: FakeApiServer) -> None:
    """The change names the version that was seen: one of somebody else in between goes before it."""
    seen = deployment.read_scale()
    assert seen == DeploymentScale(2, "77")
    assert deployment.set_pods(3, seen).pods == 3
    body = {"metadata": {"resourceVersion": "77"}, "spec": {"replicas": 3}}
    assert api_server.asked == [
        ("GET", SCALE_PATH, None),
        ("PATCH", f"{SCALE_PATH}?fieldManager=pilotlight", body),
    ]
    assert {token.lower() for token in api_server.tokens} == {"bearer the-token"}


def test_rights_are_tried_without_a_change(
    deployment: KubernetesDeployment, api_server: FakeApiServer
) -> None:
    assert deployment.check_rights().pods == 2
    body = {"metadata": {"resourceVersion": "77"}, "spec": {"replicas": 2}}
    assert api_server.asked == [("GET", SCALE_PATH, None), ("PATCH", f"{SCALE_PATH}?dryRun=All", body)]
    api_server.refused["PATCH"] = 403
    with pytest.raises(PermissionDenied, match="needs the verb patch"):
        deployment.check_rights()


def test_no_pods_are_left_out_of_an_answer(
    deployment: KubernetesDeployment, api_server: FakeApiServer
) -> None:
    api_server.replicas = None
    assert deployment.read_scale().pods == 0


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (401, Unauthenticated, "does not accept the token"),
        (403, PermissionDenied, "needs the verb get on deployments/scale"),
        (404, NotFound, "There is no Deployment serving/pilotlight"),
        (409, Aborted, "was changed by somebody else"),
        (500, Unavailable, "has refused to get the scale"),
    ],
)
def test_a_refusal_says_what_is_missing(
    deployment: KubernetesDeployment,
    api_server: FakeApiServer,
    status: int,
    error: type[ServingError],
    told: str,
) -> None:
    api_server.refused["GET"] = status
    with pytest.raises(error, match=told) as raised:
        deployment.read_scale()
    assert "no, because" in raised.value.message


@pytest.mark.parametrize("text", ["{}", "[1]", "<html>", '{"spec": {"replicas": "two"}}'])
def test_an_answer_that_is_no_scale(
    deployment: KubernetesDeployment, api_server: FakeApiServer, text: str
) -> None:
    api_server.text = text
    with pytest.raises(Unavailable, match="no scale of serving/pilotlight"):
        deployment.read_scale()


def test_an_api_server_that_hangs_or_is_gone(
    deployment: KubernetesDeployment,
    api_server: FakeApiServer,
    credentials: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked once, for some seconds."""
    module = "serving.gateway.control.server_scaling.kubernetes_deployment"
    monkeypatch.setattr(f"{module}._TIMEOUTS", (2.0, 0.2))
    api_server.refused["GET"] = 0
    with pytest.raises(Unavailable, match=f"https://127.0.0.1:{api_server.port}, does not answer"):
        deployment.read_scale()
    assert len(api_server.asked) == 1

    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    gone = KubernetesDeployment(deployment.name, credentials)
    with pytest.raises(Unavailable, match="does not answer"):
        gone.read_scale()


def test_a_certificate_of_somebody_else_is_refused(
    deployment: KubernetesDeployment, api_server: FakeApiServer, credentials: Path
) -> None:
    """Until `ca.crt` is that of its authority."""
    authority = (credentials / "ca.crt").read_bytes()
    write_credentials(credentials)
    with pytest.raises(ServingError, match="CERTIFICATE_VERIFY_FAILED"):
        deployment.read_scale()
    assert not api_server.asked
    (credentials / "ca.crt").write_bytes(authority)
    assert deployment.read_scale().pods == 2


def test_without_credentials_it_says_where_they_should_be(
    deployment: KubernetesDeployment, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finds them when they come."""
    (credentials / "token").rename(credentials / "later")
    with pytest.raises(FailedPrecondition, match=f"token and ca.crt in {credentials}"):
        deployment.read_scale()
    (credentials / "later").rename(credentials / "token")
    assert deployment.read_scale().pods == 2


def test_it_is_said_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'pilotlight\[kubernetes\]'"):
        KubernetesDeployment(DeploymentName("a", "b"), Path("/nowhere"))


def test_names() -> None:
    assert parse_deployment_name("serving/pilotlight-1") == ("serving", "pilotlight-1")
    for wrong in ("pilotlight", "a/b/c", "/b", "a/", "A/b", "a/b?c=1", "a/..", "a/" + "b" * 254):
        with pytest.raises(InvalidArgument, match="NAMESPACE/NAME"):
            parse_deployment_name(wrong)
