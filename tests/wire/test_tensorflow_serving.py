"""Every form of request and answer in the documentation of TensorFlow Serving's REST API, as files.

A file has exchanges: what they show, the request, and the answer. All are made with a node alone and through
the gateway; those in the folder `gateway` only there, since a node alone has no other models and versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.server import Server, running_node, running_server, until
from tests.wire import saved_model

FOLDER = Path(__file__).parent / "tensorflow_serving"


class Exchange(NamedTuple):
    """What a client sends, and the answer; `body` is "" for none."""

    method: str
    path: str
    body: str
    status: int
    answer: str


def exchanges(folder: Path) -> Iterator[Any]:
    """Those of the files of a folder, each named by its file and by what it shows."""
    for file in sorted(folder.glob("*.http")):
        for text in file.read_text().split("\n---\n"):
            title, request, *body, status, answer = text.strip().split("\n\n")
            method, path = request.split()
            exchange = Exchange(method, path, "".join(body), int(status), answer)
            yield pytest.param(exchange, id=f"{file.stem}: {title}")


EVERYWHERE = list(exchanges(FOLDER))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half_plus_three") / "model"
    saved_model.write(folder)
    return folder


@pytest.fixture(scope="module")
def node(model: Path) -> Iterator[Server]:
    with running_node(model) as server:
        until(lambda: server.call("GET", "/readyz").status == 200, "the model is loaded")
        yield server


@pytest.fixture(scope="module")
def gateway(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the model and its version 123, to which the label `stable` points."""
    with running_server(tmp_path_factory.mktemp("gateway") / "state") as server:
        server.create_model("projects/local/models/half_plus_three", description="y = x / 2 + 3")
        server.create_version(
            "projects/local/models/half_plus_three/versions/v123",
            deploymentUri=model.as_uri(),
            framework="TENSORFLOW",
            labels={"stable": "on"},
        )
        yield server


def check(server: Server, exchange: Exchange) -> None:
    body = exchange.body.encode() or None
    reply = server.http.request(exchange.method, server.url + exchange.path, content=body)

    # Of the other protocols some exchanges show how what these cannot ask is asked.
    kind = "application/json" if exchange.path.startswith("/v1/models") else "application/json; charset=utf-8"
    assert (reply.status_code, reply.headers["content-type"]) == (exchange.status, kind)
    assert spelt(reply.text) == spelt(exchange.answer)


def spelt(text: str) -> str:
    """JSON in one way of writing it, words for what is no number among it; decimals stay what they are."""
    return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)


@pytest.mark.parametrize("exchange", EVERYWHERE)
def test_a_node_alone_answers_as_documented(node: Server, exchange: Exchange) -> None:
    check(node, exchange)


@pytest.mark.parametrize("exchange", [*EVERYWHERE, *exchanges(FOLDER / "gateway")])
def test_the_gateway_answers_as_documented(gateway: Server, exchange: Exchange) -> None:
    check(gateway, exchange)


@pytest.mark.parametrize("version", ["", "/labels/stable"])
def test_metadata_is_that_of_the_version_that_answers(gateway: Server, version: str) -> None:
    """By its label, or as the default one: what its own number is answered with."""
    told, known = (
        gateway.http.get(f"{gateway.url}/v1/models/half_plus_three{named}/metadata")
        for named in (version, "/versions/123")
    )

    assert (told.status_code, told.json()) == (200, known.json())
