"""A node in a container of Vertex AI: found by its variables alone, over the routes that they name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xgboost

from serving.config import PredictSettings
from serving.errors import InvalidInputs
from serving.node.app import ServingNode
from serving.node.codecs.vertex import merge_parameters
from serving.node.standalone.routes import create_app
from serving.runtimes import LoadSpec
from tests.server import Server, running

ROWS = np.random.default_rng(0).normal(size=(50, 4)).round(3)
DEFAULT = "/v1/endpoints/7/deployedModels/8"


@pytest.fixture(scope="module")
def booster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xgboost.Booster]:
    """A classifier, and its folder."""
    folder = tmp_path_factory.mktemp("container") / "model"
    folder.mkdir()
    data = xgboost.DMatrix(ROWS, (ROWS[:, 0] > 0).astype(int))
    trained = xgboost.train({"objective": "binary:logistic", "base_score": 0.5}, data, 5)
    trained.save_model(folder / "model.ubj")
    return folder, trained


@pytest.fixture(scope="module")
def container(booster: tuple[Path, xgboost.Booster]) -> Iterator[Server]:
    """A node that was told nothing but by its platform; the port 0 is any."""
    folder, _ = booster
    platform = {
        "AIP_HTTP_PORT": "0",
        "AIP_HEALTH_ROUTE": DEFAULT,
        "AIP_PREDICT_ROUTE": f"{DEFAULT}:predict",
        "AIP_STORAGE_URI": str(folder),
    }
    with running(("node",), folder, platform) as server:
        yield server


def test_it_listens_on_every_interface(container: Server) -> None:
    """Its platform connects from outside."""
    assert container.url.startswith("http://0.0.0.0:")


def test_its_health_is_at_the_route_of_the_platform(container: Server) -> None:
    """200 once it is ready, which is when it has told its address."""
    assert container.call("GET", DEFAULT).status == 200
    assert container.call("POST", DEFAULT).status == 405


@pytest.mark.parametrize("route", ["/ping", "/healthz"])
def test_its_health_is_bad_until_it_is_ready(route: str, tmp_path: Path) -> None:
    """Whatever else may be at the route: that the process lives is not what its platform asks."""
    node = ServingNode(
        LoadSpec(tmp_path),
        PredictSettings(),
        marks=bytearray(),
        waking=False,
        on_ready=lambda _: None,
        on_failed=lambda _: None,
    )
    transport = httpx.ASGITransport(create_app(node, route))

    async def ask() -> int:
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return (await client.get(route)).status_code

    assert asyncio.run(ask()) == 503


@pytest.mark.parametrize("body", [{}, {"parameters": {}}, {"parameters": None}])
def test_it_predicts_at_the_route_of_the_platform(
    container: Server, booster: tuple[Path, xgboost.Booster], body: dict[str, Any]
) -> None:
    """With and without parameters."""
    reply = container.call("POST", f"{DEFAULT}:predict", json={"instances": ROWS[:3].tolist(), **body})

    assert reply.status == 200
    assert reply.json == {
        "predictions": [pytest.approx(one) for one in booster[1].predict(xgboost.DMatrix(ROWS[:3]))]
    }


@pytest.mark.parametrize("body", [{"parameters": {"output_margin": True}}, {"output_margin": True}])
def test_parameters_are_arguments(
    container: Server, booster: tuple[Path, xgboost.Booster], body: dict[str, Any]
) -> None:
    """In their object, as Vertex AI has them, or beside the instances, as AI Platform had them."""
    reply = container.call("POST", f"{DEFAULT}:predict", json={"instances": ROWS[:1].tolist(), **body})

    margin = booster[1].predict(xgboost.DMatrix(ROWS[:1]), output_margin=True)
    assert reply.json == {"predictions": [pytest.approx(margin[0])]}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"instances": [[0, 0, 0, 0]], "parameters": [1]}, '"parameters" must be an object'),
        ({"parameters": {}}, 'no "instances"'),
        ({"instances": [[0, 0, 0, 0]], "parameters": {"sharpness": 1}}, "sharpness"),
    ],
)
def test_what_is_wrong_is_said(container: Server, body: dict[str, Any], problem: str) -> None:
    """As on AI Platform's own route."""
    reply = container.call("POST", f"{DEFAULT}:predict", json=body)

    assert reply.status == 400
    assert problem in reply.error["message"]


def test_the_other_routes_are_there_as_ever(container: Server) -> None:
    """Among them AI Platform's, where parameters are an argument of that name."""
    body = {"instances": [[0, 0, 0, 0]], "parameters": {"output_margin": True}}

    assert container.call("GET", "/healthz").status == 200
    assert container.call("POST", "/v1/projects/p/models/m:predict", json=body).status == 400
    assert container.call("POST", "/v1/endpoints/1:predict", json=body).status == 404


def test_an_argument_is_given_once() -> None:
    """Whichever was meant, the other was not."""
    assert merge_parameters({"a": 1}) == {"a": 1}
    assert merge_parameters({"a": 1, "parameters": {"b": 2}}) == {"a": 1, "b": 2}
    with pytest.raises(InvalidInputs, match='are both in "parameters" and at the top level'):
        merge_parameters({"a": 1, "parameters": {"a": 2}})
