"""Airflow's operators of AI Platform, told as JSON: airflow_operators.py ROOT WHEEL MODEL FOLDER.

All code is Airflow's, but for the address of the service and the time between two looks at a job.
"""

import functools
import json
import os
import pathlib
import signal
import sys
import threading
import time

from airflow.providers.google.cloud.hooks import mlengine as hooks
from airflow.providers.google.cloud.operators import mlengine as operators
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

PROJECT = "airflow"
# Between two looks at a job, and at two pages of a list.
INTERVALS = 30, 5
pause = time.sleep
PLACE = {"project_id": PROJECT, "region": "us-central1"}


class TaskInstance:
    """What operators see of the task that they are run as."""

    def __init__(self):
        self.pushed = {}

    def xcom_push(self, key, value, **_):
        self.pushed[key] = value


def run(operator):
    """What an operator returns, what it raises, and what it leaves for other tasks."""
    instance = TaskInstance()
    found = {"pushed": instance.pushed}
    try:
        found["returned"] = operator.execute({"ti": instance, "task_instance": instance})
    except RuntimeError as error:
        found["failed"] = str(error)
    except HttpError as error:
        found["refused"] = error.resp.status
    return found


def make_training(wheel, folder, job_id, *args, **fields):
    return operators.MLEngineStartTrainingJobOperator(
        task_id=job_id,
        job_id=job_id,
        package_uris=[wheel],
        training_python_module="trainer.task",
        training_args=list(args),
        job_dir=folder + "/jobs",
        labels={"team": "tests"},
        **PLACE,
        **fields,
    )


def train(found, make):
    found["train"] = run(make("train", "--score", "0.5"))
    found["train again"] = run(make("train", "--score", "0.5"))
    found["train another"] = run(make("train", "--score", "0.7"))
    found["train on a tier"] = run(make("2_tiers-a", "--score", "1", scale_tier="BASIC", master_config={}))
    found["train in vain"] = run(make("in_vain", "--fail"))
    found["train nothing"] = run(make("nothing", "--score", "1", runtime_version="latest"))


def kill(found, make, file):
    """End a task as Airflow does: by a signal, whose handler tells the operator that waits for its job."""
    operator = make("endless", "--wait", file)
    cancel = operators.MLEngineTrainingCancelJobOperator(
        task_id="cancel", job_id="endless", project_id=PROJECT
    )

    def end(*_):
        if "on_kill" in vars(type(operator)):
            operator.on_kill()
        else:  # old operators leave it to another
            run(cancel)

    def watch():
        while not pathlib.Path(file).exists():
            pause(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
    found["kill"] = run(operator)
    found["cancel again"] = run(cancel)


def serve(found, model):
    """What stands between a trained model and its predictions."""
    place = {"project_id": PROJECT, "model_name": "served"}
    create = {"task_id": "create", "project_id": PROJECT, "model": {"name": "served"}}
    found["model"] = run(operators.MLEngineCreateModelOperator(**create))
    found["model again"] = run(operators.MLEngineCreateModelOperator(**create))
    for name in ("v1", "v2"):
        version = {
            "name": name, "deploymentUri": model, "framework": "SCIKIT_LEARN", "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
        }  # fmt: skip
        found[f"version {name}"] = run(
            operators.MLEngineCreateVersionOperator(task_id=name, version=version, **place)
        )
    found["default"] = run(
        operators.MLEngineSetDefaultVersionOperator(task_id="default", version_name="v2", **place)
    )
    found["versions"] = run(operators.MLEngineListVersionsOperator(task_id="list", **place))
    found["get"] = run(operators.MLEngineGetModelOperator(task_id="get", **place))


def predict(found, folder):
    def make(job_id, **fields):
        return operators.MLEngineStartBatchPredictionJobOperator(
            task_id=job_id, job_id=job_id, data_format="JSON", model_name="served", max_worker_count=1,
            **PLACE, **{"output_path": f"{folder}/{job_id}", **fields},
        )  # fmt: skip

    rows = [folder + "/rows.jsonl"]
    found["predict"] = run(make("predict", input_paths=rows))
    found["predict again"] = run(make("predict", input_paths=rows))
    found["predict another"] = run(make("predict", input_paths=rows, version_name="v1"))
    found["predict in vain"] = run(make("predict_in_vain", input_paths=[folder + "/missing.jsonl"]))


def delete(found):
    place = {"project_id": PROJECT, "model_name": "served"}
    found["delete version"] = run(
        operators.MLEngineDeleteVersionOperator(task_id="delete_v1", version_name="v1", **place)
    )
    found["delete model"] = run(
        operators.MLEngineDeleteModelOperator(task_id="delete", delete_contents=True, **place)
    )
    found["get again"] = run(operators.MLEngineGetModelOperator(task_id="get_again", **place))


def main(root, wheel, model, folder):
    hooks.build = functools.partial(build, client_options={"api_endpoint": root})
    time.sleep = lambda seconds: pause(0.2 if seconds in INTERVALS else seconds)
    found = {}
    make = functools.partial(make_training, wheel, folder)
    train(found, make)
    kill(found, make, folder + "/started")
    serve(found, model)
    predict(found, folder)
    delete(found)
    print(json.dumps(found))


main(*sys.argv[1:])
