"""Whole tasks in the console in Chromium, with clicks and keys only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chromium import needs_chromium, running_chromium
from tests.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

PROJECT = "/console/projects/local"
PATIENCE_MILLISECONDS = 240_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """On a narrow screen."""
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    yield page
    page.close()


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled to the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def sign_in(page: Page, server: Server, token: str) -> None:
    page.goto(f"{server.url}/console/")
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").press("Enter")


def test_a_token_is_made_and_revoked(browser: Browser, page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--access", "on", "--pilots", "off") as server:
        sign_in(page, server, (server.state_dir / "admin-token").read_text().strip())
        page.get_by_role("link", name="Access").click()
        page.get_by_text("Make a token").click()
        page.get_by_label("Whose").fill("user:ann@example.com")
        page.get_by_label("Whose").press("Enter")
        secret = page.locator("code.secret").inner_text()
        assert fits(page)
        other = browser.new_page()
        sign_in(other, server, secret)
        other.get_by_text("user:ann@example.com").wait_for()
        page.get_by_role("link", name="Access").click()
        assert secret not in page.content()
        page.locator("tr", has_text=secret.split("_")[1]).get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        page.get_by_text("is revoked.").wait_for()
        other.reload()
        other.get_by_label("Token").wait_for()
        other.close()


def test_an_open_page_goes_on_when_the_server_is_back(page: Page, tmp_path: Path) -> None:
    """It says that the server is gone, and keeps what it showed."""
    state_dir = tmp_path / "state"
    with running_server(state_dir, "--pilots", "off") as server:
        port = server.url.rpartition(":")[2]
        server.create_model("projects/local/models/kept")
        page.goto(f"{server.url}{PROJECT}/jobs")
        page.get_by_text("There is no job yet.").wait_for()
        server.stop()
        page.get_by_text("The server does not answer.").wait_for()
        assert page.get_by_text("There is no job yet.").is_visible()
    with running_server(state_dir, "--pilots", "off", "--port", port) as server:
        page.get_by_text("The server does not answer.").wait_for(state="hidden")
        given = {"region": "us-central1", "packageUris": ["/nothing.whl"], "pythonModule": "a.b"}
        body = {"jobId": "later", "trainingInput": given}
        assert server.call("POST", "projects/local/jobs", json=body).status == 200
        page.get_by_role("link", name="later").wait_for()
