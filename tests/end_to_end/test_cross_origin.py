"""What servers without access control answer to web pages: on every path, in every protocol."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from tests.end_to_end.conftest import Files
from tests.server import Server, running_node, running_server, until

ALLOWED = "https://app.example"
MODEL = "projects/local/models/flowers"
# Of each protocol, and what there is besides: of the gateway, and of a node alone.
BOTH = (
    ("POST", f"/v1/{MODEL}:predict"),
    ("POST", "/v1/models/flowers:predict"),
    ("POST", "/v2/models/flowers/infer"),
    ("GET", "/v1/models/flowers"),
    ("GET", "/v2/health/live"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/stats"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
    ("OPTIONS", f"/v1/{MODEL}:predict"),
    # A form of gRPC for browsers, which is not offered, and what every WebSocket begins with.
    ("POST", "/inference.GRPCInferenceService/ModelInfer"),
    ("GET", "/socket"),
)
GATEWAY = (
    ("GET", "/metrics"),
    ("GET", "/nodes"),
    ("GET", "/events"),
    ("GET", "/v1/projects/local/models"),
    ("POST", "/v1/projects/local/models"),
    ("DELETE", f"/v1/{MODEL}"),
    ("POST", "/v1/projects/local/jobs"),
    ("POST", "/batch"),
    ("POST", "/batch/ml/v1"),
    ("POST", "/v2/entries:list"),
    ("GET", "/$discovery/rest"),
    ("GET", "/discovery/v1/apis"),
)
ATTACKS: tuple[tuple[dict[str, str], str], ...] = (
    ({"host": "evil.example"}, "allowed_hosts"),
    ({"host": "evil.example", "origin": "http://evil.example"}, "allowed_hosts"),
    ({"origin": "http://evil.example"}, "allowed_origins"),
    ({"origin": "null"}, "allowed_origins"),
    ({"sec-fetch-site": "cross-site"}, "allowed_origins"),
    ({"sec-fetch-site": "same-site"}, "allowed_origins"),
)
BODY = b'{"instances": [[1, 2, 3, 4]], "name": "made_by_a_page"}'


@pytest.fixture(scope="module", params=["serve", "node"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: Files
) -> Iterator[Server]:
    flags = ("--allowed-origins", ALLOWED, "--grpc-port", "0")
    if request.param == "serve":
        with running_server(tmp_path_factory.mktemp("pages") / "state", *flags) as server:
            server.create_model(MODEL)
            server.create_version(f"{MODEL}/versions/v1", deploymentUri=str(files.root / "sklearn"))
            yield server
    else:
        with running_node(files.root / "sklearn", *flags) as server:
            until(lambda: server.call("GET", "/readyz").status == 200, "it is ready")
            yield server


def paths(server: Server) -> tuple[tuple[str, str], ...]:
    return (*BOTH, *GATEWAY) if is_gateway(server) else BOTH


def is_gateway(server: Server) -> bool:
    return (server.state_dir / "state.db").exists()


@pytest.mark.parametrize(("headers", "setting"), ATTACKS)
def test_pages_of_others_are_refused_everywhere(
    server: Server, headers: Mapping[str, str], setting: str
) -> None:
    """With 403 that names the setting, with nothing that lets them read it, twice on a connection."""
    for _ in range(2):
        for method, path in paths(server):
            answer = server.http.request(
                method, server.url + path, content=BODY, headers={"content-type": "text/plain", **headers}
            )
            assert answer.status_code == 403, (method, path, answer.text)
            assert f"(setting {setting})" in answer.text
            assert ("x-request-id" in answer.headers) == is_gateway(server)
            assert "access-control-allow-origin" not in answer.headers
    if is_gateway(server):
        (model,) = server.call("GET", "projects/local/models").json["models"]
        assert model["name"] == MODEL


@pytest.mark.parametrize(("headers", "setting"), ATTACKS)
def test_pages_of_others_change_nothing_in_other_ways(
    server: Server, headers: Mapping[str, str], setting: str
) -> None:
    """By a verb in a header, or by a part of a batch, whose own headers count for nothing."""
    if not is_gateway(server):
        pytest.skip("a node alone has nothing that can be changed")
    part = f"DELETE /v1/{MODEL}/versions/v1 HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: none\r\n\r\n"
    batch = f"--b\r\nContent-Type: application/http\r\n\r\n{part}\r\n--b--"
    batched = {"content-type": "multipart/mixed; boundary=b"}
    attempts = [
        (f"/v1/{MODEL}/versions/v1", "", {"x-http-method-override": "DELETE"}),
        (f"/v1/{MODEL}?updateMask=description", "{}", {"x-http-method-override": "PATCH"}),
        (f"/v1/{MODEL}", "", {"x-http-method-override": "GET"}),
        ("/batch", batch, batched),
        ("/batch", batch, {**batched, "x-http-method-override": "POST"}),
    ]
    for path, content, more in attempts:
        answer = server.http.post(server.url + path, content=content, headers={**more, **headers})
        assert answer.status_code == 403, (path, answer.text)
        assert f"(setting {setting})" in answer.text
    assert server.call("GET", f"{MODEL}/versions/v1").json["state"] == "READY"


def test_others_are_answered(server: Server) -> None:
    """Who is no browser, pages of the server's own, and what is typed into the address bar."""
    port = server.url.rpartition(":")[2]
    own: tuple[dict[str, str], ...] = (
        {},
        {"host": f"localhost:{port}"},
        {"host": f"[::1]:{port}"},
        {"origin": server.url, "sec-fetch-site": "same-origin"},
        {"host": "localhost:1", "origin": "http://localhost:1"},
        {"sec-fetch-site": "none"},
    )
    for headers in own:
        assert server.predict(MODEL, [[1, 2, 3, 4]], headers).status == 200
        for path in ("/docs", "/openapi.json"):
            assert server.http.get(server.url + path, headers=headers).status_code == 200


