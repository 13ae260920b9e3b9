"""Errors as pages: in words, with ways back, and with what was typed."""

from __future__ import annotations

import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from serving.gateway.console.rendering import ROOT
from tests.many_versions import deploy
from tests.serving.gateway.console.world import World, run, visible_text

LINK = re.compile(r'<a href="([^"]+)"')


def list_links(page: str) -> list[str]:
    """Where the content leads to, below the console."""
    return [link.removeprefix(ROOT) for link in LINK.findall(page.partition("<main")[2])]


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            for path, message, links in (
                ("models/none", "There is no model none in the project p.", ["models/m000", "models/m001"]),
                ("models/none/versions/v1", "There is no model none in the project p.", ["models/m001"]),
                (
                    "models/m000/versions/v77",
                    "The model m000 has no version v77.",
                    ["models/m000/versions/v1", "models/m000"],
                ),
                ("jobs/none", "There is no job none in the project p.", ["jobs"]),
                ("operations/none", "There is no operation none in the project p.", ["operations"]),
            ):
                page = await browser.open(f"/projects/p/{path}", 404)
                assert message in visible_text(page)
                assert {f"/projects/p/{link}" for link in links} | {"/"} <= set(list_links(page)), path
                assert "Field:" not in page
                assert f'href="{ROOT}/projects/p/jobs"' in page.partition("<main")[0]

    deploy(tmp_path / "state", 2)
    run(tmp_path / "state", main)


def test_nothing_is_told_of_what_the_visitor_may_not_see(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p/models/m000", ml_modelUser="user:ann@example.com")
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token("user:ann@example.com"))
            page = await browser.open("/projects/p/models/m000/versions/v77", 404)
            assert "/projects/p/models/m000" in list_links(page)
            for path in ("m001", "m001/versions/v1", "none"):
                page = await browser.open(f"/projects/p/models/{path}", 403)
                assert list_links(page) == ["/"]

    deploy(tmp_path / "state", 2)
    run(tmp_path / "state", main, access="on")


def test_a_page_that_is_not_there_keeps_the_navigation_of_its_visitor(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            assert "/projects/p/jobs" not in await browser.open("/nothing", 404)
            await browser.sign_in(await world.api.token(ADMIN.principal))
            assert f'href="{ROOT}/projects/p/jobs"' in await browser.open("/nothing", 404)

    run(tmp_path, main, access="on")


def test_what_was_typed_is_kept_when_a_change_is_refused(tmp_path: Path) -> None:
    """In its form where it has one; else beside the error, after the end of a session too."""
    version = "/projects/p/models/m000/versions/v1"
    typed = {"description": "<b>long", "labels": "team", "scaling": "manual", "nodes": "7"}

    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            await browser.open(version)
            for path in (version, "/projects/p/models/m000"):
                page = await browser.post(f"{path}/settings", typed, 400)
                assert "write key=value, one a line" in visible_text(page)
                assert 'value="&lt;b&gt;long"' in page
                assert ">team</textarea>" in page
            page = await browser.post(f"{version}/settings", {**typed, "anti_forgery_token": "x"}, 403)
            assert "The version m000 / v1" in visible_text(page)
            browser.client.cookies.clear()
            ended = await browser.post(f"{version}/settings", typed, 401)
            for one in (page, ended):
                assert "<pre>&lt;b&gt;long</pre>" in one
                assert browser._token not in one.partition("What you sent")[2]
            assert f"{ROOT}/sign-in" in ended

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main, access="on")
