"""Which project is in force, and how pages lead from one to another."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from serving.gateway.access.policy import ADMIN
from serving.gateway.console.navigation import NAVIGATION
from serving.gateway.console.projects import choose_project, parse_project
from tests.serving.gateway.console.world import World, run, visible_text
from tests.serving.gateway.job_world import FAKE

ANN = "user:ann@example.com"


@pytest.mark.parametrize(
    ("visible", "filled", "chosen"),
    [
        (["demo", "local"], {"demo", "local"}, "local"),
        (["demo", "local"], {"demo"}, "demo"),
        (["a", "demo", "local"], {"demo"}, "demo"),
        (["local"], set(), "local"),
        ([], {"demo"}, "local"),
    ],
)
def test_a_project_that_holds_something_is_chosen(visible: list[str], filled: set[str], chosen: str) -> None:
    """The default one before others."""
    assert choose_project(visible, filled, "local") == chosen


def test_no_project_is_made_of_what_is_no_name() -> None:
    assert [parse_project(text) for text in ("demo", "", "../x", "a" * 64)] == ["demo", "", "", ""]


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/", "Overview"),
        ("/projects/p/jobs", "Jobs"),
        ("/projects/p/jobs/j/log", "Jobs"),
        ("/projects/p/access/members", "Access"),
        ("/audit", "Audit"),
        ("/projects/p/models/jobs", ""),
        ("/projects/p/jobs-of-others", ""),
    ],
)
def test_pages_belong_to_those_above_them(path: str, title: str) -> None:
    assert [item.title for item in NAVIGATION if item.contains(path)] == ([title] if title else [])


def read_menu(page: str) -> dict[str, str]:
    """The pages of projects that the menu of a page leads to."""
    menu = page.partition('<details class="menu" name="menu">')[2].partition("</details>")[0]
    return {name: path for path, name in re.findall(r'href="([^"]+)"[^>]*>([^<]+)</a>', menu)}


async def fill_projects(world: World) -> None:
    """`a` has a model, `b` a job; `local` has nothing."""
    await world.api.call(ADMIN.principal, "POST", "/v1/projects/a/models", {"name": "m"})
    given = {"uri": "/model", "inputPaths": ["/run"], "outputPath": "/tmp", "dataFormat": "JSON"}
    job = {"jobId": "j", "predictionInput": {**given, "region": "us-central1"}}
    await world.api.call(ADMIN.principal, "POST", "/v1/projects/b/jobs", job)


def test_a_visitor_switches_between_projects(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await fill_projects(world)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            page = await browser.open("/projects/local/jobs")
            assert read_menu(page) == {
                "All projects": "/console/",
                **{name: f"/console/projects/{name}/jobs" for name in ("a", "b", "local")},
            }
            assert "There is no job in project local yet." in page
            assert 'href="/console/projects/b/jobs">1 job in project b</a>' in page
            part = await browser.open("/projects/local/job-list")
            assert "1 job in project b" in part
            # The project goes along.
            assert 'href="/console/?project=local"' in page
            assert 'href="/console/audit?project=local"' in page
            page = await browser.open("/audit?project=b")
            assert read_menu(page)["a"] == "/console/audit?project=a"
            assert 'href="/console/projects/b/jobs"' in page
            assert read_menu(await browser.open("/projects/a/models/m"))["b"] == "/console/?project=b"
            # Without a project, the first that holds something.
            page = await browser.open("/")
            assert 'href="/console/projects/a/jobs"' in page
            assert "1 job in project b" in await browser.open("/projects/a/jobs")
            assert "matches" in await browser.open("/projects/a/jobs?filter=labels.x%3Dy")
            assert "1 job" not in await browser.open("/projects/a/jobs?filter=labels.x%3Dy")

    (tmp_path / "state").mkdir()
    run(
        tmp_path / "state", main, access="on", default_project="local",
        environment=dict(os.environ), job_command=FAKE,
    )  # fmt: skip


def test_no_project_is_named_in_which_a_visitor_sees_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await fill_projects(world)
        await world.api.bind("projects/a/models/m", ml_modelUser=ANN)
        async with world.browser() as browser:
            page = await browser.sign_in(await world.api.token(ANN))
            assert "Project a" in " ".join(visible_text(page).split())
            assert read_menu(page) == {}
            assert "project b" not in page
            await browser.sign_in(await world.api.token("user:nobody@example.com"))
            assert "Project" not in visible_text(await browser.open("/"))

    (tmp_path / "state").mkdir()
    run(
        tmp_path / "state", main, access="on", default_project="local",
        environment=dict(os.environ), job_command=FAKE,
    )  # fmt: skip
