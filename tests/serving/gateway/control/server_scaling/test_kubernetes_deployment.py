"""The official client against a server that answers as the API server does, over TLS.

What a real one answers: `tests/cluster/test_leader_scaling.py`.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
from tests.certificates import write_certificate

pytest.importorskip("kubernetes", reason="it is not installed: pip install 'pilotlight[kubernetes]'")


@dataclass
class FakeApiServer:
    """`status` is what it answers, 0 for nothing at all; `asked` has the requests, path and body."""

    url_host: str = "127.0.0.1"
    port: int = 0
    status: int = 200
    text: str = ""
    replicas: int | None = 2
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = json.loads(handler.rfile.read(length)) if length else None
        self.asked.append((handler.command, handler.path, body))
        self.tokens.append(handler.headers["authorization"])
        if not self.status:
            self.is_over.wait(30)
            return
        if body is not None:
            self.replicas = body["spec"]["replicas"]
        answer: Any = {"kind": "Status", "status": "Failure", "message": "no, because", "code": self.status}
        if self.status == 200:
            spec = {} if self.replicas is None else {"replicas": self.replicas}
            metadata = {"name": "pilotlight", "namespace": "serving", "resourceVersion": "77"}
            answer = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec}
        sent = (self.text or json.dumps(answer)).encode()
        handler.send_response(self.status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(sent)))
        handler.end_headers()
        handler.wfile.write(sent)


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    write_certificate(tmp_path)
    (tmp_path / "ca.crt").write_bytes((tmp_path / "cert.pem").read_bytes())
    (tmp_path / "token").write_text("the-token")
    return tmp_path


@pytest.fixture
def api_server(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    fake = FakeApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.answer(self)

        def do_PATCH(self) -> None:
            fake.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((fake.url_host, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials / "cert.pem", credentials / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    fake.port = server.server_address[1]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", fake.url_host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(fake.port))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield fake
    fake.is_over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def deployment(api_server: FakeApiServer, credentials: Path) -> KubernetesDeployment:
    return KubernetesDeployment(DeploymentName("serving", "pilotlight"), credentials)


def test_it_reads_and_sets_the_scale(deployment: KubernetesDeployment, api_server: FakeApiServer) -> None:
    """The change names the version that was seen: one of somebody else in between goes before it."""
    seen = deployment.read_scale()
    assert seen == DeploymentScale(2, "77")
    assert deployment.set_pods(3, seen).pods == 3
    path = "/apis/apps/v1/namespaces/serving/deployments/pilotlight/scale"
    body = {"metadata": {"resourceVersion": "77"}, "spec": {"replicas": 3}}
    assert api_server.asked == [
        ("GET", path, None),
        ("PATCH", f"{path}?fieldManager=pilotlight", body),
    ]
    assert {token.lower() for token in api_server.tokens} == {"bearer the-token"}


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
    api_server.status = status
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
    api_server.status = 0
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
    write_certificate(credentials)
    (credentials / "ca.crt").write_bytes((credentials / "cert.pem").read_bytes())
    with pytest.raises(ServingError, match="CERTIFICATE_VERIFY_FAILED"):
        deployment.read_scale()
    assert not api_server.asked


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
