"""Two gateways that tell of each other's jobs, over real connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.control.placement.server_placement import ServerPlacement
from serving.gateway.control.retention import _delete_due
from serving.gateway.jobs import job_queue
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.state.records import JobRecord
from serving.resources import JobState
from tests.bounds import HANG_SECONDS
from tests.file_search import find_files
from tests.postgres import Postgres
from tests.serving.gateway.cluster.world import JOBS, USUAL, Member, find_owner, run, until

NAME = "projects/p/jobs/j"
PROGRESS = f"/jobs/{NAME}"
ASKED = {"resourceNames": ["projects/p"], "filter": 'resource.labels.job_id="j"'}


def placement_of(member: Member) -> ServerPlacement:
    peers = member.gateway._peers
    assert peers is not None and peers._placement is not None
    return peers._placement


def name_of(member: Member) -> str:
    own = member.sharing.own_server
    assert own is not None
    return own.name


def log_of(member: Member) -> Path:
    return member.folder / "jobs" / member.state.jobs[NAME].uid / "log"


async def list_entries(member: Member, status: int = 200, **asked: Any) -> list[dict[str, Any]]:
    """The entries of all pages."""
    found, token = list[dict[str, Any]](), ""
    while True:
        body = {**ASKED, **asked, "pageToken": token}
        page = await member.call("POST", "/v2/entries:list", body, status)
        found += page.get("entries", [])
        if not (token := page.get("nextPageToken", "")):
            return found


def texts_of(entries: Sequence[dict[str, Any]]) -> list[str]:
    return [entry["textPayload"] for entry in entries]


async def until_joined(*members: Member) -> None:
    """Until each reaches the other, and knows which one does the work."""

    def is_joined(member: Member) -> bool:
        clients, worker = placement_of(member)._clients.values(), placement_of(member).find_work_owner()
        return (
            len(clients) == 1
            and all(client.is_connected for client in clients)
            and (worker is not None or member.catalog.owns_work)
        )

    await until(lambda: all(map(is_joined, members)))


async def begin_job(out: Path, asked: Member, *script: str) -> None:
    """A job whose process has said `hello`, and goes on when the file `go` is there."""
    await asked.submit("j", out, "run", "log/hello", *script, "wait/go")
    await until((out / "started.1").exists)
    await until(lambda: asked.state.jobs[NAME].job.state is JobState.RUNNING)


async def end_job(out: Path, *members: Member) -> None:
    (out / "go").touch()
    for member in members:
        await until(lambda: member.state.jobs[NAME].has_ended)  # noqa: B023


def test_a_job_is_followed_at_either_server(postgres: Postgres, tmp_path: Path) -> None:
    """The one that runs it has its log; the other asks it, while the job runs and afterwards."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, other, "count/3/1", "log/counted", "mark/counted")
        await until((out / "counted").exists)
        await until(lambda: "counted" in log_of(owner).read_text())

        entries = await list_entries(other)
        assert texts_of(entries) == ["hello", "counted"]
        assert entries == await list_entries(owner)
        assert entries == await list_entries(other, pageSize=1)
        assert entries[::-1] == await list_entries(other, pageSize=1, orderBy="timestamp desc")
        assert await list_entries(other, filter=f"{ASKED['filter']} AND severity>=ERROR") == []
        assert not log_of(other).exists()

        # Counts of the rate change from one answer to the next.
        told = [await member.call("GET", PROGRESS) for member in (other, owner)]
        for field in ("state", "phase", "attempt", "waitReason", "predictions", "errors", "workers", "log"):
            assert told[0][field] == told[1][field]
        assert (told[0]["state"], told[0]["phase"], told[0]["workers"]) == ("RUNNING", "RUNNING", 2)
        assert told[0]["log"] == ["hello", "counted"]
        for path in ("jobs/j", "jobs/j/log"):
            page = await other.send("GET", f"/console/projects/p/{path}", accept="text/html")
            assert page.status_code == 200
            assert "counted" in page.text

        await end_job(out, a, b)
        assert await list_entries(other) == await list_entries(owner)
        assert (await other.call("GET", PROGRESS))["log"] == ["hello", "counted"]

    run(postgres.create_database(), tmp_path, main, access="off")


