"""Batch predictions: Google's client submits them, and their results are those of the libraries."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bounds import JOB_SECONDS
from tests.emulator import Emulator
from tests.end_to_end import jobs, library, models
from tests.end_to_end.conftest import ZOO, Files
from tests.end_to_end.library import Library
from tests.server import Server, until
from tests.written import as_written

PARENT = "projects/tests"
ROWS = models.data()[0].tolist()
# Lines that no model of these tests takes, each with what is said of it where each record has an id.
BAD = {
    '{"id": 1': r"not valid JSON",
    "[1, 2, 3, 4]": r"it must be an object with the fields \['id'\]",
    '{"instance": [1, 2, 3, 4]}': r"no field 'id'",
    '{"id": 2, "instance": ["a", 2, 3, 4]}': r"The instance",
    '{"id": 3, "instance": [1, 2]}': r"2",
    "\0\1\2": r"not valid JSON",
}

Done = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Sent:
    """Jobs that were submitted one after the other: their bodies by id, and where their files are."""

    root: Path
    bucket: str
    bodies: dict[str, dict[str, Any]]

    def folder(self, job_id: str) -> Path:
        """Where the job writes to."""
        return self.root / "out" / job_id


@pytest.fixture(scope="module")
def expected(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """What TensorFlow says."""
    return library.write(saved_model, tmp_path_factory.mktemp("library") / "files")


@pytest.fixture(scope="module")
def sent(
    ml: Any,
    zoo: Any,
    files: Files,
    expected: Library,
    emulator_server: Emulator,
    tmp_path_factory: pytest.TempPathFactory,
) -> Sent:
    """All jobs of this module that do not need a server to themselves."""
    root = tmp_path_factory.mktemp("batch")
    bucket = f"gs://{emulator_server.bucket('batch')}"
    read, out = root / "in", root / "out"
    jobs.write_lines(read / "rows-1.jsonl", ROWS[:50])
    jobs.write_lines(read / "rows-2.jsonl", ROWS[50:])
    jobs.write_lines(read / "numbers.jsonl", [1, 2.5, -3, "version"])
    jobs.write_lines(read / "fatal.jsonl", [1, "exit 3"])
    good = [json.dumps({"id": f"row {number}", "instance": row}) for number, row in enumerate(ROWS)]
    mixed = [line for number, row in enumerate(good) for line in (row, list(BAD)[number % len(BAD)])]
    (read / "mixed.jsonl").write_text("\n".join(mixed))
    (read / "bad.jsonl").write_text("\n".join(BAD))
    lines = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
    emulator_server.put(f"{bucket}/in/a.txt.gz", gzip.compress(lines))
    boosted: dict[str, Any] = {"uri": str(files.root / "xgboost")}
    routine: dict[str, Any] = {"versionName": f"{ZOO}/versions/routine"}
    many: dict[str, Any] = {
        "labels": {"team": "ads"},
        "batchSize": 7,
        "maxWorkerCount": "3",
        "runtimeVersion": "2.11",
    }
    compressed: dict[str, Any] = {
        "dataFormat": "TF_RECORD_GZIP",
        "versionName": f"{ZOO}/versions/tensorflow",
    }
    raw: dict[str, Any] = {
        "dataFormat": "TF_RECORD",
        "outputDataFormat": "CSV",
        "uri": f"file://{expected.model}",
    }
    keys: dict[str, Any] = {"batchOptions": {"keys": ["id"], "maxErrors": "60%"}}
    bodies = [
        jobs.job("fatal", f"{read}/fatal.jsonl", out / "fatal", **routine),
        jobs.job("xgboost", f"{read}/rows*", out / "xgboost", **many, **boosted),
        jobs.job("sklearn", f"{bucket}/in/*", f"{bucket}/out/sklearn", dataFormat="TEXT", modelName=ZOO),
        jobs.job("tensorflow", str(expected.numbers), out / "tensorflow", **compressed),
        jobs.job("raw", str(expected.words), out / "raw", **raw),
        jobs.job("routine", f"{read}/numbers.jsonl", out / "routine", **routine),
        jobs.job("mixed", f"{read}/mixed.jsonl", out / "mixed", **keys, **boosted),
        jobs.job("bad", f"{read}/bad.jsonl", out / "bad", batchOptions={"keys": ["id"]}, **boosted),
    ]
    for body in bodies:
        ml.projects().jobs().create(parent=PARENT, body=body).execute()
    return Sent(root, bucket, {body["jobId"]: body for body in bodies})


@pytest.fixture(scope="module")
def done(ml: Any, sent: Sent) -> Done:
    """Gives a job that was sent once it has ended, asked for as clients do."""

    def done(job_id: str) -> dict[str, Any]:
        return poll(ml, job_id)

    return done


def poll(ml: Any, job_id: str, seconds: float = JOB_SECONDS) -> dict[str, Any]:
    """The job once it has ended."""
    request = ml.projects().jobs().get(name=f"{PARENT}/jobs/{job_id}")

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = request.execute()
        return found if found["state"] in jobs.ENDS else None

    return until(ended, f"{job_id} has ended", seconds=seconds)


def refusal(request: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error that a request of Google's client is answered with."""
    from googleapiclient.errors import HttpError

    with pytest.raises(HttpError) as caught:
        request.execute()
    error: dict[str, Any] = json.loads(caught.value.content)["error"]
    return caught.value.status_code, error


