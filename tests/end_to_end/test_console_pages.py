"""The console's pages in Chromium, with clicks and keys only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serving.gateway.console import rendering
from tests.chromium import fits, list_serious_issues, needs_chromium, running_chromium
from tests.end_to_end import models
from tests.end_to_end.conftest import CLOSED, Files
from tests.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

COSTS_NOTHING = re.compile("(it costs|they cost) nothing until the next request")
STATIC = Path(rendering.__file__).parent / "static"
# Installing a package takes long on a busy machine.
PATIENCE_MILLISECONDS = 240_000
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
    environment = {"PIP_INDEX_URL": CLOSED}
    with running_server(
        tmp_path_factory.mktemp("console") / "state", *flags, environment=environment
    ) as server:
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
    page.locator("summary", has_text="Pages: Overview").press("Enter")
    page.get_by_role("link", name="Deploy").press("Enter")
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
    page.locator("#try-it dt", has_text="infer").wait_for()
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
    page.get_by_text("The deletion of the version was begun.").wait_for()


@dataclass(frozen=True)
class Deployment:
    """A folder to deploy, the fields below "More", and a request that is no example of the page."""

    folder: Path
    fields: Mapping[str, str] = field(default_factory=dict)
    request: str = ""


def write_lightgbm(folder: Path) -> Path:
    import lightgbm as lgb

    x, y = models.data()
    lgb.train({"objective": "binary", "verbose": -1, "num_threads": 1}, lgb.Dataset(x, y > 1), 2).save_model(
        folder / "model.txt"
    )
    return folder


def write_onnx(folder: Path) -> Path:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    x, y = models.data()
    model = to_onnx(LogisticRegression().fit(x, y > 1), x[:1].astype("float32"), target_opset=17)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


@pytest.fixture
def deployment(kind: str, files: Files, request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    match kind:
        case "custom":
            (tmp_path / "model").mkdir()
            (tmp_path / "model" / "factor.txt").write_text("2")
            given = models.routine(tmp_path)
            fields = {
                "Prediction class": given["predictionClass"],
                "Packages": "\n".join(given["packageUris"]),
            }
            return Deployment(tmp_path / "model", fields, '{"instances": [21]}')
        case "xgboost":
            return Deployment(files.root / "xgboost")
        case "lightgbm":
            return Deployment(write_lightgbm(tmp_path))
        case "onnx":
            return Deployment(write_onnx(tmp_path))
        case _:
            return Deployment(request.getfixturevalue("saved_model"))


@pytest.mark.parametrize(
    "kind",
    [
        "custom",
        pytest.param("xgboost", marks=pytest.mark.soak),
        pytest.param("lightgbm", marks=pytest.mark.soak),
        pytest.param("onnx", marks=pytest.mark.soak),
        pytest.param("tensorflow", marks=pytest.mark.soak),
    ],
)
def test_a_model_of_each_kind_is_deployed_and_tried(
    server: Server, page: Page, kind: str, deployment: Deployment
) -> None:
    """With the example that the page has, but for code of users, of which it shows that nothing is known."""
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    page.goto(f"{server.url}/console/projects/local/deploy")
    page.get_by_label("Model", exact=True).fill(f"my {kind}")
    page.get_by_label("Folder with the model's files").fill(str(deployment.folder))
    page.get_by_text("More", exact=True).click()
    for label, value in deployment.fields.items():
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Check the files").click()
    page.locator("#error-model", has_text="it must start with a letter").wait_for()
    page.get_by_label("Model", exact=True).fill(kind)
    page.get_by_role("button", name="Check the files").click()
    page.get_by_text("Nothing is created yet.").wait_for()
    page.get_by_role("button", name="Deploy").click()
    page.get_by_role("link", name="To the version").click()
    inputs = page.get_by_role("region", name="Input and output")
    if deployment.request:
        inputs.get_by_text("No example is known").wait_for()
        page.get_by_role("button", name="Predict").click()
        page.locator("#error-request", has_text="Write an instance in place of …").wait_for()
        page.get_by_label("Request", exact=True).fill(deployment.request)
    else:
        inputs.get_by_role("columnheader", name="Of an instance").first.wait_for(state="attached")
    page.get_by_role("button", name="Predict").click()
    page.get_by_role("heading", name="Answer HTTP 200").wait_for()
    assert fits(page)


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


def test_a_visitor_switches_between_projects(server: Server, page: Page) -> None:
    """With keys, and with the menu open on a narrow screen."""
    server.create_model("projects/elsewhere/models/m")
    page.goto(f"{server.url}/console/projects/local/operations")
    page.locator("summary", has_text="Project local").press("Enter")
    assert fits(page)
    assert list_serious_issues(page) == []
    page.get_by_role("link", name="elsewhere", exact=True).press("Enter")
    page.get_by_text("There is no operation in project elsewhere yet.").wait_for()
    page.locator("summary", has_text="Project elsewhere").click()
    page.get_by_role("link", name="All projects").click()
    page.get_by_role("heading", name="Versions of all projects").wait_for()
    server.call("DELETE", "projects/elsewhere/models/m")


def test_the_navigation_is_one_row_on_a_narrow_screen(server: Server, page: Page, browser: Browser) -> None:
    """Its menus work without scripts; with them Escape closes one."""
    page.goto(f"{server.url}/console/projects/local/jobs")
    menu = page.locator("summary", has_text="Pages: Jobs")
    assert page.locator("header").evaluate("one => one.offsetHeight") < 60
    menu.click()
    assert fits(page)
    page.keyboard.press("Escape")
    assert not page.get_by_role("link", name="Settings").is_visible()
    page.set_viewport_size({"width": 1280, "height": 740})
    assert page.get_by_role("link", name="Settings").is_visible()
    assert not menu.is_visible()
    without = browser.new_page(viewport={"width": 360, "height": 740}, java_script_enabled=False)
    without.goto(f"{server.url}/console/projects/local/jobs")
    without.locator("summary", has_text="Pages: Jobs").click()
    without.get_by_role("link", name="Operations").click()
    without.get_by_role("heading", name="Operations").wait_for()
    without.close()


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
