"""The overview: what each version does, and that all who see the same get the same."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from serving.gateway.observability.history import Figures, VersionHistory
from serving.gateway.observability.history_recorder import RECENT_SECONDS
from tests.many_versions import VERSIONS, deploy
from tests.serving.gateway.console.world import Browser, World, run, visible_text

ANN, BOB, EVE = "user:ann@example.com", "user:bob@example.com", "user:eve@example.com"
PART = {"x-console-part": "1"}


async def open_part(browser: Browser, path: str, status: int = 200, known: str = "") -> tuple[str, str]:
    """The text of a part and its ETag, for a page that has the part with the ETag `known`."""
    response = await browser.client.get(f"/console{path}", headers={**PART, "if-none-match": known})
    assert response.status_code == status, response.text
    return response.text, response.headers["etag"]


def read_names(part: str) -> list[str]:
    """The versions of a part, in its order."""
    return re.findall(r"<th scope=\"row\"><a [^>]*>([^<]*)</a>", part)


def test_versions_stand_in_one_table_by_their_names(tmp_path: Path) -> None:
    """Whatever they do: a row does not move when its version wakes."""

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open("/")
            text = re.sub(r"\s+", " ", visible_text(page))
            assert f"{VERSIONS} asleep: they cost nothing until the next request." in text
            assert "m000 / v0 default" in text
            names = read_names(page)
            assert names == sorted(names)
            assert 'role="search"' not in page
            assert len(names) == VERSIONS
            body = {"name": "v33", "deploymentUri": str(tmp_path / "nothing")}
            await world.api.client.post("/v1/projects/p/models/m000/versions", json=body)
            # A change is seen at once, not when the part is a second old.
            part, _ = await open_part(browser, "/versions")
            assert read_names(part) == sorted([*names, "m000 / v33"])
            assert read_names((await open_part(browser, "/versions?state=asleep"))[0]) == names
            part, _ = await open_part(browser, "/versions?name=M000+/+V3")
            assert read_names(part) == ["m000 / v3", "m000 / v33"]

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main)


def test_many_versions_are_shown_in_pages(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            first, last = [await browser.open(f"/?state=asleep&page={page}") for page in ("1", "99")]
            assert len(read_names(first)) == 100
            assert 'role="search"' in first
            assert read_names(last) == [f"m020 / v{number}" for number in range(VERSIONS)]
            assert "Page 3 of 3, 210 versions" in visible_text(last)
            assert 'href="/console/?state=asleep&amp;page=2"' in first
            assert 'href="/console/?state=asleep&amp;page=2"' in last
            assert "Page 1 of" not in visible_text(await browser.open("/?name=m020"))

    deploy(tmp_path / "state", 21)
    run(tmp_path / "state", main)


def test_projects_are_told_apart(tmp_path: Path) -> None:
    """The address says whether one or all are shown, and so does the page."""

    async def main(world: World) -> None:
        await world.api.client.post("/v1/projects/empty/models", json={"name": "bare"})
        async with world.browser() as browser:
            page = await browser.open("/")
            assert "Versions of all projects" in page
            assert len(read_names(page)) == VERSIONS
            assert "bare" in page
            # "local", the default project, holds nothing: the others are led to.
            assert 'href="/console/projects/empty/jobs"' in page
            page = await browser.open("/?project=empty")
            assert "Versions of project empty" in page
            assert read_names(page) == []
            assert f"{VERSIONS} versions in project p" in page
            assert "bare" in page
            page = await browser.open("/?project=p")
            assert len(read_names(page)) == VERSIONS
            assert "bare" not in page
            # What is not understood shows all.
            assert "Versions of all projects" in await browser.open("/?project=../p&state=x&page=-1")

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main, default_project="local")


def test_memory_and_pilots_are_shown_to_those_of_the_server(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer=ANN)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            page = visible_text(await browser.open("/"))
            assert re.search(r"Memory free\s+[0-9.]+ [GM]iB\s", page)
            assert re.search(r"Pilots ready\s+0\s+of 0", page)
            await browser.sign_in(await world.api.token(ANN))
            assert "Memory free" not in await browser.open("/")
            await open_part(browser, "/resources", 403)

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main, access="on")


def test_an_empty_server_says_so(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            text = visible_text(await browser.open("/"))
            assert "There is no version yet." in text
            assert "asleep" not in text
            assert "Project local" in re.sub(r"\s+", " ", text)

    run(tmp_path, main, default_project="local")


def test_a_part_that_a_page_has_already_is_not_sent_again(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser, world.browser() as other:
            text, etag = await open_part(browser, "/versions")
            assert "m000 / v9" in visible_text(text)
            assert await open_part(other, "/versions") == (text, etag)
            assert await open_part(other, "/versions", 304, etag) == ("", etag)
            await world.api.client.post("/v1/projects/p/models/m000/versions/v3:setDefault", json={})
            changed, _ = await open_part(other, "/versions", known=etag)
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
                parts[who], _ = await open_part(browser, "/versions")
        assert parts[ANN] == parts[BOB] == parts[ADMIN.principal]
        assert ("m000" in parts[ANN], "m001" in parts[ANN]) == (True, True)
        assert ("m000" in parts[EVE], "m001" in parts[EVE]) == (False, True)
        assert "asleep" not in parts["user:nobody@example.com"]

    deploy(tmp_path / "state", 2)
    run(tmp_path / "state", main, access="on")


def test_many_viewers_at_once_get_the_same(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            found = await asyncio.gather(*(open_part(browser, "/versions") for _ in range(100)))
            assert len(set(found)) == 1
            assert found[0][0].count(">asleep</span>") == 5 * VERSIONS

    deploy(tmp_path / "state", 5)
    run(tmp_path / "state", main)


def test_a_version_that_falls_asleep_keeps_its_figures_for_some_seconds(tmp_path: Path) -> None:
    """So that rows do not empty and fill while their versions sleep and wake; what stands out is marked."""

    async def main(world: World) -> None:
        recorder = world.gateway._history
        quick, slow, *_ = [record.uid for record in world.gateway._catalog.state.sorted_versions]

        def record_answers(ended: int) -> None:
            for uid, p99 in ((quick, 0.004), (slow, 0.9)):
                history = recorder._histories[uid] = VersionHistory(ended - 60)
                for second in range(ended - 4, ended + 1):
                    history.record(second, Figures(2, 0, p99 / 2, p99, 1))

        async with world.browser() as browser:
            record_answers(recorder._recorded_at)
            first, second, third, *_ = re.findall(
                r'<tr id="version-.*?</tr>', await browser.open("/"), re.DOTALL
            )
            assert re.search(r'data-label="Answers/s">\s*1\s*<', first)
            assert ("slow: why?" in first, "slow: why?" in second) == (False, True)
            assert '/versions/v1#where-time-goes"' in second
            assert [row.count("<td></td>") for row in (first, second, third)] == [0, 0, 7]
            assert all(">asleep</span>" in row for row in (first, second, third))
            record_answers(recorder._recorded_at - RECENT_SECONDS)
            assert "data-label" not in (await open_part(browser, "/versions?state=asleep"))[0]

    deploy(tmp_path / "state", 1)
    run(tmp_path / "state", main)