def boosted(files: Files, rows: list[Any]) -> list[float]:
    """What XGBoost says."""
    import xgboost as xgb

    predictions: list[float] = as_written(files.xgboost.predict(xgb.DMatrix(np.array(rows))))
    return predictions


# ---- jobs as resources


def test_a_job_is_shown_as_it_was_sent(ml: Any, sent: Sent, done: Done) -> None:
    """Its input unchanged, with no defaults added; its id bare; counts as strings, times in order."""
    job = done("xgboost")

    assert job.pop("createTime") <= job.pop("startTime") <= job.pop("endTime")
    assert job.pop("etag")
    assert job["predictionOutput"].pop("nodeHours") > 0
    assert job == {
        **sent.bodies["xgboost"],
        "state": "SUCCEEDED",
        "predictionOutput": {"outputPath": str(sent.folder("xgboost")), "predictionCount": "90"},
    }
    assert done("mixed")["batchOptions"] == sent.bodies["mixed"]["batchOptions"]


def test_an_id_is_taken_for_good(ml: Any, sent: Sent, done: Done) -> None:
    """409 with Google's text, and the job stays what it was."""
    before = done("xgboost")

    status, error = refusal(ml.projects().jobs().create(parent=PARENT, body=sent.bodies["xgboost"]))

    assert (status, error["status"]) == (409, "ALREADY_EXISTS")
    assert error["details"][0]["fieldViolations"] == [
        {"field": "job.job_id", "description": "A job with this id already exists."}
    ]
    assert done("xgboost") == before


def test_what_is_not_there_is_not_found(ml: Any, sent: Sent) -> None:
    """404 for a job, and for a job on a model that nobody has made, with what to do about it."""
    body = jobs.job("orphan", "/in/*", "/out", modelName="projects/tests/models/nowhere")

    status, error = refusal(ml.projects().jobs().create(parent=PARENT, body=body))

    assert (status, error["status"]) == (404, "NOT_FOUND")
    (violation,) = error["details"][0]["fieldViolations"]
    assert violation["field"] == "prediction_input.model_name"
    assert "nowhere" in violation["description"]
    assert "models create" in violation["description"]
    for request in (ml.projects().jobs().get, ml.projects().jobs().cancel):
        assert refusal(request(name=f"{PARENT}/jobs/orphan"))[0] == 404


def test_jobs_are_listed_newest_first(ml: Any, zoo: Any) -> None:
    """In pages, and by filter; jobs of other projects are not among them."""
    listing = ml.projects().jobs()
    names = [f"{'even' if number % 2 == 0 else 'odd'}_{number}" for number in range(5)]
    for name in names:
        body = jobs.job(name, "/no/such/file", "/no/such/folder", modelName=ZOO, labels={"of": name[:3]})
        listing.create(parent="projects/lists", body=body).execute()

    def pages(**query: Any) -> list[list[str]]:
        found = []
        request = listing.list(parent="projects/lists", **query)
        while request is not None:
            response = request.execute()
            found.append([job["jobId"] for job in response.get("jobs", [])])
            request = listing.list_next(request, response)
        return found

    assert pages() == [names[::-1]]
    assert pages(pageSize=2) == [["even_4", "odd_3"], ["even_2", "odd_1"], ["even_0"]]
    assert pages(filter="jobId:even*", pageSize=2) == [["even_4", "even_2"], ["even_0"]]
    assert pages(filter="labels.of=odd AND jobId:odd_3") == [["odd_3"]]
    until(lambda: len(pages(filter="state:FAILED")[0]) == 5, "all have failed")
    assert listing.list(parent="projects/lists", filter="state:SUCCEEDED").execute() == {}


