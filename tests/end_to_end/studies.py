"""Studies through a server, and clients that lose none of their trials while it is killed.

Both the short and the long form of the test use it.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.bounds import HANG_SECONDS
from tests.server import Reply, Server, running_server, until

LOCATION = "projects/tests/locations/us-central1"
CONFIG: dict[str, Any] = {
    "metrics": [{"metric": "loss", "goal": "MINIMIZE"}],
    "parameters": [
        {"parameter": "x", "type": "DOUBLE", "doubleValueSpec": {"minValue": -5, "maxValue": 10}},
        {"parameter": "y", "type": "DOUBLE", "doubleValueSpec": {"minValue": 0, "maxValue": 15}},
    ],
}


def create_study(server: Server, study: str, **config: Any) -> str:
    """The full name of a new study."""
    name = f"{LOCATION}/studies/{study}"
    body = {"studyConfig": {**CONFIG, **config}}
    reply = server.call("POST", f"{LOCATION}/studies?studyId={study}", json=body)
    assert (reply.status, reply.json["name"]) == (200, name), reply.json
    return name


def suggest(server: Server, study: str, client: str, count: int = 1) -> list[dict[str, Any]]:
    """The trials that a client gets."""
    body = {"clientId": client, "suggestionCount": count}
    reply = server.call("POST", f"{study}/trials:suggest", json=body)
    assert reply.status == 200, reply.json
    assert reply.json["done"]
    trials: list[dict[str, Any]] = reply.json["response"]["trials"]
    return trials


def measurement(loss: float, step: int = 1) -> dict[str, Any]:
    return {"stepCount": str(step), "metrics": [{"metric": "loss", "value": loss}]}


def read_point(trial: dict[str, Any]) -> dict[str, Any]:
    """The values of a trial's parameters by name."""
    return {
        one["parameter"]: next(one[key] for key in ("floatValue", "intValue", "stringValue") if key in one)
        for one in trial["parameters"]
    }


@dataclass
class Search:
    """Clients that run trials while the server is killed, and what they were told."""

    root: Path
    study: str = f"{LOCATION}/studies/hunted"
    server: Server = field(init=False)
    points: dict[str, dict[str, Any]] = field(default_factory=dict)
    completed: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    last_kill: threading.Event = field(default_factory=threading.Event)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Start a server on the state of the one before."""
        self.server = self.stack.enter_context(running_server(self.root / "state", "--pilots", "off"))

    def kill(self) -> None:
        self.server.kill()
        until(lambda: not self.server.processes(), "its processes are gone too")
        self.start()

    def run_client(self, client: str, trials: int) -> None:
        """Complete so many trials, and more until the last kill."""
        for number in itertools.count():
            if number >= trials and self.last_kill.is_set():
                return
            asked = {"clientId": client, "suggestionCount": 1}
            (trial,) = self._insist(f"{self.study}/trials:suggest", asked)["response"]["trials"]
            self._check_trial(trial)
            loss = random.random()
            self._insist(f"{trial['name']}:addMeasurement", {"measurement": measurement(loss)})
            time.sleep(0.02)  # the training
            ended = self._insist(f"{trial['name']}:complete", {"finalMeasurement": measurement(loss, 2)})
            self.completed[trial["name"]] = ended

    def _check_trial(self, trial: dict[str, Any]) -> None:
        name, point = trial["name"], read_point(trial)
        if name in self.completed:
            self.wrong.append(f"{name} was handed out again after its end")
        if self.points.setdefault(name, point) != point:
            self.wrong.append(f"{name} has other parameters than before: {point}, {self.points[name]}")

    def _insist(self, path: str, body: dict[str, Any]) -> Any:
        """Ask until there is an answer, with whatever server there is; each has its time."""
        asked, deadline = None, 0.0
        while True:
            if self.server is not asked:
                asked, deadline = self.server, time.monotonic() + HANG_SECONDS
            try:
                response = httpx.post(f"{self.server.url}/v1/{path}", json=body, timeout=HANG_SECONDS)
                if response.status_code == 200:
                    return response.json()
                reply = Reply(response.status_code, response.json(), response.headers)
                assert reply.status == 503, reply.json
            except httpx.TransportError:
                assert time.monotonic() < deadline
            time.sleep(0.02)

    def check(self) -> None:
        """Numbers without gaps, each trial as its client was told, and nothing left at work."""
        assert not self.wrong
        listed = self.server.call("GET", f"{self.study}/trials").json["trials"]
        assert [trial["name"] for trial in listed] == [
            f"{self.study}/trials/{number}" for number in range(1, len(listed) + 1)
        ]
        assert {trial["name"]: read_point(trial) for trial in listed} == self.points
        assert {trial["name"]: trial for trial in listed} == self.completed


def hunt(root: Path, *, kills: int, clients: int, trials: int) -> Search:
    """Kill the server at random moments while clients work; what came of it."""
    search = Search(root)
    with search.stack:
        search.start()
        create_study(search.server, "hunted")
        workers = [
            threading.Thread(target=_run_noting_errors, args=(search, f"client {number}", trials))
            for number in range(clients)
        ]
        for worker in workers:
            worker.start()
        for _ in range(kills):
            time.sleep(random.uniform(0, 1.5))  # that is the moment, not a wait
            search.kill()
        search.last_kill.set()
        for worker in workers:
            worker.join()
        search.check()
        assert search.server.stop() == 0
    return search


def _run_noting_errors(search: Search, client: str, trials: int) -> None:
    try:
        search.run_client(client, trials)
    except Exception as error:
        search.wrong.append(f"{client}: {error!r}")
