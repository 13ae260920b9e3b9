"""Drives `:predict` with a load of a chosen shape and judges what came of it. In any folder:

    locust -f loadtests/locustfile.py --headless --host http://127.0.0.1:8080 \\
        --model iris --instances rows.jsonl --shape burst --rate 200 --report out/

`python -m loadtests --help` lists all options. The file holds one JSON instance per line, as for
`pilotlight predict --json-instances`. Each request takes the next `--rows` of them. When the file begins
anew, the first float of each instance is changed by a millionth, so that no two requests are alike.

The load is open: a request is due at a time that the shape alone decides, not when the one before it was
answered. `--users` (128) is the most that may be in flight. A request that finds all users busy is sent
later, but its latency counts from when it was due: a slow server cannot hide by slowing its own test down.

At the end `out/` holds `report.png`, `report.txt` and the recorded files (see `loadtests/report.py`). The
exit code is 1 when the objective of the shape was missed: a request failed, a wake-up or the p99 took longer
than allowed, or a version that should have slept did not. `loadtests/shapes.py` has the objective of each
shape. Node counts come from the server's `/nodes`; if it does not report them, the report says so.
"""

from __future__ import annotations

import argparse
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

from geventhttpclient.client import HTTPClientPool
from locust import FastHttpUser, LoadTestShape, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import LocalRunner

# Locust knows the folder of this file at most, not the one that the package is in.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from loadtests.load_run import ANSWER_TIMEOUT_SECONDS, LoadRun
from loadtests.node_counts import auth_headers
from loadtests.options import add_options, read_run_settings
from loadtests.payloads import InstanceTemplate, find_fault, read_rows
from loadtests.run_record import RequestRecord, RunSettings

_USERS_PER_SECOND = 100
_SAMPLE_SECONDS = 1.0
_HEADERS = {"content-type": "application/json", **auth_headers()}


class CurrentRun:
    """The run, its settings and its threads: locust itself makes users and shape, which share them here."""

    run: RunSettings
    rows: list[InstanceTemplate]
    folder: Path
    load: LoadRun | None = None
    sampler: threading.Thread
    stopped: threading.Event
    report = ""


class PredictUser(FastHttpUser):
    """Takes the next request that nobody has taken, waits until it is due, and sends it."""

    @task
    def predict(self) -> None:
        load = CurrentRun.load
        taken = load.take_request() if load else None
        if load is None or taken is None:
            raise StopUser
        due, body = taken
        free = load.elapsed_seconds()
        # Locust has made this, threads and sockets cooperative: only this user waits.
        time.sleep(max(0.0, due - free))
        sent = load.elapsed_seconds()
        with self.client.post(
            f"/v1/{CurrentRun.run.target}:predict",
            data=body,
            headers=_HEADERS,
            name=":predict",
            catch_response=True,
        ) as answer:
            done = load.elapsed_seconds()
            status, content = answer.status_code, answer.content or b""
            failure = (
                find_fault(status, content, CurrentRun.run.rows) if status else f"no answer: {answer.error!r}"
            )
            request = RequestRecord(due, free, sent, done, failure)
            answer.request_meta["response_time"] = request.latency * 1000
            if failure:
                answer.failure(failure)
            load.record_request(request)


class PlannedShape(LoadTestShape):
    """All users, from the start to the end of the plan: the shape is in the due times of their requests."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """How many users there should be, and how many may start per second; None at the end."""
        over = CurrentRun.load is not None and CurrentRun.load.is_over
        return None if over else (CurrentRun.run.users, _USERS_PER_SECOND)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _prepare_run(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if options is None or not isinstance(environment.runner, LocalRunner):
        raise SystemExit("The load comes from one process: leave out --processes, --master and --worker")
    try:
        CurrentRun.run = read_run_settings(options, environment.host)
        CurrentRun.rows = read_rows(Path(options.instances))
        CurrentRun.folder = Path(options.report)
        CurrentRun.folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SystemExit(f"Cannot start the load test: {error}") from error
    # One pool, the last used connection first: as many connections as requests in flight, not as users.
    PredictUser.client_pool = HTTPClientPool(
        concurrency=CurrentRun.run.users,
        network_timeout=ANSWER_TIMEOUT_SECONDS,
        connection_timeout=ANSWER_TIMEOUT_SECONDS,
        ssl_context_factory=ssl.create_default_context,
    )
    # Until a run has passed.
    environment.process_exit_code = 1


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _start_run(**_: Any) -> None:
    # Users and the first count of nodes come before the first request is due.
    lead = CurrentRun.run.users / _USERS_PER_SECOND + 1
    CurrentRun.load = LoadRun(CurrentRun.run, CurrentRun.rows, CurrentRun.folder, lead=lead)
    CurrentRun.stopped = threading.Event()
    CurrentRun.sampler = threading.Thread(
        target=_sample_nodes, args=(CurrentRun.load, CurrentRun.stopped), daemon=True
    )
    CurrentRun.sampler.start()


def _sample_nodes(load: LoadRun, stopped: threading.Event) -> None:
    # Between whole seconds, when stages begin and end.
    while not stopped.wait(
        _SAMPLE_SECONDS - (load.elapsed_seconds() + _SAMPLE_SECONDS / 2) % _SAMPLE_SECONDS
    ):
        load.sample_nodes()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _finish_run(environment: Environment, **_: Any) -> None:
    if CurrentRun.load:
        CurrentRun.stopped.set()
        CurrentRun.sampler.join()
        load, CurrentRun.load = CurrentRun.load, None
        summary, CurrentRun.report = load.finish()
        environment.process_exit_code = 0 if summary.passed else 1


@events.quit.add_listener  # type: ignore[untyped-decorator]
def _print_report(**_: Any) -> None:
    # After locust's own tables, where it is not overlooked.
    if CurrentRun.report:
        print(f"\n{CurrentRun.report}\n\nwritten to {CurrentRun.folder}")
