"""The pages of jobs; a job's process does what its input paths say."""

from __future__ import annotations

import asyncio
import datetime
import os
from pathlib import Path
from typing import Any

from serving.gateway.access.policy import ADMIN
from serving.gateway.console.pages.jobs import measure_run
from tests.serving.gateway.console.world import Browser, World, run, visible_text
from tests.serving.gateway.job_world import FAKE

JOBS, FORM = "/projects/p/jobs", "/projects/p/new-prediction-job"
HOSTILE = "<b>bold</b> \x1b[31m \u202egpj 👩\u200d🚀 "


async def submit(browser: Browser, folder: Path, job: str, *script: str, **fields: str) -> str:
    """The page after the form was sent."""
    out = folder / "out" / job
    out.mkdir(parents=True, exist_ok=True)
    (folder / f"{job}.steps").write_text("\n".join(f"/{step}" for step in script))
    await browser.open(FORM)
    given = {
        "job": job,
        "target": "/model",
        "input_paths": f"{folder}/{job}.steps",
        "output_path": str(out),
        "data_format": "JSON",
    }
    return await browser.post(FORM, {**given, **fields})


def test_how_long_a_job_has_run() -> None:
    now = datetime.datetime(2026, 1, 1, 12, 1, tzinfo=datetime.UTC)
    job = {"startTime": "2026-01-01T12:00:00Z"}

    assert measure_run({}, now) is None
    assert measure_run(job, now) == 60
    assert measure_run({**job, "endTime": "2026-01-01T12:00:02Z"}, now) == 2
    # Clocks are set.
    assert measure_run(job, now - datetime.timedelta(hours=1)) == 0


async def wait_for(world: World, job: str, state: str) -> Any:
    while True:
        found = (await world.api.client.get(f"/v1{JOBS}/{job}")).json()
        if found["state"] == state:
            return found
        await asyncio.sleep(0.01)


def run_jobs(folder: Path, main: Any, **settings: Any) -> None:
    (folder / "state").mkdir()
    run(folder / "state", main, environment=dict(os.environ), job_command=FAKE, **settings)