def test_labels_are_patched(ml: Any, sent: Sent, done: Done) -> None:
    """A patch answers with the job; it changes what its mask names, and nothing but labels can be named."""
    patch, name = ml.projects().jobs().patch, f"{PARENT}/jobs/xgboost"
    before = done("xgboost")

    after = patch(name=name, body={"labels": {"team": "search"}}, updateMask="labels").execute()

    assert after == {**before, "labels": {"team": "search"}, "etag": after["etag"]}
    assert after["etag"] != before["etag"]
    assert done("xgboost") == after
    assert refusal(patch(name=name, body={"state": "QUEUED"}, updateMask="state"))[0] == 400
    assert refusal(patch(name=name, body={"etag": before["etag"]}, updateMask="labels"))[0] == 409
    patch(name=name, body={"labels": before["labels"]}, updateMask="labels").execute()


def test_a_running_job_is_cancelled(ml: Any, server: Server, sent: Sent, done: Done, tmp_path: Path) -> None:
    """Also in the middle of a call of the model; it leaves no file. What has ended is not cancelled: 400."""
    for name in sent.bodies:
        done(name)
    gate = tmp_path / "gate"
    file = jobs.write_lines(tmp_path / "in.jsonl", [1, f"wait {gate}"])
    body = jobs.job("endless", str(file), tmp_path / "out", versionName=f"{ZOO}/versions/routine")
    ml.projects().jobs().create(parent=PARENT, body=body).execute()
    until(Path(f"{gate}.reached").exists, "the model is at work")
    running = ml.projects().jobs().get(name=f"{PARENT}/jobs/endless").execute()

    answer = ml.projects().jobs().cancel(name=f"{PARENT}/jobs/endless").execute()
    job = poll(ml, "endless", 15)

    assert running["state"] == "RUNNING"
    assert answer == {}
    assert job["state"] == "CANCELLED"
    assert job["errorMessage"] == "The job was cancelled."
    assert not jobs.files(tmp_path / "out")
    jobs.check_nothing_is_left(server, tmp_path / "out")
    for name in ("endless", "xgboost", "bad"):
        status, error = refusal(ml.projects().jobs().cancel(name=f"{PARENT}/jobs/{name}"))
        assert (status, error["status"]) == (400, "FAILED_PRECONDITION")


# ---- predictions


def test_xgboost_predicts_like_itself(sent: Sent, files: Files, done: Done) -> None:
    """A model that was never deployed, two files by their prefix, seven records a call."""
    assert jobs.outcome(done("xgboost")) == ("SUCCEEDED", 90, 0)
    assert jobs.results(sent.folder("xgboost")) == pytest.approx(boosted(files, ROWS), rel=1e-6)
    assert jobs.stats(sent.folder("xgboost")) == {}


def test_sklearn_predicts_like_itself(
    sent: Sent, files: Files, done: Done, emulator_server: Emulator, tmp_path: Path
) -> None:
    """A model's default version; gzip text on gs://, to which the results go too."""
    job = done("sklearn")
    folder = jobs.download(emulator_server, f"{sent.bucket}/out/sklearn", tmp_path)

    assert jobs.outcome(job) == ("SUCCEEDED", 90, 0)
    assert jobs.results(folder) == files.sklearn.predict(ROWS).tolist()
    assert jobs.files(folder) == {
        "prediction.results-00000-of-00001",
        "prediction.errors_stats-00000-of-00001",
        jobs.CLAIM,
    }


def test_tensorflow_predicts_like_itself(sent: Sent, expected: Library, done: Done) -> None:
    """Compressed TFRecord files, whose records are JSON where the model does not take one string."""
    assert jobs.outcome(done("tensorflow")) == ("SUCCEEDED", len(library.ROWS), 0)
    assert jobs.results(sent.folder("tensorflow")) == [{"doubled": row} for row in expected.doubled]


