"""Google's clients besides the one that has the document packaged, and what they send, on real servers."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import models
from tests.server import Server, running_node, running_server, until

ROWS = models.data()[0][:3].tolist()
ZOO = "projects/tests/models/zoo"
SKLEARN = f"{ZOO}/versions/sklearn"
MAX_BODY = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("google")


@pytest.fixture(scope="module")
def estimator(folder: Path) -> Any:
    """What the answers of the model must be."""
    return models.write_sklearn(folder / "sklearn")


@pytest.fixture(scope="module")
def server(folder: Path, estimator: Any) -> Iterator[Server]:
    """A server with one model of three versions."""
    flags = ("--max-body-bytes", str(MAX_BODY), "--default-project", "tests")
    with running_server(folder / "state", *flags) as server:
        server.create_model(ZOO)
        for version in ("sklearn", "two", "three"):
            server.create_version(f"{ZOO}/versions/{version}", deploymentUri=str(folder / "sklearn"))
        yield server


@pytest.fixture(scope="module")
def node(folder: Path, estimator: Any) -> Iterator[Server]:
    with running_node(folder / "sklearn") as node:
        until(lambda: node.http.get(f"{node.url}/readyz").status_code == 200, "the node is ready")
        yield node


@pytest.fixture(scope="module")
def built(server: Server) -> Iterator[Any]:
    """A client built from what the server says of itself, as Google's notebooks do; no credentials."""
    from googleapiclient.discovery import build

    url = f"{server.url}/$discovery/rest?version=v1"
    with build("ml", "v1", discoveryServiceUrl=url, cache_discovery=False) as client:
        yield client


def exchange(server: Server, data: bytes) -> tuple[int, Any]:
    """What one request, byte for byte, is answered with."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(data)
        with http.client.HTTPResponse(client) as response:
            response.begin()
            return response.status, json.loads(response.read())


def java(line: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """As google-api-services-ml 1.31 for Java sends it: packed and in chunks, whatever it is."""
    lines = [
        f"POST {line} HTTP/1.1",
        "Accept-Encoding: gzip",
        "User-Agent: t Google-API-Java-Client/1.31.1 Google-HTTP-Java-Client/1.38.0 (gzip)",
        *headers,
        "x-goog-api-client: gl-java/17.0.15 gdcl/1.31.1 linux/6.18.44",
        f"Content-Type: {kind}; charset=UTF-8",
        "Content-Encoding: gzip",
        "Host: 127.0.0.1:28472",
        "Accept: text/html, image/gif, image/jpeg, */*; q=0.2",
        "Connection: keep-alive",
        "Transfer-Encoding: chunked",
    ]
    packed = gzip.compress(body)
    chunks = b"f\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (packed[:15], len(packed) - 15, packed[15:])
    return "\r\n".join([*lines, "", ""]).encode() + chunks


def test_what_java_sends_is_answered(server: Server, estimator: Any) -> None:
    """It packs every body, sends PATCH as a POST, and a long query as a packed body."""
    name = "projects/tests/models/java"
    body = {"instances": ROWS}

    made = exchange(server, java("/v1/projects/tests/models", b'{"description":"d","name":"java"}'))
    patch = java(
        f"/v1/{name}?updateMask=description", b'{"description":"e"}', "x-http-method-override: PATCH"
    )
    patched = exchange(server, patch)
    query = "filter=name%3Ajava" + "%20OR%20name%3A" + "a" * 2048
    form = "application/x-www-form-urlencoded"
    get = java("/v1/projects/tests/models", query.encode(), "x-http-method-override: GET", kind=form)
    listed = exchange(server, get)
    predicted = exchange(server, java(f"/v1/{SKLEARN}:predict", json.dumps(body).encode()))
    server.delete(name)

    assert made[1]["name"] == patched[1]["response"]["name"] == name
    assert patched[1]["response"]["description"] == "e"
    assert [model["name"] for model in listed[1]["models"]] == [name]
    assert predicted == (200, {"predictions": estimator.predict(ROWS).tolist()})


def test_packed_bodies_are_read_in_every_protocol(server: Server, node: Server) -> None:
    """By the gateway and by a node alone, in both encodings."""
    rows = json.dumps({"instances": ROWS}).encode()
    tensor = {"name": "x", "shape": [3, len(ROWS[0])], "datatype": "FP64", "data": ROWS}
    infer = json.dumps({"inputs": [tensor]}).encode()
    paths = {
        f"/v1/{SKLEARN}:predict": rows,
        "/v1/models/zoo/versions/sklearn:predict": rows,
        f"/v2/models/{SKLEARN}/infer": infer,
    }
    for one in (server, node):
        for path, body in paths.items():
            plain = one.call("POST", path, content=body)
            assert plain.status == 200, plain.json
            for encoding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
                headers = {"content-encoding": encoding}
                packed = one.call("POST", path, content=pack(body), headers=headers)
                assert packed.json == plain.json
            unknown = one.call("POST", path, content=body, headers={"content-encoding": "br"})
            assert (unknown.status, unknown.headers["accept-encoding"]) == (415, "gzip, deflate")
            get = one.call("POST", path, content=body, headers={"x-http-method-override": "GET"})
            assert get.status in (400, 405)  # TensorFlow Serving has 400 for all that is none of its calls
    bomb = gzip.compress(rows + b" " * MAX_BODY)
    assert server.call(
        "POST", f"{SKLEARN}:predict", content=bomb, headers={"content-encoding": "gzip"}
    ).status == 413  # fmt: skip


def test_a_client_is_built_from_the_server(built: Any, estimator: Any) -> None:
    """It asks for nothing else than the packaged document's, pages and partial answers included."""
    found = built.projects().models().get(name=ZOO, fields="name,defaultVersion/state").execute()
    predicted = built.projects().predict(name=SKLEARN, body={"instances": ROWS}).execute()
    versions, names = built.projects().models().versions(), []
    request = versions.list(parent=ZOO, pageSize=2)
    while request is not None:
        answer = request.execute()
        names += [version["name"] for version in answer["versions"]]
        request = versions.list_next(request, answer)

    assert found == {"name": ZOO, "defaultVersion": {"state": "READY"}}
    assert predicted == {"predictions": estimator.predict(ROWS).tolist()}
    assert [name.rpartition("/")[2] for name in names] == ["sklearn", "three", "two"]


