"""Tokens and policies by form."""

from __future__ import annotations

import json
import re
from pathlib import Path

from serving.gateway.access.policy import ADMIN
from serving.gateway.audit.log_folder import audit_log_path, list_log_files
from tests.serving.gateway.console.world import Browser, World, run, visible_text

ANN, BOB = "user:ann@example.com", "user:bob@example.com"
ACCESS = "/projects/p/access"


async def sign_in(world: World, browser: Browser, principal: str = ADMIN.principal) -> str:
    await browser.sign_in(await world.api.token(principal))
    return await browser.open(ACCESS)


def find_etag(page: str) -> str:
    found = re.search(r'name="etag" value="([^"]*)"', page)
    assert found is not None
    return found[1]


def test_a_token_is_made_used_and_revoked(tmp_path: Path) -> None:
    """Its secret is shown once, and is in no log."""

    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer=ANN)
        async with world.browser() as browser, world.browser() as other:
            await sign_in(world, browser)
            fields = {"principal": "user:Ann@example.com", "title": "<b>report", "lifetime": "7d"}
            page = await browser.post(f"{ACCESS}/tokens", fields)
            (secret,) = set(re.findall(r"plt_\w+", page))
            assert "<b>report" in visible_text(page)
            assert secret not in await browser.open(ACCESS)
            assert ANN in await other.sign_in(secret)
            token = secret.split("_")[1]
            row = re.search(rf"{token}.*?</tr>", await browser.open(ACCESS), re.DOTALL)
            assert row is not None
            assert "not since" not in row[0]
            page = await browser.post(f"{ACCESS}/tokens/{token}/revocation", {})
            assert f"The token {token} of {ANN} is revoked." in page
            assert "Sign in" in await other.open("/")
            await browser.post(f"{ACCESS}/tokens/nothing/revocation", {}, 404)

    run(tmp_path, main, access="on")
    lines = [
        line for file in list_log_files(audit_log_path(tmp_path)) for line in file.read_text().splitlines()
    ]
    entries = [json.loads(line) for line in lines if "TokenService" in line and ADMIN.principal in line]
    assert [
        (one["protoPayload"]["methodName"].rpartition(".")[2], "last" in one["operation"]) for one in entries
    ] == [("CreateToken", False), ("CreateToken", True), ("RevokeToken", False), ("RevokeToken", True)]
    assert not any("plt_" in line for line in lines)


def test_tokens_are_refused_with_a_reason(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("server", owner=ANN)
        async with world.browser() as browser:
            await sign_in(world, browser, ANN)
            page = await browser.post(f"{ACCESS}/tokens", {"principal": "ann"}, 400)
            assert "Invalid principal" in page
            assert 'value="ann"' in page
            page = await browser.post(f"{ACCESS}/tokens", {"principal": ADMIN.principal}, 403)
            assert "Only user:admin@localhost" in page
            fields = {"principal": BOB, "title": "x" * 201}
            assert "at most 200" in await browser.post(f"{ACCESS}/tokens", fields, 400)
            fields = {"principal": BOB, "lifetime": "soon"}
            assert "Invalid duration" in visible_text(await browser.post(f"{ACCESS}/tokens", fields, 400))

    run(tmp_path, main, access="on")


def test_roles_are_given_and_taken_unless_the_policy_has_changed(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.call(ADMIN.principal, "POST", "/v1/projects/p/models", {"name": "m"})
        async with world.browser() as browser:
            await sign_in(world, browser)
            for on in ("project", "server", "models/m"):
                page = await browser.open(f"{ACCESS}?on={on}")
                change = {"on": on, "member": BOB, "role": "roles/ml.viewer"}
                old = {**change, "etag": find_etag(page), "change": "add"}
                page = await browser.post(f"{ACCESS}/members", old)
                assert f"{BOB} has the role roles/ml.viewer." in page
                page = await browser.post(f"{ACCESS}/members", {**old, "member": ANN}, 409)
                assert "roles/ml.viewer" in page
                taken = {**change, "etag": find_etag(page), "change": "remove"}
                page = await browser.post(f"{ACCESS}/members", taken)
                assert "no longer has" in page
                table = page[page.index("<h1>") : page.index("Give a role")]
                assert BOB not in table
                fields = {**change, "role": "roles/none", "change": "add"}
                assert "no role" in await browser.post(f"{ACCESS}/members", fields, 400)

    run(tmp_path, main, access="on")


def test_an_owner_of_a_project_sees_no_tokens_and_an_editor_changes_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", owner=ANN, editor=BOB)
        async with world.browser() as browser:
            page = await sign_in(world, browser, ANN)
            assert "Give a role" in page
            assert "Tokens" not in page
            assert "the whole server" not in page
            await browser.post(f"{ACCESS}/tokens", {"principal": ANN}, 403)
        async with world.browser() as browser:
            page = await sign_in(world, browser, BOB)
            assert ANN in page
            assert "Give a role" not in page
            fields = {"member": BOB, "role": "roles/owner", "change": "add"}
            await browser.post(f"{ACCESS}/members", fields, 403)

    run(tmp_path, main, access="on")


def test_without_access_control_the_page_says_so(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await browser.open(ACCESS)
            assert "Access control is off" in page
            assert "Make a token" not in page
            await browser.post(f"{ACCESS}/tokens", {"principal": ANN}, 400)

    run(tmp_path, main)
