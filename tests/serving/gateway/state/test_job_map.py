"""Ended jobs in few bytes: nothing is lost, a job takes less than a kibibyte, a page is quick."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import orjson
import pytest

from serving.gateway.api.query.paging import PagedList
from serving.gateway.catalog import jobs as rules
from serving.gateway.request_context import ChangeCause
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.job_map import JobMap
from serving.gateway.state.records import JobKindName, JobRecord
from serving.resources import Job, JobState, TrainingOutput

COUNT = 1000


def training_job(number: int, state: JobState = JobState.SUCCEEDED) -> JobRecord:
    """A job of a cluster, as gcloud submits it: with digests, labels and who submitted it."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    job_id = f"census_20300102_{number:06d}"
    given = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "workerType": "n1-standard-4",
        "workerCount": "2",
        "packageUris": [f"gs://bucket/packages/{digest}/trainer-0.1.tar.gz"],
        "pythonModule": "trainer.task",
        "args": ["--epochs", "20", "--learning-rate", f"0.{number}"],
        "region": "us-central1",
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
        "jobDir": f"gs://bucket/{job_id}",
    }
    second = f"{number // 60 % 60:02d}:{number % 60:02d}"
    failed = (
        "The replica master 0 exited with a non-zero status of 1. Termination reason: Error. ValueError: x"
    )
    job = Job(
        create_time=f"2030-01-02T03:{second}Z",
        start_time=f"2030-01-02T03:{second}Z",
        end_time=f"2030-01-02T04:{second}Z" if state.is_terminal else "",
        error_message=failed if state is JobState.FAILED else "",
        etag=digest[:12],
        job_id=job_id,
        labels={"team": "ads", "owner": digest[12:20]},
        state=state,
        training_output=TrainingOutput(consumed_ml_units=number / 7),
    )
    return JobRecord(
        name=f"projects/my-project/jobs/{job_id}",
        project="my-project",
        uid=digest[:16],
        number=number,
        kind=JobKindName.TRAINING,
        job=job,
        given=msgspec.Raw(orjson.dumps(given)),
        attempt=1,
        run_time=f"2030-01-02T03:{second}.{number:06d}+00:00",
        cause=ChangeCause(call=digest[:16], principal="user:anna@example.com", request_id=digest[:32]),
    )


def put_all(records: list[JobRecord]) -> CatalogState:
    state = CatalogState()
    for record in records:
        draft = StateDraft(state)
        draft.put(record)
        state = draft.to_state()
    return state


def test_a_job_comes_back_as_it_was_put() -> None:
    """In whatever state it is; unfinished ones are not even decoded."""
    records = [training_job(number, state) for number, state in enumerate(JobState)]
    jobs = JobMap.from_mapping({record.name: record for record in records})

    assert dict(jobs) == {record.name: record for record in records}
    assert [jobs.get_state(record.name) for record in records] == list(JobState)
    assert all((jobs[one.name] is one) == (not one.has_ended) for one in records)


def test_an_ended_job_takes_less_than_a_kibibyte() -> None:
    """Its place in the indexes included, one job coming after the other."""
    documents = [
        msgspec.json.encode(training_job(number, state))
        for number, state in enumerate([JobState.SUCCEEDED, JobState.FAILED] * (COUNT // 2))
    ]
    empty = put_all([])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = put_all([msgspec.json.decode(document, type=JobRecord) for document in documents])
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert len(state.jobs) == COUNT + len(empty.jobs)
    assert taken / COUNT <= 1024


@pytest.mark.alone
def test_a_page_of_ended_jobs_takes_at_most_a_few_times_its_json() -> None:
    """100 jobs, decoded and rendered, beside Python's own reading and writing of the same answer.

    In time of the processor, by turns, the least of either: its speed changes for a while.
    """
    state = put_all([training_job(number) for number in range(COUNT)])

    def write_page() -> bytes:
        found = rules.list_jobs(state, "my-project")
        listing = PagedList(found, lambda key: rules.render_job(state.jobs[key[1]]), lambda key: key[1])
        rows, _token = listing.page({"pageSize": "100"})
        return orjson.dumps(rows)

    page = write_page()
    taken: list[float] = []
    plain: list[float] = []
    while len(taken) < 15 or (min(taken) > 2.5 * min(plain) and len(taken) < 300):
        time.sleep(0.01)
        taken.append(measure_cpu_seconds(write_page))
        plain.append(measure_cpu_seconds(lambda: json.dumps(json.loads(page))))

    assert len(json.loads(page)) == 100
    assert min(taken) <= 2.5 * min(plain)


def measure_cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
