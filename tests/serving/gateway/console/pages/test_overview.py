"""The overview: who sleeps and who does not, and that all who see the same get the same."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from tests.many_versions import VERSIONS, deploy
from tests.serving.gateway.console.world import Browser, World, run, visible_text

ANN, BOB, EVE = "user:ann@example.com", "user:bob@example.com", "user:eve@example.com"
PART = {"x-console-part": "1"}


async def open_part(browser: Browser, path: str, status: int = 200, known: str = "") -> tuple[str, str]:
    """The text of a part and its ETag, for a page that has the part with the ETag `known`."""
    response = await browser.client.get(f"/console{path}", headers={**PART, "if-none-match": known})
    assert response.status_code == status, response.text
    return response.text, response.headers["etag"]


def test_versions_that_sleep_stand_by_themselves(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            text = re.sub(r"\s+", " ", visible_text(await browser.open("/")))
            assert "Every version sleeps." in text
            assert f"{VERSIONS} without a node: they cost nothing" in text
            assert "m000 / v0 default" in text
            assert text.index("m000 / v8") < text.index("m000 / v9")
            body = {"name": "new", "deploymentUri": str(tmp_path / "nothing")}
            await world.api.client.post("/v1/projects/p/models/m000/versions", json=body)
            # A change is seen at once, not when the part is a second old.
            part, _ = await open_part(browser, "/versions")
            assert "m000 / new" in visible_text(part)
            assert "new" not in (await open_part(browser, "/sleeping-versions"))[0]

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main)


def test_an_empty_server_says_so(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            text = visible_text(await browser.open("/"))
            assert "There is no version yet." in text
            assert "Asleep" not in text

    run(tmp_path, main)


def test_a_part_that_a_page_has_already_is_not_sent_again(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser, world.browser() as other:
            text, etag = await open_part(browser, "/sleeping-versions")
            assert "m000 / v9" in visible_text(text)
            assert await open_part(other, "/sleeping-versions") == (text, etag)
            assert await open_part(other, "/sleeping-versions", 304, etag) == ("", etag)
            await world.api.client.post("/v1/projects/p/models/m000/versions/v3:setDefault", json={})
            changed, _ = await open_part(other, "/sleeping-versions", known=etag)
            assert "v3 default" in re.sub(r"\s+", " ", visible_text(changed))

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main)


def test_parts_are_shared_by_those_who_see_the_same_and_by_nobody_else(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer=ANN, ml_developer=BOB)
        await world.api.bind("projects/p/models/m001", ml_modelUser=EVE)
        parts = {}
        for who in (ANN, BOB, EVE, ADMIN.principal, "user:nobody@example.com"):
            async with world.browser() as browser:
                await browser.sign_in(await world.api.token(who))
                parts[who], _ = await open_part(browser, "/sleeping-versions")
        assert parts[ANN] == parts[BOB] == parts[ADMIN.principal]
        assert ("m000" in parts[ANN], "m001" in parts[ANN]) == (True, True)
        assert ("m000" in parts[EVE], "m001" in parts[EVE]) == (False, True)
        assert "Asleep" not in parts["user:nobody@example.com"]

    deploy(tmp_path / "state", 2)
    run(tmp_path / "state", main, access="on")


def test_many_viewers_at_once_get_the_same(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            found = await asyncio.gather(*(open_part(browser, "/sleeping-versions") for _ in range(100)))
            assert len(set(found)) == 1
            assert visible_text(found[0][0]).count(" / v") == 5 * VERSIONS

    deploy(tmp_path / "state", 5)
    run(tmp_path / "state", main)
