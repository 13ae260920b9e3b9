"""Tuning jobs through a real server: what their trials come to, restarts, early stops, and every end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.end_to_end.jobs import ENDS, finished, get, submit
from tests.end_to_end.training_jobs import PARENT, list_log, texts, training_job, write_wheel
from tests.server import Server, running_server, until

# Reports a value made of its parameters, counts its runs in its folder, and waits as long as a file is there.
TRIAL = """
    import argparse, os, pathlib, time, hypertune

    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--kernel", default="rbf")
    args = parser.parse_args()
    folder = pathlib.Path(args.job_dir)
    with open(folder / "runs", "a") as runs:
        runs.write(f"{args.rate!r} {args.layers} {args.kernel}\\n")
    if args.kernel == "broken":
        raise ValueError("no such kernel")
    tuner = hypertune.HyperTune()
    tuner.report_hyperparameter_tuning_metric("accuracy", args.rate * args.layers / 2, 1)
    while (folder.parent / "wait").exists():
        time.sleep(0.01)
    tuner.report_hyperparameter_tuning_metric("accuracy", args.rate * args.layers, 2)
"""
RATE: dict[str, Any] = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0, "maxValue": 1}
LAYERS: dict[str, Any] = {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 3}
KERNEL: dict[str, Any] = {
    "parameterName": "kernel",
    "type": "CATEGORICAL",
    "categoricalValues": ["rbf", "poly"],
}
STUDIES = f"{PARENT}/locations/us-central1/studies"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"), TRIAL)


def tuning_job(job_id: str, wheel: Path, folder: Path, **spec: Any) -> dict[str, Any]:
    hyperparameters = {
        "hyperparameterMetricTag": "accuracy",
        "params": [RATE],
        "algorithm": "RANDOM_SEARCH",
        **spec,
    }
    return training_job(job_id, wheel, jobDir=str(folder), hyperparameters=hyperparameters)


def list_trials(server: Server, job_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.call("GET", f"/v1/{STUDIES}/{job_id}/trials").json["trials"]
    return found


def test_a_tuning_job_by_googles_client(server: Server, ml: Any, wheel: Path, tmp_path: Path) -> None:
    """Its trials are shown best first, with values as the program had them, and are a study."""
    body = tuning_job(
        "tuned", wheel, tmp_path, params=[RATE, LAYERS, KERNEL], maxTrials=6, maxParallelTrials=2
    )
    jobs = ml.projects().jobs()

    created = jobs.create(parent=PARENT, body=body).execute()
    ended = until(
        lambda: (found := jobs.get(name=f"{PARENT}/jobs/tuned").execute())["state"] in ENDS and found,
        "the job has ended",
    )

    assert created["trainingInput"] == ended["trainingInput"] == body["trainingInput"]
    assert created["trainingOutput"] == {
        "isHyperparameterTuningJob": True,
        "hyperparameterMetricTag": "accuracy",
    }
    assert ended["state"] == "SUCCEEDED", ended
    output = ended["trainingOutput"]
    assert output["completedTrialCount"] == "6"
    trials = output["trials"]
    values = [trial["finalMetric"]["objectiveValue"] for trial in trials]
    assert values == sorted(values, reverse=True)
    assert sorted(int(trial["trialId"]) for trial in trials) == [1, 2, 3, 4, 5, 6]
    for trial in trials:
        parameters = trial["hyperparameters"]
        run = (tmp_path / trial["trialId"] / "runs").read_text()
        assert run == f"{float(parameters['rate'])!r} {parameters['layers']} {parameters['kernel']}\n"
        expected = float(parameters["rate"]) * int(parameters["layers"])
        assert trial["finalMetric"] == {"objectiveValue": pytest.approx(expected), "trainingStep": "2"}
        assert trial["state"] == "SUCCEEDED"
        assert trial["startTime"] <= trial["endTime"]
    study = ml.projects().locations().studies().get(name=f"{STUDIES}/tuned").execute()
    assert [one["parameter"] for one in study["studyConfig"]["parameters"]] == ["rate", "layers", "kernel"]
    best = (
        ml.projects().locations().studies().trials().listOptimalTrials(parent=f"{STUDIES}/tuned", body={})
    ).execute()["trials"]
    assert best[0]["name"].endswith(f"/{trials[0]['trialId']}")


def test_a_built_in_algorithm_is_tuned(server: Server, tmp_path: Path) -> None:
    """By the same fields as any program, with its own metrics; each trial leaves its model."""
    data = tmp_path / "data.csv"
    data.write_text("".join(f"{int(number > 20)},{number},{number % 7}\n" for number in range(40)))
    strength = {
        "parameterName": "l2_regularization_strength",
        "type": "DISCRETE",
        "discreteValues": [0.01, 1e6],
    }
    given = {
        "region": "us-central1",
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "masterConfig": {"imageUri": "gcr.io/cloud-ml-algos/linear_learner_cpu:latest"},
        "args": ["--model_type=classification", f"--training_data_path={data}"],
        "jobDir": str(tmp_path / "out"),
        "hyperparameters": {
            "hyperparameterMetricTag": "logloss",
            "goal": "MINIMIZE",
            "algorithm": "GRID_SEARCH",
            "params": [strength],
            "maxTrials": 2,
            "maxParallelTrials": 2,
        },
    }
    ended = finished(server, submit(server, {"jobId": "built_in", "trainingInput": given}))

    assert ended["state"] == "SUCCEEDED", ended
    best, worst = ended["trainingOutput"]["trials"]
    assert best["hyperparameters"] == {"l2_regularization_strength": "0.01"}
    assert best["finalMetric"]["objectiveValue"] < worst["finalMetric"]["objectiveValue"]
    for trial in (best, worst):
        model = tmp_path / "out" / trial["trialId"] / "model" / "model.joblib"
        assert model.is_file()
        assert trial["builtInAlgorithmOutput"]["modelPath"] == str(model.parent)


def test_logs_tell_which_trial_a_line_is_of(server: Server, tmp_path: Path) -> None:
    source = dedent(TRIAL) + "print('I am', os.environ['CLOUD_ML_TRIAL_ID'])"
    wheel = write_wheel(tmp_path / "wheel", source)
    finished(server, submit(server, tuning_job("logged", wheel, tmp_path, maxTrials=2)))
    lines = [one for one in list_log(server, "logged") if one["textPayload"].startswith("I am")]

    assert {(one["labels"]["ml.googleapis.com/trial_id"], one["textPayload"]) for one in lines} == {
        ("1", "I am 1"),
        ("2", "I am 2"),
    }
    assert any(text.startswith("Trial 1 starts: --rate=") for text in texts(list_log(server, "logged")))


def test_a_space_that_is_used_up_ends_the_job(server: Server, wheel: Path, tmp_path: Path) -> None:
    spec = {"params": [LAYERS], "algorithm": "GRID_SEARCH", "maxTrials": 10, "maxParallelTrials": 2}
    body = tuning_job("used_up", wheel, tmp_path, **spec)
    body["trainingInput"]["args"] = ["--rate", "1"]
    ended = finished(server, submit(server, body))

    assert ended["state"] == "SUCCEEDED", ended
    layers = [trial["hyperparameters"]["layers"] for trial in ended["trainingOutput"]["trials"]]
    assert layers == ["3", "2", "1"]


def test_a_job_whose_trials_fail_says_why(server: Server, wheel: Path, tmp_path: Path) -> None:
    """The reason is the last trial's, and the job does not run all of them."""
    body = tuning_job("broken", wheel, tmp_path, maxTrials=20, maxFailedTrials=2)
    body["trainingInput"]["args"] = ["--kernel=broken"]
    ended = finished(server, submit(server, body))

    assert ended["state"] == "FAILED"
    assert ended["errorMessage"].startswith("2 trials failed, the limit (maxFailedTrials).")
    assert ended["errorMessage"].endswith("ValueError: no such kernel")
    assert "trials" not in ended["trainingOutput"]
    assert [trial["trialInfeasible"] for trial in list_trials(server, "broken")] == [True, True]