def test_a_model_of_one_string_gets_records_as_they_are(sent: Sent, expected: Library, done: Done) -> None:
    """The raw-line rule: what looks like JSON is not parsed, what is empty is a record. Its output is CSV."""
    job, folder = done("raw"), sent.folder("raw")
    rows = (folder / "prediction.results-00000-of-00001.csv").read_text()

    assert jobs.outcome(job) == ("SUCCEEDED", len(library.WORDS), 0)
    assert (folder / "prediction.results_header.csv").read_text() == "length,text\n"
    assert list(csv.reader(io.StringIO(rows, newline=""))) == [
        [str(length), word] for length, word in zip(expected.lengths, library.WORDS, strict=True)
    ]


def test_a_custom_routine_predicts_like_itself(sent: Sent, done: Done) -> None:
    """With its files, its package, and what it looks for in the environment."""
    assert jobs.outcome(done("routine")) == ("SUCCEEDED", 4, 0)
    assert jobs.results(sent.folder("routine")) == [10, 25, -30, "routine.Routine"]


def test_the_request_log_can_be_predicted_again(
    ml: Any, server: Server, zoo: Any, sent: Sent, tmp_path: Path
) -> None:
    """A job over the log of online requests gives what was answered then, instance by instance."""
    versions, name = ml.projects().models().versions(), f"{ZOO}/versions/pipeline"
    config = {"bigqueryTableName": str(tmp_path / "log"), "samplingPercentage": 1}
    versions.patch(
        name=name, body={"requestLoggingConfig": config}, updateMask="requestLoggingConfig"
    ).execute()
    answers = [server.predict(name, ROWS[start : start + 7]).json for start in range(0, 35, 7)]

    def logged() -> list[str]:
        return [line for file in tmp_path.glob("log/*/*.jsonl") for line in file.read_text().splitlines()]

    until(lambda: len(logged()) == 5, "all is logged")
    (day,) = tmp_path.glob("log/dt=*")
    versions.patch(name=name, body={}, updateMask="requestLoggingConfig").execute()
    job = jobs.job("again", f"{day}/*", tmp_path / "out", versionName=name)
    ml.projects().jobs().create(parent=PARENT, body=job).execute()

    assert jobs.outcome(poll(ml, "again")) == ("SUCCEEDED", 35, 0)
    results = jobs.results(tmp_path / "out")
    assert results == [prediction for answer in answers for prediction in answer["predictions"]]


# ---- records and models that fail


def test_bad_records_cost_only_themselves(sent: Sent, files: Files, done: Done) -> None:
    """Half of all are: exactly the good ones are predicted, each bad one is counted, named and shown."""
    job, folder = done("mixed"), sent.folder("mixed")
    content = (sent.root / "in" / "mixed.jsonl").read_bytes()

    assert jobs.outcome(job) == ("SUCCEEDED", 90, 90)
    found = {row["id"]: row["prediction"] for row in jobs.results(folder)}
    assert list(found) == [f"row {number}" for number in range(90)]
    assert list(found.values()) == pytest.approx(boosted(files, ROWS), rel=1e-6)
    named = jobs.errors(folder)
    assert [error["snippet"] for error in named] == [list(BAD)[number % len(BAD)] for number in range(90)]
    for error in named:
        assert error["file"] == f"{sent.root}/in/mixed.jsonl"
        assert content[error["offset"] :].startswith(error["snippet"].encode() + b"\n") or error is named[-1]
        assert re.search(BAD[error["snippet"]], error["reason"]), error
    assert sum(jobs.stats(folder).values()) == 90
    assert set(jobs.stats(folder)) == {error["reason"] for error in named}


def test_a_job_of_bad_records_only_fails(sent: Sent, done: Done) -> None:
    """Its message says what is wrong with most of them and where all are named."""
    job, folder = done("bad"), sent.folder("bad")

    assert jobs.outcome(job) == ("FAILED", 0, len(BAD))
    message = job["errorMessage"]
    assert re.search(rf"All {len(BAD)} records failed; .*{re.escape(str(folder))}.*not valid JSON", message)
    assert [error["snippet"] for error in jobs.errors(folder)] == list(BAD)
    assert jobs.results(folder) == []


def test_a_model_that_ends_its_process_fails_its_job(server: Server, sent: Sent, done: Done) -> None:
    """After some attempts, with what it ended with; it leaves no file."""
    job = done("fatal")

    assert jobs.outcome(job)[0] == "FAILED"
    assert re.search(r"^4 attempts were lost\..*exit.* 3\b", job["errorMessage"])
    assert not jobs.files(sent.folder("fatal"))