def test_scripts_of_allowed_origins_read_answers(server: Server) -> None:
    """Predictions too, whose preflights are answered; others' are not."""
    asked = {
        "origin": ALLOWED,
        "sec-fetch-site": "cross-site",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,authorization",
    }
    for path in (f"{MODEL}:predict", "projects/local/models"):
        url = f"{server.url}/v1/{path}"
        preflight = server.http.options(url, headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ALLOWED
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert server.http.options(url, headers={**asked, "origin": "https://b.example"}).status_code == 403
    page = {"origin": ALLOWED, "sec-fetch-site": "cross-site"}
    for _ in range(2):
        answer = server.predict(MODEL, [[1, 2, 3, 4]], page)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ALLOWED)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert server.call("GET", "/healthz", headers=page).headers["access-control-allow-origin"] == ALLOWED
    for headers in ({}, {"origin": server.url}):
        assert "access-control-allow-origin" not in server.predict(MODEL, [[1, 2, 3, 4]], headers).headers


def test_a_head_that_was_read_before_is_no_way_around(server: Server) -> None:
    """What is remembered is remembered with its host and its origin."""
    body = json.dumps({"instances": [[1, 2, 3, 4]]})
    good = server.url.removeprefix("http://")
    for host, status in ((good, 200), (good, 200), ("evil.example", 403), ("evil.example", 403), (good, 200)):
        answer = server.http.post(f"{server.url}/v1/{MODEL}:predict", content=body, headers={"host": host})
        assert answer.status_code == status


def test_a_websocket_is_refused_in_one_answer(server: Server) -> None:
    """Its page would not even learn why."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"GET /docs HTTP/1.1\r\nhost: %b:%b\r\norigin: http://evil.example\r\nconnection: Upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            % (host.encode(), port.encode())
        )
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.count(b"HTTP/1.1 ") == 2
    assert received.startswith(b"HTTP/1.1 403 ")


def test_over_grpc_pages_are_refused_as_well(server: Server) -> None:
    """In every service: what is no browser sends no origin."""
    with grpc.insecure_channel(server.grpc) as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        for call in (health, live):
            assert call(b"") is not None
            for metadata in (("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")):
                with pytest.raises(grpc.RpcError) as told:
                    call(b"", metadata=(metadata,))
                assert told.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "(setting allowed_origins)" in told.value.details()


def test_with_access_control_a_page_needs_a_token_as_all_do(tmp_path: Path) -> None:
    """Its origin and the host do not matter."""
    with running_server(tmp_path / "state", "--access", "on", "--allowed-origins", ALLOWED) as server:
        for headers in ({"host": "ml.example"}, {"origin": "http://evil.example"}):
            assert server.call("GET", "projects/local/models", headers=headers).status == 401
            assert server.call("GET", "/healthz", headers=headers).status == 200
        preflight = server.http.options(
            f"{server.url}/v1/{MODEL}:predict",
            headers={"origin": ALLOWED, "access-control-request-method": "POST"},
        )
        assert preflight.headers["access-control-allow-origin"] == ALLOWED


def test_a_wrong_setting_is_told_at_the_start(tmp_path: Path) -> None:
    """In the words of the setting."""
    with (
        pytest.raises(AssertionError, match=r"allowed_origins: 'app[.]example' is no origin"),
        running_server(tmp_path / "state", "--allowed-origins", "app.example"),
    ):
        pass


def test_what_is_refused_is_counted(server: Server) -> None:
    """Over HTTP, in the metrics of the gateway."""
    if not is_gateway(server):
        pytest.skip("a node alone has no metrics")

    def refused() -> float:
        lines = server.http.get(f"{server.url}/metrics").text.splitlines()
        name = 'pilotlight_refused_connections_total{reason="cross_origin"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = refused()
    answer = server.http.get(f"{server.url}/healthz", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert refused() == before + 1