def test_its_long_queries_and_batches_are_answered(built: Any) -> None:
    """A GET of over 2,048 characters is sent as a POST; a batch keeps the order of its answers."""
    models, answers = built.projects().models(), dict[str, Any]()
    long = " OR ".join(["name:zoo", *(f"name:{'absent' * 10}{number}" for number in range(50))])

    def note(number: str, answer: Any, error: Any) -> None:
        answers[number] = answer if error is None else error.resp.status

    batch = built.new_batch_http_request(callback=note)
    batch.add(models.get(name=ZOO, fields="name"))
    batch.add(models.get(name="projects/tests/models/absent"))
    batch.add(built.projects().predict(name=SKLEARN, body={"instances": ROWS[:1]}))
    batch.add(models.list(parent="projects/tests", filter="name:zoo", fields="models/name"))
    batch.execute()

    listed = models.list(parent="projects/tests", filter=long, fields="models/name").execute()
    assert listed == {"models": [{"name": ZOO}]} == answers["4"]
    assert answers["1"] == {"name": ZOO}
    assert answers["2"] == 404
    assert len(answers["3"]["predictions"]) == 1


def test_the_document_is_of_whoever_asks(server: Server) -> None:
    """Its root is the address that the caller has used, and nobody else gets to see that."""

    def root(**headers: str) -> tuple[int, Any]:
        reply = server.call("GET", "/discovery/v1/apis/ml/v1/rest", headers=headers)
        assert reply.status != 200 or "no-store" in reply.headers["cache-control"]
        return reply.status, reply.json.get("rootUrl")

    listed = server.call("GET", "/discovery/v1/apis").json["items"]
    port = server.url.rpartition(":")[2]
    assert [item["discoveryRestUrl"] for item in listed] == [f"{server.url}/discovery/v1/apis/ml/v1/rest"]
    assert root() == (200, f"{server.url}/")
    assert root(host=f"LocalHost:{port}") == (200, f"http://localhost:{port}/")
    assert root(**{"x-forwarded-proto": "https"}) == (200, f"https://127.0.0.1:{port}/")
    assert root(host='evil.example/"')[0] in (400, 403)
    for other in ("/discovery/v1/apis/storage/v1/rest", "/$discovery/rest?version=v2"):
        assert server.call("GET", other).status == 404