def test_a_trial_without_its_metric_says_what_was_seen(server: Server, wheel: Path, tmp_path: Path) -> None:
    ended = finished(
        server, submit(server, tuning_job("no_metric", wheel, tmp_path, hyperparameterMetricTag="acc"))
    )

    assert ended["state"] == "FAILED"
    assert 'No value of the tag "acc" was in the file of hypertune' in ended["errorMessage"]
    assert 'Tags seen: "accuracy" (last ' in ended["errorMessage"]


def test_running_trials_are_shown_with_their_latest_value(
    server: Server, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "wait").touch()
    submit(server, tuning_job("shown", wheel, tmp_path, maxTrials=2, maxParallelTrials=2))
    found = until(
        lambda: (one := get(server, f"{PARENT}/jobs/shown"))["trainingOutput"].get("trials", ())[1:] and one,
        "both trials are shown",
    )
    assert [one["state"] for one in found["trainingOutput"]["trials"]] == ["RUNNING", "RUNNING"]
    assert found["trainingOutput"]["trials"][0]["finalMetric"]["trainingStep"] == "1"
    assert server.call("POST", f"/v1/{STUDIES}/shown/trials/1:stop").status == 400
    assert server.call("DELETE", f"/v1/{STUDIES}/shown").status == 400
    (tmp_path / "wait").unlink()

    assert finished(server, f"{PARENT}/jobs/shown")["state"] == "SUCCEEDED"


