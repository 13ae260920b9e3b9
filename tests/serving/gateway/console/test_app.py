"""What is common to all pages: safety, sessions, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from tests.serving.gateway.console.world import World, run, visible_text

ANN = "user:ann@example.com"


def test_pages_load_nothing_from_elsewhere_and_run_no_script_of_others(tmp_path: Path) -> None:
    """The policy forbids it, and the page itself needs nothing else; its files may be cached for ever."""

    async def main(world: World) -> None:
        async with world.browser() as browser:
            response = await browser.client.get("/console/")
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["cache-control"] == "no-store"
            assert not re.search(
                r"<script(?![^>]* src=)|<style|\son[a-z]+=|\sstyle=|https?://", response.text
            )
            for address in set(re.findall(r'(?:src|href)="(/console/static/[^"]+)"', response.text)):
                file = await browser.client.get(address)
                assert (file.status_code, "immutable" in file.headers["cache-control"]) == (200, True)
            assert (await browser.client.get("/console/static/0/other.css")).status_code == 404

    run(tmp_path, main)


def test_the_root_leads_browsers_to_the_console_and_clients_to_the_api(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        browser = await world.api.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
        assert (browser.status_code, browser.headers["location"]) == (307, "/console/")
        client = await world.api.client.get("/", headers={"accept": "*/*"})
        assert client.json()["console"] == "/console/"
        assert (await world.api.client.get("/console")).headers["location"] == "/console/"

    run(tmp_path, main)


def test_a_server_without_a_console_has_none(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        assert (await world.api.client.get("/console/")).status_code == 404
        answer = await world.api.client.get("/", headers={"accept": "text/html"})
        assert (answer.status_code, "console" in answer.json()) == (200, False)

    run(tmp_path, main, console=False)


def test_unknown_pages_and_methods_say_so(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            assert "no page /console/<nothing>" in visible_text(await browser.open("/<nothing>", 404))
            assert "use POST" in visible_text(await browser.open("/sign-out", 405))

    run(tmp_path, main)


def test_a_change_needs_the_token_of_a_page_of_the_same_visitor(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser, world.browser() as other:
            await browser.open("/sign-in")
            await other.open("/sign-in")
            for token in ("", "0" * 64, other._token, "é"):
                page = await browser.post("/sign-out", {"anti_forgery_token": token}, 403)
                assert "does not belong to your session" in page
            response = await browser.client.post("/console/sign-out", json={})
            assert response.status_code == 400
            await browser.open("/sign-in")
            await browser.post("/sign-out", {})

    run(tmp_path, main, access="on")


def test_a_token_opens_a_session(tmp_path: Path) -> None:
    """Before it, pages lead to the form; after it, to where the visitor wanted to go, as that user."""

    async def main(world: World) -> None:
        token = await world.api.token(ADMIN.principal)
        async with world.browser() as browser:
            # Who has no session is not told that it has ended.
            assert "data-live" not in await browser.open("/?x=1")
            before = browser.client.cookies["pilotlight-8080"]
            assert 'name="next" value="/?x=1"' in await browser.open("/?x=1")
            assert "invalid authentication credentials" in await browser.sign_in("plt_wrong", 401)
            page = await browser.post("/sign-in", {"token": token, "next": "/?x=1"})
            assert ADMIN.principal in page
            assert browser.client.cookies["pilotlight-8080"] != before
            part = await browser.client.get("/console/versions", headers={"x-console-part": "1"})
            assert part.status_code == 200
            assert "Sign in" in await browser.post("/sign-out", {})
            assert "Sign in" in await browser.open("/")
            part = await browser.client.get("/console/versions", headers={"x-console-part": "1"})
            assert part.status_code == 401

    run(tmp_path, main, access="on")


def test_who_signs_in_and_out_is_in_the_audit_log(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.sign_in("plt_wrong", 401)
            await browser.sign_in(await world.api.token(ADMIN.principal))
            await browser.post("/sign-out", {})

    run(tmp_path, main, access="on")

    lines = [line for file in (tmp_path / "audit").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert not any("plt_" in line for line in lines)
    entries = [json.loads(line)["protoPayload"] for line in lines]
    assert [
        (
            entry["methodName"].rpartition(".")[2],
            entry["status"].get("code", 0),
            entry["authenticationInfo"].get("principalSubject", ""),
        )
        for entry in entries
        if "Session" in entry["methodName"]
    ] == [
        ("CreateSession", 16, ""),
        ("CreateSession", 0, ADMIN.principal),
        ("DeleteSession", 0, ADMIN.principal),
    ]


def test_the_cookie_is_kept_from_scripts_other_sites_and_plain_connections(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        answer = await world.api.client.get("/console/sign-in", headers={"x-forwarded-proto": "https"})
        attributes = answer.headers["set-cookie"].lower()
        assert all(part in attributes for part in ("httponly", "samesite=strict", "secure", "path=/console"))

    run(tmp_path, main, access="on")


def test_a_revoked_token_ends_its_session(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        token = await world.api.token(ADMIN.principal)
        async with world.browser() as browser:
            await browser.sign_in(token)
            world.api.tokens.revoke(token.split("_")[1], 1.0)
            assert world.gateway._access is not None
            await world.gateway._access.refresh_tokens()
            assert "Sign in" in await browser.open("/")

    run(tmp_path, main, access="on")


def test_a_visitor_sees_only_versions_that_the_role_allows(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        for model in ("shown", "secret"):
            await world.api.call(ADMIN.principal, "POST", "/v1/projects/p/models", {"name": model})
            body = {"name": "v1", "deploymentUri": str(tmp_path / "nothing")}
            await world.api.call(ADMIN.principal, "POST", f"/v1/projects/p/models/{model}/versions", body)
        await world.api.bind("projects/p/models/shown", ml_modelUser=ANN)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ANN))
            page = await browser.open("/")
            assert "shown / v1" in visible_text(page)
            assert "secret" not in page
            assert "v1" in await browser.open("/projects/p/models/shown/versions/v1")
            await browser.open("/projects/p/models/secret/versions/v1", 403)

    (tmp_path / "state").mkdir()
    run(tmp_path / "state", main, access="on")
