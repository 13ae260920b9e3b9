"""`pilotlight jobs`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import joblib
import pytest

from serving.cli.commands.jobs import summarize_job
from tests.bounds import JOB_SECONDS
from tests.end_to_end.models import data
from tests.server import Server, until
from tests.serving.cli.conftest import Run
from tests.serving.cli.test_main import Terminal

ROWS = data()[0].tolist()
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of rows in the current folder."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return file


def state(pilotlight: Run, job: str) -> str:
    """The state of a job."""
    found: str = pilotlight(f"jobs describe {job} --format json").json["state"]
    return found


def ended(pilotlight: Run, job: str) -> str:
    """The state that a job ends in."""

    def found() -> str:
        now = state(pilotlight, job)
        return now if now in ENDED else ""

    return until(found, f"{job} has ended", seconds=JOB_SECONDS)


def test_a_job_from_its_submission_to_its_end(
    pilotlight: Run, forest: str, models_dir: Path, rows: Path, tmp_path: Path
) -> None:
    """submit does not wait, stream-logs does; of a job that has ended, all commands say so."""
    flags = f"--model {forest} --input-paths rows.jsonl --output-path out --data-format text"
    submitted = pilotlight(f"jobs submit prediction life {flags} --labels team=ads")
    followed = pilotlight("jobs stream-logs life --polling-interval 0.1")
    described = pilotlight("jobs describe life --format json").json
    summarized = pilotlight("jobs describe life --summarize")
    listed = pilotlight("jobs list --filter jobId=life")
    cancelled = pilotlight("jobs cancel life")

    assert (submitted.code, submitted.out) == (0, ""), submitted.err
    assert submitted.err == "Submitted job life. To follow it: pilotlight jobs stream-logs life\n"
    assert followed.code == 0, followed.err
    assert followed.out == ""
    first, *_, last = followed.err.splitlines()
    assert (first, last) == ("Job life ...", "Job life SUCCEEDED: 90 predictions.")
    assert described["predictionInput"] == {
        "modelName": "projects/local/models/forest",
        "dataFormat": "TEXT",
        "inputPaths": [str(rows)],
        "outputPath": str(tmp_path / "out"),
        "region": "us-central1",
    }
    assert described["labels"] == {"team": "ads"}
    expected = joblib.load(models_dir / "forest" / "model.joblib").predict(ROWS).tolist()
    files = sorted((tmp_path / "out").glob("prediction.results-*"))
    assert [json.loads(line) for file in files for line in file.read_text().splitlines()] == expected
    assert summarized.code == 0
    table = dict(line.split(maxsplit=1) for line in summarized.out.splitlines())
    assert (table["state"], table["predictions"], table["errors"]) == ("SUCCEEDED", "90", "0")
    heading, row = (line.split() for line in listed.out.splitlines())
    assert heading == ["JOB_ID", "STATUS", "CREATED"]
    assert row[:2] == ["life", "SUCCEEDED"]
    assert row[2].startswith(described["createTime"][:10])
    assert (cancelled.code, cancelled.err) == (0, "Job life has ended before: SUCCEEDED.\n")


def test_every_flag_reaches_the_server(pilotlight: Run, models_dir: Path, tmp_path: Path) -> None:
    """What was typed is sent, local paths are made absolute; ours stand in batchOptions."""
    submitted = pilotlight(
        f"jobs submit prediction flags --model-dir {models_dir / 'forest'} --input-paths a*,gs://b/c/* "
        "--input-paths d --output-path gs://b/out --data-format tf-record-gzip --output-format csv --async "
        "--region europe-west1 --batch-size 32 --max-worker-count 3 --signature-name s --runtime-version 2.1 "
        "--keys id,name --max-errors 10% --runner FnApiRunner --format json "
        "--pipeline-options '--num_workers=1 --labels=\"two words\"'"
    )
    pilotlight("jobs cancel flags")

    assert submitted.code == 0, submitted.err
    assert submitted.json["predictionInput"] == {
        "uri": str(models_dir / "forest"),
        "dataFormat": "TF_RECORD_GZIP",
        "outputDataFormat": "CSV",
        "inputPaths": [str(tmp_path / "a*"), "gs://b/c/*", str(tmp_path / "d")],
        "outputPath": "gs://b/out",
        "batchSize": "32",
        "maxWorkerCount": "3",
        "signatureName": "s",
        "region": "europe-west1",
        "runtimeVersion": "2.1",
    }
    assert submitted.json["batchOptions"] == {
        "keys": ["id", "name"],
        "maxErrors": "10%",
        "runner": "FnApiRunner",
        "pipelineOptions": ["--num_workers=1", "--labels=two words"],
    }


def test_a_version_by_its_name(pilotlight: Run, forest: str, rows: Path) -> None:
    """--version says which one of the model; without data format it is JSON."""
    flags = f"--model {forest} --version v1 --input-paths rows.jsonl --output-path out --format json"
    submitted = pilotlight(f"jobs submit prediction by_version {flags}").json
    pilotlight("jobs cancel by_version")

    assert submitted["predictionInput"]["versionName"] == "projects/local/models/forest/versions/v1"
    assert "modelName" not in submitted["predictionInput"]
    assert submitted["predictionInput"]["dataFormat"] == "JSON"
    assert "batchOptions" not in submitted
    assert ended(pilotlight, "by_version") in ("CANCELLED", "SUCCEEDED")


def test_a_job_that_fails(pilotlight: Run, forest: str) -> None:
    """Followed from its submission, the exit code is 1 and the reason is the error."""
    flags = f"--model {forest} --input-paths missing* --output-path out --stream-logs"
    failed = pilotlight(f"jobs submit prediction fails {flags}")
    again = pilotlight("jobs stream-logs fails")
    summarized = pilotlight("jobs describe fails --summarize")

    assert failed.code == again.code == 1
    assert failed.err.splitlines()[-1].startswith("ERROR: Job fails FAILED: ")
    assert "missing*" in failed.err.splitlines()[-1]
    assert again.err.splitlines()[-1] == failed.err.splitlines()[-1]
    assert "missing*" in summarized.out.splitlines()[-1]


def test_labels(pilotlight: Run, forest: str) -> None:
    """Labels change as those of models do, even of a job that has ended."""
    flags = f"--model {forest} --input-paths missing --output-path out --labels a=1,b=2"
    pilotlight(f"jobs submit prediction labelled {flags}")
    ended(pilotlight, "labelled")

    def update(changes: str) -> object:
        return pilotlight(f"jobs update labelled {changes} --format json").json.get("labels")

    assert update("--update-labels b=two,c=3 --remove-labels a") == {"b": "two", "c": "3"}
    assert pilotlight("jobs update labelled --remove-labels c").err == "Updated job labelled.\n"
    assert update("--clear-labels") is None
    assert pilotlight("jobs update labelled").code == 2


def test_cancelling(pilotlight: Run, forest: str, rows: Path, tmp_path: Path) -> None:
    """A job that is cancelled ends so, and is followed until then."""
    pilotlight(f"jobs submit prediction stopped --model {forest} --input-paths rows.jsonl --output-path out")
    cancelled = pilotlight("jobs cancel stopped")
    followed = pilotlight("jobs stream-logs stopped --polling-interval 0.1")

    assert (cancelled.code, cancelled.err) == (0, "Asked for job stopped to be cancelled.\n")
    assert followed.code == 1
    assert "ERROR: Job stopped CANCELLED" in followed.err
    assert not list(tmp_path.glob("out/prediction.*"))


def test_progress_on_a_terminal(
    pilotlight: Run, server: Server, forest: str, rows: Path, tmp_path: Path
) -> None:
    """A live line shows the state; it is gone at the end."""
    flags = f"--model {forest} --input-paths {rows} --output-path {tmp_path}/out --stream-logs"
    terminal = Terminal(f"jobs submit prediction watched {flags}", server)

    assert terminal.end() == 0, terminal.seen
    assert "Job watched ... " in terminal.seen
    # Each may be over between two looks.
    assert any(state in terminal.seen for state in ("QUEUED", "PREPARING", "RUNNING"))
    assert "Job watched SUCCEEDED: 90 predictions." in terminal.seen.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--input-paths a --output-path b", "exactly one of --model and --model-dir"),
        ("--model m --model-dir d --input-paths a --output-path b", "exactly one of --model and --model-dir"),
        ("--model-dir d --version v1 --input-paths a --output-path b", "--version goes with --model"),
        ("--model m --input-paths a --output-path b --stream-logs --async", "--stream-logs or --async"),
        ("--model m --input-paths a --output-path b --max-errors 101%", "--max-errors"),
        ("--model m --input-paths a --output-path b --batch-size 0", "--batch-size"),
        ("--model m --input-paths a --output-path b --data-format csv", "--data-format"),
        ("--model m --output-path b", "--input-paths"),
        ("--model m --input-paths a", "--output-path"),
    ],
)
def test_wrong_flags(offline: Run, flags: str, problem: str) -> None:
    """What cannot be meant is wrong usage, and names the flag."""
    result = offline(f"jobs submit prediction wrong {flags}")

    assert result.code == 2
    assert problem in " ".join(result.err.replace("│", " ").split())


def test_refusals_are_one_sentence(pilotlight: Run, forest: str, rows: Path) -> None:
    """An id that is taken, and jobs that there are not."""
    flags = f"--model {forest} --input-paths rows.jsonl --output-path out"
    pilotlight(f"jobs submit prediction taken {flags}")
    taken = pilotlight(f"jobs submit prediction taken {flags}")
    pilotlight("jobs cancel taken")
    verbs = ("describe", "cancel", "stream-logs", "update --clear-labels")
    missing = [pilotlight(f"jobs {verb} unheard_of") for verb in verbs]

    assert taken.code == 1
    assert "A job with this id already exists." in taken.err
    assert [result.code for result in missing] == [1] * len(verbs)
    assert all("unheard_of" in result.err for result in missing)


def test_a_summary() -> None:
    """What matters of a job, as far as it is known: while it waits, while it runs, and when it has failed."""
    now = datetime.datetime(2026, 1, 1, 12, 1, 40, tzinfo=datetime.UTC)
    given: dict[str, Any] = {"inputPaths": ["a", "b"], "outputPath": "out", "modelName": "m"}
    waiting = {"jobId": "j", "state": "QUEUED", "predictionInput": given}
    counts = {"predictionCount": "1999", "errorCount": "1"}
    running = {**waiting, "state": "RUNNING", "startTime": "2026-01-01T12:00:00Z", "predictionOutput": counts}
    failed = {**running, "state": "FAILED", "endTime": "2026-01-01T12:00:20.5Z", "errorMessage": "why"}

    always = [("job", "j"), ("model", "m"), ("input", "a, b"), ("output", "out")]
    assert sorted(summarize_job(waiting, now)) == sorted(
        [*always, ("state", "QUEUED"), ("predictions", "0"), ("errors", "0")]
    )
    assert dict(summarize_job(running, now)) == dict(always) | {
        "state": "RUNNING",
        "predictions": "1,999",
        "errors": "1",
        "rate": "20 records/s",
        "duration": "1m40s",
    }
    assert dict(summarize_job(failed, now))["duration"] == "20s"
    assert summarize_job(failed, now)[-1] == ("error", "why")