def test_a_job_is_submitted_by_form_and_followed_to_its_end(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = await submit(
                browser, tmp_path, "one", "run", "log/hello", "count/7/2", "wait/go",
                labels="team=ads\nkind=weekly", max_errors="10%", keys="id, day",
            )  # fmt: skip
            assert "The job was submitted." in page
            job = await wait_for(world, "one", "RUNNING")
            assert job["labels"] == {"team": "ads", "kind": "weekly"}
            assert job["batchOptions"] == {"maxErrors": "10%", "keys": ["id", "day"]}
            assert "data-live" in await browser.open(f"{JOBS}/one")
            (tmp_path / "out" / "one" / "go").touch()
            await wait_for(world, "one", "SUCCEEDED")
            part = await browser.client.get(f"/console{JOBS}/one/progress", headers={"x-console-part": "1"})
            assert part.status_code == 286
            text = visible_text(part.text)
            assert "SUCCEEDED" in text
            assert "hello" in text
            assert "hello" in visible_text(await browser.open(f"{JOBS}/one/log"))
            assert "hello" not in visible_text(await browser.open(f"{JOBS}/one/log?severity=CRITICAL"))

    run_jobs(tmp_path, main)


def test_a_refused_job_leaves_the_form_as_it_was_filled_in(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await browser.open(FORM)
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "b").touch()
            paths = f"{tmp_path}/a/*\n{tmp_path}/a/b"
            fields = {"job": "one", "target": "nothing/v1", "input_paths": paths, "output_path": "/out"}
            for field, status, changed in (
                ("target", 404, {}),
                ("output_path", 400, {"output_path": "out"}),
                ("job", 400, {"job": "1 is no id"}),
            ):
                page = await browser.post(FORM, {**fields, "data_format": "JSON", **changed}, status)
                assert f'id="error-{field}">' in page, visible_text(page)
                assert f'value="{changed.get("target", "nothing/v1")}"' in page
                assert paths in page
                assert 'role="alert"' in page

    run_jobs(tmp_path, main)


def test_input_that_does_not_exist_is_said_at_its_field_and_nothing_is_created(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        (tmp_path / "input").mkdir()
        (tmp_path / "input" / "<b>.jsonl").touch()
        given = f"{tmp_path}/input/*\n{tmp_path}/imput/*"
        fields = {"job": "one", "target": "/model", "input_paths": given, "output_path": f"{tmp_path}/out"}
        async with world.browser() as browser:
            await browser.open(FORM)
            page = await browser.post(FORM, {**fields, "data_format": "JSON"})
            said = page.partition('id="error-input_paths">')[2].partition("</span>")[0]
            assert f"Do you mean {tmp_path}/input/*?" in said
            assert f">{given}</textarea>" in page
            taken = f"{tmp_path}/input/*\n{tmp_path}/input/*"
            assert f'name="replacement" value="{taken}"' in page
            page = await browser.post(FORM, {**fields, "data_format": "JSON", "replacement": taken})
            assert f">{taken}</textarea>" in page
            assert "error-input_paths" not in page
            assert (await world.api.client.get(f"/v1{JOBS}")).json() == {}

    run_jobs(tmp_path, main)


def test_only_who_may_submit_jobs_is_told_which_files_exist(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer="user:ann@example.com")
        async with world.browser() as ann:
            await ann.sign_in(await world.api.token("user:ann@example.com"))
            fields = {"job": "one", "target": "/model", "input_paths": f"{tmp_path}/x", "output_path": "/out"}
            assert "There is no file" not in await ann.post(FORM, fields, 403)

    run_jobs(tmp_path, main, access="on")


def test_the_list_shows_states_and_why_jobs_wait_and_is_filtered(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await submit(browser, tmp_path, "first", "run", "wait/go", labels="team=ads")
            await wait_for(world, "first", "RUNNING")
            await submit(browser, tmp_path, "second", "run")
            text = visible_text(await browser.open(JOBS))
            assert "place 1" in text
            progress = (await world.api.client.get("/jobs/projects/p/jobs/second")).json()
            assert progress["waitReason"]
            assert progress["waitReason"] in text
            assert "second" not in visible_text(await browser.open(f"{JOBS}?filter=labels.team%3Dads"))
            assert "first" not in visible_text(await browser.open(f"{JOBS}?state=QUEUED"))
            assert "No job of project p matches" in await browser.open(f"{JOBS}?state=FAILED")
            assert "second" in await browser.open("/projects/p/job-list?state=QUEUED")

    run_jobs(tmp_path, main, jobs=1)


def test_a_job_is_cancelled_once_and_its_labels_change(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await submit(browser, tmp_path, "one", "run", "wait/never")
            await wait_for(world, "one", "RUNNING")
            page = await browser.post(f"{JOBS}/one/cancel", {})
            assert "asked to stop" in page
            await wait_for(world, "one", "CANCELLED")
            assert "ended before: CANCELLED" in await browser.post(f"{JOBS}/one/cancel", {})
            page = await browser.open(f"{JOBS}/one")
            assert "Cancel the job" not in page
            etag = (await world.api.client.get(f"/v1{JOBS}/one")).json().get("etag", "")
            assert "a=b" in await browser.post(f"{JOBS}/one/labels", {"labels": "a=b", "etag": etag})
            assert "is no label" in await browser.post(f"{JOBS}/one/labels", {"labels": "a", "etag": ""}, 400)

    run_jobs(tmp_path, main)


def test_what_jobs_say_is_text(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            await submit(
                browser, tmp_path, "one", f"log/{HOSTILE.replace('/', '|')}{'x' * 100_000}", "fail/<i>no<|i>"
            )
            await wait_for(world, "one", "FAILED")
            for path in (JOBS, f"{JOBS}/one", f"{JOBS}/one/log"):
                page = await browser.open(path)
                assert "<i>no" not in page
                assert "<b>bold" not in page
                assert "\x1b" not in page
                assert "\u202e" not in page
                assert len(page) < 100_000

    run_jobs(tmp_path, main)


def test_who_may_only_look_is_offered_nothing_else(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer="user:ann@example.com")
        async with world.browser() as admin, world.browser() as ann:
            await admin.sign_in(await world.api.token(ADMIN.principal))
            await submit(admin, tmp_path, "one", "run", "wait/never")
            await ann.sign_in(await world.api.token("user:ann@example.com"))
            assert "New batch prediction" not in await ann.open(JOBS)
            page = await ann.open(f"{JOBS}/one")
            assert "Cancel the job" not in page
            assert "Change labels" not in page
            await ann.post(f"{JOBS}/one/cancel", {}, 403)

    run_jobs(tmp_path, main, access="on")
