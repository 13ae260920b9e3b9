"""The page of a model: its versions, its default, its labels and its end."""

from __future__ import annotations

from html import unescape
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from serving.model_schema import TensorSpec
from tests.serving.gateway.console.pages.test_versions import MODEL, store_ready_version
from tests.serving.gateway.console.world import World, run, visible_text

PAGE = "/projects/p/models/m"
NUMBER = TensorSpec("n", "FP32", (-1,))
ANN = "user:ann@example.com"


def test_another_version_becomes_the_default(tmp_path: Path) -> None:
    store_ready_version(tmp_path, NUMBER)
    store_ready_version(tmp_path, NUMBER, version="v2")

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(PAGE)
            assert "Make v2 the default" in page
            assert "Make v1 the default" not in page
            assert "It can be deleted once it has no version." in page
            assert f'href="/console{PAGE}/versions/v2"' in page
            page = await browser.post(f"{PAGE}/default", {"version": "v2"})
            assert "v2 is the default version." in page
            assert "Make v1 the default" in await browser.open(f"{PAGE}/version-list")
            assert f'href="/console{PAGE}"' in await browser.open(f"{PAGE}/versions/v1")
        model = (await world.api.client.get(MODEL)).json()
        assert model["defaultVersion"]["name"].endswith("/v2")

    run(tmp_path, main)


def test_labels_are_changed_by_form(tmp_path: Path) -> None:
    """Unless somebody else has changed the model since; what others wrote is text."""

    async def main(world: World) -> None:
        await world.api.client.post("/v1/projects/p/models", json={"name": "m", "description": "<b>old"})
        async with world.browser() as browser:

            async def change(status: int = 200, **changed: str) -> str:
                page = await browser.open(PAGE)
                assert "<b>" not in page
                etag = unescape(page.partition('name="etag" value="')[2].partition('"')[0])
                fields = {"description": "<b>new", "labels": "team=ads", "etag": etag, **changed}
                return await browser.post(f"{PAGE}/settings", fields, status)

            assert "The model is changed." in await change()
            model = (await world.api.client.get(MODEL)).json()
            assert (model["labels"], model["description"]) == ({"team": "ads"}, "<b>new")
            assert "is no label" in visible_text(await change(400, labels="team"))
            assert "etag" in visible_text(await change(409, etag="b2xk")).lower()

    run(tmp_path, main)


def test_a_model_without_versions_is_found_and_deleted(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.client.post("/v1/projects/p/models", json={"name": "m"})
        async with world.browser() as browser:
            assert f'Models without a version: <a href="/console{PAGE}">m</a>' in await browser.open("/")
            assert "Delete the model" in await browser.open(PAGE)
            assert "The model m is deleted." in await browser.post(f"{PAGE}/deletion", {})
            assert "Models without a version" not in await browser.open("/")
            await browser.open(PAGE, 404)

    run(tmp_path, main)


def test_a_viewer_is_offered_no_change(tmp_path: Path) -> None:
    store_ready_version(tmp_path, NUMBER)
    store_ready_version(tmp_path, NUMBER, version="v2")

    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer=ANN)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ANN))
            page = await browser.open(PAGE)
            assert "v2" in page
            assert "the default</button>" not in page
            assert "<h2>Change it</h2>" not in page
            await browser.post(f"{PAGE}/default", {"version": "v2"}, 403)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            assert "the default</button>" in await browser.open(PAGE)

    run(tmp_path, main, access="on")
