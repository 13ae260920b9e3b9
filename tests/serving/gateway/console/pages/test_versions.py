"""The page of a version, on a gateway that cannot serve it; a real one is in test_console_pages."""

from __future__ import annotations

import asyncio
import base64
from html import unescape
from pathlib import Path

from serving.gateway.console.prediction_form.file_inputs import MAX_FILE_BYTES
from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature, TensorSpec, pack_schema
from serving.names import VersionName
from serving.resources import Model, Version, VersionState
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.console.world import World, run, visible_text

MODEL = "/v1/projects/p/models/m"
PAGE = "/projects/p/models/m/versions/v1"


async def create_failed_version(world: World, folder: Path) -> None:
    await world.api.client.post("/v1/projects/p/models", json={"name": "m"})
    await world.api.client.post(f"{MODEL}/versions", json={"name": "v1", "deploymentUri": str(folder)})
    async with asyncio.timeout(HANG_SECONDS):
        while not await has_failed(world):  # noqa: ASYNC110  another process changes it
            await asyncio.sleep(0.05)


def store_ready_version(
    folder: Path,
    *inputs: TensorSpec,
    version: str = "v1",
    platform: str = "tensorflow_savedmodel",
    strict: bool = True,
) -> None:
    """A version with these inputs, as if it had been deployed; no node of it can start. v1 is the default."""
    name = VersionName("p", "m", version)
    signature = ModelSignature(inputs, (TensorSpec("label", "INT64", (-1,)),))
    schema = ModelSchema(platform, {DEFAULT_SIGNATURE: signature}, strict=strict)
    record = VersionRecord(
        name=name,
        uid=version,
        version=Version(name=str(name), state=VersionState.READY, deployment_uri="/nowhere"),
        deployed=DeploymentInfo(model_dir="/nowhere", framework="TENSORFLOW", schema=pack_schema(schema)),
    )
    model = ModelRecord(name=name.parent, model=Model(name=str(name.parent)), default="v1")
    store = SqliteStore(folder / "state.db")
    store.commit({("models", str(name.parent)): model, ("versions", str(name)): record})
    store.close()


async def has_failed(world: World) -> bool:
    version = (await world.api.client.get(f"{MODEL}/versions/v1")).json()
    return bool(version["state"] == "FAILED")


def test_a_failed_version_says_why_and_refuses_predictions(tmp_path: Path) -> None:
    folder = tmp_path / "<b>empty"

    async def main(world: World) -> None:
        await create_failed_version(world, folder)
        async with world.browser() as browser:
            page = await browser.open(PAGE)
            assert "failed" in visible_text(page)
            assert "<b>empty" not in page
            page = await browser.post(f"{PAGE}/predictions", {"request": '{"instances": [1]} <i>'})
            assert "<i>" not in page
            assert "HTTP 4" in visible_text(page)
            page = await browser.post(f"{PAGE}/deletion", {})
            assert "deletion of the version was begun" in page

    folder.mkdir()
    (tmp_path / "state").mkdir()
    run(tmp_path / "state", main)


def test_scaling_and_labels_are_changed_by_form(tmp_path: Path) -> None:
    """What is not in the form stays; a number that is none is said."""
    folder = tmp_path / "model"
    fields = {"scaling": "automatic", "maxNodes": "3", "labels": "team=ads", "description": "d"}

    async def main(world: World) -> None:
        await create_failed_version(world, folder)
        async with world.browser() as browser:

            async def change(status: int = 200, **changed: str) -> str:
                page = await browser.open(PAGE)
                etag = unescape(page.partition('name="etag" value="')[2].partition('"')[0])
                return await browser.post(f"{PAGE}/settings", {**fields, "etag": etag, **changed}, status)

            assert "The version is changed." in await change()
            version = (await world.api.client.get(f"{MODEL}/versions/v1")).json()
            assert version["autoScaling"] == {"maxNodes": 3}
            assert (version["labels"], version["description"]) == ({"team": "ads"}, "d")
            await change(scaling="manual", nodes="2")
            version = (await world.api.client.get(f"{MODEL}/versions/v1")).json()
            assert version["manualScaling"] == {"nodes": 2}
            assert "autoScaling" not in version
            assert "is no number of nodes" in visible_text(await change(400, maxNodes="many"))
            assert "etag" in visible_text(await change(409, etag="b2xk")).lower()

    folder.mkdir()
    (tmp_path / "state").mkdir()
    run(tmp_path / "state", main)


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.open(PAGE, 404)

    run(tmp_path, main)


def test_what_a_version_takes_is_shown_while_it_sleeps(tmp_path: Path) -> None:
    """Names, types and shapes as text, and a form to be filled in, which is not sent before."""
    store_ready_version(tmp_path, TensorSpec("<i>age", "FP32", (-1, 3)), TensorSpec("city", "BYTES", (-1,)))

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(PAGE)
            assert "<i>" not in page
            said = " ".join(visible_text(page).split())
            assert "<i>age number (FP32) a list of 3 city text (BYTES) one value" in said
            assert "label whole number (INT64) one value" in said
            form = '{"instances": [{"<i>age": …, "city": …}]}'
            assert form in said
            page = await browser.post(f"{PAGE}/predictions", {"request": form}, 400)
            assert "Write an instance in place of …" in visible_text(page)
            assert form in unescape(page.partition("<textarea")[2])
            assert "<h3>Answer" not in page

    run(tmp_path, main)


def test_user_code_is_said_to_take_anything(tmp_path: Path) -> None:
    anything = TensorSpec("instances", "BYTES", None)
    store_ready_version(tmp_path, anything, platform="custom", strict=False)

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(PAGE)
            assert "is passed to its predict(instances, **kwargs)" in " ".join(visible_text(page).split())
            assert '{"instances": […]}' in unescape(page.partition("<textarea")[2])

    run(tmp_path, main)


def test_files_are_taken_where_a_model_takes_bytes(tmp_path: Path) -> None:
    """What is wrong with one is said in the form, and nothing is sent."""
    store_ready_version(tmp_path, TensorSpec("<i>image", "BYTES", (-1,)), TensorSpec("n", "FP32", (-1,)))

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(PAGE)
            assert page.count('type="file"') == 1
            assert "<i>" not in page
            assert "File for <i>image" in visible_text(page)
            large = base64.urlsafe_b64encode(bytes(MAX_FILE_BYTES + 1)).decode()
            for request, file, status, message in (
                ("{}", "no base64", 400, "choose it again"),
                ("{} {", "AA==", 400, "That is no JSON"),
                ("{}", large, 413, "Send a larger one by one of the calls below"),
            ):
                page = await browser.post(f"{PAGE}/predictions", {"request": request, "file-0": file}, status)
                assert message in visible_text(page)
                assert "<h3>Answer" not in page

    run(tmp_path, main)
