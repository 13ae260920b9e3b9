"""Batch predictions one at a time: their queue, what is cancelled and deleted meanwhile, hopeless jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Answer, Emulator, running_front
from tests.end_to_end import jobs, models
from tests.end_to_end.conftest import CLOSED, Files
from tests.server import Server, running_server, until

MODEL = "projects/tests/models/queue"
V1, V2, V3 = (f"{MODEL}/versions/v{number}" for number in (1, 2, 3))
NUMBERS = list(range(10))
# What has these words in its name is not for us to see.
FORBIDDEN = "forbidden"

# What is wrong with a job, and what the message of its failure says.
CASES: dict[str, str] = {
    "missing_path": r"No file matches .*/nothing/\*\. Check the path",
    "missing_bucket": r"bucket no-such-bucket",
    "folder": r"is a folder; .*/\*",
    "empty_input": r"There is nothing to predict: 1 file at .*empty\.jsonl, all empty",
    "blank_lines": r"There is nothing to predict: the files at .*blank\.jsonl hold blank lines only",
    "unreadable_input": r"refuses gs://\S+/in\.jsonl to the server's account: .*It needs roles/storage\.",
    "unwritable_output": r"refuses gs://\S+/out/\S+ to the server's account: .*It needs roles/storage\.",
    "output_in_a_file": r"/occupied\.txt/out/\S+ is not in or no folder",
    "results_of_another": r"/full holds results of another job already: .*results-00000-of-00001\. Choose",
    "missing_model": r"/no/such/model",
    "no_model": r"No model file was found.*notes\.txt",
    "hidden_gzip": r"rows\.txt is compressed with gzip; give it a name that ends in \.gz",
    "too_many_errors": r"2 of 12 records failed; at most 1 may\..*not valid JSON",
}


@dataclass(frozen=True)
class World:
    """A server that runs one job at a time, a folder for files, and a bucket."""

    server: Server
    root: Path
    bucket: str

    def submit(self, job_id: str, inputs: str | list[Any], **details: Any) -> str:
        """Submit a job over a path, or over these lines; a routine's, if nothing else is said."""
        path = inputs
        if isinstance(inputs, list):
            path = str(jobs.write_lines(self.root / "in" / f"{job_id}.jsonl", inputs))
        given = {} if "uri" in details or "versionName" in details else {"versionName": V1}
        output = details.pop("outputPath", self.out(job_id))
        return jobs.submit(self.server, jobs.job(job_id, path, output, **given, **details))

    def out(self, job_id: str) -> Path:
        """Where a job writes to, if nothing else is said."""
        return self.root / "out" / job_id


