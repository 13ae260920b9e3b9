"""Deploying by form: nothing is created before the files are found to be a model's."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from serving.gateway.access.policy import ADMIN
from serving.model_schema import TensorSpec
from tests.serving.gateway.console.pages.test_versions import store_ready_version
from tests.serving.gateway.console.world import World, run, visible_text

DEPLOY = "/projects/p/deploy"


def run_console(folder: Path, main: Any, **settings: Any) -> None:
    (folder / "state").mkdir()
    run(folder / "state", main, environment=dict(os.environ), **settings)


async def list_models(world: World) -> Any:
    return (await world.api.client.get("/v1/projects/p/models")).json().get("models", [])


def test_what_a_folder_lacks_is_said_and_nothing_is_created(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "<b>.joblib").write_bytes(b"x")
        fields = {"model": "flowers", "version": "v1", "folder": str(tmp_path / "model")}
        async with world.browser() as browser:
            await browser.open(DEPLOY)
            for step in ("check", "create"):
                page = await browser.post(DEPLOY, {**fields, "step": step})
                assert "Rename <b>.joblib to model.joblib" in visible_text(page)
                assert "<b>.joblib" not in page
                assert 'value="create"' not in page
            assert await list_models(world) == []

    run_console(tmp_path, main)


def test_a_bad_name_or_folder_is_said_at_its_field_before_anything_is_created(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "models" / "export").mkdir(parents=True)
        (tmp_path / "models" / "export" / "model.joblib").write_bytes(b"x")
        good = {"model": "flowers", "version": "v1", "folder": str(tmp_path / "models" / "export")}
        async with world.browser() as browser:
            await browser.open(DEPLOY)
            for step, status, changed, field, message in (
                ("check", 400, {"model": "my flowers"}, "model", "it must start with a letter"),
                ("check", 400, {"version": "1st"}, "version", "it must start with a letter"),
                ("create", 400, {"version": ""}, "version", "it must start with a letter"),
                ("check", 409, {"model": "m"}, "version", "The model m has a version v1 already"),
                ("check", 400, {"folder": "s3://bucket/m"}, "folder", "unknown scheme s3://"),
                ("check", 400, {"labels": "team"}, "labels", "write key=value, one a line"),
                (
                    "create",
                    200,
                    {"folder": str(tmp_path / "models")},
                    "folder",
                    f"Looked in {tmp_path}/models. No model file was found. Looked for saved_model.pb",
                ),
            ):
                page = await browser.post(DEPLOY, {**good, **changed, "step": step}, status)
                said = page.partition(f'id="error-{field}">')[2].partition("</span>")[0]
                assert message in unescape(said), changed
                # What was typed stays.
                assert all(f'value="{value}"' in page for name, value in good.items() if name not in changed)
            assert "export/ holds model.joblib: deploy that folder." in visible_text(page)
            assert f'name="folder" value="{tmp_path}/models/export"' in page
            assert "Error code" not in page
            assert [one["name"] for one in await list_models(world)] == ["projects/p/models/m"]

    (tmp_path / "state").mkdir()
    store_ready_version(tmp_path / "state", TensorSpec("x", "FP32", (-1,)))
    run(tmp_path / "state", main, environment=dict(os.environ))


def test_a_folder_with_a_model_is_deployed_and_its_operation_followed(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "model.joblib").write_bytes(b"no pickle")
        fields = {"model": "flowers", "version": "v1", "folder": str(tmp_path / "model")}
        async with world.browser() as browser:
            await browser.open(DEPLOY)
            page = await browser.post(DEPLOY, {**fields, "step": "check"})
            assert "model.joblib. Nothing is created yet." in visible_text(page)
            assert await list_models(world) == []
            page = await browser.post(DEPLOY, {**fields, "step": "create"})
            assert "The creation of the version was begun." in page
            found = re.search(r"/operations/([^/\"]+)/progress", page)
            assert found is not None
            operation = f"/projects/p/operations/{found[1]}"
            assert "flowers" in await browser.open("/projects/p/operations")
            page = await browser.post(f"{operation}/cancel", {})
            assert "asked to stop" in page
            assert [one["name"] for one in await list_models(world)] == ["projects/p/models/flowers"]

    run_console(tmp_path, main)


def test_folders_are_looked_into_only_for_those_who_may_deploy_there(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer="user:ann@example.com")
        async with world.browser() as ann, world.browser() as admin:
            await ann.sign_in(await world.api.token("user:ann@example.com"))
            assert "Deploy" not in visible_text(await ann.open("/projects/p/operations"))
            await ann.open(DEPLOY, 403)
            fields = {"model": "flowers", "version": "v1", "folder": str(tmp_path), "step": "check"}
            assert "may not create versions" in await ann.post(DEPLOY, fields, 403)
            await admin.sign_in(await world.api.token(ADMIN.principal))
            await admin.open(DEPLOY)
            # The server's own folder is open to nobody.
            await admin.post(DEPLOY, {**fields, "folder": str(tmp_path / "state")}, 400)

    run_console(tmp_path, main, access="on")


def test_owners_of_a_single_model_are_led_to_its_deployment(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        for model in ("mine", "other"):
            await world.api.call(ADMIN.principal, "POST", "/v1/projects/p/models", {"name": model})
        await world.api.bind("projects/p/models/mine", ml_modelOwner="user:ann@example.com")
        await world.api.bind("projects/p/models/other", ml_modelUser="user:bob@example.com")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "model.joblib").write_bytes(b"no pickle")
        fields = {"version": "v1", "folder": str(tmp_path / "model"), "step": "create"}
        async with world.browser() as ann, world.browser() as bob:
            assert "Deploy" in visible_text(await ann.sign_in(await world.api.token("user:ann@example.com")))
            assert "The creation of the version was begun." in await ann.post(
                DEPLOY, {**fields, "model": "mine"}
            )
            await ann.post(DEPLOY, {**fields, "model": "other"}, 403)
            page = await bob.sign_in(await world.api.token("user:bob@example.com"))
            assert "Deploy" not in visible_text(page)

    run_console(tmp_path, main, access="on")
