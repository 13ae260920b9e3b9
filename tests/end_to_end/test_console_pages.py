"""The console's pages in Chromium, with clicks and keys only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serving.gateway.console import rendering
from tests.chromium import fits, needs_chromium, running_chromium
from tests.end_to_end.conftest import Files
from tests.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

COSTS_NOTHING = re.compile("(it costs|they cost) nothing until the next request")
STATIC = Path(rendering.__file__).parent / "static"
PAGES = (
    "jobs",
    "new-prediction-job",
    "new-training-job",
    "deploy",
    "operations",
    "access",
    "../../audit",
    "../../doctor",
    "../../settings",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Versions fall asleep soon."""
    flags = ("--idle-timeout", "3", "--scale-down-delay", "0", "--tick", "0.2")
    with running_server(tmp_path_factory.mktemp("console") / "state", *flags) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def version(server: Server, files: Files) -> str:
    """The page of a version."""
    server.create_model("projects/local/models/sleeper")
    server.create_version(
        "projects/local/models/sleeper/versions/v1", deploymentUri=str(files.root / "sklearn")
    )
    return f"{server.url}/console/projects/local/models/sleeper/versions/v1"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """On a narrow screen, in dark."""
    page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page.set_default_timeout(30_000)
    yield page
    page.close()


def test_a_model_is_deployed_by_form(server: Server, page: Page, files: Files) -> None:
    page.goto(f"{server.url}/console/")
    page.get_by_role("link", name="Deploy").click()
    page.get_by_label("Model", exact=True).fill("flowers")
    page.get_by_label("Folder with the model's files").fill(str(files.root / "sklearn"))
    page.get_by_label("Folder with the model's files").press("Enter")
    page.get_by_text("Nothing is created yet.").wait_for()
    assert fits(page)
    page.get_by_role("button", name="Deploy").click()
    page.get_by_role("link", name="To the version").click()
    page.get_by_role("button", name="Predict").click()
    page.get_by_text("HTTP 200").wait_for()
    page.locator("#try-it").get_by_text('{"predictions":').wait_for()
    page.get_by_role("img", name="Answers per second").wait_for()
    page.get_by_role("heading", name="Starts of nodes").wait_for()
    page.get_by_role("row", name="total from its first byte").first.wait_for()
    page.get_by_role("heading", name="Why requests waited").wait_for()
    page.get_by_role("heading", name="How it is computed").wait_for()
    assert fits(page)
    check_that_a_log_is_followed(server, page)
    page.goto(f"{server.url}/console/")
    page.get_by_role("link", name="flowers / v1").click()
    page.get_by_role("link", name="flowers", exact=True).click()
    page.get_by_text("answers for the model").wait_for()
    assert fits(page)
    page.get_by_role("link", name="v1", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("The version is being deleted.").wait_for()


def check_that_a_log_is_followed(server: Server, page: Page) -> None:
    """Lines appear on the open page as they are written."""
    day = server.state_dir / "logs" / "console" / "local" / "flowers" / "v1" / "dt=2030-01-02"
    day.mkdir(parents=True)
    with (day / "000001-0.jsonl").open("a") as log:
        for text in ("first <b>line", "second <i>line"):
            entry = {"time": "2030-01-02T00:00:00Z", "message": text}
            entry |= {"model": "flowers", "model_version": "v1"}
            print(json.dumps(entry), file=log, flush=True)
            if text.startswith("first"):
                page.goto(f"{server.url}/console/projects/local/models/flowers/versions/v1")
            page.locator("#version-log pre", has_text=text).wait_for()
    assert fits(page)


def test_a_version_falls_asleep_and_wakes(server: Server, page: Page, version: str) -> None:
    page.goto(f"{server.url}/console/")
    page.get_by_role("link", name="Asleep").click()
    versions = page.get_by_role("region", name="Versions", exact=True)
    row = versions.get_by_role("row", name="sleeper / v1")
    row.get_by_text("asleep", exact=True).wait_for()
    assert COSTS_NOTHING.search(versions.inner_text())
    assert fits(page)
    row.get_by_role("link", name="sleeper / v1").click()
    state = page.get_by_role("region", name="State")
    assert "asleep" in state.inner_text()
    assert "No node runs: the version costs nothing" in state.inner_text()
    page.get_by_role("button", name="Predict").click()
    page.get_by_text("HTTP 200").wait_for()
    state.get_by_text("awake", exact=True).wait_for()
    # The page goes on by itself.
    state.get_by_text("No node runs").wait_for()


def test_the_scaling_of_a_version_is_changed(page: Page, version: str) -> None:
    """With a least number of nodes it wakes without a request."""
    page.goto(version)
    page.get_by_label("Least nodes").fill("1")
    page.get_by_label("Most nodes").fill("2")
    page.get_by_role("button", name="Change").click()
    page.get_by_text("The version is changed.").wait_for()
    shown = page.locator("pre", has_text="deploymentUri").inner_text()
    assert json.loads(shown)["autoScaling"] == {"minNodes": 1, "maxNodes": 2}
    state = page.get_by_role("region", name="State")
    state.get_by_text("awake", exact=True).wait_for()
    assert state.locator("tbody tr").count() == 1


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_narrow_screens_and_raise_no_error(server: Server, page: Page, name: str) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.goto(f"{server.url}/console/projects/local/{name}")
    assert fits(page)
    assert errors == []


def test_trials_are_drawn(page: Page) -> None:
    """Numbers and words, with markup in them."""
    rows = [
        {
            "number": number,
            "value": number / 2,
            "best": 1.0,
            "parameters": {"<b>": "0.1", "kind": f"<i>{number}"},
        }
        for number in (2, 1)
    ]
    table = escape(json.dumps({"metric": "score", "parameters": ["<b>", "kind"], "rows": rows}))
    page.set_content(
        '<div id="best-so-far"></div><div id="parallel"></div>'
        f'<section id="trials" data-trials="{table}"></section>'
    )
    page.add_script_tag(path=STATIC / "trials.js")
    assert page.locator("#best-so-far circle").count() == 2
    assert page.locator("#parallel path.trial").count() == 1
    assert page.locator("#parallel path.first").count() == 1
    assert page.locator("#parallel text", has_text="<b>").count() == 1
    assert page.locator("#parallel path[d*=NaN]").count() == 0