@pytest.fixture(scope="module")
def world(emulator_server: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The server; some of what it asks Cloud Storage for is forbidden."""
    root = tmp_path_factory.mktemp("queue")
    bucket = f"gs://{emulator_server.bucket('queue')}"
    emulator_server.put(f"{bucket}/{FORBIDDEN}/in.jsonl", b"1\n")
    (root / "tmp").mkdir()

    def answer(path: str, forward: Callable[[], Answer]) -> Answer:
        return Answer(403) if FORBIDDEN in path else forward()

    with running_front(emulator_server.url) as front:
        front.answer = answer
        environment = {
            "STORAGE_EMULATOR_HOST": front.url,
            "PIP_INDEX_URL": CLOSED,
            "TMPDIR": str(root / "tmp"),
        }
        with running_server(root / "state", "--jobs", "1", environment=environment) as server:
            server.create_model(MODEL)
            routine = models.routine(root)
            for version in (V1, V2, V3):
                server.create_version(version, **routine)
            yield World(server, root, bucket)
            assert server.stop() == 0


def places(world: World, *names: str) -> list[tuple[str, str]]:
    """States of jobs, and their places in the queue."""
    found = [jobs.get(world.server, name) for name in names]
    return [(job["state"], job.get("jobPosition", "")) for job in found]


def test_jobs_wait_for_their_turn(world: World) -> None:
    """In the order in which they came. Who leaves the queue ends at once, and the others move up."""
    gate = world.root / "gate-1"
    first = world.submit("first", [*NUMBERS, f"wait {gate}"])
    until(Path(f"{gate}.reached").exists, "the first is at work")
    second, third = world.submit("second", NUMBERS), world.submit("third", NUMBERS)
    fourth, fifth = world.submit("fourth", NUMBERS, versionName=V2), world.submit("fifth", NUMBERS)
    queue = (first, second, third, fourth, fifth)
    before = places(world, *queue)

    assert world.server.call("POST", f"{third}:cancel").json == {}
    cancelled = places(world, *queue)
    world.server.delete(V2)
    deleted = places(world, *queue)
    gate.touch()
    ended = [jobs.finished(world.server, name) for name in queue]

    assert before == [("RUNNING", ""), *(("QUEUED", place) for place in "1234")]
    assert cancelled[1:] == [("QUEUED", "1"), ("CANCELLED", ""), ("QUEUED", "2"), ("QUEUED", "3")]
    assert deleted[1:] == [("QUEUED", "1"), ("CANCELLED", ""), ("FAILED", ""), ("QUEUED", "2")]
    assert [job["state"] for job in ended] == ["SUCCEEDED", "SUCCEEDED", "CANCELLED", "FAILED", "SUCCEEDED"]
    assert re.search(rf"{V2} was deleted .*Submit the job again", ended[3]["errorMessage"])
    assert ["startTime" in job for job in ended] == [True, True, False, False, True]
    assert ended[0]["endTime"] <= ended[1]["startTime"] <= ended[1]["endTime"] <= ended[4]["startTime"]
    assert jobs.results(world.out("fifth")) == [2 * number for number in NUMBERS]
    assert not world.out("third").exists()
    assert not world.out("fourth").exists()


def test_a_job_whose_version_is_deleted_fails(world: World) -> None:
    """In the middle of its work; it leaves no file, and the next one begins."""
    gate = world.root / "gate-2"
    name = world.submit("orphaned", [*NUMBERS, f"wait {gate}"], versionName=V3)
    until(Path(f"{gate}.reached").exists, "it is at work")

    world.server.delete(V3)
    job = jobs.finished(world.server, name)

    assert job["state"] == "FAILED"
    assert re.search(rf"{V3} was deleted .*Submit the job again", job["errorMessage"])
    assert not jobs.files(world.out("orphaned"))
    jobs.check_nothing_is_left(world.server, world.out("orphaned"))


@pytest.fixture(scope="module")
def failed(world: World, files: Files) -> dict[str, dict[str, Any]]:
    """A job with each of the faults, ended, by what is wrong with it."""
    root, read = world.root, world.root / "in"
    xgboost = {"uri": str(files.root / "xgboost")}
    read.mkdir(exist_ok=True)
    (read / "empty.jsonl").touch()
    (read / "blank.jsonl").write_text("\n \n\n")
    (read / "rows.txt").write_bytes(b"\x1f\x8b\x08 and so on\n")
    (read / "some.jsonl").write_text("\n".join([*map(str, NUMBERS), "{", "["]))
    (root / "occupied.txt").write_text("a file")
    (root / "notes").mkdir()
    (root / "notes" / "notes.txt").write_text("nothing yet")
    (root / "full").mkdir()
    (root / "full" / "prediction.results-00000-of-00001").write_text("1\n")
    names = {
        "missing_path": world.submit("missing_path", f"{root}/nothing/*"),
        "missing_bucket": world.submit("missing_bucket", "gs://no-such-bucket/in/*"),
        "folder": world.submit("folder", str(read)),
        "empty_input": world.submit("empty_input", f"{read}/empty.jsonl"),
        "blank_lines": world.submit("blank_lines", f"{read}/blank.jsonl"),
        "unreadable_input": world.submit("unreadable_input", f"{world.bucket}/{FORBIDDEN}/in.jsonl"),
        "unwritable_output": world.submit(
            "unwritable_output", NUMBERS, outputPath=f"{world.bucket}/{FORBIDDEN}/out"
        ),
        "output_in_a_file": world.submit("output_in_a_file", NUMBERS, outputPath=f"{root}/occupied.txt/out"),
        "results_of_another": world.submit("results_of_another", NUMBERS, outputPath=f"{root}/full"),
        "missing_model": world.submit("missing_model", NUMBERS, uri="/no/such/model"),
        "no_model": world.submit("no_model", NUMBERS, uri=f"file://{root}/notes"),
        "hidden_gzip": world.submit("hidden_gzip", f"{read}/rows.txt", **xgboost),
        "too_many_errors": world.submit(
            "too_many_errors", f"{read}/some.jsonl", batchOptions={"maxErrors": "1"}
        ),
    }
    return {what: jobs.finished(world.server, name) for what, name in names.items()}


@pytest.mark.parametrize("what", CASES)
def test_a_job_that_cannot_be_fails(failed: dict[str, dict[str, Any]], what: str) -> None:
    """Its message says what is wrong, where, and what to do."""
    job = failed[what]

    assert job["state"] == "FAILED"
    assert re.search(CASES[what], job["errorMessage"], re.IGNORECASE | re.DOTALL), job["errorMessage"]


def test_a_job_that_cannot_be_leaves_no_file(failed: dict[str, dict[str, Any]], world: World) -> None:
    """Neither where its output goes, nor among the machine's temporary files; what was there is unchanged."""
    for what in failed:
        jobs.check_nothing_is_left(world.server, world.out(what))
        assert not jobs.files(world.out(what))
    assert jobs.files(world.root / "full") == {"prediction.results-00000-of-00001"}
    assert (world.root / "occupied.txt").read_text() == "a file"
    assert list((world.root / "tmp").iterdir()) == []