def test_a_waiting_job_says_why_at_either_server(postgres: Postgres, tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, owner)
        await other.submit("k", tmp_path / "second", "run")
        await until(lambda: "projects/p/jobs/k" in owner.state.jobs)

        assert (await other.call("GET", PROGRESS))["waitReason"] == ""
        waits = [await one.call("GET", "/jobs/projects/p/jobs/k") for one in (owner, other)]
        assert waits[0] == waits[1]
        assert "waits for one of 1 places" in waits[1]["waitReason"]
        await end_job(out, a, b)

    run(postgres.create_database(), tmp_path, main, jobs=1)


def test_a_log_of_two_servers_is_read_as_one(postgres: Postgres, tmp_path: Path) -> None:
    """The work has moved: each has a part. While one is gone, a line says which part is missing."""
    out, address = tmp_path / "out", postgres.create_database()

    async def main(a: Member, b: Member) -> None:
        first, second = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, second)
        await until(lambda: "hello" in log_of(first).read_text())
        name = name_of(first)
        await first.stop()
        await until((out / "started.2").exists)
        await end_job(out, second)

        own = texts_of(await list_entries(second))
        assert own[0].startswith(f"Lines before this one are on {name} alone")
        assert own.count("hello") == 1

        back = Member(address, first.folder, USUAL)
        await back.start()
        try:
            await until_joined(back, second)
            whole = [await list_entries(member) for member in (back, second)]
            assert whole[0] == whole[1] == await list_entries(back, pageSize=1)
            texts = texts_of(whole[0])
            assert texts.count("hello") == 2
            assert texts.index("The job goes on at another server.") < texts.index(
                f"The job goes on at {name_of(second)}. Attempt 2 begins."
            )
            told = (await back.call("GET", PROGRESS))["log"]
            assert [line.rpartition(" SERVER ")[2] for line in told] == own[1:]
        finally:
            await back.stop()

    run(address, tmp_path, main)


def test_who_has_the_only_copy_is_named(postgres: Postgres, tmp_path: Path) -> None:
    """The job has ended; the server that ran it has gone."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        first, second = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, second)
        await end_job(out, a, b)
        name = name_of(first)
        await first.stop()
        await until(lambda: not placement_of(second)._clients)

        refused = await second.call("POST", "/v2/entries:list", ASKED, 503)
        assert f"The log of {NAME} is on {name} alone" in refused["error"]["message"]
        told = await second.call("GET", PROGRESS)
        assert (told["state"], told["phase"]) == ("SUCCEEDED", "")
        assert name in told["log"][0]
        assert (await second.call("GET", f"{JOBS}/j"))["state"] == "SUCCEEDED"

    run(postgres.create_database(), tmp_path, main)


def test_a_copy_of_the_log_outlives_the_server(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place that all servers reach: of what the job has left at each server. It goes with the job."""
    out, shared = tmp_path / "out", tmp_path / "shared"
    monkeypatch.setattr(job_queue, "_COPY_SECONDS", HANG_SECONDS)

    async def main(a: Member, b: Member) -> None:
        first, second = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, second)
        await until(lambda: "hello" in log_of(first).read_text())
        await first.stop()
        assert len(find_files(shared, ".tar.gz")) == 1
        await until((out / "started.2").exists)
        await until(lambda: "hello" in log_of(second).read_text())

        running = texts_of(await list_entries(second))
        assert running[:2] == ["hello", "The job goes on at another server."]
        assert running.count("hello") == 2
        assert not any("this one are on" in text for text in running)
        await end_job(out, second)
        await until(lambda: len(find_files(shared, ".tar.gz")) == 2)
        assert texts_of(await list_entries(second, pageSize=1))[:2] == running[:2]

        await second.catalog.change(_delete_due, [("jobs", NAME)])
        await second.gateway._jobs.remove_logs([folder.name for folder in (second.folder / "jobs").iterdir()])
        assert find_files(shared, ".tar.gz") == []
        assert not list((second.folder / "jobs").iterdir())

    run(postgres.create_database(), tmp_path, main, shared_versions_uri=str(shared))


