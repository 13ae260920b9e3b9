"""Whatever a client sends, it gets a sentence that says what to do, and the node lives on."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end import models
from tests.end_to_end.conftest import MAX_BODY, ZOO
from tests.server import Server

Operations = dict[str, dict[str, Any]]

ROW = models.data()[0][0].tolist()
GOOD: dict[str, Any] = {
    "sklearn": [ROW],
    "xgboost": [ROW],
    "tensorflow": [[1, 2]],
    "routine": [1],
    "pipeline": [ROW],
}
DEEP = b'{"instances": ' + b"[" * 5000 + b"]" * 5000 + b"}"


def instances(value: Any, **more: Any) -> bytes:
    return json.dumps({"instances": value, **more}).encode()


# What is sent to which kinds of model, and what the answer must say.
EVERYWHERE: list[tuple[str, bytes, str]] = [
    ("an empty body", b"", "body is empty. Send"),
    ("no JSON", b'{"instances": [1', "not valid JSON: .* at line 1"),
    ("no object", b"[[1, 2, 3, 4]]", "must be a JSON object"),
    ("no instances", b'{"rows": [[1]]}', 'no "instances". Send'),
    ("instances that are no list", b'{"instances": {"x": 1}}', '"instances" must be a list'),
    ("an empty list", b'{"instances": []}', "empty list"),
    ("a NaN", b'{"instances": [[NaN, 1, 2, 3]]}', "send null"),
    ("an Infinity", b'{"instances": [[1, 2, 3, -Infinity]]}', "send null"),
    ("lists 5,000 deep", DEEP, "nested too deeply"),
    ("bytes that are no text", b'{"instances": ["\xff"]}', "not valid JSON"),
    ("a number no float can hold", b'{"instances": [[1e999, 2, 3, 4]]}', "not valid JSON|[Ii]nstance"),
]
ARRAYS: list[tuple[str, bytes, str]] = [
    ("ragged rows", instances([ROW, ROW[:3]]), r"Instance 1 .*3.*4|Instance 1 .*4.*3"),
    ("a narrow row", instances([ROW[:3]]), r"3.*expects 4|expected 4.*3"),
    ("a wide row", instances([[*ROW, 1.0]]), r"5.*expects 4|expected 4.*5"),
    ("many wide rows", instances([[*ROW, 1.0]] * 200), r"5.*expects 4|expected 4.*5"),
    ("text for a number", instances([["a", *ROW[1:]]]), r"[Ii]nstance 0.*(text|string)"),
    ("a scalar for a row", instances([1.0]), r"[Ii]nstance 0.*number"),
    ("a cube", instances([[ROW]]), r"[Ii]nstance 0"),
    ("an object for a row", instances([{"a": 1}]), r"[Ii]nstance 0.*object"),
    ("a parameter that is not there", instances([ROW], colour="red"), "'colour'"),
]
TENSORS: list[tuple[str, bytes, str]] = [
    ("ragged rows", instances([[1, 2], [1]]), r"1"),
    ("a wide row", instances([[1, 2, 3]]), r"3.*2|2.*3"),
    ("text for a number", instances([["a", 1]]), r"x"),
    ("an unknown tensor", instances([{"y": [1, 2]}]), r"x.*y"),
    ("an unknown signature", instances([[1, 2]], signature_name="no"), "No signature found .*no"),
    ("an unknown one of two", instances([{"n": 1, "s": "a", "t": 1}], signature_name="pair"), "t"),
    ("one of two missing", instances([{"n": 1}], signature_name="pair"), "s"),
    ("a missing one later", instances([{"n": 1, "s": ""}, {"n": 1}], signature_name="pair"), "s.*missing"),
    ("bad base64", instances([{"n": 1, "s": {"b64": "a"}}], signature_name="pair"), "base64"),
    ("base64 that is no text", instances([{"n": 1, "s": {"b64": 5}}], signature_name="pair"), "base64|b64"),
]
CASES = [
    *((kind, *case) for kind in GOOD for case in EVERYWHERE if kind != "routine" or "1e999" not in str(case)),
    *((kind, *case) for kind in ("sklearn", "xgboost") for case in ARRAYS),
    *(("tensorflow", *case) for case in TENSORS),
]


@pytest.fixture(scope="module")
def steady(server: Server, zoo: Operations) -> Iterator[None]:
    """None of the tests may cost a node."""
    before = server.nodes()
    yield
    assert server.nodes() == before


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [(kind, body, says) for kind, _, body, says in CASES],
    ids=[f"{kind}-{title}" for kind, title, _, _ in CASES],
)
def test_bad_input(server: Server, steady: None, kind: str, body: bytes, says: str) -> None:
    """400, Google's form, the contract's category, what is wrong; the next request is answered."""
    name = f"{ZOO}/versions/{kind}"

    reply = server.call("POST", f"{name}:predict", content=body)

    assert (reply.status, reply.error["status"]) == (400, "INVALID_ARGUMENT"), reply.json
    assert reply.error["message"].startswith("Invalid inputs: ")
    assert re.search(says, reply.error["message"], re.DOTALL), reply.error["message"]
    assert server.predict(name, GOOD[kind]).status == 200


def test_a_failing_routine_is_the_models_fault(server: Server, steady: None) -> None:
    """500 with what it raised, so that its owner can see it."""
    reply = server.predict(f"{ZOO}/versions/routine", ["raise no such luck"])

    assert (reply.status, reply.error["status"]) == (500, "INTERNAL")
    assert reply.error["message"] == (
        "Failed to run the provided model: Exception during custom prediction: RuntimeError: no such luck "
        "(Error code: 2)"
    )
    assert server.predict(f"{ZOO}/versions/routine", [1]).status == 200


def test_a_body_over_the_limit_is_refused(server: Server, steady: None) -> None:
    """413 that names the setting, whether or not the client says beforehand how long the body is."""
    name = f"{ZOO}/versions/sklearn:predict"
    body = instances([ROW] * (MAX_BODY // len(f"{ROW}, ") - 1))
    body += b" " * (MAX_BODY - len(body))

    def parts(count: int) -> Iterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]
        yield b" " * count

    assert server.call("POST", name, content=body).status == 200
    assert server.call("POST", name, content=parts(0)).status == 200
    for content in (body + b" ", parts(1)):
        reply = server.call("POST", name, content=content)
        assert (reply.status, reply.error["status"]) == (413, "INVALID_ARGUMENT")
        assert str(MAX_BODY) in reply.error["message"]
        assert "max_body_bytes" in reply.error["message"]
    assert server.predict(f"{ZOO}/versions/sklearn", [ROW]).status == 200


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan"])
def test_a_timeout_that_is_none_is_refused(server: Server, steady: None, value: str) -> None:
    """The header takes a number of seconds."""
    reply = server.predict(f"{ZOO}/versions/sklearn", [ROW], {"X-Request-Timeout": value})

    assert (reply.status, reply.error["status"]) == (400, "INVALID_ARGUMENT")
    assert "X-Request-Timeout" in reply.error["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/x:predict HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"POST /v1/x:predict HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/x:predict HTTP/1.1\r\ncontent-length: 100\r\n\r\n{",
    ],
    ids=["no HTTP", "a length that is no number", "a chunk that is none", "half a body"],
)
def test_what_is_no_request_ends_the_connection_alone(server: Server, steady: None, sent: bytes) -> None:
    """The server answers others as before."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1 << 16)

    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert server.predict(f"{ZOO}/versions/sklearn", [ROW]).status == 200
