"""The client, on servers that misbehave, and on none."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from serving.cli.api_client import ApiClient, ServerUnreachable, parse_rpc_status
from serving.config import ClientConfig
from serving.errors import DeadlineExceeded, Internal, InvalidArgument, NotFound, ServingError
from tests.serving.cli.conftest import Run


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that gives the same answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, b'{"error": {"code": 404, "status": "NOT_FOUND", "message": "none"}}', NotFound, "none"),
        (400, b'{"error": {"code": 400, "status": "NEW_ONE", "message": "hm"}}', Internal, "hm"),
        (200, b'{"error": "Prediction failed: hm"}', Internal, "Prediction failed: hm"),
        (502, b"<html>Bad Gateway</html>", Internal, "status 502"),
        (200, b"hello", Internal, "Is a Pilotlight server there?"),
        (200, b"[]", Internal, "Is a Pilotlight server there?"),
        (302, b"", Internal, "status 302"),
        (500, b"{}", Internal, "status 500"),
    ],
)
def test_answers_that_are_errors(status: int, body: bytes, kind: type[ServingError], message: str) -> None:
    """Whatever a server says, it becomes a typed error with its message."""
    with (
        answering(status, body) as url,
        ApiClient(ClientConfig(server=url)) as client,
        pytest.raises(kind, match=re.escape(message)),
    ):
        client.call("GET", "projects/p/models")


def test_a_model_error_with_status_200(offline: Run) -> None:
    """The old form of a model's error is an error of the command."""
    with answering(200, b'{"error": "Prediction failed: hm"}') as url:
        result = offline(f"predict --model m --server {url} --text-instances -", "a\n")

    assert (result.code, result.out, result.err) == (1, "", "ERROR: Prediction failed: hm\n")


def test_a_silent_server() -> None:
    """A call ends after its time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = ClientConfig(server=f"http://127.0.0.1:{listener.getsockname()[1]}")
        with (
            ApiClient(config) as client,
            pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.1 s"),
        ):
            client.call("GET", "projects/p/models", timeout=0.1)


@pytest.mark.parametrize(
    "line",
    [
        "models list",
        "versions describe v --model m",
        "predict --model m --text-instances -",
        "operations list",
    ],
)
def test_no_server(offline: Run, line: str) -> None:
    """The exit code is 3; the message names the address and how to start a server there."""
    result = offline(line, "text\n")

    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("ERROR: The server at http://127.0.0.1:9 cannot be reached")
    assert "pilotlight serve" in result.err


@pytest.mark.parametrize("server", ["nonsense", "ftp://host", "http://", "http://host:port"])
def test_addresses_that_are_none(server: str) -> None:
    """What cannot be an address is told as such."""
    with (
        ApiClient(ClientConfig(server=server)) as client,
        pytest.raises((InvalidArgument, ServerUnreachable)),
    ):
        client.call("GET", "projects/p/models")


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the environment is for other machines."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with answering(200, b'{"fine": 1}') as url, ApiClient(ClientConfig(server=url)) as client:
        assert client.call("GET", "projects/p") == {"fine": 1}


def test_errors_of_operations() -> None:
    """A google.rpc.Status becomes the error of its code."""
    assert isinstance(parse_rpc_status({"code": 5, "message": "none"}), NotFound)
    assert parse_rpc_status({"code": 5, "message": "none"}).message == "none"
    assert isinstance(parse_rpc_status({"code": 99}), Internal)
