"""`POST /v2/entries:list` on the whole gateway: the logs of jobs, as Cloud Logging tells them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from serving.gateway.access.policy import ADMIN
from serving.gateway.jobs.log_lines import JobLogLine
from serving.gateway.jobs.log_query import LogQuery, select_lines
from serving.gateway.state.records import JobRecord
from serving.gateway.state.store import SqliteStore
from serving.resources import Job, JobState
from tests.serving.gateway.access import world
from tests.serving.gateway.access.world import Api

OWN = ADMIN.principal
PATH = "/v2/entries:list"
FILTER = 'resource.labels.job_id="j"'
ASKED = {"resourceNames": ["projects/p"], "filter": FILTER}
LOG = """\
before any time
2026-01-02 03:04:05 SERVER the attempt 1 begins
2026-01-02 03:04:05,250 INFO read 10 lines
2026-01-02 03:04:05,250 ERROR a line cannot be read
Traceback of it
2026-01-02 03:04:04,000 WARNING the clock went back
"""
TEXTS = [
    "before any time",
    "the attempt 1 begins",
    "read 10 lines",
    "a line cannot be read",
    "Traceback of it",
    "the clock went back",
]


def write_job(folder: Path, name: str, text: str) -> None:
    """A job that has ended and left this log."""
    _, project, _, job = name.split("/")
    uid = f"{project}{job}"
    (folder / "jobs" / uid).mkdir(parents=True)
    (folder / "jobs" / uid / "log").write_text(text)
    ended = Job(job_id=job, create_time="2026-01-01T00:00:00Z", state=JobState.SUCCEEDED)
    record = JobRecord(name=name, project=project, uid=uid, number=len(uid), job=ended)
    SqliteStore(folder / "state.db").commit({("jobs", name): record})


async def read_all(api: Api, who: str, **asked: Any) -> list[dict[str, Any]]:
    """The entries of all pages."""
    found, token = list[dict[str, Any]](), ""
    while True:
        page = await api.call(who, "POST", PATH, {**ASKED, **asked, "pageToken": token})
        assert len(page["entries"]) <= asked.get("pageSize", 50)
        found += page["entries"]
        if not (token := page.get("nextPageToken", "")):
            return found


def utc(text: str) -> str:
    """A local time as entries have it."""
    return f"{datetime.datetime.fromisoformat(text).astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def test_entries_are_the_lines_of_the_log(tmp_path: Path) -> None:
    """With what Cloud Logging has beside the text; a time never goes back."""
    write_job(tmp_path, "projects/p/jobs/j", LOG)

    async def main(api: Api) -> None:
        entries = (await api.call(OWN, "POST", PATH, ASKED))["entries"]

        at, later = utc("2026-01-02 03:04:05"), utc("2026-01-02 03:04:05.250")
        assert [entry["textPayload"] for entry in entries] == TEXTS
        assert [entry["timestamp"] for entry in entries] == ["2026-01-01T00:00:00.000000Z", at, *[later] * 4]
        assert [entry["severity"] for entry in entries] == [
            "DEFAULT", "INFO", "INFO", "ERROR", "ERROR", "WARNING",
        ]  # fmt: skip
        assert [entry["resource"]["labels"]["task_name"] for entry in entries] == [
            "worker", "service", "worker", "worker", "worker", "worker",
        ]  # fmt: skip
        assert entries[3] == {
            "logName": "projects/p/logs/ml.googleapis.com%2Fjob",
            "resource": {
                "type": "ml_job",
                "labels": {"job_id": "j", "project_id": "p", "task_name": "worker"},
            },
            "insertId": "00000000000000000001",
            "timestamp": later,
            "receiveTimestamp": later,
            "severity": "ERROR",
            "textPayload": "a line cannot be read",
        }
        graver = {**ASKED, "filter": f"{ASKED['filter']} AND severity>=ERROR"}
        assert [entry["textPayload"] for entry in (await api.call(OWN, "POST", PATH, graver))["entries"]] == [
            "a line cannot be read",
            "Traceback of it",
        ]

    world.run(tmp_path, main)


def test_pages_follow_each_other_in_either_order(tmp_path: Path) -> None:
    """Of any size, and none is left out where jobs of several projects have lines of the same time."""
    for project in ("p", "q"):
        write_job(tmp_path, f"projects/{project}/jobs/j", LOG)

    async def main(api: Api) -> None:
        both = {"resourceNames": ["projects/p", "projects/q"]}
        for size in (1, 4, 5, 6):
            ordered = await read_all(api, OWN, pageSize=size, orderBy="timestamp asc")
            assert [entry["textPayload"] for entry in ordered] == TEXTS
            backwards = await read_all(api, OWN, pageSize=size, orderBy="timestamp desc")
            assert backwards == ordered[::-1]
            of_both = await read_all(api, OWN, pageSize=size, **both)
            labels = [entry["resource"]["labels"]["project_id"] for entry in of_both]
            assert [entry["textPayload"] for entry in of_both] == [text for text in TEXTS for _ in "pq"]
            assert labels == ["p", "q"] * len(TEXTS)
            assert await read_all(api, OWN, pageSize=size, orderBy="timestamp desc", **both) == of_both[::-1]

    world.run(tmp_path, main)


def test_what_gcloud_asks_next_is_what_came_since(tmp_path: Path) -> None:
    """It names the last entry it has seen by its time and its id, and asks again and again."""
    write_job(tmp_path, "projects/p/jobs/j", LOG)

    async def main(api: Api) -> None:
        async def after(entry: dict[str, Any]) -> list[str]:
            time, last = entry["timestamp"], entry["insertId"]
            behind = f'((timestamp="{time}" AND insertId>"{last}") OR timestamp>"{time}")'
            asked = {**ASKED, "filter": f"{ASKED['filter']} AND {behind}"}
            return [
                one["textPayload"] for one in (await api.call(OWN, "POST", PATH, asked)).get("entries", [])
            ]

        entries = (await api.call(OWN, "POST", PATH, ASKED))["entries"]
        for number, entry in enumerate(entries, 1):
            assert await after(entry) == TEXTS[number:]
        with (tmp_path / "jobs" / "pj" / "log").open("a") as log:
            log.write("2026-01-02 03:04:06,000 INFO more\n")
        assert await after(entries[-1]) == ["more"]

    world.run(tmp_path, main)


def test_a_log_is_read_by_those_who_may_see_its_job(tmp_path: Path) -> None:
    """By a role on the project or on the job; nothing of others' comes with it."""
    for name in ("projects/p/jobs/j", "projects/p/jobs/k", "projects/q/jobs/j"):
        write_job(tmp_path, name, f"of {name}\n")

    async def main(api: Api) -> None:
        viewer, owner, nobody = (f"user:{name}@example.com" for name in ("viewer", "owner", "nobody"))
        await api.bind("projects/p", ml_viewer=viewer)
        await api.bind("projects/p/jobs/j", ml_jobOwner=owner)
        for who in (viewer, owner):
            (entry,) = await read_all(api, who)
            assert entry["textPayload"] == "of projects/p/jobs/j"
        other = {**ASKED, "filter": 'resource.labels.job_id="k"'}
        elsewhere = {**ASKED, "resourceNames": ["projects/q"]}
        await api.call(viewer, "POST", PATH, other)
        for who, asked, status in (
            (owner, other, 403),
            (viewer, elsewhere, 403),
            (viewer, {**ASKED, "resourceNames": ["projects/p", "projects/q"]}, 403),
            (nobody, ASKED, 403),
            ("", ASKED, 401),
        ):
            refused = await api.call(who, "POST", PATH, asked, status)
            assert "of projects" not in str(refused)

    world.run(tmp_path, main)


def test_a_page_of_the_first_lines_reads_no_more() -> None:
    """A log may have hundreds of thousands of lines."""
    record = JobRecord(name="projects/p/jobs/j", project="p", uid="u", number=1, job=Job(job_id="j"))
    lines = (JobLogLine(time, 0, "INFO", "worker", str(time)) for time in range(100))
    asked = LogQuery(FILTER, 3, after=(4, 0, record.name))

    found = select_lines(lines, record, asked)

    assert [line.text for line in found.lines] == ["5", "6", "7"]
    assert not found.is_last
    assert next(lines).text == "9"  # one more was read, to know that there is one
    last = select_lines(lines, record, LogQuery(FILTER, 2, descending=True))
    assert [line.text for line in last.lines] == ["99", "98"]