def test_a_log_that_was_not_copied_is_when_the_server_starts(postgres: Postgres, tmp_path: Path) -> None:
    """The place could not be written to when the job ended. The last lines are in the copy, too."""
    out, shared, address = tmp_path / "out", tmp_path / "shared", postgres.create_database()

    async def main(a: Member, b: Member) -> None:
        first, second = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, second)
        shared.write_text("no folder")
        await end_job(out, a, b)
        await first.stop()
        refused = await second.call("POST", "/v2/entries:list", ASKED, 503)
        assert name_of(first) in refused["error"]["message"]
        shared.unlink()

        back = Member(address, first.folder, USUAL, shared_versions_uri=str(shared))
        await back.start()
        await until(lambda: len(find_files(shared, ".tar.gz")) == 1)
        await back.stop()
        second.gateway._job_reader._copies._absent.clear()  # type: ignore[attr-defined]
        assert (await second.call("GET", PROGRESS))["log"] == ["hello"]
        assert texts_of(await list_entries(second)) == ["hello"]
        find_files(shared, ".tar.gz")[0].write_bytes(b"damaged")
        for folder in list((second.folder / "jobs").rglob("copies")):
            await asyncio.to_thread(shutil.rmtree, folder)
        refused = await second.call("POST", "/v2/entries:list", ASKED, 503)
        assert name_of(first) in refused["error"]["message"]

    run(address, tmp_path, main, shared_versions_uri=str(shared))


def test_without_a_server_that_does_the_work_that_is_said(postgres: Postgres, tmp_path: Path) -> None:
    """Not that the job waits, as this server would think of a job that it does not run."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await begin_job(out, other)
        told = await other.call("GET", PROGRESS)
        assert "No server is known to do the work" in told["waitReason"]
        assert told["log"] == []
        refused = await other.call("POST", "/v2/entries:list", ASKED, 503)
        assert name_of(owner) in refused["error"]["message"]
        await end_job(out, a, b)

    run(postgres.create_database(), tmp_path, main, peer_port="off")


def test_an_answer_that_takes_too_long_is_not_waited_for(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for longer than the client does; the other server goes on as before."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, other)
        go_on = asyncio.Event()

        async def wait(*_: object) -> None:
            await go_on.wait()

        monkeypatch.setattr(owner.gateway._job_reader._local, "read_log_part", wait)  # type: ignore[attr-defined]
        late = await other.send("POST", "/v2/entries:list", ASKED, x_request_timeout="0.2")
        assert late.status_code == 504
        assert "has not answered within 0.2 s" in late.json()["error"]["message"]
        monkeypatch.undo()
        go_on.set()
        assert texts_of(await list_entries(other)) == ["hello"]
        await end_job(out, a, b)

    run(postgres.create_database(), tmp_path, main)


def test_nothing_is_asked_twice(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is asked by another answers by what it has, also if that is not all."""
    out = tmp_path / "out"

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await until_joined(a, b)
        await begin_job(out, other)
        asked: list[str] = []
        answered = JobQueue.iter_log_lines

        def iter_log_lines(queue: JobQueue, record: JobRecord, since: int, *rest: Any) -> Any:
            asked.append("owner" if queue is owner.gateway._jobs else "other")
            return answered(queue, record, since, *rest)

        monkeypatch.setattr(JobQueue, "iter_log_lines", iter_log_lines)
        # Each believes that the log is where the other is.
        reader = owner.gateway._job_reader
        monkeypatch.setattr(reader, "_find_own", lambda: None)
        assert texts_of(await list_entries(other)) == ["hello"]
        assert asked == ["owner"]
        await end_job(out, a, b)

    run(postgres.create_database(), tmp_path, main)