def test_a_cancelled_job_leaves_no_trial_open(server: Server, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    submit(server, tuning_job("cancelled", wheel, tmp_path, maxTrials=3))
    until(
        lambda: get(server, f"{PARENT}/jobs/cancelled")["trainingOutput"].get("trials"), "a trial has a value"
    )
    assert server.call("POST", f"/v1/{PARENT}/jobs/cancelled:cancel").status == 200
    ended = finished(server, f"{PARENT}/jobs/cancelled")

    assert ended["state"] == "CANCELLED"
    (trial,) = list_trials(server, "cancelled")
    assert trial["state"] == "COMPLETED"
    assert trial["infeasibleReason"] == "The job ended before the trial did."


def test_a_job_goes_on_with_the_trials_of_an_earlier_one(server: Server, wheel: Path, tmp_path: Path) -> None:
    finished(server, submit(server, tuning_job("first", wheel, tmp_path / "1", maxTrials=2)))
    again = {"maxTrials": 2, "resumePreviousJobId": "first"}
    ended = finished(server, submit(server, tuning_job("second", wheel, tmp_path / "2", **again)))

    assert sorted(trial["trialId"] for trial in ended["trainingOutput"]["trials"]) == ["3", "4"]
    assert [trial["name"].rpartition("/")[2] for trial in list_trials(server, "second")] == [
        "1",
        "2",
        "3",
        "4",
    ]
    for wrong in (
        {"goal": "MINIMIZE"},
        {"params": [RATE | {"maxValue": 2}]},
        {"resumePreviousJobId": "none"},
    ):
        reply = server.call(
            "POST", f"/v1/{PARENT}/jobs", json=tuning_job("third", wheel, tmp_path, **{**again, **wrong})
        )
        assert reply.status == 400
        assert "resume_previous_job_id" in json.dumps(reply.error)


def test_unpromising_trials_are_stopped_early(server: Server, tmp_path: Path) -> None:
    """The third trial is worse than the median of two completed ones, and would never end by itself."""
    source = """
        import argparse, os, time, hypertune

        parser = argparse.ArgumentParser()
        parser.add_argument("--job-dir")
        parser.add_argument("--rate", type=float)
        args = parser.parse_args()
        number = int(os.environ["CLOUD_ML_TRIAL_ID"])
        tuner = hypertune.HyperTune()
        step = 0
        while number == 3 or step < 3:
            step += 1
            tuner.report_hyperparameter_tuning_metric("accuracy", 1.0 / number, step)
            time.sleep(0.1)
    """
    wheel = write_wheel(tmp_path / "wheel", source)
    body = tuning_job("stopped", wheel, tmp_path, maxTrials=3, enableTrialEarlyStopping=True)
    ended = finished(server, submit(server, body))

    assert ended["state"] == "SUCCEEDED", ended
    stopped = {
        one["trialId"]: one.get("isTrialStoppedEarly", False) for one in ended["trainingOutput"]["trials"]
    }
    assert stopped == {"1": False, "2": False, "3": True}


def test_a_killed_server_repeats_no_completed_trial_and_changes_no_parameter(
    wheel: Path, tmp_path: Path
) -> None:
    state, folder = tmp_path / "state", tmp_path / "out"
    folder.mkdir()
    with running_server(state) as server:
        submit(server, tuning_job("killed", wheel, folder, maxTrials=6, maxParallelTrials=2))
        until(
            lambda: len(get(server, f"{PARENT}/jobs/killed")["trainingOutput"].get("trials", ())) >= 2,
            "two have ended",
        )
        (folder / "wait").touch()
        time.sleep(0.3)
        before = {trial["name"]: trial for trial in list_trials(server, "killed")}
        server.kill()
    (folder / "wait").unlink()
    with running_server(state) as server:
        ended = finished(server, f"{PARENT}/jobs/killed")
        after = {trial["name"]: trial for trial in list_trials(server, "killed")}

    assert ended["state"] == "SUCCEEDED", ended
    assert len(after) == 6
    for name, trial in before.items():
        assert after[name]["parameters"] == trial["parameters"]
        if trial["state"] == "COMPLETED":
            assert after[name] == trial
            assert len((folder / name.rpartition("/")[2] / "runs").read_text().splitlines()) == 1
