"""Whole tasks in the console in Chromium, with clicks and keys only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chromium import fits, list_serious_issues, needs_chromium, running_chromium
from tests.end_to_end import models
from tests.end_to_end.conftest import CLOSED, Files
from tests.end_to_end.jobs import finished, submit
from tests.end_to_end.jobs import job as prediction_job
from tests.end_to_end.training_jobs import training_job, write_wheel
from tests.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

PROJECT = "/console/projects/local"
PATIENCE_MILLISECONDS = 240_000
# Has its value as the metric, and a model.
TRIAL = """
    import argparse, shutil, hypertune

    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--model")
    parser.add_argument("--rate", type=float)
    args = parser.parse_args()
    shutil.copytree(args.model, args.job_dir, dirs_exist_ok=True)
    hypertune.HyperTune().report_hyperparameter_tuning_metric("score", args.rate, 1)
"""
SPEC = {
    "goal": "MAXIMIZE",
    "hyperparameterMetricTag": "score",
    "algorithm": "GRID_SEARCH",
    "maxTrials": 2,
    "maxParallelTrials": 2,
    "params": [{"parameterName": "rate", "type": "DISCRETE", "discreteValues": [0.25, 0.75]}],
}
# Every page, with what the tests leave on them.
ACCESSIBLE = (
    "/",
    "/projects/local/models/tuned",
    "/projects/local/models/tuned/versions/v1",
    "/projects/local/deploy",
    "/projects/local/jobs",
    "/projects/local/jobs/first",
    "/projects/local/jobs/first/log",
    "/projects/local/jobs/tuned",
    "/projects/local/jobs/tuned/trials",
    "/projects/local/new-prediction-job",
    "/projects/local/new-training-job",
    "/projects/local/operations",
    "/projects/local/operations/{operation}",
    "/projects/local/access",
    "/audit",
    "/doctor",
    "/settings",
    "/no-such-page",
)
EVIL = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "</pre>\x1b[31m\u202egnp.exe \U0001f469\u200d\U0001f680 שלום &amp; {{ 7 * 7 }} \x00"
)
# What of it can be read on a page.
SHOWN = (
    "<script>document.title='owned'</script></pre>\\x1b[31m\\u202egnp.exe "
    "\U0001f469\u200d\U0001f680 שלום &amp; {{ 7 * 7 }}"
)
SHOUTING = f"""
    EVIL = {EVIL!r}
    print(EVIL, flush=True)
    print("x" * (1 << 20), flush=True)
    raise ValueError(EVIL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Batch jobs wait for each other."""
    state_dir = tmp_path_factory.mktemp("console") / "state"
    with running_server(state_dir, "--jobs", "1", environment={"PIP_INDEX_URL": CLOSED}) as server:
        yield server


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


def confirm(page: Page, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def sign_in(page: Page, server: Server, token: str) -> None:
    page.goto(f"{server.url}/console/")
    assert list_serious_issues(page) == []
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").press("Enter")


def open_access(page: Page) -> None:
    # The menu may be open; and that of the page to sign in is not meant, which is left just now.
    page.keyboard.press("Escape")
    page.locator("summary", has_text=re.compile("Pages: (Overview|Access)")).click()
    page.get_by_role("link", name="Access").click()


def test_a_token_is_made_and_revoked(browser: Browser, page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path / "state", "--access", "on", "--pilots", "off") as server:
        sign_in(page, server, (server.state_dir / "admin-token").read_text().strip())
        open_access(page)
        page.get_by_text("Make a token").click()
        page.get_by_label("Whose").fill("user:ann@example.com")
        page.get_by_label("Whose").press("Enter")
        secret = page.locator("code.secret").inner_text()
        assert fits(page)
        assert list_serious_issues(page) == []
        other = browser.new_page()
        sign_in(other, server, secret)
        other.locator("header > .wide").get_by_text("user:ann@example.com").wait_for()
        open_access(page)
        assert secret not in page.content()
        page.locator("tr", has_text=secret.split("_")[1]).get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        page.get_by_text("is revoked.").wait_for()
        other.reload()
        other.get_by_label("Token").wait_for()
        other.close()


def test_a_batch_job_runs_to_its_end_and_another_is_cancelled(
    server: Server, page: Page, files: Files, tmp_path: Path
) -> None:
    rows = models.data()[0][:20].tolist()
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for job in ("first", "second"):
        page.goto(f"{server.url}{PROJECT}/jobs")
        page.get_by_role("link", name="New batch prediction").click()
        page.get_by_label("Job id").fill(job)
        page.get_by_label("Model", exact=True).fill(str(files.root / "sklearn"))
        page.get_by_label("Input", exact=True).fill(str(tmp_path / "rows.jsonl"))
        page.get_by_label("Output folder").fill(str(tmp_path / job))
        page.get_by_role("button", name="Start").click()
        page.get_by_text("The job was submitted.").wait_for()
    confirm(page, "Cancel the job")
    page.get_by_text("CANCELLED", exact=True).wait_for()
    page.get_by_role("link", name="Jobs").first.click()
    page.get_by_role("link", name="first").click()
    page.get_by_text("SUCCEEDED", exact=True).wait_for()
    assert page.get_by_role("button", name="Cancel the job").count() == 0
    assert len((tmp_path / "first" / "prediction.results-00000-of-00001").read_text().splitlines()) == 20


def test_the_best_trial_of_a_tuning_job_is_deployed(
    server: Server, page: Page, files: Files, tmp_path: Path
) -> None:
    page.goto(f"{server.url}{PROJECT}/jobs")
    page.get_by_role("link", name="New training job").click()
    page.get_by_label("Job id").fill("tuned")
    page.get_by_label("Packages").fill(str(write_wheel(tmp_path, TRIAL)))
    page.get_by_label("Module to run").fill("trainer.task")
    page.get_by_label("Arguments").fill(f"--model={files.root / 'sklearn'}")
    page.get_by_label("Job folder").fill(str(tmp_path / "job"))
    page.get_by_text("Tuning, deployment and more").click()
    page.get_by_label("Hyperparameters").fill(json.dumps({**SPEC, "maxTrials": -1}))
    page.get_by_role("button", name="Start").click()
    page.get_by_text("see what is marked below").wait_for()
    assert fits(page)
    page.get_by_label("Hyperparameters").fill(json.dumps(SPEC))
    page.get_by_role("button", name="Start").click()
    page.get_by_text("SUCCEEDED", exact=True).first.wait_for()
    page.locator("#metric-curves svg").wait_for()
    page.get_by_role("link", name="Trials").click()
    page.locator("#parallel path.first").wait_for(state="attached")
    page.get_by_role("link", name="Deploy the best trial").click()
    page.get_by_label("Model", exact=True).fill("tuned")
    page.get_by_role("button", name="Check the files").click()
    page.get_by_role("button", name="Deploy").click()
    page.get_by_role("link", name="To the version").click()
    assert page.url.endswith("/projects/local/models/tuned/versions/v1")
    folder = server.call("GET", "projects/local/models/tuned/versions/v1").json["deploymentUri"]
    best = server.call("GET", "projects/local/jobs/tuned").json["trainingOutput"]["trials"][0]
    assert best["hyperparameters"] == {"rate": "0.75"}
    assert folder == str(tmp_path / "job" / best["trialId"])


def test_what_others_say_is_text(server: Server, page: Page, tmp_path: Path) -> None:
    """Log lines, errors and predictions, on every page that shows them."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    wheel = write_wheel(tmp_path / "program", SHOUTING)
    given = {"region": "us-central1", "packageUris": [str(wheel)], "pythonModule": "trainer.task"}
    sent = server.call("POST", "projects/local/jobs", json={"jobId": "evil", "trainingInput": given})
    assert sent.status == 200, sent.json
    page.goto(f"{server.url}{PROJECT}/jobs/evil")
    page.get_by_text("FAILED", exact=True).first.wait_for()
    page.get_by_role("link", name="The whole log").click()
    page.locator("pre.log", has_text=SHOWN).wait_for()
    assert_harmless(page, "jobs/evil/log")
    for path in ("jobs", "jobs/evil"):
        page.goto(f"{server.url}{PROJECT}/{path}")
        page.locator("main .badge", has_text="FAILED").first.wait_for()
        assert_harmless(page, path)
    server.create_model("projects/local/models/echo")
    (tmp_path / "routine").mkdir()
    (tmp_path / "routine" / "factor.txt").write_text("10")
    server.create_version(
        "projects/local/models/echo/versions/v1",
        deploymentUri=str(tmp_path / "routine"),
        **models.routine(tmp_path),
    )
    for body in ({"instances": [1], "evil": EVIL}, {"instances": [f"raise {EVIL}"]}):
        page.goto(f"{server.url}{PROJECT}/models/echo/versions/v1")
        page.locator("textarea[name=request]").fill(json.dumps(body))
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("heading", name="Answer HTTP").wait_for()
        assert_harmless(page, "prediction")
    assert [one for one in errors if "Failed to load resource" not in one] == []


def assert_harmless(page: Page, where: str) -> None:
    assert "owned" not in page.title(), where
    assert page.locator("img[src=x]").count() == 0, where
    assert page.locator("main script").count() == 0, where
    assert fits(page), where


@pytest.fixture(scope="module")
def furnished(server: Server, files: Files, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """With a batch job, a tuning job and a version; those of the tests before, where these ran."""
    folder = tmp_path_factory.mktemp("furnished")
    if server.call("GET", "projects/local/jobs/first").status == 404:
        (folder / "rows.jsonl").write_text("[1, 2, 3, 4]\n")
        batch = prediction_job(
            "first", str(folder / "rows.jsonl"), folder / "first", uri=str(files.root / "sklearn")
        )
        finished(server, submit(server, batch, "local"))
    if server.call("GET", "projects/local/jobs/tuned").status == 404:
        tuning = training_job(
            "tuned",
            write_wheel(folder, TRIAL),
            args=[f"--model={files.root / 'sklearn'}"],
            jobDir=str(folder / "tuned"),
            hyperparameters=SPEC,
        )
        finished(server, submit(server, tuning, "local"))
    if server.call("GET", "projects/local/models/tuned").status == 404:
        server.create_model("projects/local/models/tuned")
        server.create_version(
            "projects/local/models/tuned/versions/v1", deploymentUri=str(files.root / "sklearn")
        )
    return server


@pytest.mark.parametrize("path", ACCESSIBLE)
def test_pages_have_no_serious_accessibility_issue(furnished: Server, page: Page, path: str) -> None:
    """In light and dark, on narrow and wide screens, with all that a page can open."""
    (operation, *_) = furnished.call("GET", "projects/local/operations").json["operations"]
    page.goto(f"{furnished.url}/console{path.format(operation=operation['name'].rpartition('/')[2])}")
    found = {}
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 740})
        found["light", width] = list_serious_issues(page)
        assert fits(page)
    # Only colours differ there.
    page.emulate_media(color_scheme="dark")
    found["dark", width] = list_serious_issues(page, "color-contrast")
    assert {look: issues for look, issues in found.items() if issues} == {}


def test_an_open_page_goes_on_when_the_server_is_back(page: Page, tmp_path: Path) -> None:
    """It says that the server is gone, and keeps what it showed."""
    state_dir = tmp_path / "state"
    with running_server(state_dir, "--pilots", "off") as server:
        port = server.url.rpartition(":")[2]
        server.create_model("projects/local/models/kept")
        page.goto(f"{server.url}{PROJECT}/jobs")
        page.get_by_text("There is no job in project local yet.").wait_for()
        server.stop()
        page.get_by_text("The server does not answer.").wait_for()
        assert page.get_by_text("There is no job in project local yet.").is_visible()
    with running_server(state_dir, "--pilots", "off", "--port", port) as server:
        page.get_by_text("The server does not answer.").wait_for(state="hidden")
        given = {"region": "us-central1", "packageUris": ["/nothing.whl"], "pythonModule": "a.b"}
        body = {"jobId": "later", "trainingInput": given}
        assert server.call("POST", "projects/local/jobs", json=body).status == 200
        page.get_by_role("link", name="later").wait_for()
