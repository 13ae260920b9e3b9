"""Drives `:predict` with instances from a file.

    locust -f loadtests/locustfile.py --host http://127.0.0.1:8080 \\
        --model iris --instances rows.jsonl --headless --users 16 --run-time 30s

The file holds one JSON instance per line, as for `pilotlight predict --json-instances`. Each request takes
the next `--rows` of them, so that no cache of answers can help. A wrong status, or an answer with another
number of predictions than instances, counts as a failure.
"""

from __future__ import annotations

import itertools
import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--project", default="local", help="project of the model")
    parser.add_argument("--model", default="", help="model to predict with")
    parser.add_argument("--model-version", default="", help="version; the model's default when left out")
    parser.add_argument("--instances", default="", help="file with one JSON instance per line")
    parser.add_argument("--rows", type=int, default=1, help="instances per request")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second of each user; 0: as fast as answers come"
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def _check_arguments(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if options is None or not options.model or not options.instances:
        raise SystemExit("Say what to load: --model MODEL --instances FILE")
    PredictUser.path = _path(options.project, options.model, options.model_version)
    PredictUser.bodies = itertools.cycle(read_bodies(Path(options.instances), options.rows))
    PredictUser.rows = options.rows
    if options.rate:
        PredictUser.wait_time = constant_throughput(options.rate)


class PredictUser(FastHttpUser):
    """Sends one prediction after the other."""

    path: str
    bodies: Iterator[str]
    rows: int

    @task
    def predict(self) -> None:
        """One request, and a look at its answer."""
        headers = {"content-type": "application/json"}
        body = next(self.bodies)
        with self.client.post(
            self.path, data=body, headers=headers, name=":predict", catch_response=True
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}: {answer.text[:200]}")
            elif len(answer.json().get("predictions", ())) != self.rows:
                answer.failure(f"expected {self.rows} predictions: {answer.text[:200]}")


def read_bodies(file: Path, rows: int) -> list[str]:
    """The request bodies for a file of instances, `rows` in each; the last few may begin anew."""
    instances = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    if not instances:
        raise SystemExit(f"{file} holds no instances")
    endless = itertools.cycle(instances)
    count = max(1, len(instances) // rows)
    return [json.dumps({"instances": list(itertools.islice(endless, rows))}) for _ in range(count)]


def _path(project: str, model: str, version: str) -> str:
    name = f"projects/{project}/models/{model}"
    return f"/v1/{name}/versions/{version}:predict" if version else f"/v1/{name}:predict"
